"""Forks, children, and death."""

import signal

import pytest

from client import Gone


def test_a_forked_child_sends_no_frames(kernel):
    run = kernel.run(
        "import os\npid = os.fork()\n"
        "if pid == 0:\n    print('child'); display('unseen')\n"
        "else:\n    _, status = os.waitpid(pid, 0)\n    print('parent', os.waitstatus_to_exitcode(status))\n"
    )
    assert sorted(run.stdout.split("\n")) == ["", "child", "parent 0"]
    assert not run.of("display")
    assert kernel.probe()["pid"] == kernel.pid


def test_a_child_does_not_wait_for_the_lock_of_a_sending_thread(kernel):
    kernel.run(
        "import gc, os, signal, threading, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "wire = next(o for o in gc.get_objects() if type(o).__name__ == 'Wire')\n"
        "held, free = threading.Event(), threading.Event()\n"
        "def speak():\n    with wire._lock:\n        held.set()\n        free.wait()\n"
    )
    run = kernel.run(
        "thread = threading.Thread(target=speak)\nthread.start()\nheld.wait()\npid = os.fork()\n"
        # The child has no thread that could release the lock.
        "if pid == 0:\n    signal.alarm(20)\n    display('unseen')\n    os._exit(0)\n"
        "free.set()\nthread.join()\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert run.status == "completed"
    assert kernel.run("code").result == "0"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("1/0", 1),
        ("exit(3)", 3),
        ("os._exit(5)", 5),
        ("import ctypes; ctypes.CDLL(None).printf(b'c text')", 0),
    ],
)
def test_the_end_of_a_child_does_not_affect_the_cell(kernel, code, status):
    run = kernel.run(
        f"import os\npid = os.fork()\nif pid == 0:\n    {code}\n"
        "else:\n    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert run.status == "completed"
    assert kernel.run("code").result == str(status)


def test_a_child_forked_inside_the_loop_ends_too(kernel):
    run = kernel.run(
        "import os, asyncio\nawait asyncio.sleep(0)\npid = os.fork()\n"
        "if pid: code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert run.status == "completed"
    assert kernel.run("code").result == "0"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_works(kernel, method):
    run = kernel.run(
        "import multiprocessing, math\n"
        f"with multiprocessing.get_context('{method}').Pool(2) as pool: r = pool.map(math.sqrt, [4, 9])\nr"
    )
    assert run.result == "[2.0, 3.0]", run.events


def test_forked_workers_run_functions_of_the_cell(kernel):
    run = kernel.run(
        "import multiprocessing\ndef double(x): return 2 * x\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: r = pool.map(double, [1, 2])\nr"
    )
    assert run.result == "[2, 4]"


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import os; os._exit(3)", 3),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_a_kernel_that_dies_closes_the_connection(start, code, ended):
    kernel = start()
    with pytest.raises(Gone):
        kernel.run(code)
    assert kernel.process.wait(30) == ended


def test_the_end_of_a_kernel_is_detected_despite_a_running_child(kernel):
    with pytest.raises(Gone):
        kernel.run("import os, time\nif os.fork() == 0: time.sleep(5)\nelse: os._exit(3)")


def test_the_users_variables_apply_before_the_code_and_leave_its_own_changes(kernel):
    def show(**options):
        code = "import os; [os.environ.get(name) for name in ('HOME', 'KEY', 'OTHER')]"
        return kernel.run(code, **options).result

    home = kernel.run("import os; os.environ['HOME']").result
    assert show(environment={"KEY": "1", "HOME": "/user"}) == "['/user', '1', None]"
    kernel.run("os.environ['KEY'] = 'own'")
    assert show() == "['/user', 'own', None]"
    assert show(environment={"KEY": "1", "HOME": "/user", "OTHER": "2"}) == "['/user', 'own', '2']"
    assert show(environment={"KEY": "3", "OTHER": "2"}) == f"[{home}, '3', '2']"
    # A query applies them, too, and commands of the code inherit them.
    kernel.value("variables", environment={"OTHER": "4"})
    assert show() == f"[{home}, None, '4']"
    assert kernel.run("import subprocess; subprocess.getoutput('echo $OTHER')").result == "'4'"


def test_invalid_variables_are_refused_and_change_nothing(kernel):
    for invalid in ([], "KEY=1", {"KEY": 1}, {"KEY": None}):
        refused = kernel.ask({"type": "execute", "id": "e", "code": "1", "environment": invalid})
        assert refused["type"] == "refused", refused
    assert kernel.run("import os; 'KEY' in os.environ").result == "False"
