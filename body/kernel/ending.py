"""The kernel's own end: at the end of its socket and at SIGTERM, live objects are torn down.

A forked child ends at SIGTERM as any process does. The signal is held back while one is made: it
would be lost between the fork and the moment at which the child stops handling it.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import NoReturn

from .fork import flush
from .resources import invalidate_all

_masks: dict[int, set[signal.Signals]] = {}
"""What threads that are about to fork had blocked."""


def end_at_sigterm() -> None:
    signal.signal(signal.SIGTERM, _end)
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_leave)


def end() -> None:
    try:
        invalidate_all()
    except BaseException:  # an interrupt; all are gone by now
        pass
    flush()


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    end()
    os._exit(128 + signal.SIGTERM)


def _hold() -> None:
    _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop(threading.get_ident(), set()))


def _leave() -> None:
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release()
