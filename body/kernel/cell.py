"""One execute: whatever it shows, then exactly one done."""

from __future__ import annotations

from typing import Any

from .errors import describe
from .shell import Shell
from .user_code import UserCode
from .wire import Wire


class Cells:
    """Runs one cell at a time, and tells the wire about it."""

    def __init__(self, shell: Shell, wire: Wire, user_code: UserCode) -> None:
        self._shell = shell
        self._wire = wire
        self._user_code = user_code
        self._id: str | None = None
        shell.displayhook.emit = shell.display_pub.emit = self._emit

    def execute(self, id: str, code: str, *, silent: bool, store_history: bool) -> None:
        self._id = id

        def step() -> BaseException | None:
            self._shell.failure = None
            self._shell.run_cell(code, store_history=store_history, silent=silent)
            return self._shell.failure

        failure, error = self._user_code.run(step)
        try:
            status = self._finish(failure if error is None else error)
        except BaseException as broken:  # whatever it was, the run must have an end
            status = "failed"
            self._emit("error", error=describe(broken))
        self._id = None
        self._shell.failure = None
        done = {"type": "done", "id": id, "status": status}
        self._wire.send(done | self._shell.counts())

    def _finish(self, error: BaseException | None) -> str:
        status, error = self._user_code.settle(error)
        if error is not None:
            self._emit("error", error=describe(error))
        return status

    def _emit(self, kind: str, **fields: Any) -> None:
        """An event of the running cell; between cells, of a task or thread, it has no id."""
        more = kind in ("result", "error") and self._id is not None  # `done` is on its way
        self._wire.send({"type": kind, "id": self._id, **fields}, ordered=True, more=more)
