"""Reads the variables of a generation, one after the other, in one reader with one memo.

```text
fast: pickle's reader in C ──fails, or meets a lost object──▶ slow: the same piece, to its end
  ▲                                                              │
  └─────────── a new one, whose memo has no gaps ◀───────────────┘
```

A reader in C counts the objects of its memo to number the next, so a memo with gaps is of no use to
it: where an object is lost the memo has `GONE`, and the slow reader knows why. It takes a memo by a
stream alone, as what assigns it one forgets it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from sys import getrefcount
from typing import Any

from .disk import Damaged, Moved, Piece
from .reader import Reader
from .slow import Lost, Slow

Words = dict[str, Any]


class _Gone:
    """Takes the place of a lost object in the memo of a reader in C, and refuses every use."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def _refuse(self, *_: object) -> Any:
        raise pickle.UnpicklingError("an object that could not be made")

    __getattribute__ = __setattr__ = __call__ = __eq__ = _refuse
    __iter__ = __len__ = __bool__ = __index__ = __str__ = __repr__ = _refuse


GONE = _Gone()
_BEGIN = pickle.PROTO + b"\5"
_REMEMBER = pickle.NEXT_BUFFER + pickle.MEMOIZE + pickle.POP
_END = pickle.NONE + pickle.STOP


class Buffer:
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


class _Mapped(Buffer):
    """A buffer that an array uses in place: the system copies a page when code writes to it, so
    that a gigabyte which is only compared takes no second one."""

    @property
    def memory(self) -> memoryview:
        return self._reader.mapped(self._piece)


class Content:
    """Both files of a generation, open; `mapped` has arrays lie in the file's own pages."""

    def __init__(self, folder: str, words: Words, moved: Moved, *, mapped: bool = False) -> None:
        sizes, packed = words["files"], bool(words.get("compress"))
        self.objects = Reader(Path(folder) / "objects", sizes["objects"], moved, packed)
        try:
            self._buffers = Reader(Path(folder) / "buffers", sizes["buffers"], moved, packed)
        except BaseException:
            self.objects.close()
            raise
        kind = _Mapped if mapped and not packed else Buffer
        self.buffers = [
            kind(self._buffers, *piece, is_direct=is_direct)
            for *piece, is_direct in words["buffers"]
        ]

    def __enter__(self) -> Content:
        return self

    def __exit__(self, *_: object) -> None:
        self.objects.close()
        self._buffers.close()


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


class Loader:
    """The variables of a generation; `fatal` is what ends the reading instead of one variable."""

    def __init__(
        self,
        words: Words,
        content: Content,
        fatal: tuple[type[BaseException], ...] = (KeyboardInterrupt, Damaged),
    ) -> None:
        self._words, self._content, self._fatal = words, content, fatal
        self._source = _Source()
        self._fast: Any = None
        self._memo: list[Any] = []
        self._lost: dict[int, Lost] = {}
        """What the memo has `GONE` for, by its number."""
        self.discarded: list[Any] = []
        """What was made in vain: the last reference to it may run a finalizer."""

    def __iter__(self) -> Iterator[tuple[Words, Any]]:
        """Rows with their objects, or with `Lost` and its reason."""
        self._begin({"piece": self._words["anchors"], "buffer": 0})
        self._fast.load()
        for row in self._words["variables"]:
            if "piece" in row:
                yield row, self._variable(row)

    def extras(self) -> Words:
        told = self._variable(self._words["extras"] | {"name": ""})
        return {} if type(told) is Lost else told

    def _begin(self, row: Words) -> None:
        if self._fast is None:
            self._resume(row["buffer"])
        self._source.now = self._content.objects.open(Piece(*row["piece"]))

    def _resume(self, buffer: int) -> None:
        rest = (each.given() for each in self._content.buffers[buffer:])
        self._fast = pickle.Unpickler(self._source, buffers=chain(self._memo, rest))
        steps = _REMEMBER * len(self._memo)
        self._source.now = io.BytesIO(_BEGIN + steps + _END)
        self._fast.load()
        self._memo = []

    def _variable(self, row: Words) -> Any:
        self._begin(row)
        uses = getrefcount(GONE)
        try:
            self._fast.load()  # the mark
            value = self._fast.load()
            if getrefcount(GONE) == uses:
                return value
        except self._fatal:
            raise
        except BaseException:
            pass
        return self._again(row)

    def _again(self, row: Words) -> Any:
        """To the end of its piece, with the numbers of whatever else is in it."""
        memo = self._fast.memo.copy()
        self.discarded.append([memo[number] for number in range(row["place"], len(memo))])
        self._fast = None
        self._source.now = self._content.objects.open(Piece(*row["piece"]))
        slow = Slow(self._source, self._content.buffers, memo | self._lost, self._fatal)
        value = slow.variable(row["name"], row["place"], row["buffer"])
        for number in range(row["place"], len(slow.memo)):
            if type(slow.memo[number]) is Lost:
                self._lost[number] = slow.memo[number]
        known = (slow.memo[number] for number in range(len(slow.memo)))
        self._memo = [GONE if type(each) is Lost else each for each in known]
        self.discarded.append(slow.made)
        return value
