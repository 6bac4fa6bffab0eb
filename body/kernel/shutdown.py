"""The kernel's exit: live objects are torn down at the end of its socket and at SIGTERM.

A forked child ends at SIGTERM like any process. SIGTERM is blocked during a fork, because a signal
between the fork and the reset of the handler would be lost. SIGINT is blocked too: an interrupt
inside a fork hook would be lost and would leave locks of that hook locked.
"""

from __future__ import annotations

import ctypes
import os
import signal
from functools import partial
from types import FrameType
from typing import NoReturn

from .fork_guard import flush_streams
from .resources import invalidate_all

_SIGSET_BYTES = 128
"""Bytes of a sigset_t."""


def install_sigterm_handler() -> None:
    signal.signal(signal.SIGTERM, _handle_sigterm)
    # Through libc, which does not check for pending Python signals.
    blocked, before = (
        ctypes.create_string_buffer(_SIGSET_BYTES),
        ctypes.create_string_buffer(_SIGSET_BYTES),
    )
    libc = ctypes.CDLL(None)
    libc.sigemptyset(blocked)
    libc.sigaddset(blocked, signal.SIGTERM)
    libc.sigaddset(blocked, signal.SIGINT)
    release = partial(libc.pthread_sigmask, signal.SIG_SETMASK, before, None)

    def reset_child_signals() -> None:
        if signal.getsignal(signal.SIGTERM) is _handle_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        release()

    os.register_at_fork(
        before=partial(libc.pthread_sigmask, signal.SIG_BLOCK, blocked, before),
        after_in_parent=release,
        after_in_child=reset_child_signals,
    )


def shut_down() -> None:
    try:
        invalidate_all()
    except BaseException:  # an interrupt; all objects are already torn down
        pass
    flush_streams()


def _handle_sigterm(_signal: int, _frame: FrameType | None) -> NoReturn:
    shut_down()
    os._exit(128 + signal.SIGTERM)
