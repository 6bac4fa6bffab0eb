"""JSON that never fails and is always valid: what JSON cannot say is said as text."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

MAX_DEPTH = 64


def encode(value: Any) -> bytes:
    """UTF-8 JSON; the straight way first, the careful one for what it refuses."""
    try:
        text = _STRAIGHT.encode(value)
    except Exception:  # NaN, odd keys, cycles, objects that raise
        text = _STRAIGHT.encode(_plain(value, 0))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair is no character: readers may refuse it
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return whole.encode("utf-8")


def text_of(value: Any) -> str:
    """`str`, or what can be said without it: it is the user's code, and may raise anything."""
    for describe in (str, repr):
        try:
            return str.__str__(describe(value))
        except BaseException:
            continue
    return f"<{type(value).__name__} object>"


def _fallback(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    item = getattr(value, "item", None)  # numpy's scalars
    if item is not None and getattr(value, "shape", None) == ():
        value = item()
        if isinstance(value, (bool, int, float, str)):
            return value
    return text_of(value)


_STRAIGHT = json.JSONEncoder(
    default=_fallback, allow_nan=False, ensure_ascii=False, separators=(",", ":")
)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {text_of(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    try:
        simple = _fallback(value)
    except BaseException:
        return text_of(value)
    return simple if isinstance(simple, str) else _plain(simple, depth + 1)
