"""Order between the two pipes and the socket: whoever speaks next lets the reader catch up first.

Three channels reach one reader, so what Python code writes arrives in the order it was written only
if each change of channel waits until the one before has been read. What stays on one channel waits
for nothing. Without a reader nothing waits, and a reader that is slow or flooded by others (a child
process that prints without end) is waited for within limits only.
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

SPINS = 40
PATIENCE_S = 5.0
IMPATIENCE_S = 0.02
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL | select.POLLRDHUP
_INT = struct.pack("i", 0)


def _waiting(fd: int, request: int) -> bool:
    try:
        return ioctl(fd, request, _INT) != _INT
    except (OSError, ValueError):  # who was to read it has left meanwhile
        return False


class Turns:
    """Knows who spoke last; `None` when that is unknown."""

    def __init__(self, pipes: tuple[Pipe, Pipe]) -> None:
        self.peer: socket.socket | None = None
        self.last: object = None
        self.flush: Callable[[], None] = lambda: None
        """Sends the frames that were spoken and not sent yet."""
        self._pipes = pipes
        self._patience = PATIENCE_S

    def to_stream(self, speaker: object, target: int) -> None:
        """Called by a stream that was not the last to speak."""
        previous, self.last = self.last, speaker
        if previous is self:
            self.flush()
            self.last = speaker
        peer = self.peer
        if peer is None:
            return
        for pipe in self._pipes:
            if pipe.target != target:
                self._catch_up(peer, lambda fd=pipe.read: _waiting(fd, FIONREAD))
        if previous is self or previous is None:
            self._catch_up(peer, lambda: _waiting(peer.fileno(), TIOCOUTQ))

    def to_wire(self) -> None:
        """Called before a frame that belongs after what was printed."""
        peer = self.peer
        if peer is not None:
            for pipe in self._pipes:
                self._catch_up(peer, lambda fd=pipe.read: _waiting(fd, FIONREAD))
        self.last = self

    def _catch_up(self, peer: socket.socket, behind: Callable[[], bool]) -> None:
        if not behind():
            return
        for _ in range(SPINS):
            os.sched_yield()
            if not behind():
                return
        pause, end = 0.00002, time.monotonic() + self._patience
        watch = select.poll()
        try:
            watch.register(peer.fileno(), select.POLLRDHUP)
        except (OSError, ValueError):
            return
        while behind():
            if any(event & _GONE for _, event in watch.poll(0)):
                return
            if time.monotonic() > end:
                self._patience = IMPATIENCE_S
                return
            time.sleep(pause)
            pause = min(pause * 1.5, 0.001)
        self._patience = PATIENCE_S
