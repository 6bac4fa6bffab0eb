"""One event loop, alive between cells."""


def test_top_level_await_works(kernel):
    kernel.run("import asyncio\nasync def f(): return 7")
    assert kernel.run("await f()").result == "7"
    assert kernel.run("async with asyncio.timeout(9): y = await f()\ny").result == "7"


def test_tasks_continue_between_cells(kernel):
    kernel.run(
        "import asyncio\nn = 0\nasync def count():\n    global n\n    while True:\n        n += 1\n        await asyncio.sleep(0)"
    )
    assert kernel.run("t = asyncio.create_task(count())").status == "completed"
    before = int(kernel.run("n").result)
    while int(kernel.run("n").result) <= before:
        pass


def test_servers_answer_between_cells(kernel):
    kernel.run("import asyncio\nasync def hi(r, w): w.write(b'hi'); w.close()")
    kernel.run("server = await asyncio.start_server(hi, '127.0.0.1', 0)")
    import socket

    port = int(kernel.run("server.sockets[0].getsockname()[1]").result)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        assert client.recv(2) == b"hi"


def test_code_may_bring_its_own_loop(kernel):
    kernel.run("import asyncio\nawait asyncio.sleep(0)")
    assert kernel.run("asyncio.run(asyncio.sleep(0, 5))").result == "5"
    assert kernel.run("await asyncio.sleep(0, 6)").result == "6"


def test_a_task_that_exits_does_not_end_the_kernel(kernel):
    kernel.run(
        "import asyncio\nasync def bad(): raise SystemExit(1)\nasync def later():\n    await asyncio.sleep(0.001)\n    raise SystemExit(2)"
    )
    kernel.run("a = asyncio.create_task(bad()); b = asyncio.create_task(later())")
    assert kernel.run("1+1").result == "2"
    assert kernel.run("await asyncio.sleep(0.01)\n1+1").result == "2"
    code = "async def exits(): raise SystemExit(3)\nc = asyncio.create_task(exits())\nawait asyncio.sleep(0.01)\n'on'"
    assert kernel.run(code).result == "'on'"
    assert kernel.run("c.exception()").result == "SystemExit(3)"
    code = "import sys\nasyncio.get_running_loop().call_soon(sys.exit, 3)\nawait asyncio.sleep(100)"
    ended = kernel.run(code)
    assert (ended.status, ended.error["type"]) == ("failed", "SystemExit")
    ended = kernel.run("await asyncio.sleep(0)\nraise SystemExit(4)")
    assert (ended.status, ended.error["type"]) == ("failed", "SystemExit")


def test_a_closed_loop_is_replaced(kernel):
    kernel.run("import asyncio; await asyncio.sleep(0)")
    kernel.run("asyncio.get_event_loop_policy().get_event_loop().close()")
    assert kernel.run("await asyncio.sleep(0, 3)").result == "3"


def test_no_thread_is_left_at_idle(kernel):
    import os

    kernel.run("import asyncio; await asyncio.sleep(0)")
    kernel.run("!true")
    assert len(os.listdir(f"/proc/{kernel.pid}/task")) == 1
