"""`print()` of plain values as one write.

Python's own `print` writes each value and the line's end separately: that is slower, and lines of
concurrent threads would mix.
"""

from __future__ import annotations

import builtins
import functools
import sys
from typing import Any

from .streams import CHUNK_CHARS, Output

_print = builtins.print

_PLAIN = frozenset({str, int, float, bool, complex, type(None)})
"""Their texts run no code that could print in between."""


@functools.wraps(_print)
def _print_lines(
    *values: Any,
    sep: str | None = " ",
    end: str | None = "\n",
    file: Any = None,
    flush: bool = False,
) -> None:
    stream = getattr(sys, "stdout", None) if file is None else file
    if type(stream) is Output and type(sep) is str and type(end) is str:
        if len(values) == 1:
            value = values[0]
            if type(value) is str:
                if len(value) < CHUNK_CHARS:  # a longer text is not copied
                    stream.write(value + end)
                    return
            elif type(value) in _PLAIN:
                stream.write(f"{value}{end}")
                return
        elif _PLAIN.issuperset(map(type, values)):
            stream.write(sep.join(map(str, values)) + end)
            return
    _print(*values, sep=sep, end=end, file=file, flush=flush)


def install_print() -> None:
    """Replaces `print()` by a version that writes a line in one call."""
    builtins.print = _print_lines
