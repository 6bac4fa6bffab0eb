"""The template: a prepared process that kernels are forked from.

```text
{"type": "fork", …} + 3 fds ─▶ forked | failed        one at a time
end of the connection       ─▶ the template ends; its kernels stay
```

It has no thread, no event loop, no output pipe and no kernel connection: the kernel makes its own
after the fork. It does not activate the overlay of packages either.
"""

from __future__ import annotations

import gc
import os
import platform
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass

from . import BODY_VERSION, PROTOCOL, children
from .children import SupervisorCommand
from .encode import text_of
from .frame import Frame, pack_frame, take_body, unpack_frame
from .pipes import move_fd_high

_RECV_BYTES = 1 << 16
_FD_COUNT = 3


@dataclass
class KernelSpec:
    """The parameters of a new kernel."""

    session: str
    plain: bool
    """Without the overlay of packages."""
    listener: int


class Template:
    """The connection to the companion; every request is a fork."""

    def __init__(self, connection: int) -> None:
        self._conn = socket.socket(fileno=connection)
        self._conn.setblocking(True)
        self._unread = bytearray()
        self._fds: list[int] = []

    def serve_forks(self) -> KernelSpec | None:
        """Serves requests; returns None at the end of the connection, or the parameters in a new
        kernel."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.collect()
        gc.freeze()  # so that no collection writes to pages that kernels share
        ready = {"type": "ready", "protocol": PROTOCOL, "body_version": BODY_VERSION}
        self._send_frame(ready | {"python": platform.python_version(), "pid": os.getpid()})
        while (body := self._receive_body()) is not None:
            spec = self._answer_request(body)
            if spec is not None:
                return spec
        return None

    def _answer_request(self, body: bytes) -> KernelSpec | None:
        frame: Frame = {}
        answer: Frame
        try:
            frame = unpack_frame(body)
            spec, supervisor = self._parse_request(frame)
            forked = children.fork_kernel(supervisor)
        except Exception as error:
            failure = {"type": type(error).__name__, "message": text_of(error), "traceback": []}
            answer = {"type": "failed", "error": failure}
        else:
            if forked is None:
                return self._enter_kernel(spec)
            answer = {"type": "forked", "supervisor_pid": forked.supervisor, "pid": forked.kernel}
        self._close_fds()
        self._send_frame(answer | {"session": frame.get("session")})
        return None

    def _parse_request(self, frame: Frame) -> tuple[KernelSpec, SupervisorCommand]:
        match frame:
            case {
                "type": "fork",
                "session": str(session),
                "plain": bool(plain),
                "supervisor_command": [str(_), *_] as command,
            } if all(isinstance(word, str) for word in command):
                if len(self._fds) != _FD_COUNT:
                    raise ValueError(f"a fork needs {_FD_COUNT} fds, not {len(self._fds)}")
                listener, channel, stderr = self._fds
                supervisor = SupervisorCommand(command, channel, stderr)
                return KernelSpec(session, plain, listener), supervisor
        raise ValueError("a request is a fork with `session`, `plain` and `supervisor_command`")

    def _enter_kernel(self, spec: KernelSpec) -> KernelSpec:
        self._conn.close()
        self._fds.remove(spec.listener)
        self._close_fds()
        gc.enable()
        return spec

    def _send_frame(self, frame: Frame) -> None:
        with suppress(OSError):  # a read detects the end of the connection
            self._conn.sendall(pack_frame(frame), socket.MSG_NOSIGNAL)

    def _receive_body(self) -> bytes | None:
        try:
            while (body := take_body(self._unread)) is None:
                chunk, fds, _, _ = socket.recv_fds(self._conn, _RECV_BYTES, _FD_COUNT)
                self._fds += map(move_fd_high, fds)
                if not chunk:
                    return None
                self._unread += chunk
        except (OSError, EOFError):
            return None
        return body

    def _close_fds(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
