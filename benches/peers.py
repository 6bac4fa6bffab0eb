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
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

PATIENCE_S = 60
LINES = "for _ in range(100_000):\n    print('x' * 99)"
AT_ONCE = "print('x' * 10_000_000)"
KEPT = 1 << 20
"""Bytes that a reply of osctl brings of one stream: its beginning and its end."""


class Osctl:
    """`POST /exec` over one keep-alive connection; http.client sets TCP_NODELAY by itself."""

    def __init__(self, token: str) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", 8080, timeout=PATIENCE_S)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._socket = socket.create_connection(("127.0.0.1", 8080), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps({"code": "1+1"})
        head = ["POST /exec HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in self._headers.items()]
        self._request = "\r\n".join([*head, "", body]).encode()

    def execute(self, code: str) -> dict[str, Any]:
        self._http.request("POST", "/exec", json.dumps({"code": code}).encode(), self._headers)
        reply: dict[str, Any] = json.loads(self._http.getresponse().read())
        return reply

    def value(self) -> None:
        assert self.execute("1+1")["result"] == "2"

    def bare(self) -> None:
        """As `value`, without what an HTTP client of Python costs."""
        self._socket.sendall(self._request)
        reply = self._socket.recv(1 << 16)  # headers and body come in one write
        assert reply.startswith(b"HTTP/1.1 200 ") and b'"result":"2"' in reply

    def lines(self) -> None:
        assert len(self.execute(LINES)["stdout"]) >= KEPT

    def at_once(self) -> None:
        assert len(self.execute(AT_ONCE)["stdout"]) >= KEPT


class Jupyter:
    """ipykernel as it comes, through jupyter_client as it comes."""

    def __init__(self) -> None:
        self._manager, self._client = start_jupyter()

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
    """As the companion does it: the reaper is given the listening socket as standard input."""
    path = f"/tmp/start-{os.getpid()}.sock"
    kernel = [os.environ["OSCTL_PYTHON"], os.path.join(os.environ["OSCTL_BODY"], "kernel")]
    begin = time.perf_counter()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as connection:
        listener.bind(path)
        listener.listen()
        connection.connect(path)
        reaper = subprocess.Popen(
            ["osctl", "reaper", "--", *kernel, "--fd", "0", "--session", "bench"],
            stdin=listener,
            stdout=subprocess.DEVNULL,
        )
        try:
            first, pipes, _, _ = socket.recv_fds(connection, 1 << 16, 2)
            took = time.perf_counter() - begin
        finally:
            reaper.terminate()
            reaper.wait()
            os.unlink(path)
    for pipe in pipes:
        os.close(pipe)
    (size,) = struct.unpack_from(">I", first)
    assert json.loads(first[4 : 4 + size])["type"] == "hello"
    return took


def main() -> None:
    osctl, jupyter = Osctl(sys.stdin.readline().strip()), Jupyter()

    def timed(run: Any) -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    samplers = {
        "osctl": lambda: timed(osctl.value),
        "osctl-bare": lambda: timed(osctl.bare),
        "osctl-lines": lambda: timed(osctl.lines),
        "osctl-at-once": lambda: timed(osctl.at_once),
        "osctl-start": time_osctl_start,
        "jupyter": lambda: timed(jupyter.value),
        "jupyter-lines": lambda: timed(jupyter.lines),
        "jupyter-at-once": lambda: timed(jupyter.at_once),
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
