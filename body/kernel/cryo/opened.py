"""Open files: told by their path and position, and opened again."""

from __future__ import annotations

import gc
import io
import os
from typing import Any

from . import make
from .refusal import Unsaveable
from .values import Told

FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


def opened(file: Any) -> Told:
    name = file.name
    if file.closed or not isinstance(name, str) or not os.path.isfile(name):
        raise Unsaveable("a file that is closed, or has no path")
    if not os.path.samestat(os.fstat(file.fileno()), os.stat(name)):
        raise Unsaveable(f"a file that is not at `{name}` any more, as the folder or it changed")
    if file.writable():
        file.flush()
    how = {"path": os.path.abspath(name), "mode": file.mode, "position": _position(file)}
    if isinstance(file, io.TextIOWrapper):
        how |= {"encoding": file.encoding, "errors": file.errors, "newline": _newline(file)}
    elif isinstance(file, io.FileIO):
        how["raw"] = True
    how["mode"] = _again(how["mode"])
    return make.file, (how,)


def _position(file: Any) -> int:
    try:
        return file.tell()
    except OSError:
        why = "a file in the middle of `for line in it`, where it has no position"
        raise Unsaveable(why) from None


def _newline(file: io.TextIOWrapper) -> str | None:
    """What it was opened with, which no attribute tells: of texts it holds its encoding, this, what
    it has decoded ahead, and what it does with errors. After a seek there is nothing ahead."""
    file.seek(file.tell())
    texts = [each for each in gc.get_referents(file) if type(each) is str]
    is_known = len(texts) == 3 and texts[1] in ("", "\n", "\r", "\r\n")
    return texts[1] if is_known else None


def _again(mode: str) -> str:
    """Without emptying what is there."""
    if "w" in mode or "x" in mode:
        mode = mode.replace("w", "r").replace("x", "r")
        return mode if "+" in mode else mode + "+"
    return mode
