"""Checks of the fields of a request."""

from __future__ import annotations

from .frame import Frame


class Refused(Exception):
    """A request is invalid; the message names the error."""


def require_text(request: Frame, field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str):
        raise Refused(f"`{field}` must be a string")
    return value


def read_flag(request: Frame, field: str, default: bool) -> bool:
    value = request.get(field, default)
    if not isinstance(value, bool):
        raise Refused(f"`{field}` must be true or false")
    return value


def read_texts(request: Frame, field: str) -> list[str]:
    value = request.get(field, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise Refused(f"`{field}` must be a list of strings")
    return value


def read_count(request: Frame, field: str, default: int) -> int:
    """Returns a number of at least 0; null counts as absent."""
    value = request.get(field)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refused(f"`{field}` must be an integer of at least 0")
    return value


def read_text_values(request: Frame, field: str) -> dict[str, str] | None:
    """Returns an object of strings; None when it is absent."""
    value = request.get(field)
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise Refused(f"`{field}` must be an object of strings")
    return value
