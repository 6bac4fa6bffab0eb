"""Completions, help and the completeness check of an editor.

Cursors are counted in code points. Completion first reads the live objects, which takes a
millisecond. Jedi reads the code instead; its first call takes half a second and 55 MB, so it runs
only when the live objects have no match.
"""

from __future__ import annotations

from typing import Any

from IPython.core.completer import (
    JEDI_INSTALLED,
    Completion,
    IPCompleter,
    provisionalcompleter,
    rectify_completions,
)
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.tokenutil import token_at_cursor

_UNKNOWN = ("<unknown>", "?", None)


def complete_code(shell: InteractiveShell, code: str, cursor: int) -> dict[str, Any]:
    cursor = min(cursor, len(code))
    found = _find_completions(shell.Completer, code, cursor, jedi=False)
    if not found and JEDI_INSTALLED and code[:cursor].strip():
        found = _find_completions(shell.Completer, code, cursor, jedi=True)
    start, end = (found[0].start, found[0].end) if found else (cursor, cursor)
    dots = 1 if found and all(each.text.startswith(".") for each in found) else 0
    types = [
        {
            "text": each.text[dots:],
            "type": "" if each.type in _UNKNOWN else each.type,
            "signature": "" if each.signature in _UNKNOWN else each.signature,
        }
        for each in found
    ]
    return {
        "matches": [each["text"] for each in types],
        "cursor_start": start + dots,
        "cursor_end": end,
        "types": types,
    }


def _find_completions(
    completer: IPCompleter, code: str, cursor: int, *, jedi: bool
) -> list[Completion]:
    completer.use_jedi = jedi
    with provisionalcompleter():
        return list(rectify_completions(code, completer.completions(code, cursor)))


def inspect_object(shell: InteractiveShell, code: str, cursor: int, detail: int) -> dict[str, Any]:
    name = token_at_cursor(code, min(cursor, len(code)))
    try:
        data = shell.object_inspect_mime(name, detail_level=min(detail, 1)) if name else {}
    except KeyError:
        data = {}
    return {"found": bool(data), "data": data}


def check_completeness(shell: InteractiveShell, code: str) -> dict[str, str]:
    """Returns the status of a cell; `indent` is the indentation of the next line of an incomplete
    cell."""
    status, indent = shell.input_transformer_manager.check_complete(code)
    if status != "incomplete":
        return {"status": status}
    return {"status": status, "indent": " " * (indent or 0)}
