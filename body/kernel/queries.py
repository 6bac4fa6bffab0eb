"""Requests with one reply, which change neither `_`, `In`, `Out` nor the cell count."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from . import completion, packages
from .encode import encode_json
from .errors import describe_error
from .extensions import Extensions
from .frame import Frame
from .history import MAX_INPUTS
from .resources import invalidate_all
from .shell import Shell
from .user_code import UserCode
from .validation import Refused, read_count, read_flag, require_text
from .variables import list_variables
from .wire import Wire

MAX_VARIABLES = 1000
PROGRESS_INTERVAL = 0.1

Step = Callable[[], Any]


class Queries:
    """Each method parses one type of request and returns the step that computes its value."""

    def __init__(self, shell: Shell, wire: Wire, user_code: UserCode) -> None:
        self._shell = shell
        self._wire = wire
        self._user_code = user_code
        self._extensions = Extensions(shell)
        self._parsers: dict[str, Callable[[Frame], Step]] = {
            "reset": self._parse_reset,
            "variables": self._parse_variables,
            "complete": self._parse_complete,
            "inspect": self._parse_inspect,
            "is_complete": self._parse_is_complete,
            "history": self._parse_history,
            "call": self._parse_call,
            "cryo_store": self._parse_cryo_store,
            "cryo_reload": self._parse_cryo_reload,
        }

    def answer_probe(self, id: str) -> None:
        """Replies with the pid; runs no user code, so that a late interrupt has no effect."""
        self._send_reply(id, {"pid": os.getpid()}, None)

    def adopt_session(self, id: str, session: str, *, plain: bool) -> None:
        """Gives a pre-forked kernel its session name and, unless it is plain, the installed
        packages."""
        os.environ["OSCTL_SESSION"] = session
        if not plain:
            packages.activate_overlay(os.environ.get("OSCTL_PACKAGES"))
        self.answer_probe(id)

    def release_connection(self, id: str) -> None:
        """Prepares a checkpoint: ends live objects, whose remote ends will not survive it, and
        closes the connection after the reply. The connection stays open when an object fails to
        end."""
        if self._run_and_reply(id, invalidate_all):
            self._wire.release_connection()

    def answer_query(self, kind: str, id: str, request: Frame) -> None:
        parse = self._parsers.get(kind)
        if parse is None:
            raise Refused(f"unknown type `{kind}`")
        self._run_and_reply(id, parse(request))

    def _run_and_reply(self, id: str, run_step: Step) -> bool:
        """Runs a step that may call user code and sends the reply; returns whether it did not
        raise."""
        value, error = self._user_code.run_step(run_step)
        try:
            _, error = self._user_code.settle_step(error)
        except BaseException as broken:
            error = broken
        if error is None:
            self._send_reply(id, value, None)
        else:
            self._send_reply(id, None, describe_error(error))
        return error is None

    def _send_reply(self, id: str, value: Any, error: dict[str, Any] | None) -> None:
        reply = {"type": "reply", "id": id, "value": value, "error": error}
        self._wire.send_frame(reply | self._shell.count_state())

    def _parse_reset(self, _: Frame) -> Step:
        return self._shell.clear_namespace

    def _parse_variables(self, request: Frame) -> Step:
        limit = read_count(request, "limit", MAX_VARIABLES)
        return lambda: list_variables(self._shell, limit)

    def _parse_complete(self, request: Frame) -> Step:
        code = require_text(request, "code")
        cursor = read_count(request, "cursor", len(code))
        return lambda: completion.complete_code(self._shell, code, cursor)

    def _parse_inspect(self, request: Frame) -> Step:
        code = require_text(request, "code")
        cursor = read_count(request, "cursor", len(code))
        detail = read_count(request, "detail", 0)
        return lambda: completion.inspect_object(self._shell, code, cursor, detail)

    def _parse_is_complete(self, request: Frame) -> Step:
        code = require_text(request, "code")
        return lambda: completion.check_completeness(self._shell, code)

    def _parse_history(self, request: Frame) -> Step:
        n = read_count(request, "n", MAX_INPUTS)
        return lambda: self._shell.history_manager.list_recent(n)

    def _parse_cryo_store(self, request: Frame) -> Step:
        # Most kernels never import this. A checkpoint includes a store: a kernel that is restored
        # beside newer files has all code of a reload in memory.
        from .cryo import reload  # noqa: F401
        from .cryo.store import StoreRequest, store_namespace

        store_request = StoreRequest(
            **{
                each: require_text(request, each)
                for each in ("folder", "name", "reason", "session")
            },
            **{each: read_count(request, each, 0) for each in ("generation", "runs")},
            **{
                each: read_flag(request, each, False)
                for each in ("strict", "dry_run", "files", "compress")
            },
        )
        return lambda: store_namespace(self._shell, store_request, self._progress_reporter())

    def _parse_cryo_reload(self, request: Frame) -> Step:
        from .cryo.reload import reload_generation

        folder = require_text(request, "folder")
        return lambda: reload_generation(self._shell, folder, self._progress_reporter())

    def _progress_reporter(self) -> Callable[[int], None]:
        """Returns a function that counts moved bytes and reports them at intervals."""
        moved, reported = 0, time.monotonic()

        def report_moved(bytes: int) -> None:
            nonlocal moved, reported
            moved += bytes
            now = time.monotonic()
            if now - reported >= PROGRESS_INTERVAL:
                reported = now
                self._wire.send_frame({"type": "progress", "bytes": moved})

        return report_moved

    def _parse_call(self, request: Frame) -> Step:
        name = require_text(request, "name")
        arguments = request.get("arguments")

        def run_step() -> Any:
            value = self._extensions.call_extension(name, arguments)
            # Encoded here, where an interrupt can end calls into objects.
            return json.loads(encode_json(value))

        return run_step
