"""One execute: whatever it shows, then exactly one done."""

from __future__ import annotations

import asyncio
from typing import Any

from .errors import describe
from .fork import Family, flush
from .interrupt import Interrupts
from .shell import Shell
from .streams import Streams
from .wire import Wire


class Cells:
    """Runs one cell at a time, and tells the wire about it."""

    def __init__(
        self, shell: Shell, wire: Wire, interrupts: Interrupts, streams: Streams, family: Family
    ) -> None:
        self._shell = shell
        self._wire = wire
        self._interrupts = interrupts
        self._streams = streams
        self._family = family
        self._id: str | None = None
        shell.displayhook.emit = shell.display_pub.emit = self._emit

    def execute(self, id: str, code: str) -> None:
        self._id = id
        number = self._shell.execution_count
        error = self._run(code)
        if self._family.is_child():
            self._family.end_child(error)
        try:
            status = self._finish(error)
        except BaseException as broken:  # whatever it was, the run must have an end
            status = "failed"
            self._emit("error", error=describe(broken))
        self._id = None
        self._shell.failure = None
        done = {"type": "done", "id": id, "status": status, "execution_count": number}
        self._wire.send(done | {"globals_count": self._shell.globals_count()})

    def _finish(self, error: BaseException | None) -> str:
        self._streams.restore()
        self._interrupts.install()
        status, error = self._outcome(error)
        if error is not None:
            self._emit("error", error=describe(error))
        return status

    def _run(self, code: str) -> BaseException | None:
        """Runs user code; the only place where an interrupt strikes."""
        try:
            try:
                self._interrupts.begin()
                self._shell.failure = None
                self._shell.run_cell(code, store_history=True)
                flush()
                return self._shell.failure
            finally:
                self._interrupts.end()
        except BaseException as error:
            self._interrupts.end()
            return error

    def _outcome(self, error: BaseException | None) -> tuple[str, BaseException | None]:
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

    def _emit(self, kind: str, **fields: Any) -> None:
        """An event of the running cell; between cells, of a task or thread, it has no id."""
        more = kind in ("result", "error") and self._id is not None  # `done` is on its way
        self._wire.send({"type": kind, "id": self._id, **fields}, ordered=True, more=more)
