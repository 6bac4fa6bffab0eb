"""The loader of a generation: reads its variables in order, with one reader and one memo.

```text
fast: pickle's reader in C ──fails, or meets a lost object──▶ tolerant: the same piece, to its end
  ▲                                                              │
  └─────────── a new reader, whose memo has no gaps ◀────────────┘
```

A reader in C numbers the next object by the size of its memo, so the memo must not have gaps: a
lost object is `GONE` there, and the tolerant reader knows the reason. The memo is passed in as a
stream, because an assignment to the attribute loses the numbers.
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
from .tolerant_reader import FATAL, Lost, TolerantReader

Manifest = dict[str, Any]


class _Gone:
    """The place of a lost object in the memo of a reader in C; every use raises."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def _refuse_use(self, *_: object) -> Any:
        raise pickle.UnpicklingError("an object that could not be made")

    __getattribute__ = __setattr__ = __call__ = __eq__ = _refuse_use
    __iter__ = __len__ = __bool__ = __index__ = __str__ = __repr__ = _refuse_use


GONE = _Gone()
_BEGIN = pickle.PROTO + b"\5"
_MEMOIZE_NEXT = pickle.NEXT_BUFFER + pickle.MEMOIZE + pickle.POP
_END = pickle.NONE + pickle.STOP


class Buffer:
    """A buffer that is read directly into its target."""

    def __init__(self, reader: Reader, *piece: Any, is_direct: bool) -> None:
        self._reader, self._piece, self._is_direct = reader, Piece(*piece), is_direct
        self.size = self._piece.raw

    def read_into(self, target: memoryview) -> None:
        if len(target) != self._piece.raw:
            raise Damaged("a buffer has another size than its array")
        self._reader.read_into(self._piece, target)

    def get_content(self) -> Any:
        """Returns the object that the stream gets for this buffer."""
        return self if self._is_direct else self._reader.read_piece(self._piece)


class _Mapped(Buffer):
    """A buffer that an array uses in place: the system copies a page on a write, so that a
    comparison of a gigabyte needs no second gigabyte."""

    @property
    def memory(self) -> memoryview:
        return self._reader.map_piece(self._piece)


class Content:
    """Both open files of a generation; with `mapped`, arrays use the file's own pages."""

    def __init__(
        self, folder: str, manifest: Manifest, moved: Moved, *, mapped: bool = False
    ) -> None:
        sizes, packed = manifest["files"], bool(manifest.get("compress"))
        self.objects = Reader(Path(folder) / "objects", sizes["objects"], moved, packed)
        try:
            self._buffers = Reader(Path(folder) / "buffers", sizes["buffers"], moved, packed)
        except BaseException:
            self.objects.close()
            raise
        kind = _Mapped if mapped and not packed else Buffer
        self.buffers = [
            kind(self._buffers, *piece, is_direct=is_direct)
            for *piece, is_direct in manifest["buffers"]
        ]

    def __enter__(self) -> Content:
        return self

    def __exit__(self, *_: object) -> None:
        self.objects.close()
        self._buffers.close()


class _Source:
    """The input of a reader: one piece after another."""

    def __init__(self) -> None:
        self.now: io.BufferedIOBase = io.BytesIO()

    def read(self, size: int = -1) -> bytes:
        return self.now.read(size)

    def readline(self) -> bytes:
        return self.now.readline()

    def readinto(self, target: Any) -> int:
        return self.now.readinto(target)


class Loader:
    """The variables of a generation."""

    def __init__(self, manifest: Manifest, content: Content) -> None:
        self._manifest, self._content = manifest, content
        self._source = _Source()
        self._fast: Any = None
        self._memo: list[Any] = []
        self._lost: dict[int, Lost] = {}
        """The losses behind `GONE`, by memo number."""
        self.discarded: list[Any] = []
        """Objects that were made in vain: dropping the last reference may run a finalizer."""

    def __iter__(self) -> Iterator[tuple[Manifest, Any]]:
        """Yields rows with their objects, or with `Lost` and its reason."""
        self._begin_piece({"piece": self._manifest["anchors"], "buffer": 0})
        self._fast.load()
        for row in self._manifest["variables"]:
            if "piece" in row:
                yield row, self._read_variable(row)

    def read_extras(self) -> Manifest:
        extras = self._read_variable(self._manifest["extras"] | {"name": ""})
        return {} if type(extras) is Lost else extras

    def _begin_piece(self, row: Manifest) -> None:
        if self._fast is None:
            self._resume_fast(row["buffer"])
        self._source.now = self._content.objects.open_piece(Piece(*row["piece"]))

    def _resume_fast(self, buffer: int) -> None:
        rest = (each.get_content() for each in self._content.buffers[buffer:])
        self._fast = pickle.Unpickler(self._source, buffers=chain(self._memo, rest))
        steps = _MEMOIZE_NEXT * len(self._memo)
        self._source.now = io.BytesIO(_BEGIN + steps + _END)
        self._fast.load()
        self._memo = []

    def _read_variable(self, row: Manifest) -> Any:
        self._begin_piece(row)
        uses = getrefcount(GONE)
        try:
            self._fast.load()  # the mark
            value = self._fast.load()
            if getrefcount(GONE) == uses:
                return value
        except FATAL:
            raise
        except BaseException:
            pass
        return self._reread_variable(row)

    def _reread_variable(self, row: Manifest) -> Any:
        """Reads the rest of the piece, with the memo numbers of its other objects."""
        memo = self._fast.memo.copy()
        self.discarded.append([memo[number] for number in range(row["place"], len(memo))])
        self._fast = None
        self._source.now = self._content.objects.open_piece(Piece(*row["piece"]))
        tolerant = TolerantReader(self._source, self._content.buffers, memo | self._lost)
        value = tolerant.read_variable(row["name"], row["place"], row["buffer"])
        for number in range(row["place"], len(tolerant.memo)):
            if type(tolerant.memo[number]) is Lost:
                self._lost[number] = tolerant.memo[number]
        known = (tolerant.memo[number] for number in range(len(tolerant.memo)))
        self._memo = [GONE if type(each) is Lost else each for each in known]
        self.discarded.append(tolerant.made)
        return value
