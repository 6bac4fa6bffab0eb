"""`runtime.shell` and `runtime.resource`."""

import os
import signal
import time

import pytest

from client import Run


@pytest.fixture
def shell(kernel):
    """Runs a command in the kernel; stdout, stderr, returncode and cwd."""

    def run(command, **options):
        told = kernel.run(
            f"r = runtime.shell.run({command!r}, **{options!r}); r.stdout, r.stderr, r.returncode, r.cwd"
        )
        assert told.result, told.events
        return eval(told.result)

    return run


def test_runtime_is_offered_and_survives_a_reset(kernel):
    assert kernel.run("runtime").done["globals_count"] == 0
    assert kernel.run("runtime = 5; runtime").result == "5"
    assert kernel.value("variables") == []
    kernel.value("reset")
    assert kernel.run("runtime").result.startswith("<runtime")
    kernel.run("%reset -f")
    assert kernel.run("runtime").result.startswith("<runtime")


def test_a_command_has_output_and_a_code(kernel, shell):
    where = kernel.run("runtime.shell.cwd").result
    assert shell("echo out; echo err >&2; exit 3") == ("out\n", "err\n", 3, eval(where))
    assert shell("cat; echo $((1 + 1))", stdin="given\n")[0] == "given\n2\n"
    assert shell("wc -c", stdin=b"\xff\x00")[0].strip() == "2"
    assert shell("cat")[0] == ""
    assert shell("printf '\\xff'")[0] == "\ufffd"
    assert shell("kill -9 $$")[2] == -9
    assert shell("if")[2] == 2
    assert shell("no_such_command_at_all")[2] == 127
    assert shell("echo a > /dev/stderr; echo b > /dev/stderr")[1] == "a\nb\n"


def test_cd_and_export_persist_and_are_not_the_processes(kernel, shell, tmp_path):
    inner = tmp_path / "a b\nc"
    inner.mkdir()
    kernel.run("import os; before = os.getcwd()")
    assert shell(f"cd '{inner}'; export GREETING=$'hello\\nyou'; local_only=1")[3] == str(inner)
    assert shell('echo "$GREETING"; pwd; echo $local_only; echo $SHLVL')[0] == (
        f"hello\nyou\n{inner}\n\n" + shell("echo $SHLVL")[0]
    )
    assert shell("cd ..; cd - >/dev/null; cd ..; pwd")[0] == f"{tmp_path}\n"
    assert shell("unset GREETING; echo $GREETING")[0] == "\n"
    assert shell("echo ${GREETING-unset}")[0] == "unset\n"
    assert kernel.run("os.getcwd() == before, 'GREETING' in os.environ").result == "(True, False)"


@pytest.mark.parametrize(
    "ending",
    [
        "exit 0",
        "trap 'true' EXIT",
        "set -e; false",
        "set -u; echo $nothing_at_all",
        "set -x",
        "f() { return 4; }; f",
        "",
    ],
)
def test_the_state_is_kept_however_a_command_ends(shell, tmp_path, ending):
    out, err, _, cwd = shell(f"cd {tmp_path}; export X=1; {ending}")
    assert cwd == str(tmp_path) and "__osctl" not in out + err
    assert shell("echo $X")[0] == "1\n"


def test_cd_changes_nothing_when_it_fails(kernel, shell, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    kernel.run(f"runtime.shell.cd({str(tmp_path)!r})")
    assert kernel.run("runtime.shell.cd('missing')").error["type"] == "FileNotFoundError"
    assert kernel.run("runtime.shell.cd('file')").error["type"] == "NotADirectoryError"
    assert kernel.run("runtime.shell.cwd").result == repr(str(tmp_path))
    kernel.run("runtime.shell.cd('folder')")
    assert shell("pwd")[0] == f"{tmp_path}/folder\n"
    os.rmdir(tmp_path / "folder")
    assert kernel.run("runtime.shell.run('true')").error["type"] == "FileNotFoundError"
    kernel.run("runtime.shell.cd('/')")
    assert shell("pwd")[0] == "/\n"


def test_variables_of_the_environment_are_set_and_unset(kernel, shell):
    kernel.run("runtime.shell.env('A', 'x y')")
    assert shell("echo $A")[0] == "x y\n"
    kernel.run("runtime.shell.env('A', None); runtime.shell.env('B', None)")
    assert shell("echo ${A-unset}")[0] == "unset\n"
    for key in ("''", "'a=b'", "'1a'", "'a b'", "5", "'a\\n'", "'ü'"):
        assert kernel.run(f"runtime.shell.env({key}, 'x')").error["type"] == "ValueError", key
    assert kernel.run("runtime.shell.env('A', 'a\\0b')").error["type"] == "ValueError"
    assert kernel.run("'PATH' in runtime.shell.environment").result == "True"


def test_a_long_command_and_much_output_pass(shell):
    assert shell("cat <<'E'\n" + "x" * 3_000_000 + "\nE")[0] == "x" * 3_000_000 + "\n"


def test_a_timed_out_command_is_killed_with_its_group(shell, tmp_path):
    begun = time.monotonic()
    out, _, code, _ = shell(f"echo begun; sleep 100 & echo $! > {tmp_path}/pid; wait", timeout=0.5)
    assert (out, code) == ("begun\n", -1) and time.monotonic() - begun < 10
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert shell("echo next")[0] == "next\n"


def test_a_child_in_the_background_neither_holds_up_the_end_nor_is_ended(shell, tmp_path):
    code = f"(for i in $(seq 1 200000); do echo line $i; done; echo done > {tmp_path}/done; sleep 100) & echo $!"
    begun = time.monotonic()
    pid = int(shell(code)[0].split("\n", 1)[0].split()[-1])
    assert time.monotonic() - begun < 5
    while not (tmp_path / "done").exists():
        assert is_running(pid)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


def test_an_interrupt_kills_the_commands_group(kernel, tmp_path):
    run = kernel.begin(
        f"runtime.shell.run('sleep 100 & echo $! > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/told; wait')"
    )
    while not (tmp_path / "told").exists():
        time.sleep(0.01)
    assert kernel.interrupted(run).status == "interrupted"
    assert not is_running(int((tmp_path / "told").read_text()))


def is_running(pid):
    """Killed processes may stay for a moment, as zombies or dying."""
    for _ in range(500):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return False
        except FileNotFoundError:
            return False
        with open(f"/proc/{pid}/status") as status:
            if "SigPnd:\t0000000000000000" in status.read():
                return True
        time.sleep(0.01)
    return True


# Resources.

MAKE = """
log = []
class Thing:
    def __init__(self): log.append('made'); self.alive = True
r = (runtime.resource(Thing).on_connect(lambda t: log.append('connected'))
     .validate(lambda t: t.alive).teardown(lambda t: log.append('gone')))
"""


def test_a_resource_is_made_once_and_again_when_it_is_no_longer_valid(kernel):
    assert kernel.run(MAKE).done["resources_count"] == 0
    assert kernel.run("t = r.get(); r.get() is t, log").result == "(True, ['made', 'connected'])"
    assert kernel.value("probe") and kernel.request("probe")["resources_count"] == 1
    kernel.run("log.clear(); t.alive = False")
    assert kernel.run("r.get() is t, log").result == "(False, ['gone', 'made', 'connected'])"
    kernel.run("log.clear(); r.validate(lambda t: 1 / 0)")
    assert kernel.run("r.get(); log").result == "['gone', 'made', 'connected']"
    run = kernel.run("log.clear(); r.invalidate(); r.invalidate(); log")
    assert (run.result, run.done["resources_count"]) == ("['gone']", 0)
    assert kernel.run("r").result == "<resource Thing, absent>"


def test_making_is_retried_with_growing_pauses(kernel):
    kernel.run(
        "import time\ntimes = []\n"
        "def make():\n    times.append(time.monotonic())\n    if len(times) < 4: raise OSError('not yet')\n    return 'it'\n"
    )
    run = kernel.run("runtime.resource(make).retry(max_attempts=2, base_delay_s=0).get()")
    assert run.error["type"] == "OSError" and "2 attempts" in run.traceback
    kernel.run("times.clear()")
    assert kernel.run("runtime.resource(make).retry(4, 0.02).get()").result == "'it'"
    first, second, third = eval(kernel.run("[b - a for a, b in zip(times, times[1:])]").result)
    assert first >= 0.02 and second >= 0.04 and third >= 0.08
    assert kernel.run("times.clear(); runtime.resource(make).get()").error["type"] == "OSError"
    assert kernel.run("len(times)").result == "1"


def test_an_object_that_fails_to_connect_is_torn_down(kernel):
    run = kernel.run(MAKE + "r.on_connect(lambda t: 1 / 0).retry(2, 0).get()")
    assert run.error["type"] == "ZeroDivisionError"
    assert kernel.run("log").result == "['made', 'gone', 'made', 'gone']"


def test_a_reset_tears_down_in_reverse_order_whatever_fails(kernel):
    kernel.run(
        "def gone(n):\n    print('gone', n)\n    if n == 2: raise OSError('broken')\n"
        "for n in (1, 2, 3): runtime.resource(lambda n=n: n).teardown(gone).get()\n"
        "import builtins; builtins.kept = runtime.resource(lambda: 'kept', name='k'); kept.get()"
    )
    kernel.send({"type": "reset", "id": "r"})
    run = kernel.follow(Run(), until="reply")
    assert run.stdout == "gone 3\ngone 2\ngone 1\n" and "OSError: broken" in run.stderr
    (reply,) = run.of("reply")
    assert (reply["error"], reply["resources_count"], reply["globals_count"]) == (None, 0, 0)
    assert kernel.run("kept.get()").done["resources_count"] == 1


def test_an_interrupted_teardown_still_leaves_a_clean_namespace(kernel):
    kernel.run(
        "def gone(n):\n    print('gone', n)\n    while n == 2: pass\n"
        "for n in (1, 2): runtime.resource(lambda n=n: n).teardown(gone).get()"
    )
    kernel.send({"type": "reset", "id": "r"})
    kernel.wait_for("gone 2")
    kernel.interrupt()
    reply = kernel.frame()
    assert reply["error"]["type"] == "KeyboardInterrupt"
    assert (reply["resources_count"], reply["globals_count"]) == (0, 0)
    assert kernel.run("1+1").result == "2"


def test_the_same_name_is_the_same_resource(kernel):
    assert (
        kernel.run(
            "a = runtime.resource(lambda: 1, name='db'); a.get()\nb = runtime.resource(lambda: 2, name='db')\n"
            "first = b.get(); b.invalidate(); a is b, first, b.get()"
        ).result
        == "(True, 1, 2)"
    )
    assert kernel.run("runtime.resource(5)").error["type"] == "TypeError"


def test_a_resource_is_pickled_by_its_recipe(kernel):
    kernel.run(
        "import pickle, threading\nr = runtime.resource(threading.Lock, name='l').retry(5, 0.1); lock = r.get()"
    )
    assert kernel.run("s = pickle.loads(pickle.dumps(r)); s.get() is not lock, s").result == (
        "(True, <resource l, live>)"
    )
    assert kernel.run("1").done["resources_count"] == 2


def test_a_forked_child_makes_its_own_object(kernel):
    run = kernel.run(
        MAKE + "import os\nt = r.get()\npid = os.fork()\n"
        "if pid == 0: print(r.get() is t, log[2:]); os._exit(0)\nos.waitpid(pid, 0)[1]"
    )
    assert run.stdout == "False ['made', 'connected']\n" and run.result == "0"


def test_resources_are_torn_down_at_the_kernels_end_and_not_at_a_childs(kernel, tmp_path):
    gone = tmp_path / "gone"
    kernel.run(
        f"import pathlib; runtime.resource(pathlib.Path({str(gone)!r}).exists).teardown(lambda _: pathlib.Path({str(gone)!r}).touch()).get()"
    )
    run = kernel.run(
        "import multiprocessing, time\np = multiprocessing.get_context('fork').Process(target=time.sleep, args=(100,))\n"
        "p.start(); p.terminate(); p.join(); p.exitcode"
    )
    assert run.result == "-15" and not gone.exists()
    os.kill(kernel.pid, signal.SIGTERM)
    assert kernel.process.wait(30) == 143
    assert gone.exists()
