"""The fast path of cells and values that need none of IPython's machinery, which is slow.

A cell that parses as Python needs no transformation, except where IPython gives a meaning to a
valid line: a bare `exit` or `ls -l` (magics without `%`), and pasted `In [1]:` prompts.
"""

from __future__ import annotations

import builtins
import keyword
import re
from typing import Any

from IPython.core.autocall import IPyAutocall
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.macro import Macro

_PROMPT = re.compile(r"\s*In ?\[")
_ASSIGNS = re.compile(r"[^\W\d]\w*\s*=[^=]")
_WORD = re.compile(r"[^\W\d]\w*")
_VALUES = frozenset(
    {int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, range}
)


def is_plain_cell(shell: InteractiveShell, cell: str, transformers: int) -> bool:
    """Whether a `cell` that parses runs unchanged; `transformers` is the count at start."""
    if count_transformers(shell) != transformers or _PROMPT.match(cell):
        return False
    if "\n" in cell.rstrip():
        return True
    if cell[:1].isspace():
        return False
    word = _WORD.match(cell)
    if word is None or _ASSIGNS.match(cell):
        return True
    name = word[0]
    if name in shell.user_ns:
        return not isinstance(shell.user_ns[name], (IPyAutocall, Macro))
    return keyword.iskeyword(name) or hasattr(builtins, name)


def count_transformers(shell: InteractiveShell) -> int:
    """Counts the transformers; a higher count than at start means that the user has added some."""
    manager = shell.input_transformer_manager
    return (
        len(manager.cleanup_transforms)
        + len(manager.line_transforms)
        + len(manager.token_transformers)
        + len(shell.input_transformers_post)
    )


def format_plain(shell: InteractiveShell, value: Any) -> dict[str, str] | None:
    """Returns the bundle of a built-in value without a registered format; None for other values."""
    kind = type(value)
    if kind not in _VALUES:
        return None
    formatter = shell.display_formatter
    text = None
    others = [formatter.ipython_display_formatter, formatter.mimebundle_formatter]
    for mime, each in formatter.formatters.items():
        if mime == "text/plain":
            text = each
        else:
            others.append(each)
    for each in others:
        registered = each.type_printers
        if registered and (kind in registered or object in registered or int in registered):
            return None
    shown = text(value) if text is not None else None
    return None if shown is None else {"text/plain": shown}
