"""Exceptions as plain text: the user's frames only, whatever the exception does."""

from __future__ import annotations

import codeop
import os
from collections.abc import Callable
from traceback import StackSummary, TracebackException
from typing import Any

import IPython
from IPython.core.error import UsageError

from .encode import text_of

MAX_LINES = 400
MAX_MESSAGE = 1 << 16
_EXTENSIONS = os.path.join(os.path.dirname(__file__), "extensions", "")
_INTERNAL = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(IPython.__file__) + os.sep,
    codeop.__file__,
)


def describe(error: BaseException) -> dict[str, Any]:
    """`{type, message, traceback}` of an exception; never raises."""
    kind = _safely(lambda: str(type(error).__name__), "Exception")
    message = _safely(lambda: _message(error), "<the exception's text cannot be shown>")
    lines = _safely(lambda: _traceback(error), None)
    if lines is None:
        lines = [f"{kind}: {message}"]
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "…"
    return {"type": kind, "message": message, "traceback": lines}


def _safely(make: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return make()
    except BaseException:
        return otherwise


def _message(error: BaseException) -> str:
    if issubclass(type(error), SyntaxError):
        return text_of(error.msg) if error.msg else ""
    return text_of(error)


def _traceback(error: BaseException) -> list[str]:
    if issubclass(type(error), UsageError):
        return [f"UsageError: {text_of(error)}"]
    told = TracebackException.from_exception(error)
    _keep_user_frames(told, set())
    lines = [
        line[:MAX_MESSAGE] for chunk in told.format() for line in chunk.rstrip("\n").split("\n")
    ]
    if len(lines) > MAX_LINES:
        half = MAX_LINES // 2
        left_out = f"  … {len(lines) - 2 * half} lines left out …"
        lines = [*lines[:half], left_out, *lines[-half:]]
    return lines


def _is_users(filename: str) -> bool:
    if filename.startswith(_EXTENSIONS):
        return not filename.endswith(f"{os.sep}__init__.py")
    return not filename.startswith(_INTERNAL)


def _keep_user_frames(told: TracebackException | None, seen: set[int]) -> None:
    if told is None or id(told) in seen:
        return
    seen.add(id(told))
    frames = list(told.stack or ())
    first = next((i for i, frame in enumerate(frames) if frame.filename.startswith("<cell ")), 0)
    kept = [frame for frame in frames[first:] if _is_users(frame.filename)]
    told.stack = StackSummary.from_list(kept) if kept else None  # type: ignore[assignment]
    _keep_user_frames(told.__cause__, seen)
    _keep_user_frames(told.__context__, seen)
    for inner in getattr(told, "exceptions", None) or ():
        _keep_user_frames(inner, seen)
