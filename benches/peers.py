"""Runs inside the container and times both kernels there, under one Python and one set of limits.

Reads lines from stdin, and ends with them. The first is the token; every other is `NAME COUNT`, and
is answered with one line of JSON: the seconds that each of COUNT samples of the sampler NAME took.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

PATIENCE_S = 60
LINES = "for _ in range(100_000):\n    print('x' * 99)"
AT_ONCE = "print('x' * 10_000_000)"
PRINTS = "for n in range(1000): print(n)"
PREPARE = (
    "import os\nfrom IPython.display import Image\n"
    "figure = Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(5_000_000), format='png')"
)
CROWD = 8
KEPT = 1 << 20
"""Bytes that a reply of osctl brings of one stream: its beginning and its end."""


class Osctl:
    """`POST /exec` over one keep-alive connection; http.client sets TCP_NODELAY by itself."""

    def __init__(self, token: str) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", 8080, timeout=PATIENCE_S)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._socket = socket.create_connection(("127.0.0.1", 8080), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps({"code": "1+1", "durable": False})
        head = ["POST /exec HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in self._headers.items()]
        self._request = "\r\n".join([*head, "", body]).encode()

        self.execute(PREPARE)

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        text = None if body is None else json.dumps(body).encode()
        self._http.request(method, path, text, self._headers)
        reply: dict[str, Any] = json.loads(self._http.getresponse().read())
        return reply

    def execute(self, code: str, session: str = "default") -> dict[str, Any]:
        return self.ask("POST", "/exec", {"code": code, "session": session})

    def value(self) -> None:
        request = {"code": "1+1", "durable": False}
        assert self.ask("POST", "/exec", request)["result"] == "2"

    def bare(self) -> None:
        """As `value`, without what an HTTP client of Python costs."""
        self._socket.sendall(self._request)
        reply = self._socket.recv(1 << 16)  # headers and body come in one write
        assert reply.startswith(b"HTTP/1.1 200 ") and b'"result":"2"' in reply

    def lines(self) -> None:
        assert len(self.execute(LINES)["stdout"]) >= KEPT

    def at_once(self) -> None:
        assert len(self.execute(AT_ONCE)["stdout"]) >= KEPT

    def streamed(self) -> None:
        """As `at_once`, and all of it arrives."""
        headers = self._headers | {"Accept": "application/x-ndjson"}
        self._http.request("POST", "/exec", json.dumps({"code": AT_ONCE}).encode(), headers)
        events = [json.loads(line) for line in self._http.getresponse()]
        assert sum(len(e["text"]) for e in events if e["type"] == "stdout") == 10_000_001

    def figure(self) -> None:
        assert len(self.execute("figure")["data"][0]["image/png"]) > 6_000_000

    def prints(self) -> tuple[float, float]:
        """Seconds to the first and to the last byte of what is printed, streamed."""
        headers = self._headers | {"Accept": "application/x-ndjson"}
        begin = time.perf_counter()
        self._http.request("POST", "/exec", json.dumps({"code": PRINTS}).encode(), headers)
        answer = self._http.getresponse()
        text, first, last = "", 0.0, 0.0
        for line in answer:
            event = json.loads(line)
            if event["type"] == "stdout":
                last = time.perf_counter() - begin
                first = first or last
                text += event["text"]
        assert text.endswith("\n999\n") and text.count("\n") == 1000
        return first, last

    def begin(self, session: str) -> None:
        self.ask("POST", "/sessions", {"name": session})
        assert self.execute("1+1", session)["result"] == "2"

    def new_session(self, name: str = "bench") -> float:
        """Seconds from the wish for a session to a value from it."""
        begin = time.perf_counter()
        self.begin(name)
        took = time.perf_counter() - begin
        self.ask("DELETE", f"/sessions/{name}")
        return took


def crowd(work: Callable[[int], object]) -> float:
    """Seconds until all have done their work, side by side."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(CROWD) as threads:
        list(threads.map(work, range(CROWD)))
    return time.perf_counter() - begin


def osctl_crowd(token: str) -> float:
    """Eight sessions, new, each with a value."""
    clients = [Osctl(token) for _ in range(CROWD)]
    took = crowd(lambda number: clients[number].begin(f"crowd-{number}"))
    for number in range(CROWD):
        clients[0].ask("DELETE", f"/sessions/crowd-{number}")
    return took


def jupyter_crowd() -> float:
    """Eight kernels, new, each with a value."""
    started: list[Jupyter] = []

    def begin(_: int) -> None:
        kernel = Jupyter()
        started.append(kernel)
        kernel.value()

    took = crowd(begin)
    for kernel in started:
        kernel.close()
    return took


class Jupyter:
    """ipykernel as it comes, through jupyter_client as it comes."""

    def __init__(self) -> None:
        self._manager, self._client = start_jupyter()

    def prepare(self) -> Jupyter:
        self.execute(PREPARE)
        return self

    def figure(self) -> None:
        own = self._client.execute("figure")
        shown = 0
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != own:
                continue
            if message["msg_type"] == "execute_result":
                shown = len(message["content"]["data"]["image/png"])
            if message["content"].get("execution_state") == "idle":
                break
        self._client.get_shell_msg(timeout=PATIENCE_S)
        assert shown > 6_000_000

    def prints(self) -> tuple[float, float]:
        begin = time.perf_counter()
        own = self._client.execute(PRINTS)
        text, first, last = "", 0.0, 0.0
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != own:
                continue
            if message["msg_type"] == "stream":
                last = time.perf_counter() - begin
                first = first or last
                text += message["content"]["text"]
            if message["content"].get("execution_state") == "idle":
                break
        self._client.get_shell_msg(timeout=PATIENCE_S)
        assert text.endswith("\n999\n") and text.count("\n") == 1000
        return first, last

    def execute(self, code: str) -> tuple[str, str]:
        """The text of the value and of stdout, when the reply and the kernel's `idle` are there."""
        own = self._client.execute(code)
        value, stdout, idle = "", [], False
        while self._client.get_shell_msg(timeout=PATIENCE_S)["parent_header"].get("msg_id") != own:
            pass
        while not idle:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            content = message["content"]
            match message["msg_type"]:
                case _ if message["parent_header"].get("msg_id") != own:
                    pass
                case "execute_result":
                    value = content["data"]["text/plain"]
                case "stream":
                    stdout.append(content["text"])
                case "status":
                    idle = content["execution_state"] == "idle"
        return value, "".join(stdout)

    def value(self) -> None:
        assert self.execute("1+1")[0] == "2"

    def lines(self) -> None:
        assert len(self.execute(LINES)[1]) == 10_000_000

    def at_once(self) -> None:
        assert len(self.execute(AT_ONCE)[1]) == 10_000_001

    def close(self) -> None:
        end_jupyter(self._manager, self._client)


def start_jupyter() -> tuple[KernelManager, BlockingKernelClient]:
    manager = KernelManager()
    manager.start_kernel(extra_arguments=["--log-level=ERROR"])
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=PATIENCE_S)
    return manager, client


def end_jupyter(manager: KernelManager, client: BlockingKernelClient) -> None:
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def time_jupyter_start() -> float:
    begin = time.perf_counter()
    parts = start_jupyter()
    took = time.perf_counter() - begin
    end_jupyter(*parts)
    return took


def time_osctl_start() -> float:
    """As the companion does it when it starts: a template, and a kernel forked from it."""
    path = f"/tmp/start-{os.getpid()}.sock"
    program = os.path.join(os.environ["OSCTL_BODY"], "kernel")
    begin = time.perf_counter()
    ours, theirs = socket.socketpair()
    command = [os.environ["OSCTL_PYTHON"], program, "--template", "--fd", "0"]
    template = subprocess.Popen(command, stdin=theirs)
    theirs.close()
    with ours, socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as kernel:
        assert receive(ours)["type"] == "ready"
        listener.bind(path)
        listener.listen()
        kernel.connect(path)
        guard, guarded = socket.socketpair()
        order = {"type": "fork", "session": "bench", "plain": True}
        order["supervisor_command"] = ["/opt/osctl/bin/osctl", "reaper", "--adopt"]
        socket.send_fds(ours, [frame(order)], [listener.fileno(), guarded.fileno(), 2])
        guarded.close()
        assert receive(ours)["type"] == "forked"
        hello, pipes, _, _ = socket.recv_fds(kernel, 1 << 16, 2)
        kernel.sendall(frame({"type": "adopt", "id": "a", "session": "bench", "plain": False}))
        assert receive(kernel)["type"] == "reply"
        took = time.perf_counter() - begin
        guard.close()  # the kernel ends with it
    template.wait()
    os.unlink(path)
    for pipe in pipes:
        os.close(pipe)
    assert b'"hello"' in hello
    return took


def frame(words: dict[str, Any]) -> bytes:
    body = json.dumps(words).encode()
    return struct.pack(">I", len(body)) + body


def receive(connection: socket.socket) -> dict[str, Any]:
    (size,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
    words: dict[str, Any] = json.loads(connection.recv(size, socket.MSG_WAITALL))
    return words


def main() -> None:
    token = sys.stdin.readline().strip()
    osctl, jupyter = Osctl(token), Jupyter().prepare()

    def timed(run: Any) -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    samplers = {
        "osctl": lambda: timed(osctl.value),
        "osctl-bare": lambda: timed(osctl.bare),
        "osctl-lines": lambda: timed(osctl.lines),
        "osctl-at-once": lambda: timed(osctl.at_once),
        "osctl-streamed": lambda: timed(osctl.streamed),
        "osctl-figure": lambda: timed(osctl.figure),
        "osctl-prints": osctl.prints,
        "osctl-session": osctl.new_session,
        "osctl-crowd": lambda: osctl_crowd(token),
        "osctl-start": time_osctl_start,
        "jupyter": lambda: timed(jupyter.value),
        "jupyter-lines": lambda: timed(jupyter.lines),
        "jupyter-at-once": lambda: timed(jupyter.at_once),
        "jupyter-figure": lambda: timed(jupyter.figure),
        "jupyter-prints": jupyter.prints,
        "jupyter-crowd": jupyter_crowd,
        "jupyter-start": time_jupyter_start,
    }
    try:
        for line in sys.stdin:
            name, count = line.split()
            print(json.dumps([samplers[name]() for _ in range(int(count))]), flush=True)
    finally:
        jupyter.close()


if __name__ == "__main__":
    main()
