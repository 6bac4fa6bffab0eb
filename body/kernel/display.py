"""Values of last expressions and `display()`: MIME bundles as frames."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from .fast_path import format_plain
from .figures import mark_figure_shown

MAX_RESULTS = 200

Emit = Callable[..., None]
"""Sends an event of the running cell: `emit(type, **fields)`."""


class Results(DisplayHook):
    """Sends the value of the last expression and keeps a limited number in `_`, `_7` and `Out`."""

    emit: Emit | None = None
    exec_result = None  # a plain attribute instead of a trait: each cell sets it
    source = ""
    silent = False
    cached = True
    """Whether the cell's values are kept; values of cells outside the history are not."""
    sent = False
    """Whether the cell has sent its one result; later values and values of nested cells are
    displays."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.names: set[str] = set()
        """The numbered names, such as `_7`, in the namespace."""

    def quiet(self) -> bool:
        """Whether the cell ends in `;`; tokenizing is slow, so a text search comes first."""
        return ";" in self.source and bool(self.semicolon_at_end_of_expression(self.source))

    def __call__(self, result: Any = None) -> None:
        self.check_for_underscore()
        if result is None or self.silent or self.quiet():
            return
        bundle = format_plain(self.shell, result)
        data, metadata = (bundle, {}) if bundle else self._format_result(result)
        if self.cached:
            self.update_user_ns(result)
        self.fill_exec_result(result)
        if data and self.emit is not None:
            self._send_result(data, metadata)

    def _format_result(self, result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = self.compute_format_data(result)
        if data:
            mark_figure_shown(result)
        return data, metadata

    def _send_result(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        assert self.emit is not None
        if self.sent:
            self.emit("display", data=data, metadata=metadata)
        else:
            self.sent = True
            self.emit("result", data=data, metadata=metadata, execution_count=self.prompt_count)

    def update_user_ns(self, result: Any) -> None:
        namespace = self.shell.user_ns
        out = namespace.get("_oh")
        if out is None or result is out:
            return
        while len(out) >= MAX_RESULTS:
            oldest = next(iter(out))
            out.pop(oldest)
            namespace.pop(f"_{oldest}", None)
            self.names.discard(f"_{oldest}")
        mine = all(
            namespace.get(name, value) is value
            for name, value in (("_", self._), ("__", self.__), ("___", self.___))
        )
        self.___, self.__, self._ = self.__, self._, result
        if mine and "_" not in builtins.__dict__:
            namespace.update({"_": self._, "__": self.__, "___": self.___})
        number = self.prompt_count
        out[number] = namespace[f"_{number}"] = result
        self.names.add(f"_{number}")

    def flush(self) -> None:
        namespace = self.shell.user_ns
        out = namespace.get("_oh") or {}
        for number in list(out):
            namespace.pop(f"_{number}", None)
        out.clear()
        self.names.clear()
        self._ = self.__ = self.___ = ""
        namespace.update({"_": "", "__": "", "___": ""})


class Displays(DisplayPublisher):
    """Sends the data of `display()` unchanged."""

    emit: Emit | None = None

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: Any = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        self._validate_data(data, metadata)
        if self.emit is None:
            return
        fields: dict[str, Any] = {"data": data, "metadata": metadata or {}}
        display_id = (transient or {}).get("display_id")
        if display_id is not None:
            fields["display_id"] = str(display_id)
        if update:
            fields["update"] = True
        self.emit("display", **fields)

    def clear_output(self, wait: bool = False) -> None:
        if self.emit is not None:
            self.emit("clear", wait=bool(wait))
