"""Frames between kernel and companion.

The kernel listens and serves one connection at a time. A frame that nobody is there to read is
dropped: what a later connection needs stands in its hello.

Whoever waits for requests takes and gives up connections, and nobody else does meanwhile. While
code runs, nobody waits, and whoever sends does it instead.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable

from .frame import Frame, pack, take, unpack
from .interrupt import Interrupts
from .pipes import keep
from .turns import Turns

_CHUNK = 1 << 16


class Wire:
    """The one owner of the listening socket and of the connection."""

    def __init__(
        self,
        listener: int,
        turns: Turns,
        interrupts: Interrupts,
        hello: Callable[[], Frame],
        passed: tuple[int, int],
    ) -> None:
        self._listener = socket.socket(fileno=keep(listener))
        self._listener.setblocking(True)
        self._turns = turns
        self._interrupts = interrupts
        self._hello = hello
        self._passed = passed
        # What a signal or a finalizer calls may send while its own thread does.
        self._lock = threading.RLock()
        self._conn: socket.socket | None = None
        self._unread = bytearray()
        self._held = b""
        self._is_delivering = False
        self._is_receiving = False
        self._pid = os.getpid()
        turns.flush = self.flush

    def send(self, frame: Frame, *, ordered: bool = False, more: bool = False) -> None:
        """Sends from any thread; `ordered` frames come after what was printed before them.

        With `more` the frame travels together with the next one, which wakes the reader once
        instead of twice; printing sends it on, too.
        """
        data = pack(frame)
        if ordered:
            self._turns.to_wire()
        with self._interrupts, self._lock:
            if os.getpid() != self._pid:
                return
            self._turns.last = self._turns
            self._held += data
            if not more:
                self._deliver()

    def flush(self) -> None:
        """Sends what waits for a next frame."""
        with self._interrupts, self._lock:
            if self._held and os.getpid() == self._pid:
                self._deliver()

    def _deliver(self) -> None:
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._held:
                data, self._held = self._held, b""
                self._send(data)
        finally:
            self._is_delivering = False

    def _send(self, data: bytes) -> None:
        for _ in range(2):  # the second time to whoever has come instead
            conn = self._conn
            if conn is None and not self._is_receiving and self._is_wanted(0):
                conn = self._accept()
            if conn is None:
                return
            try:
                conn.sendall(data, socket.MSG_NOSIGNAL)
                return
            except OSError:
                if self._is_receiving:
                    return  # whoever receives sees its end, too
                self._drop()

    def receive(self, idle: Callable[[int], None]) -> Frame:
        """The next request; `idle(fd)` is called before each wait for `fd` to become readable.

        # Errors
        `Malformed` when the frame is not a JSON object. OSError when nobody can connect any more.
        """
        while True:
            with self._lock:
                self._is_receiving = True
                conn = self._conn
            try:
                if conn is not None:
                    return unpack(self._next_frame(conn, idle))
                idle(self._listener.fileno())
                self._is_wanted(None)
                with self._lock:
                    self._accept()
            except (OSError, EOFError):
                if conn is None:
                    raise
                with self._lock:
                    self._drop()
            finally:
                with self._lock:
                    self._is_receiving = False

    def let_go(self) -> None:
        """Ends the connection; whoever connects next finds everything as it was."""
        with self._lock:
            self._drop()

    def abandon(self) -> None:
        """For forked children: the sockets are the parent's."""
        for owned in (self._conn, self._listener):
            if owned is not None:
                try:
                    os.close(owned.detach())
                except OSError:
                    pass
        self._conn = self._turns.peer = None
        self._pid = -1
        # A thread that held it is not in the child.
        self._lock = threading.RLock()

    def _next_frame(self, conn: socket.socket, idle: Callable[[int], None]) -> bytes:
        while (body := take(self._unread)) is None:
            idle(conn.fileno())
            chunk = conn.recv(_CHUNK)
            if not chunk:
                raise EOFError
            self._unread += chunk
        return body

    def _is_wanted(self, timeout: int | None) -> bool:
        """Whether somebody has come, within `timeout` ms. None waits for it, without the lock.

        # Errors
        OSError when nobody can come any more.
        """
        if self._listener.fileno() < 0:
            raise OSError("the listening socket is gone")
        watch = select.poll()
        watch.register(self._listener, select.POLLIN)
        return bool(watch.poll(timeout))

    def _accept(self) -> socket.socket | None:
        accepted, _ = self._listener.accept()
        conn = socket.socket(fileno=keep(accepted.detach()))
        conn.setblocking(True)
        self._unread.clear()
        try:
            socket.send_fds(conn, [pack(self._hello())], list(self._passed))
        except OSError:
            conn.close()
            return None
        self._conn = self._turns.peer = conn
        return conn

    def _drop(self) -> None:
        if self._conn is not None:
            self._conn.close()
        self._conn = self._turns.peer = None
        self._unread.clear()
