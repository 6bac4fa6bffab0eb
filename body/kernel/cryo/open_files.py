"""Open files: stored by path and position, and opened again."""

from __future__ import annotations

import gc
import io
import os
from typing import Any

from . import make
from .unsaveable import Unsaveable
from .values import Reduced

FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


def reduce_file(file: Any) -> Reduced:
    name = file.name
    if file.closed or not isinstance(name, str) or not os.path.isfile(name):
        raise Unsaveable("a file that is closed, or has no path")
    if not os.path.samestat(os.fstat(file.fileno()), os.stat(name)):
        why = "because the file or the working directory has changed"
        raise Unsaveable(f"a file that is no longer at `{name}`, {why}")
    if file.writable():
        file.flush()
    how = {"path": os.path.abspath(name), "mode": file.mode, "position": _file_position(file)}
    if isinstance(file, io.TextIOWrapper):
        how |= {"encoding": file.encoding, "errors": file.errors, "newline": _file_newline(file)}
    elif isinstance(file, io.FileIO):
        how["raw"] = True
    how["mode"] = _reopen_mode(how["mode"])
    return make.file, (how,)


def _file_position(file: Any) -> int:
    try:
        return file.tell()
    except OSError:
        why = "a file in a `for line in file` loop, where it has no position"
        raise Unsaveable(why) from None


def _file_newline(file: io.TextIOWrapper) -> str | None:
    """Returns the newline of the `open` call, which no attribute has. A text file refers to three
    texts: its encoding, its newline and its error mode; the seek drops the decoded text."""
    file.seek(file.tell())
    texts = [each for each in gc.get_referents(file) if type(each) is str]
    is_known = len(texts) == 3 and texts[1] in ("", "\n", "\r", "\r\n")
    return texts[1] if is_known else None


def _reopen_mode(mode: str) -> str:
    """Returns a mode that does not truncate the file."""
    if "w" in mode or "x" in mode:
        mode = mode.replace("w", "r").replace("x", "r")
        return mode if "+" in mode else mode + "+"
    return mode
