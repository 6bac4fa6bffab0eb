"""The receipt: a row for each variable, with its verdict and the reason."""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..encode import text_of
from .builtin_subclasses import base_of, content_of

SAVED, RECIPE, LOST = "saved", "recipe", "lost"
ALTERED = "altered"
"""The variable comes back, but differs from the stored one."""
UNVERIFIED = "unverified"
"""The variable is stored, but was not loaded back."""
UNMADE = "the check could not make it"

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
"""Kinds that pickle restores as another kind of the same behaviour."""


@dataclass
class Row:
    name: str
    verdict: str
    type: str
    bytes: int = 0
    why: str | None = None

    def to_dict(self) -> dict[str, Any]:
        row = {"name": self.name, "verdict": self.verdict, "type": self.type}
        return row | {"bytes": self.bytes, "why": self.why}


_MAX_ERROR_CHARS = 100
_SECRET = re.compile(
    r"://[^/@\s]+@|\b(?:bearer|basic)\s+\S+"
    r"|\b\w*(?:pass|passwd|password|secret|token|credential|api_?key|auth\w*)\w*"
    r"[\"']?\s*(?:[=:]|\bis\b)\s*\S+",
    re.IGNORECASE,
)


def summarize_error(error: BaseException) -> str:
    """Returns the type of an error and the beginning of its first line, without text that looks
    like a secret: receipts are stored, shown and logged, and user code chooses the text."""
    line = _SECRET.sub("…", text_of(error).strip().partition("\n")[0])
    line = line if len(line) <= _MAX_ERROR_CHARS else line[: _MAX_ERROR_CHARS - 1] + "…"
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


# Sets compare types by hash first: metaclasses may override the comparison.
_SIZED_TYPES = frozenset((list, tuple, dict, set, frozenset, str, bytes, bytearray))
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_VALUE_TYPES = frozenset((bool, float, type(None)))


def read_facts(value: Any) -> dict[str, Any]:
    """Returns facts of an object that are cheap to read and are compared after a reload. Reads only
    builtin types, arrays, and subclasses of builtin types by the builtin methods: other objects may
    answer anything."""
    kind = type(value)
    if kind in _SIZED_TYPES:
        return {"len": len(value)}
    if kind is int and value.bit_length() < 64:
        return {"value": str(value)}
    if kind in _VALUE_TYPES:
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
        found = {"content": _hash_content(content_of(value, base), base)}
    except RuntimeError:  # a thread is changing it
        return {}
    count = getattr(base, "__len__", None)
    return found if count is None else {"len": count(value)} | found


_MAX_HASHED_ITEMS = 10_000
_HASHED_TYPES = frozenset((bool, int, float, type(None), str, bytes))


def _hash_content(content: Iterable[Any], base: type) -> str:
    """Hashes the plain values of the content; receipts are stored and shown, so they hold no
    value."""
    leaves = [_leaf_text(each) for each in islice(content, _MAX_HASHED_ITEMS)]
    if base in (set, frozenset):  # without order; the first items may differ after a reload
        leaves = sorted(leaves) if len(leaves) < _MAX_HASHED_ITEMS else []
    return hashlib.sha256("\0".join(leaves).encode()).hexdigest()[:16]


def _leaf_text(each: Any) -> str:
    kind = type(each)
    if kind not in _HASHED_TYPES:
        return ""
    if kind is int:
        return hex(each)
    return ascii(each if kind not in (str, bytes) else each[:1000])


def describe_change(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Returns how an object differs from the stored facts, or None."""
    for key, was in before.items():
        if after.get(key) == was:
            continue
        if key == "content":
            return "its content has changed"
        return f"its {key} is {after.get(key)} and was {was}"
    return None
