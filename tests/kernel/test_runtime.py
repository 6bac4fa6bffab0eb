"""`runtime.resource`; the tests of `runtime.shell` need a companion and are elsewhere."""

import os
import signal

from client import Run


def test_runtime_is_offered_and_survives_a_reset(kernel):
    assert kernel.run("runtime").done["globals_count"] == 0
    assert kernel.run("runtime = 5; runtime").result == "5"
    assert kernel.value("variables") == []
    kernel.value("reset")
    assert kernel.run("runtime").result.startswith("<runtime")
    kernel.run("%reset -f")
    assert kernel.run("runtime").result.startswith("<runtime")


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


def test_a_reset_tears_down_in_reverse_order_despite_failures(kernel):
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


def test_resources_are_torn_down_at_the_kernels_end_and_not_at_a_childs(start, tmp_path):
    kernel = start()
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
