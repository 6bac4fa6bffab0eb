"""Running the user's code: the only place where an interrupt strikes.

Cells run it, and so do requests that ask about objects: reprs, completers, finalizers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .fork import Family, flush
from .interrupt import Interrupts
from .streams import Streams


class UserCode:
    """Runs one step at a time, and puts back what it has broken."""

    def __init__(self, interrupts: Interrupts, streams: Streams, family: Family) -> None:
        self._interrupts = interrupts
        self._streams = streams
        self._family = family

    def run(self, step: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """What the step returned, and what it raised."""
        value = error = None
        try:
            try:
                self._interrupts.begin()
                value = step()
                flush()
            finally:
                self._interrupts.end()
        except BaseException as raised:
            self._interrupts.end()
            error = raised
        return value, error

    def settle(self, error: BaseException | None) -> tuple[str, BaseException | None]:
        """How the step ended, and the error to tell, with streams and signal repaired; a forked
        child ends here."""
        if self._family.is_child():
            self._family.end_child(error)
        self._streams.restore()
        self._interrupts.install()
        if error is None:
            return "completed", None
        kind = type(error)  # not isinstance: that asks the exception, which may raise
        if issubclass(kind, SystemExit) and error.code in (None, 0):
            return "completed", None
        if self._interrupts.arrived:
            if issubclass(kind, asyncio.CancelledError):
                return "interrupted", KeyboardInterrupt().with_traceback(error.__traceback__)
            if issubclass(kind, KeyboardInterrupt):
                return "interrupted", error
        return "failed", error
