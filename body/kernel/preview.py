"""A preview of an object: one line of at most 120 characters, without a long repr.

The repr of ten million items takes seconds, so this module shows containers, dataclasses and arrays
itself, within the limit; only other objects are asked for their repr.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

MAX_PREVIEW_CHARS = 120
_MAX_DEPTH = 4
_MAX_REPR_ITEMS = 100
_SMALL_SIZE = 16
_BRACKETS = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    deque: ("deque([", "])"),
    dict: ("{", "}"),
}


def preview_object(value: Any) -> str:
    """Returns the preview; raises nothing but KeyboardInterrupt."""
    try:
        shown = _preview_value(value, MAX_PREVIEW_CHARS, 0)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        shown = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return _truncate_text(" ".join(shown.split()), MAX_PREVIEW_CHARS)


def _truncate_text(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def _preview_value(value: Any, room: int, depth: int) -> str:
    kind = type(value)
    for base, brackets in _BRACKETS.items():
        if issubclass(kind, base):
            return _preview_container(value, base, brackets, room, depth)
    if issubclass(kind, (str, bytes, bytearray)):
        part = value[: room + 1]
        return repr(part) if len(part) == len(value) else repr(part)[:-1] + "…"
    if kind is int and value.bit_length() > 4 * room:
        return f"<int of {value.bit_length()} bits>"
    if _is_array(kind):
        return _preview_array(value)
    if _is_plain_dataclass(kind):
        return _preview_dataclass(value, room, depth)
    if hasattr(kind, "__len__") and not isinstance(value, type):
        size = len(value)
        if size > _MAX_REPR_ITEMS:
            return f"<{kind.__name__} of {size} items>"
    return repr(value)


def _preview_container(
    value: Any, base: type, brackets: tuple[str, str], room: int, depth: int
) -> str:
    opening, closing = brackets
    size = base.__len__(value)
    if type(value) is not base:
        opening, closing = f"{type(value).__name__}({opening}", f"{closing})"
    elif base in (set, frozenset) and not size:
        opening, closing = f"{base.__name__}(", ")"
    elif base is tuple and size == 1:
        closing = ",)"
    if depth >= _MAX_DEPTH and size:
        return f"{opening}…{closing}"
    entries = dict.items(value) if base is dict else ((item,) for item in base.__iter__(value))
    size_note = f" {size} items" if depth == 0 else ""
    text, whole = _join_entries(
        entries, room - len(opening) - len(closing) - len(size_note) - 3, depth
    )
    return f"{opening}{text}{closing}" + ("" if whole else size_note)


def _join_entries(entries: Iterable[Any], room: int, depth: int) -> tuple[str, bool]:
    """Joins entries within the limit; returns whether all of them fit."""
    parts: list[str] = []
    for entry in entries:
        part = ": ".join(_preview_value(each, max(room, 1), depth + 1) for each in entry)
        if len(part) > room:
            return ", ".join(
                [*parts, _truncate_text(part, room) if room > _SMALL_SIZE else "…"]
            ), False
        parts.append(part)
        room -= len(part) + 2
    return ", ".join(parts), True


def _is_array(kind: type) -> bool:
    return hasattr(kind, "shape") and (hasattr(kind, "dtype") or hasattr(kind, "dtypes"))


def _preview_array(value: Any) -> str:
    shape = tuple(value.shape)
    if shape == () or ("dtypes" not in dir(type(value)) and value.size <= _SMALL_SIZE):
        return repr(value)
    of = getattr(value, "dtype", None)
    suffix = "" if of is None else f" of {of}"
    return f"<{type(value).__name__} {' × '.join(map(str, shape))}{suffix}>"


def _is_plain_dataclass(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and parameters.repr and "__repr__" in vars(kind)


def _preview_dataclass(value: Any, room: int, depth: int) -> str:
    name = type(value).__name__
    if depth >= _MAX_DEPTH:
        return f"{name}(…)"
    parts: list[str] = []
    for field in type(value).__dataclass_fields__.values():
        if room <= 0:
            parts.append("…")
            break
        if field.repr:
            part = f"{field.name}={_preview_value(getattr(value, field.name), room, depth + 1)}"
            parts.append(part)
            room -= len(part) + 2
    return f"{name}({', '.join(parts)})"
