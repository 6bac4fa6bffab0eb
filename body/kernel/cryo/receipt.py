"""A row for each variable: what became of it, and why."""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..encode import text_of
from .based import base_of, content_of

SAVED, RECIPE, LOST = "saved", "recipe", "lost"
ALTERED = "altered"
"""It comes back, and is not what was stored."""
UNVERIFIED = "unverified"
"""It is stored, and was not loaded back."""

BECOMES = dict.fromkeys(
    (
        *(
            f"dict_{way}{what}iterator"
            for way in ("", "reverse")
            for what in ("key", "value", "item")
        ),
        "odict_iterator",
        "set_iterator",
    ),
    "list_iterator",
)
"""What pickle brings back as another kind, of the same behaviour."""


@dataclass
class Row:
    name: str
    verdict: str
    type: str
    bytes: int = 0
    why: str | None = None

    def words(self) -> dict[str, Any]:
        row = {"name": self.name, "verdict": self.verdict, "type": self.type}
        return row | {"bytes": self.bytes, "why": self.why}


_LINE = 100
_SECRET = re.compile(
    r"://[^/@\s]+@|\b(?:bearer|basic)\s+\S+"
    r"|\b\w*(?:pass|passwd|password|secret|token|credential|api_?key|auth\w*)\w*"
    r"[\"']?\s*(?:[=:]|\bis\b)\s*\S+",
    re.IGNORECASE,
)


def said(error: BaseException) -> str:
    """Its kind and the beginning of its first line, without what looks like a secret: receipts are
    stored, shown and logged, and the text is whatever somebody's code put in."""
    line = _SECRET.sub("…", text_of(error).strip().partition("\n")[0])
    line = line if len(line) <= _LINE else line[: _LINE - 1] + "…"
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


# Sets: what is not in there by its hash is not compared, and metaclasses may compare as they like.
_SIZED = frozenset((list, tuple, dict, set, frozenset, str, bytes, bytearray))
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_PLAIN = frozenset((bool, float, type(None)))


def look(value: Any) -> dict[str, Any]:
    """What can be told of an object at once, and is compared when it is back. Asks builtin types
    and arrays alone, and what derives from builtin ones by their methods: anything else may answer
    whatever it likes."""
    kind = type(value)
    if kind in _SIZED:
        return {"len": len(value)}
    if kind is int and value.bit_length() < 64:
        return {"value": str(value)}
    if kind in _PLAIN:
        return {"value": repr(value)}
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    if kind is weakref.ReferenceType:
        return {"target": "gone" if value() is None else "there"}
    if any(kind is each for each in _WEAK):
        return {"len": len(value)}
    base = base_of(kind)
    if base is None or kind is base:
        return {}
    try:
        found = {"content": _digest(content_of(value, base), base)}
    except RuntimeError:  # a thread changes it meanwhile
        return {}
    count = getattr(base, "__len__", None)
    return found if count is None else {"len": count(value)} | found


_LOOKED_AT = 10_000
_LEAVES = frozenset((bool, int, float, type(None), str, bytes))


def _digest(content: Iterable[Any], base: type) -> str:
    """Of the plain values in it; no value itself, as receipts are stored and shown."""
    told = [_leaf(each) for each in islice(content, _LOOKED_AT)]
    if base in (set, frozenset):  # in no order; and which come first may change
        told = sorted(told) if len(told) < _LOOKED_AT else []
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def _leaf(each: Any) -> str:
    kind = type(each)
    if kind not in _LEAVES:
        return ""
    if kind is int:
        return hex(each)
    return ascii(each if kind not in (str, bytes) else each[:1000])


def differs(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """In words, how an object is not what it was."""
    for key, was in before.items():
        if after.get(key) == was:
            continue
        if key == "content":
            return "its content is another than it was"
        return f"its {key} is {after.get(key)} and was {was}"
    return None
