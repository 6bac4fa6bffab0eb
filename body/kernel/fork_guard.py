"""The guard of forked children: they neither write to the wire nor return to the kernel."""

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


def flush_streams() -> None:
    """Flushes the buffers of Python and C; the streams may be the user's and raise."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    _libc.fflush(None)


class ForkGuard:
    """Knows whether this process is still the kernel."""

    def __init__(self, wire: Wire, pipes: tuple[Pipe, Pipe], loop: Loop) -> None:
        self._pid = os.getpid()
        self._wire = wire
        self._pipes = pipes
        self._loop = loop
        os.register_at_fork(after_in_child=self._detach_child)

    def is_child(self) -> bool:
        return os.getpid() != self._pid

    def end_child(self, error: BaseException | None) -> NoReturn:
        """Ends a child that has reached the end of its cell."""
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            traceback.print_exception(error)
        flush_streams()
        os._exit(code & 0xFF)

    def _detach_child(self) -> None:
        try:
            self._wire.close_in_child()
            self._loop.drop_loop()
            for pipe in self._pipes:
                pipe.close_ends()
        except Exception:
            pass
