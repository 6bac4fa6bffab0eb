"""The frames between kernel and companion.

The kernel listens and serves one connection at a time. A frame without a reader is dropped: the
hello repeats the state that a later connection needs.

The receiver accepts and drops connections. While code runs, no receiver waits, and the sender does
so instead.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable

from .frame import Frame, pack_frame, take_body, unpack_frame
from .interrupt import Interrupts
from .ordering import OutputOrder
from .pipes import move_fd_high

_RECV_BYTES = 1 << 16


class Wire:
    """Owns the listening socket and the connection."""

    def __init__(
        self,
        listener: int,
        ordering: OutputOrder,
        interrupts: Interrupts,
        hello: Callable[[], Frame],
        passed_fds: tuple[int, int],
    ) -> None:
        self._listener = socket.socket(fileno=move_fd_high(listener))
        self._listener.setblocking(True)
        self._ordering = ordering
        self._interrupts = interrupts
        self._hello = hello
        self._passed_fds = passed_fds
        # A signal handler or finalizer may send while its own thread does.
        self._lock = threading.RLock()
        self._conn: socket.socket | None = None
        self._unread = bytearray()
        self._held = b""
        self._is_delivering = False
        self._is_receiving = False
        self._pid = os.getpid()
        ordering.flush_wire = self.flush_held

    def send_frame(self, frame: Frame, *, ordered: bool = False, more: bool = False) -> None:
        """Sends a frame from any thread; an `ordered` frame follows earlier printed output.

        With `more` the frame is sent together with the next one, which wakes the reader once
        instead of twice; a print sends it too.
        """
        data = pack_frame(frame)
        if ordered:
            self._ordering.switch_to_wire()
        with self._interrupts, self._lock:
            if os.getpid() != self._pid:
                return
            self._ordering.last_writer = self._ordering
            self._held += data
            if not more:
                self._deliver_held()

    def flush_held(self) -> None:
        """Sends the frames that are held back for a next frame."""
        with self._interrupts, self._lock:
            if self._held and os.getpid() == self._pid:
                self._deliver_held()

    def _deliver_held(self) -> None:
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._held:
                data, self._held = self._held, b""
                self._send_bytes(data)
        finally:
            self._is_delivering = False

    def _send_bytes(self, data: bytes) -> None:
        for _ in range(2):  # the second attempt is for a new client
            conn = self._conn
            if conn is None and not self._is_receiving and self._has_client(0):
                conn = self._accept_client()
            if conn is None:
                return
            try:
                conn.sendall(data, socket.MSG_NOSIGNAL)
                return
            except OSError:
                if self._is_receiving:
                    return  # the receiver detects the end too
                self._drop_client()

    def receive_frame(self, idle: Callable[[int], None]) -> Frame:
        """Returns the next request; calls `idle(fd)` before each wait for `fd` to become readable.

        # Errors
        `Malformed` when the frame is not a JSON object. OSError when the listening socket is
        closed.
        """
        while True:
            with self._lock:
                self._is_receiving = True
                conn = self._conn
            try:
                if conn is not None:
                    return unpack_frame(self._read_body(conn, idle))
                idle(self._listener.fileno())
                self._has_client(None)
                with self._lock:
                    self._accept_client()
            except (OSError, EOFError):
                if conn is None:
                    raise
                with self._lock:
                    self._drop_client()
            finally:
                with self._lock:
                    self._is_receiving = False

    def release_connection(self) -> None:
        """Closes the connection; the state stays for the next client."""
        with self._lock:
            self._drop_client()

    def close_in_child(self) -> None:
        """Closes the sockets in a forked child: they belong to the parent."""
        for owned in (self._conn, self._listener):
            if owned is not None:
                try:
                    os.close(owned.detach())
                except OSError:
                    pass
        self._conn = self._ordering.reader = None
        self._pid = -1
        # A thread that held the lock does not exist in the child.
        self._lock = threading.RLock()

    def _read_body(self, conn: socket.socket, idle: Callable[[int], None]) -> bytes:
        while (body := take_body(self._unread)) is None:
            idle(conn.fileno())
            chunk = conn.recv(_RECV_BYTES)
            if not chunk:
                raise EOFError
            self._unread += chunk
        return body

    def _has_client(self, timeout: int | None) -> bool:
        """Whether a client connects within `timeout` ms; None waits without limit, and without the
        lock.

        # Errors
        OSError when the listening socket is closed.
        """
        if self._listener.fileno() < 0:
            raise OSError("the listening socket is closed")
        watch = select.poll()
        watch.register(self._listener, select.POLLIN)
        return bool(watch.poll(timeout))

    def _accept_client(self) -> socket.socket | None:
        accepted, _ = self._listener.accept()
        conn = socket.socket(fileno=move_fd_high(accepted.detach()))
        conn.setblocking(True)
        self._unread.clear()
        try:
            socket.send_fds(conn, [pack_frame(self._hello())], list(self._passed_fds))
        except OSError:
            conn.close()
            return None
        self._conn = self._ordering.reader = conn
        return conn

    def _drop_client(self) -> None:
        if self._conn is not None:
            self._conn.close()
        self._conn = self._ordering.reader = None
        self._unread.clear()
