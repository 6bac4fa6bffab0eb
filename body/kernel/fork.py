"""What a forked child must not do: speak on the wire, or come back into the kernel."""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from typing import NoReturn

from .loop import Loop
from .pipes import Pipe
from .wire import Wire

_libc = ctypes.CDLL(None)


def flush() -> None:
    """Python's and C's buffers; the streams may be the user's, and raise."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    _libc.fflush(None)


class Family:
    """Knows whether this process is still the kernel."""

    def __init__(self, wire: Wire, pipes: tuple[Pipe, Pipe], loop: Loop) -> None:
        self._pid = os.getpid()
        self._wire = wire
        self._pipes = pipes
        self._loop = loop
        os.register_at_fork(after_in_child=self._leave)

    def is_child(self) -> bool:
        return os.getpid() != self._pid

    def end_child(self, error: BaseException | None) -> NoReturn:
        """The child has reached the end of its cell."""
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            traceback.print_exception(error)
        flush()
        os._exit(code & 0xFF)

    def _leave(self) -> None:
        try:
            self._wire.abandon()
            self._loop.forget()
            for pipe in self._pipes:
                pipe.close_kept()
        except Exception:
            pass
