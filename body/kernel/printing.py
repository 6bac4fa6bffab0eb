"""`print()` of plain values as one write.

Python's own makes one of each value and one of the line's end: slower, and lines that threads print
at the same time would mix.
"""

from __future__ import annotations

import builtins
import functools
import sys
from typing import Any

from .streams import PIECE, Output

_print = builtins.print

_PLAIN = frozenset({str, int, float, bool, complex, type(None)})
"""Their texts run no code, which could print in between."""


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
                if len(value) < PIECE:  # what is longer is not copied
                    stream.write(value + end)
                    return
            elif type(value) in _PLAIN:
                stream.write(f"{value}{end}")
                return
        elif _PLAIN.issuperset(map(type, values)):
            stream.write(sep.join(map(str, values)) + end)
            return
    _print(*values, sep=sep, end=end, file=file, flush=flush)


def print_lines() -> None:
    """Makes `print()` write a line at once."""
    builtins.print = _print_lines
