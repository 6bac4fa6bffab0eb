"""Requests that are answered by one reply, and leave `_`, In, Out and the cells' count alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from . import assistance, packages
from .encode import encode
from .errors import describe
from .extensions import Extensions
from .fields import Refused, count, flag, text
from .frame import Frame
from .history import KEPT
from .resources import invalidate_all
from .shell import Shell
from .user_code import UserCode
from .variables import variables
from .wire import Wire

LISTED = 1000
PACE_S = 0.1

Step = Callable[[], Any]


class Questions:
    """Each method understands one type of request, and returns the step that answers it."""

    def __init__(self, shell: Shell, wire: Wire, user_code: UserCode) -> None:
        self._shell = shell
        self._wire = wire
        self._user_code = user_code
        self._extensions = Extensions(shell)
        self._known: dict[str, Callable[[Frame], Step]] = {
            "reset": self._reset,
            "variables": self._variables,
            "complete": self._complete,
            "inspect": self._inspect,
            "is_complete": self._is_complete,
            "history": self._history,
            "call": self._call,
            "cryo_store": self._cryo_store,
            "cryo_reload": self._cryo_reload,
        }

    def probe(self, id: str) -> None:
        """Runs nothing of the user's, so that an interrupt that comes late does not strike."""
        self._reply(id, {"pid": os.getpid()}, None)

    def adopt(self, id: str, session: str, *, plain: bool) -> None:
        """A kernel made in advance gets its name, and unless it is to be plain what people have
        installed until now."""
        os.environ["OSCTL_SESSION"] = session
        if not plain:
            packages.activate(os.environ.get("OSCTL_PACKAGES"))
        self.probe(id)

    def let_go(self, id: str) -> None:
        """Before the process is frozen: live objects end, as their other ends will not be there
        when it goes on, and after the reply the connection. When an object does not let itself be
        ended, the connection stays."""
        if self._tell(id, invalidate_all):
            self._wire.let_go()

    def answer(self, kind: str, id: str, request: Frame) -> None:
        understand = self._known.get(kind)
        if understand is None:
            raise Refused(f"unknown type `{kind}`")
        self._tell(id, understand(request))

    def _tell(self, id: str, step: Step) -> bool:
        """Replies with what a step that may run user code gives; whether it did not raise."""
        value, error = self._user_code.run(step)
        try:
            _, error = self._user_code.settle(error)
        except BaseException as broken:
            error = broken
        if error is None:
            self._reply(id, value, None)
        else:
            self._reply(id, None, describe(error))
        return error is None

    def _reply(self, id: str, value: Any, error: dict[str, Any] | None) -> None:
        reply = {"type": "reply", "id": id, "value": value, "error": error}
        self._wire.send(reply | self._shell.counts())

    def _reset(self, _: Frame) -> Step:
        return self._shell.clear

    def _variables(self, request: Frame) -> Step:
        limit = count(request, "limit", LISTED)
        return lambda: variables(self._shell, limit)

    def _complete(self, request: Frame) -> Step:
        code = text(request, "code")
        cursor = count(request, "cursor", len(code))
        return lambda: assistance.complete(self._shell, code, cursor)

    def _inspect(self, request: Frame) -> Step:
        code = text(request, "code")
        cursor = count(request, "cursor", len(code))
        detail = count(request, "detail", 0)
        return lambda: assistance.inspect(self._shell, code, cursor, detail)

    def _is_complete(self, request: Frame) -> Step:
        code = text(request, "code")
        return lambda: assistance.is_complete(self._shell, code)

    def _history(self, request: Frame) -> Step:
        n = count(request, "n", KEPT)
        return lambda: self._shell.history_manager.last(n)

    def _cryo_store(self, request: Frame) -> Step:
        from .cryo.store import Wish, store  # most kernels never do

        wish = Wish(
            **{each: text(request, each) for each in ("folder", "name", "reason", "session")},
            **{each: count(request, each, 0) for each in ("generation", "runs")},
            **{
                each: flag(request, each, False)
                for each in ("strict", "dry_run", "files", "compress")
            },
        )
        return lambda: store(self._shell, wish, self._progress())

    def _cryo_reload(self, request: Frame) -> Step:
        from .cryo.reload import reload

        folder = text(request, "folder")
        return lambda: reload(self._shell, folder, self._progress())

    def _progress(self) -> Callable[[int], None]:
        """Tells the wire how many bytes have been moved, now and then."""
        moved, told = 0, time.monotonic()

        def move(bytes: int) -> None:
            nonlocal moved, told
            moved += bytes
            now = time.monotonic()
            if now - told >= PACE_S:
                told = now
                self._wire.send({"type": "progress", "bytes": moved})

        return move

    def _call(self, request: Frame) -> Step:
        name = text(request, "name")
        arguments = request.get("arguments")

        def step() -> Any:
            value = self._extensions.call(name, arguments)
            return json.loads(encode(value))  # here, where what it asks of objects may be ended

        return step
