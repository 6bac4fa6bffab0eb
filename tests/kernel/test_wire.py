"""Frames, connections, and malformed frames."""

import json
import signal
import struct
import time

import pytest

from client import LIMIT_S, Gone


def test_the_hello_frame_names_protocol_pid_and_python(kernel):
    hello = kernel.hello
    assert hello["type"] == "hello" and hello["protocol"] == 1 and hello["pid"] == kernel.pid
    assert hello["python"].startswith("3.") and hello["execution_count"] == 0


def test_malformed_requests_are_refused_and_the_kernel_continues(kernel):
    for body in (
        b"",
        b"{",
        b"[]",
        b"5",
        b"\xff\xfe",
        b'{"type": 5}',
        b"[" * 100_000,
        b'{"id": "a"}',
    ):
        kernel.send_bytes(body)
        answer = kernel.frame()
        assert answer["type"] == "refused" and answer["error"]["message"], body[:10]
    for frame in (
        {"type": "dance", "id": "x"},
        {"type": "execute", "id": "x"},
        {"type": "execute", "id": "x", "code": 5},
    ):
        answer = kernel.ask(frame)
        assert (answer["type"], answer["id"]) == ("refused", "x")
    answer = kernel.ask({"type": "probe", "id": None})
    assert (answer["type"], answer["id"]) == ("refused", None)
    assert kernel.run("1+1").result == "2"


def test_a_frame_above_the_limit_closes_the_connection_and_keeps_the_state(kernel):
    kernel.run("x = 3")
    kernel.conn.sendall(struct.pack(">I", (256 << 20) + 1))
    try:
        kernel.frame()
        raise AssertionError("still connected")
    except Gone:
        pass
    kernel.disconnect()
    kernel.connect()
    assert kernel.run("x").result == "3"


def test_a_large_cell_arrives_whole(kernel):
    code = f"x = {'y' * 5_000_000!r}\nlen(x)"
    assert kernel.run(code).result == "5000000"


def test_frames_may_come_in_pieces_and_together(kernel):
    body = json.dumps({"type": "probe", "id": "p"}).encode()
    frame = struct.pack(">I", len(body)) + body
    for byte in frame:
        kernel.conn.sendall(bytes([byte]))
    assert kernel.frame()["id"] == "p"
    kernel.conn.sendall(frame * 3)
    assert [kernel.frame()["id"] for _ in range(3)] == ["p"] * 3


def test_the_state_stays_when_the_companion_comes_back(kernel):
    kernel.run("x = 41")
    for _ in range(20):
        kernel.disconnect()
        hello = kernel.connect()
        assert hello["globals_count"] == 1
    assert kernel.run("print('p'); x + 1").stdout == "p\n"


def test_code_continues_when_the_companion_leaves_and_the_next_client_gets_its_end(
    kernel, tmp_path
):
    kernel.follow(
        kernel.begin(
            "import time\nprint('begun')\nfor i in range(200): time.sleep(0.001); print(i); display(i)\nx = 'finished'"
        ),
        until="begun",
    )
    kernel.disconnect()
    hello = kernel.connect()
    assert hello["execution_count"] == 1
    while kernel.probe_until_reply()["globals_count"] < 3:
        pass
    assert kernel.run("x").result == "'finished'"


@pytest.mark.parametrize(
    "shows",
    [
        "import asyncio\nasync def show():\n    while True:\n        display('x')\n        await asyncio.sleep(0.001)\nt = asyncio.create_task(show())",
        "import threading, time\ndef show():\n    while True:\n        display('x')\n        time.sleep(0.001)\nt = threading.Thread(target=show, daemon=True); t.start()",
    ],
    ids=["task", "thread"],
)
def test_a_kernel_with_output_between_cells_answers_each_new_companion(kernel, shows):
    kernel.run(shows)
    for _ in range(30):
        kernel.disconnect()
        kernel.connect()
        assert kernel.probe_until_reply()["value"] == {"pid": kernel.pid}


def test_a_kernel_without_a_client_can_print_and_exit(start, tmp_path):
    kernel = start()
    told = tmp_path / "told"
    kernel.run(
        "import threading, time\ndef tell(n=0):\n    while True:\n        display(n); print(n); n += 1\n"
        f"        open({str(told)!r}, 'w').write(str(n)); time.sleep(0.001)\n"
        "threading.Thread(target=tell, daemon=True).start()\n"
        "r = runtime.resource(list).teardown(lambda _: print('gone')); _ = r.get()"
    )
    kernel.disconnect()
    for _ in range(3):  # it first waited for the client that has left
        before = told.read_text() if told.exists() else ""
        end = time.monotonic() + LIMIT_S
        while not told.exists() or told.read_text() in ("", before):
            assert time.monotonic() < end, "nothing is printed"
            time.sleep(0.01)
    kernel.process.terminate()
    assert kernel.process.wait(LIMIT_S) == 128 + signal.SIGTERM


def test_a_long_session_does_not_freeze(kernel):
    for number in range(2000):
        assert kernel.run(f"{number}").result == str(number)


@pytest.mark.parametrize("kind", ["release", "let_go"])
def test_a_detached_kernel_has_torn_down_its_live_objects(kernel, kind):
    kernel.run(
        "gone = []\nr = runtime.resource(list).teardown(lambda _: gone.append(1))\n_ = r.get()"
    )
    answer = kernel.ask({"type": kind, "id": "g"})
    assert (answer["type"], answer["id"], answer["error"]) == ("reply", "g", None)
    assert answer["resources_count"] == 0
    try:
        kernel.frame()
        raise AssertionError("still connected")
    except Gone:
        pass
    kernel.disconnect()
    kernel.connect()
    assert kernel.run("gone").result == "[1]"
