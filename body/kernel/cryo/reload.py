"""Brings a generation back into the namespace.

Nothing is made before the checksum of what makes it is right. When something is damaged, or an
interrupt comes in between, the namespace is as it was before. Names that the generation does not
have are left alone.
"""

from __future__ import annotations

import io
import linecache
import pickle
import warnings
from pathlib import Path
from typing import Any

from ..encode import text_of
from ..shell import Shell
from ..variables import type_name
from . import around, make, manifest
from .disk import Damaged, Moved, Piece
from .live import anchors
from .reader import Reader
from .receipt import LOST, SAVED, Row, differs, look, said
from .slow import Slow
from .stream import no_collection

_MISSING = object()
_BECOMES = dict.fromkeys(
    (
        *(
            f"dict_{way}{what}iterator"
            for way in ("", "reverse")
            for what in ("key", "value", "item")
        ),
        "odict_iterator",
        "set_iterator",
    ),
    "list_iterator",
)
"""What pickle brings back as another kind, of the same behaviour."""


def reload(shell: Shell, folder: str, moved: Moved) -> dict[str, Any]:
    """The receipt, from a look at what is there afterwards.

    # Errors
    `Damaged` or `OtherFormat`; the namespace is as before then.
    """
    words = manifest.read(Path(folder))
    origin = f"{words['name']} {words['generation']}"
    before = dict(shell.user_ns)
    make.here = make.Here(shell.user_ns, anchors(shell), origin)
    try:
        with no_collection(), warnings.catch_warnings(), _Content(folder, words, moved) as content:
            warnings.simplefilter("ignore")
            around.look_there(words.get("paths", {}))
            lost = _Reload(shell, words, content).run(origin)
    except BaseException:
        _put_back(shell.user_ns, before)
        raise
    finally:
        make.here = None
    shell.execution_count = max(shell.execution_count, words["execution_count"] + 1)
    return _receipt(shell, words, lost)


class _Content:
    """Both files of a generation, open."""

    def __init__(self, folder: str, words: dict[str, Any], moved: Moved) -> None:
        sizes, packed = words["files"], bool(words.get("compress"))
        self.objects = Reader(Path(folder) / "objects", sizes["objects"], moved, packed)
        try:
            self.buffers = Reader(Path(folder) / "buffers", sizes["buffers"], moved, packed)
        except BaseException:
            self.objects.close()
            raise

    def __enter__(self) -> _Content:
        return self

    def __exit__(self, *_: object) -> None:
        self.objects.close()
        self.buffers.close()


class _Buffer:
    """One that is read straight to where it belongs."""

    def __init__(self, reader: Reader, *piece: Any, is_direct: bool) -> None:
        self._reader, self._piece, self._is_direct = reader, Piece(*piece), is_direct
        self.size = self._piece.raw

    def read_into(self, target: memoryview) -> None:
        if len(target) != self._piece.raw:
            raise Damaged("a buffer has another size than its array")
        self._reader.read_into(self._piece, target)

    def given(self) -> Any:
        """What a stream is given when it asks for it."""
        return self if self._is_direct else self._reader.read(self._piece)


class _Source:
    """What a reader reads: one piece after another."""

    def __init__(self) -> None:
        self.now: io.BufferedIOBase = io.BytesIO()

    def read(self, size: int = -1) -> bytes:
        return self.now.read(size)

    def readline(self) -> bytes:
        return self.now.readline()

    def readinto(self, target: Any) -> int:
        return self.now.readinto(target)


class _Reload:
    def __init__(self, shell: Shell, words: dict[str, Any], content: _Content) -> None:
        self._namespace = shell.user_ns
        self._words = words
        self._content = content
        self._source = _Source()
        self._buffers = [
            _Buffer(content.buffers, *piece, is_direct=is_direct)
            for *piece, is_direct in words["buffers"]
        ]
        self._slow: Slow | None = None
        self._fast = pickle.Unpickler(
            self._source, buffers=(each.given() for each in self._buffers)
        )

    def run(self, origin: str) -> dict[str, str]:
        """Why variables could not be made, by name."""
        self._begin(self._words["anchors"])
        self._fast.load()
        extras = self._words["extras"]
        lost: dict[str, str] = {}
        for row in self._words["variables"]:
            if "piece" not in row:
                continue
            try:
                self._set(row, self._load(row))
            except (KeyboardInterrupt, Damaged):
                raise
            except BaseException as error:
                why = self._again(row) if self._slow is None else error
                if why is not None:
                    lost[row["name"]] = _why(why)
        try:
            told = self._load(extras)
        except Damaged:
            raise
        except Exception:
            told = {}
        _remember(told.get("sources", {}), origin)
        return lost

    def _begin(self, piece: list[Any]) -> None:
        self._source.now = self._content.objects.open(Piece(*piece))

    def _load(self, row: dict[str, Any]) -> Any:
        self._begin(row["piece"])
        if self._slow is not None:
            return self._slow.variable(row["place"], row["buffer"])
        self._fast.load()  # the mark
        return self._fast.load()

    def _again(self, row: dict[str, Any]) -> BaseException | None:
        """A failure leaves the memo of a reader in C at odds with the stream, and does not tell
        what was half-way made: Python's own does, from here on."""
        self._slow = Slow(self._source, self._buffers, self._fast.memo.copy())
        try:
            self._set(row, self._load(row))
        except (KeyboardInterrupt, Damaged):
            raise
        except BaseException as error:
            return error
        return None

    def _set(self, row: dict[str, Any], value: Any) -> None:
        """What was told as lost is read all the same: others may share its parts."""
        if row["verdict"] != LOST:
            self._namespace[row["name"]] = value


def _why(error: BaseException) -> str:
    if isinstance(error, make.NotMade):
        return text_of(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"it needs the module `{error.name}`, which can't be imported"
    return said(error)


def _remember(sources: dict[str, str], origin: str) -> None:
    """So that tracebacks and `inspect` show the lines of functions."""
    for name, text in sources.items():
        here = name if " of " in name else f"{name[:-1]} of {origin}>"
        linecache.cache[here] = (len(text), None, text.splitlines(keepends=True), here)


def _put_back(namespace: dict[str, Any], before: dict[str, Any]) -> None:
    for name in list(namespace):
        if name not in before:
            del namespace[name]
    namespace.update(before)


def _receipt(shell: Shell, words: dict[str, Any], lost: dict[str, str]) -> dict[str, Any]:
    changed = around.changed(words.get("modules", {}))
    rows = [_probe(shell.user_ns, stored, lost, changed) for stored in words["variables"]]
    return {"receipt": [row.words() for row in rows], "warnings": list(changed.values())}


def _probe(
    namespace: dict[str, Any],
    stored: dict[str, Any],
    lost: dict[str, str],
    changed: dict[str, str],
) -> Row:
    row = Row(stored["name"], stored["verdict"], stored["type"], stored["bytes"], stored["why"])
    if "piece" not in stored or row.verdict == LOST:
        row.verdict = LOST
        return row
    value = namespace.get(row.name, _MISSING)
    if row.name in lost:
        row.verdict, row.why = LOST, lost[row.name]
    elif value is _MISSING:
        row.verdict, row.why = LOST, "it is not there"
    elif type_name(type(value)) not in (row.type, _BECOMES.get(row.type)):
        row.verdict, row.why = LOST, f"it came back as `{type_name(type(value))}`"
    elif (difference := differs(stored["look"], look(value))) is not None:
        row.verdict, row.why = LOST, difference
    elif stored.get("module") in changed:
        row.why = changed[stored["module"]]
    if row.verdict == LOST:
        row.bytes = 0
    assert row.verdict != SAVED or row.name in namespace
    return row
