"""The fields of a request, checked."""

from __future__ import annotations

from .frame import Frame


class Refused(Exception):
    """A request that is not understood; says what is wrong with it."""


def text(request: Frame, field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str):
        raise Refused(f"`{field}` must be a string")
    return value


def flag(request: Frame, field: str, default: bool) -> bool:
    value = request.get(field, default)
    if not isinstance(value, bool):
        raise Refused(f"`{field}` must be true or false")
    return value


def count(request: Frame, field: str, default: int) -> int:
    """A number from 0 on; a field that is null counts as left out."""
    value = request.get(field)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refused(f"`{field}` must be a whole number from 0 on")
    return value
