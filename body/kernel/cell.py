"""The execution of one cell: its events, then exactly one `done` frame."""

from __future__ import annotations

from typing import Any

from .debugger import keep_error
from .errors import describe_error
from .program import run_as_program
from .shell import Shell
from .user_code import UserCode
from .wire import Wire


class CellRunner:
    """Runs one cell at a time and sends its events."""

    def __init__(self, shell: Shell, wire: Wire, user_code: UserCode) -> None:
        self._shell = shell
        self._wire = wire
        self._user_code = user_code
        self._id: str | None = None
        shell.displayhook.emit = shell.display_pub.emit = self._emit_event

    def execute_cell(
        self, id: str, code: str, *, silent: bool, store_history: bool, argv: list[str]
    ) -> None:
        self._id = id

        def run_code() -> BaseException | None:
            self._shell.failure = None
            with run_as_program(argv, self._shell.user_ns) as self._shell.compile.program:
                self._shell.run_cell(code, store_history=store_history, silent=silent)
            return self._shell.failure

        failure, error = self._user_code.run_step(run_code)
        try:
            status = self._finish_cell(failure if error is None else error)
        except BaseException as broken:  # every run needs an end
            status = "failed"
            self._emit_event("error", error=describe_error(broken))
        self._id = None
        self._shell.failure = None
        done = {"type": "done", "id": id, "status": status}
        self._wire.send_frame(done | self._shell.count_state())

    def _finish_cell(self, error: BaseException | None) -> str:
        status, error = self._user_code.settle_step(error)
        if error is not None:
            keep_error(error)
            self._emit_event("error", error=describe_error(error))
        return status

    def _emit_event(self, kind: str, **fields: Any) -> None:
        """Sends an event of the running cell; an event between cells, from a task or thread, has no
        id."""
        more = kind in ("result", "error") and self._id is not None  # `done` follows directly
        self._wire.send_frame({"type": kind, "id": self._id, **fields}, ordered=True, more=more)
