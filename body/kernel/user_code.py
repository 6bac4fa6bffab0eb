"""Calls into user code: the only code that an interrupt ends.

Cells make such calls, and so do requests that inspect objects: reprs, completers, finalizers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .fork_guard import ForkGuard, flush_streams
from .interrupt import Interrupts
from .streams import Streams


class UserCode:
    """Runs one step at a time and repairs the process afterwards."""

    def __init__(self, interrupts: Interrupts, streams: Streams, fork_guard: ForkGuard) -> None:
        self._interrupts = interrupts
        self._streams = streams
        self._fork_guard = fork_guard

    def run_step(self, step: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Returns the value of the step and its exception."""
        value = error = None
        try:
            try:
                self._interrupts.begin_code()
                value = step()
                flush_streams()
            finally:
                self._interrupts.end_code()
        except BaseException as raised:
            self._interrupts.end_code()
            error = raised
        return value, error

    def settle_step(self, error: BaseException | None) -> tuple[str, BaseException | None]:
        """Repairs streams and signals; returns the status of the step and the error to report. A
        forked child ends here."""
        if self._fork_guard.is_child():
            self._fork_guard.end_child(error)
        self._streams.restore_streams()
        self._interrupts.install_handler()
        if error is None:
            return "completed", None
        kind = type(error)  # isinstance would ask the exception, which may raise
        if issubclass(kind, SystemExit) and error.code in (None, 0):
            return "completed", None
        if self._interrupts.arrived:
            if issubclass(kind, asyncio.CancelledError):
                return "interrupted", KeyboardInterrupt().with_traceback(error.__traceback__)
            if issubclass(kind, KeyboardInterrupt):
                return "interrupted", error
        return "failed", error
