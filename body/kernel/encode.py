"""JSON encoding that never fails and is always valid; unsupported values become text."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

MAX_DEPTH = 64


def encode_json(value: Any) -> bytes:
    """Encodes a value as UTF-8 JSON; a slower encoder handles values that the first one refuses."""
    try:
        text = _ENCODER.encode(value)
    except Exception:  # NaN, odd keys, cycles, objects that raise
        text = _ENCODER.encode(_to_plain(value, 0))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair is not a character: readers may refuse it
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return whole.encode("utf-8")


def text_of(value: Any) -> str:
    """Returns `str(value)`, or a fallback: `__str__` is user code and may raise anything."""
    for describe in (str, repr):
        try:
            return str.__str__(describe(value))
        except BaseException:
            continue
    return f"<{type(value).__name__} object>"


def _encode_fallback(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    item = getattr(value, "item", None)  # numpy scalars
    if item is not None and getattr(value, "shape", None) == ():
        value = item()
        if isinstance(value, (bool, int, float, str)):
            return value
    return text_of(value)


_ENCODER = json.JSONEncoder(
    default=_encode_fallback, allow_nan=False, ensure_ascii=False, separators=(",", ":")
)


def _to_plain(value: Any, depth: int) -> Any:
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
        return {text_of(key): _to_plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item, depth + 1) for item in value]
    try:
        simple = _encode_fallback(value)
    except BaseException:
        return text_of(value)
    return simple if isinstance(simple, str) else _to_plain(simple, depth + 1)
