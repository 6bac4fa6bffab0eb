"""Exceptions as plain text, limited to frames of the user's code."""

from __future__ import annotations

import codeop
import os
from collections.abc import Callable
from traceback import StackSummary, TracebackException
from typing import Any

import IPython
from IPython.core.error import UsageError

from .encode import text_of
from .sources import FILES_OF_CELLS

MAX_TRACEBACK_LINES = 400
MAX_MESSAGE_CHARS = 1 << 16
_EXTENSIONS = os.path.join(os.path.dirname(__file__), "extensions", "")
_INTERNAL = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(IPython.__file__) + os.sep,
    codeop.__file__,
)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Returns `{type, message, traceback}` of an exception; never raises."""
    kind = _call_safely(lambda: _public_name(str(type(error).__name__)), "Exception")
    message = _call_safely(lambda: _error_message(error), "<the exception's text cannot be shown>")
    lines = _call_safely(lambda: _traceback_lines(error), None)
    if lines is None:
        lines = [f"{kind}: {message}"]
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "…"
    return {"type": kind, "message": message, "traceback": lines}


def _call_safely(make: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return make()
    except BaseException:
        return otherwise


def _public_name(name: str) -> str:
    # CPython raises this private class for code that could continue, such as `f(`.
    return "SyntaxError" if name == "_IncompleteInputError" else name


def _error_message(error: BaseException) -> str:
    if issubclass(type(error), SyntaxError):
        return text_of(error.msg) if error.msg else ""
    return text_of(error)


def _traceback_lines(error: BaseException) -> list[str]:
    if issubclass(type(error), UsageError):
        return [f"UsageError: {text_of(error)}"]
    trace = TracebackException.from_exception(error)
    _keep_user_frames(trace, set())
    lines = [
        line[:MAX_MESSAGE_CHARS]
        for chunk in trace.format()
        for line in chunk.rstrip("\n").split("\n")
    ]
    if len(lines) > MAX_TRACEBACK_LINES:
        half = MAX_TRACEBACK_LINES // 2
        left_out = f"  … {len(lines) - 2 * half} lines left out …"
        lines = [*lines[:half], left_out, *lines[-half:]]
    return lines


def _is_users(filename: str) -> bool:
    if filename.startswith(_EXTENSIONS):
        return not filename.endswith(f"{os.sep}__init__.py")
    return not filename.startswith(_INTERNAL)


def _keep_user_frames(trace: TracebackException | None, seen: set[int]) -> None:
    if trace is None or id(trace) in seen:
        return
    seen.add(id(trace))
    trace.exc_type_qualname = _public_name(trace.exc_type_qualname)
    frames = list(trace.stack or ())
    first = next((i for i, frame in enumerate(frames) if frame.filename.startswith("<cell ")), 0)
    kept = [frame for frame in frames[first:] if _is_users(frame.filename)]
    for frame in kept:
        frame.filename = FILES_OF_CELLS.get(frame.filename, frame.filename)
    broken = getattr(trace, "filename", None)  # of a `SyntaxError`
    if isinstance(broken, str):
        trace.filename = FILES_OF_CELLS.get(broken, broken)
    trace.stack = StackSummary.from_list(kept) if kept else None  # type: ignore[assignment]
    _keep_user_frames(trace.__cause__, seen)
    _keep_user_frames(trace.__context__, seen)
    for inner in getattr(trace, "exceptions", None) or ():
        _keep_user_frames(inner, seen)
