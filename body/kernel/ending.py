"""The kernel's own end: at the end of its socket and at SIGTERM, live objects are torn down.

A forked child ends at SIGTERM as any process does. The signal is held back while one is made: it
would be lost between the fork and the moment at which the child stops handling it. So is SIGINT: an
interrupt would strike in what a fork calls, be lost, and leave locks that are taken there taken.
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

_SIGSET = 128
"""Bytes of a sigset_t."""


def end_at_sigterm() -> None:
    signal.signal(signal.SIGTERM, _end)
    # By C, which looks for no signal.
    held, before = ctypes.create_string_buffer(_SIGSET), ctypes.create_string_buffer(_SIGSET)
    libc = ctypes.CDLL(None)
    libc.sigemptyset(held)
    libc.sigaddset(held, signal.SIGTERM)
    libc.sigaddset(held, signal.SIGINT)
    release = partial(libc.pthread_sigmask, signal.SIG_SETMASK, before, None)

    def leave() -> None:
        if signal.getsignal(signal.SIGTERM) is _end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        release()

    os.register_at_fork(
        before=partial(libc.pthread_sigmask, signal.SIG_BLOCK, held, before),
        after_in_parent=release,
        after_in_child=leave,
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
