"""The kernel's own end: at the end of its socket and at SIGTERM, live objects are torn down.

A forked child ends at SIGTERM as any process does. The signal is held back while one is made: it
would be lost between the fork and the moment at which the child stops handling it. What does
that runs no Python and looks for no signal: an interrupt would strike in there, and be lost.
"""

from __future__ import annotations

import ctypes
import os
import signal
from functools import partial
from types import FrameType
from typing import NoReturn

from .fork import flush
from .resources import invalidate_all


def end_at_sigterm() -> None:
    signal.signal(signal.SIGTERM, _end)
    libc = ctypes.CDLL(None)
    mine = ctypes.create_string_buffer(128)  # a sigset_t
    libc.sigemptyset(mine)
    libc.sigaddset(mine, signal.SIGTERM)
    os.register_at_fork(
        before=partial(libc.pthread_sigmask, signal.SIG_BLOCK, mine, None),
        after_in_parent=partial(libc.pthread_sigmask, signal.SIG_UNBLOCK, mine, None),
        after_in_child=_leave,
    )


def end() -> None:
    try:
        invalidate_all()
    except BaseException:  # an interrupt; all are gone by now
        pass
    flush()


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    end()
    os._exit(128 + signal.SIGTERM)


def _leave() -> None:
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
