"""SIGINT reaches user code and nothing else."""

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
    ],
)
def test_an_interrupt_ends_the_code_and_keeps_the_state(kernel, code):
    kernel.run("x = 41")
    run = kernel.follow(kernel.begin(code), until="begun")
    kernel.interrupt()
    kernel.follow(run)
    assert run.status == "interrupted" and run.error["type"] == "KeyboardInterrupt"
    assert kernel.run("x + 1").result == "42"


def test_an_interrupt_while_idle_is_forgotten(kernel):
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
        kernel.interrupt()
        assert kernel.follow(run).status == "interrupted"
    assert kernel.run("1+1").result == "2"


def test_code_that_swallows_the_interrupt_completes(kernel):
    run = kernel.begin(
        "import time\ntry:\n    print('begun'); time.sleep(100)\nexcept KeyboardInterrupt: print('swallowed')"
    )
    kernel.follow(run, until="begun")
    kernel.interrupt()
    assert kernel.follow(run).status == "completed"
    assert "swallowed" in run.stdout


def test_a_handler_of_the_users_lasts_for_its_cell(kernel):
    kernel.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    run = kernel.follow(kernel.begin("print('begun')\nwhile True: pass"), until="begun")
    kernel.interrupt()
    assert kernel.follow(run).status == "interrupted"


def test_a_flood_can_be_interrupted(kernel):
    run = kernel.follow(kernel.begin("while True: print('x')"), until="x")
    kernel.interrupt()
    assert kernel.follow(run).status == "interrupted"
