"""SIGINT reaches user code and nothing else."""

import select
import time

import pytest


@pytest.mark.parametrize(
    "code",
    [
        "import time; print('begun'); time.sleep(100)",
        "print('begun')\nwhile True: pass",
        "import asyncio; print('begun'); await asyncio.sleep(100)",
        "import asyncio; print('begun')\nwhile True: await asyncio.sleep(0)",
        "import threading; print('begun'); threading.Lock().acquire() and (l := threading.Lock()).acquire() and l.acquire()",
        "!echo begun; sleep 100",
        "import subprocess; print('begun'); subprocess.run(['sleep', '100'])",
        "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print('begun'); s.accept()",
        "import select; print('begun'); select.select([], [], [])",
        "import selectors, os\nr, w = os.pipe(); s = selectors.DefaultSelector(); s.register(r, 1); print('begun'); s.select()",
        "import os; r, w = os.pipe(); print('begun'); os.read(r, 1)",
        "import queue; print('begun'); queue.Queue().get()",
        "import queue; print('begun'); queue.Queue().get(timeout=100)",
        "import threading; e = threading.Event(); t = threading.Thread(target=e.wait, daemon=True); t.start(); print('begun'); t.join()",
        "import threading; e = threading.Event(); print('begun'); e.wait()",
        "import concurrent.futures as c; print('begun'); c.Future().result()",
        "import asyncio; print('begun'); await asyncio.Event().wait()",
        "import asyncio; print('begun'); await asyncio.gather(asyncio.sleep(100), asyncio.sleep(100))",
        "import asyncio; print('begun'); asyncio.run(asyncio.sleep(100))",
        "import asyncio; print('begun'); p = await asyncio.create_subprocess_exec('sleep', '100'); await p.wait()",
        "import subprocess; p = subprocess.Popen(['sleep', '100']); print('begun'); p.communicate()",
        "import os; pid = os.posix_spawnp('sleep', ['sleep', '100'], os.environ); print('begun'); os.waitpid(pid, 0)",
        "import multiprocessing as m; q = m.get_context('fork').Queue(); print('begun'); q.get()",
        "import signal; print('begun'); signal.pause()",
        "import fcntl, tempfile\nf = tempfile.TemporaryFile(); print('begun')\nwhile True: fcntl.flock(f, fcntl.LOCK_EX)",
        "import subprocess; print('begun'); subprocess.run('sleep 100', shell=True)",
        "print('begun')\nsum(x for x in iter(int, 1))",
        "print('begun')\nwhile True:\n    try: 1/0\n    except Exception: pass",
    ],
)
def test_an_interrupt_ends_the_code_and_keeps_the_state(kernel, code):
    kernel.run("x = 41")
    run = kernel.follow(kernel.begin(code), until="begun")
    kernel.interrupted(run)
    assert run.status == "interrupted" and run.error["type"] == "KeyboardInterrupt"
    assert kernel.probe() == {"pid": kernel.pid}
    assert kernel.run("x + 1").result == "42"


@pytest.mark.parametrize(
    "code",
    [
        # C code does not check for signals, and a system call is not ended by a signal with a
        # handler:
        "import ctypes; libc = ctypes.CDLL(None); print('begun'); left = libc.sleep(2)\nwhile left: left = libc.sleep(left)",
        # … neither is one long step of the interpreter.
        "print('begun'); n = sum(range(10**8))",
        # User code may replace the handler.
        "import time\nprint('begun')\nend = time.monotonic() + 1\nwhile time.monotonic() < end:\n    try: time.sleep(0.1)\n    except BaseException: pass",
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN); print('begun'); time.sleep(1)",
    ],
)
def test_code_that_no_interrupt_reaches_completes_and_the_probe_waits(kernel, code):
    run = kernel.follow(kernel.begin(code), until="begun")
    kernel.interrupt()
    kernel.send({"type": "probe", "id": "probe"})
    kernel.follow(run)
    assert run.status in ("completed", "interrupted")
    assert kernel.frame()["value"] == {"pid": kernel.pid}
    assert kernel.run("1 + 1").result == "2"


def test_a_sleep_of_c_is_cut_short_by_an_interrupt_that_is_repeated(kernel):
    """A signal just before the call does not end the call: nothing checks for it in between."""
    run = kernel.begin("import ctypes; print('begun'); ctypes.CDLL(None).sleep(100)")
    kernel.follow(run, until="begun")
    while True:
        kernel.interrupt()
        if select.select([kernel.conn], [], [], 0.2)[0]:
            break
    assert kernel.follow(run).status == "interrupted"


def strike_a_busy_loop(kernel, times):
    """Sends signals at moments 2 µs apart."""
    for moment in range(times):
        run = kernel.begin("print('begun')\nwhile True: await asyncio.sleep(0)")
        kernel.follow(run, until="begun")
        time.sleep(moment * 2e-6)
        assert kernel.interrupted(run).status == "interrupted"


def test_no_moment_of_a_busy_loop_loses_an_interrupt(kernel):
    kernel.run("import asyncio")
    strike_a_busy_loop(kernel, 400)


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize(
    ("code", "moment"),
    [
        ("asyncio.run(main())", "loop is not None"),
        ("asyncio.run(main())", "loop is None"),
        ("await main()", "loop is None"),
    ],
)
def test_an_interrupt_at_the_start_or_end_of_a_loop_leaves_it_intact(kernel, code, moment, order):
    kernel.run(f"""
import asyncio, signal
from asyncio import base_events, events
async def main():
    await asyncio.sleep(0)
    return 7
def tell(loop):
    global fired
    is_due = not fired and ({moment})
    fired = fired or is_due
    if is_due and {order == "first"}:
        signal.raise_signal(signal.SIGINT)
    known(loop)
    if is_due and {order == "last"}:
        signal.raise_signal(signal.SIGINT)
tell.__code__ = tell.__code__.replace(co_filename=base_events.__file__)
known, fired = events._set_running_loop, True
events._set_running_loop = tell
""")
    run = kernel.run(f"fired = False; {code}")
    assert run.status == "interrupted" or (run.status, run.result) == ("completed", "7")
    assert kernel.run("fired").result == "True"
    assert kernel.run("asyncio.run(main())").result == "7"
    assert kernel.run("await main()").result == "7"


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.get_running_loop().call_soon(spin); await asyncio.sleep(100)",
        "loop = asyncio.new_event_loop(); loop.call_soon(spin); loop.run_forever()",
        "asyncio.new_event_loop().run_until_complete(asyncio.sleep(100, print('begun')))",
        "print('begun'); asyncio.new_event_loop().run_forever()",
        "async def main(): spin()\nasyncio.run(main())",
        "import time; print('begun'); asyncio.get_running_loop().call_soon(time.sleep, 100); await asyncio.sleep(100)",
        "import time; loop = asyncio.new_event_loop(); loop.call_soon(print, 'begun'); loop.call_soon(time.sleep, 100); loop.run_forever()",
    ],
)
def test_code_in_a_loop_is_interrupted_there(kernel, code):
    kernel.run("import asyncio\ndef spin():\n    print('begun')\n    while True: pass")
    run = kernel.follow(kernel.begin(code), until="begun")
    assert kernel.interrupted(run).status == "interrupted"
    assert kernel.run("await asyncio.sleep(0, 3)").result == "3"
    assert kernel.run("asyncio.run(asyncio.sleep(0, 4))").result == "4"


def test_no_moment_of_a_loop_that_a_package_has_patched_loses_an_interrupt(kernel):
    kernel.run("""
import asyncio
from asyncio import base_events, tasks
def run_forever(self):
    self._run_forever_setup()
    try:
        while True:
            self._run_once()
            if self._stopping:
                break
    finally:
        self._run_forever_cleanup()
def make(loop, coro, **options):
    return tasks._PyTask(coro, loop=loop, **options)
await asyncio.sleep(0)
asyncio.SelectorEventLoop.run_forever = run_forever
asyncio.get_running_loop().set_task_factory(make)
""")
    strike_a_busy_loop(kernel, 200)


@pytest.mark.parametrize(
    "trigger", ["signal.raise_signal(2)", "loop.call_soon(signal.raise_signal, 2)"]
)
def test_a_cell_interrupted_before_its_first_step_does_not_run(kernel, trigger):
    kernel.run(f"""
import asyncio, signal
await asyncio.sleep(0)
loop, ran = asyncio.get_running_loop(), []
known = loop.create_task
def create(*arguments, **options):
    loop.create_task = known
    {trigger}
    return known(*arguments, **options)
loop.create_task = create
""")
    run = kernel.run("ran.append(1); await asyncio.sleep(0)")
    assert run.status == "interrupted"
    assert kernel.run("await asyncio.sleep(0)\nran").result == "[]"


def test_an_interrupted_fork_keeps_the_signal_mask_and_holds_no_lock(kernel):
    code = """
import logging, os, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
fired = 0
print('begun')
for _ in range(300):
    try:
        if not os.fork():
            os._exit(0)
        os.wait()
    except KeyboardInterrupt:
        fired += 1
"""
    run = kernel.follow(kernel.begin(code), until="begun")
    kernel.interrupted(run, again_s=0.001)
    assert "ignored" not in run.stderr
    held = kernel.run("signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR1}")
    assert held.result == "True"
    taken = kernel.run(
        "t = threading.Thread(target=logging.getLogger, args=['a.b'], daemon=True); t.start(); t.join(9); t.is_alive()"
    )
    assert taken.result == "False"


def test_an_interrupt_reaches_the_main_thread_only(kernel):
    kernel.run(
        "import threading, time\ngo = True\nn = 0\ndef count():\n    global n\n    while go: n += 1; time.sleep(0.001)\n"
        "t = threading.Thread(target=count, daemon=True); t.start()"
    )
    run = kernel.follow(kernel.begin("print('begun'); t.join()"), until="begun")
    assert kernel.interrupted(run).status == "interrupted"
    assert (
        kernel.run("before = n; time.sleep(0.1); go = False; t.join(); n > before").result == "True"
    )


def test_a_late_interrupt_does_not_end_a_probe(kernel):
    for _ in range(50):
        kernel.send({"type": "probe", "id": "probe"})
        kernel.interrupt()
        assert kernel.frame()["error"] is None


def test_an_interrupt_of_an_idle_kernel_has_no_effect(kernel):
    kernel.run("x = 1")
    for _ in range(20):
        kernel.interrupt()
    assert kernel.probe()["pid"] == kernel.pid
    kernel.interrupt()
    assert kernel.run("x").result == "1"


def test_interrupts_never_break_a_frame(kernel):
    kernel.run("from IPython.display import display")
    for _ in range(30):
        run = kernel.follow(kernel.begin("while True: display('x' * 100_000)"), until="display")
        assert kernel.interrupted(run).status == "interrupted"
    assert kernel.run("1+1").result == "2"


def test_code_that_swallows_the_interrupt_completes(kernel):
    run = kernel.begin(
        "import time\ntry:\n    print('begun'); time.sleep(100)\nexcept KeyboardInterrupt: print('swallowed')"
    )
    kernel.follow(run, until="begun")
    assert kernel.interrupted(run).status == "completed"
    assert "swallowed" in run.stdout


def test_a_handler_of_the_users_lasts_for_its_cell(kernel):
    kernel.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    run = kernel.follow(kernel.begin("print('begun')\nwhile True: pass"), until="begun")
    assert kernel.interrupted(run).status == "interrupted"


def test_a_flood_can_be_interrupted(kernel):
    run = kernel.follow(kernel.begin("while True: print('x')"), until="x")
    assert kernel.interrupted(run).status == "interrupted"
