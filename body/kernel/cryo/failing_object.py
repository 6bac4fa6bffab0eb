"""The object that kept a variable from being saved: its place and the reason."""

from __future__ import annotations

import types
from collections import deque
from typing import Any

from ..encode import text_of
from ..variables import type_name
from .receipt import summarize_error
from .unsaveable import Unsaveable

_MAX_OBJECTS = 20_000
_MAX_REASON_CHARS = 300


def explain_failure(name: str, value: Any, last: Any, error: BaseException) -> str:
    """Returns the reason in one sentence; calls no method of the objects."""
    reason = text_of(error)
    if not isinstance(error, Unsaveable):
        plain = isinstance(error, TypeError) and reason.startswith(
            ("cannot pickle", "can't pickle")
        )
        kind = type_name(type(last))
        reason = f"its kind, `{kind}`, can't be saved" if plain else summarize_error(error)
    where = None if last is value else find_path(name, value, last)
    if where is not None:
        is_kind = isinstance(error, Unsaveable)
        reason = f"`{where}` is {reason}" if is_kind else f"`{where}`: {reason}"
    return reason if len(reason) <= _MAX_REASON_CHARS else reason[: _MAX_REASON_CHARS - 1] + "…"


def find_path(name: str, value: Any, wanted: Any) -> str | None:
    """Returns the shortest expression that leads from a variable to an object."""
    seen = {id(value)}
    pending = deque([(name, value)])
    while pending and len(seen) < _MAX_OBJECTS:
        where, held = pending.popleft()
        for way, child in _list_children(held):
            if child is wanted:
                return where + way
            if id(child) not in seen:
                seen.add(id(child))
                pending.append((where + way, child))
    return None


def _list_children(held: Any) -> list[tuple[str, Any]]:
    kind = type(held)
    if kind in (list, tuple):
        return [(f"[{number}]", item) for number, item in enumerate(held)]
    if kind is dict:
        return [(f"[{_short_key(key)}]", item) for key, item in list(held.items())]
    if kind in (str, bytes, int, float, bool, type(None)):
        return []
    found: list[tuple[str, Any]] = []
    try:
        state = object.__getattribute__(held, "__dict__")
        found = [(f".{key}", item) for key, item in dict(state).items() if isinstance(key, str)]
    except Exception:
        pass
    cells = getattr(held, "__closure__", None) if kind is types.FunctionType else None
    if cells:
        names = held.__code__.co_freevars
        for free, cell in zip(names, cells, strict=False):
            try:
                found.append((f".<{free}>", cell.cell_contents))
            except ValueError:
                continue
    return found


def _short_key(key: Any) -> str:
    if isinstance(key, (str, int)) and type(key) in (str, int):
        return repr(key)[:40]
    return "…"
