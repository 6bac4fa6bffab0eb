"""One process that has everything prepared, and of which kernels are forked.

```text
{"type": "fork", …} + 3 fds ─▶ forked | failed        one at a time
end of the connection       ─▶ the template ends; its kernels stay
```

It has no thread, no event loop, no output pipe and no connection of a kernel's: those are made
after the fork, by the kernel that owns them. It activates no overlay of packages, either.
"""

from __future__ import annotations

import gc
import os
import platform
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass

from . import BODY_VERSION, PROTOCOL, offspring
from .encode import text_of
from .frame import Frame, pack, take, unpack
from .offspring import Guard
from .pipes import keep

_CHUNK = 1 << 16
_FDS = 3


@dataclass
class Order:
    """What a new kernel is to be."""

    session: str
    plain: bool
    """Without the overlay of packages."""
    listener: int


class Template:
    """The connection to the companion, whose every request is a fork."""

    def __init__(self, connection: int) -> None:
        self._conn = socket.socket(fileno=connection)
        self._conn.setblocking(True)
        self._unread = bytearray()
        self._fds: list[int] = []

    def serve(self) -> Order | None:
        """Returns at the end of the connection, or in a new kernel, with what it is to be."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.collect()
        gc.freeze()  # so that no collection writes to the pages that the kernels share
        words = {"type": "ready", "protocol": PROTOCOL, "body_version": BODY_VERSION}
        self._send(words | {"python": platform.python_version(), "pid": os.getpid()})
        while (body := self._receive()) is not None:
            order = self._answer(body)
            if order is not None:
                return order
        return None

    def _answer(self, body: bytes) -> Order | None:
        frame: Frame = {}
        answer: Frame
        try:
            frame = unpack(body)
            order, guard = self._understand(frame)
            born = offspring.fork(guard)
        except Exception as error:
            told = {"type": type(error).__name__, "message": text_of(error), "traceback": []}
            answer = {"type": "failed", "error": told}
        else:
            if born is None:
                return self._be_born(order)
            answer = {"type": "forked", "guard": born.guard, "pid": born.kernel}
        self._close_fds()
        self._send(answer | {"session": frame.get("session")})
        return None

    def _understand(self, frame: Frame) -> tuple[Order, Guard]:
        match frame:
            case {
                "type": "fork",
                "session": str(session),
                "plain": bool(plain),
                "guard": [str(_), *_] as command,
            } if all(isinstance(word, str) for word in command):
                if len(self._fds) != _FDS:
                    raise ValueError(f"a fork comes with {_FDS} fds, not {len(self._fds)}")
                listener, channel, stderr = self._fds
                return Order(session, plain, listener), Guard(command, channel, stderr)
        raise ValueError("a request is a fork with `session`, `plain` and `guard`")

    def _be_born(self, order: Order) -> Order:
        self._conn.close()
        self._fds.remove(order.listener)
        self._close_fds()
        gc.enable()
        return order

    def _send(self, frame: Frame) -> None:
        with suppress(OSError):  # the end of the connection is found by reading
            self._conn.sendall(pack(frame), socket.MSG_NOSIGNAL)

    def _receive(self) -> bytes | None:
        try:
            while (body := take(self._unread)) is None:
                chunk, fds, _, _ = socket.recv_fds(self._conn, _CHUNK, _FDS)
                self._fds += map(keep, fds)
                if not chunk:
                    return None
                self._unread += chunk
        except (OSError, EOFError):
            return None
        return body

    def _close_fds(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
