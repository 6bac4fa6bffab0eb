"""Order between the two pipes and the socket: before a change of channel, the reader catches up.

One reader reads three channels, so the output of Python code arrives in order only if each change
of channel waits until the previous channel is read. Writes on one channel do not wait. Without a
reader nothing waits; the wait for a slow or flooded reader (a child process that prints without
end) is limited.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable
from fcntl import ioctl
from termios import FIONREAD, TIOCOUTQ

from .pipes import Pipe

MAX_SPINS = 40
READER_TIMEOUT = 5.0
SLOW_READER_TIMEOUT = 0.02
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL | select.POLLRDHUP
_INT = struct.pack("i", 0)


def _is_unread(fd: int, request: int) -> bool:
    try:
        return ioctl(fd, request, _INT) != _INT
    except (OSError, ValueError):  # the reader has closed its end
        return False


class OutputOrder:
    """Knows the last writer; `None` when it is unknown."""

    def __init__(self, pipes: tuple[Pipe, Pipe]) -> None:
        self.reader: socket.socket | None = None
        self.last_writer: object = None
        self.flush_wire: Callable[[], None] = lambda: None
        """Sends the frames that are held back."""
        self._pipes = pipes
        self._reader_timeout = READER_TIMEOUT

    def switch_to_stream(self, writer: object, target: int) -> None:
        """Called by a stream that was not the last writer."""
        previous, self.last_writer = self.last_writer, writer
        if previous is self:
            self.flush_wire()
            self.last_writer = writer
        reader = self.reader
        if reader is None:
            return
        for pipe in self._pipes:
            if pipe.target != target:
                self._wait_for_reader(reader, lambda fd=pipe.read: _is_unread(fd, FIONREAD))
        if previous is self or previous is None:
            self._wait_for_reader(reader, lambda: _is_unread(reader.fileno(), TIOCOUTQ))

    def switch_to_wire(self) -> None:
        """Called before a frame that must follow the printed output."""
        reader = self.reader
        if reader is not None:
            for pipe in self._pipes:
                self._wait_for_reader(reader, lambda fd=pipe.read: _is_unread(fd, FIONREAD))
        self.last_writer = self

    def _wait_for_reader(self, reader: socket.socket, has_unread: Callable[[], bool]) -> None:
        if not has_unread():
            return
        for _ in range(MAX_SPINS):
            os.sched_yield()
            if not has_unread():
                return
        pause, end = 0.00002, time.monotonic() + self._reader_timeout
        watch = select.poll()
        try:
            watch.register(reader.fileno(), select.POLLRDHUP)
        except (OSError, ValueError):
            return
        while has_unread():
            if any(event & _GONE for _, event in watch.poll(0)):
                return
            if time.monotonic() > end:
                self._reader_timeout = SLOW_READER_TIMEOUT
                return
            time.sleep(pause)
            pause = min(pause * 1.5, 0.001)
        self._reader_timeout = READER_TIMEOUT
