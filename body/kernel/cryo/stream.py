"""All variables through one pickler: one memo, a piece of the file for each.

In front of each piece an empty list is pickled, and then asked for again: the answer says how many
objects the memo had, which is where it is cut when the variable fails, and where a reader finds its
way back. What nests too deep for C is pickled by `Deep`, with the same memo.
"""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
import sys
from contextlib import suppress
from typing import Any

from . import make
from .deep import Deep
from .disk import Piece
from .rows import Rows, texts
from .rules import Rules
from .slack import Slack
from .writer import Writer

PROTOCOL = 5
OUT_OF_BAND = 64 << 10
"""Bytes of a buffer that goes to a file of its own."""
_AGAIN = 3
_CROWDED = 50_000
"""Objects in the memo from which on a variable is tried before it is written."""
_BEGINNING = 32 << 10
"""Bytes of such a trial."""
_SHALLOW = 2500
"""Before Python 3.12 what C may recurse is what Python may, which people raise beyond the stack."""


class _Named:
    """Stands for what every kernel has, until the memo knows it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return make.live, (self.name,)


class _Ruled:
    """Asks the rules of a stream about each object."""

    rules: Rules
    dispatch_table = copyreg.dispatch_table

    def reducer_override(self, obj: Any) -> Any:
        return self.rules.told(obj)


class _Fast(_Ruled, pickle.Pickler):
    pass


class _Deep(_Ruled, Deep):
    pass


class Stream:
    """Writes variables one after the other; what it has seen it holds until it is closed."""

    def __init__(self, objects: Writer, buffers: Writer | None, rules: Rules) -> None:
        self._file = objects
        self._buffers = buffers
        self._rules = rules
        self._echo = io.BytesIO()
        self._target: Any = objects
        self.pieces: list[tuple[Any, ...]] = []
        """Of the buffers, in the order in which readers ask for them, and whether an array reads it
        straight into its memory."""
        self._marks: list[list[Any]] = []
        self._known = 0
        """Objects in the memo at the last mark."""
        self._slack = Slack()
        self._fast = _Fast(self, PROTOCOL, buffer_callback=self._buffer)
        self._fast.rules = rules

    def anchors(self, found: dict[str, Any]) -> tuple[Piece, int]:
        """What every kernel has takes the first places of the memo."""
        self._file.begin()
        stands = {name: _Named(name) for name in found}
        self._fast.dump(list(stands.values()))
        memo = self._fast.memo.copy()
        for name, stand in stands.items():
            place, _ = memo.pop(id(stand))
            memo[id(found[name])] = (place, found[name])
        self._fast.memo = memo
        self._marks.append(list(stands.values()))  # their ids must not be used again
        return self._file.end(), 0

    def variable(self, value: Any) -> tuple[Piece, int]:
        """Its piece of the file, and the objects that the memo had before it.

        # Errors
        Whatever keeps it from being pickled; stream and memo are as before then.
        """
        shared = None
        if self._known > _CROWDED:
            self._try(value)
        else:
            shared = texts(value)
        first_buffer = len(self.pieces)
        self._file.begin()
        first = self._known = self._mark(shared)
        for attempt in range(_AGAIN):
            try:
                if shared is None:
                    self._dump(value, first, first_buffer)
                else:
                    self._dump_rows(value)
                return self._file.end(), first
            except BaseException as error:
                if self.refused() is not None:
                    raise
                self._cut(first, first_buffer)
                changed = isinstance(error, RuntimeError) and "changed" in str(error)
                if not changed or attempt == _AGAIN - 1:
                    raise
                self._file.begin()
                first = self._mark(shared)
        raise AssertionError

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody's objects live on in here: it is a cycle, which nobody may look for."""
        self._fast.clear_memo()
        del self._fast, self._rules.last
        self._rules.weak.referred.clear()
        self._marks.clear()

    def write(self, data: Any) -> int:
        self._slack.moved(len(data))
        return self._target.write(data)

    def _try(self, value: Any) -> None:
        """Its beginning, to nowhere: to cut out of a large memo what fails costs a copy of all."""
        trial = _Fast(_Nowhere(), PROTOCOL, buffer_callback=_enough)
        trial.rules = self._rules
        with suppress(_Enough, RuntimeError), _shallow():
            trial.dump(value)

    def _dump(self, value: Any, first: int, first_buffer: int) -> None:
        try:
            with _shallow():
                self._fast.dump(value)
            return
        except RecursionError:
            if self.refused() is not None:
                raise
        self._cut(first, first_buffer)
        self._file.begin()
        self._mark()
        deep = _Deep(self, PROTOCOL, buffer_callback=self._buffer)
        deep.rules = self._rules
        deep.memo = self._fast.memo.copy()
        deep.dump(value)
        self._fast.memo = deep.memo

    def _dump_rows(self, value: list[Any]) -> None:
        rows = Rows(value, self._fast)
        try:
            self._fast.dump(rows)
        finally:
            self._fast.fast = False
        memo = self._fast.memo.copy()
        memo[id(value)] = (memo.pop(id(rows))[0], value)
        self._fast.memo = memo

    def _mark(self, texts: list[str] | None = None) -> int:
        """With texts that are to be known from there on."""
        mark: list[Any] = texts or []
        self._marks.append(mark)
        self._fast.dump(mark)
        self._target = self._echo = io.BytesIO()
        try:
            self._fast.dump(mark)
        finally:
            self._target = self._file
        answer = self._echo.getvalue()
        get, place = answer[-3:-2], answer[-2:-1]
        if answer[-6:-5] == pickle.LONG_BINGET:
            get, place = pickle.LONG_BINGET, answer[-5:-1]
        assert get in (pickle.BINGET, pickle.LONG_BINGET), answer
        return int.from_bytes(place, "little")

    def _cut(self, first: int, first_buffer: int) -> None:
        """Stream and memo as they were before the mark at `first`. Buffers that were written stay
        in their file, and nobody asks for them."""
        self._file.take_back()
        del self.pieces[first_buffer:]
        memo = self._fast.memo.copy()
        self._fast.memo = {key: each for key, each in memo.items() if each[0] < first}

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if self._buffers is None or memory.nbytes < OUT_OF_BAND:
            return True
        self._buffers.begin()
        self._buffers.write(memory)
        is_direct = self._rules.arrays.is_direct(buffer)
        self.pieces.append((*self._buffers.end(), is_direct))
        return False

    def refused(self) -> Exception | None:
        return self._file.failed or (self._buffers and self._buffers.failed)


class _Enough(Exception):
    """It has begun well."""


def _enough(_: pickle.PickleBuffer) -> bool:
    raise _Enough


class _Nowhere:
    def __init__(self) -> None:
        self._size = 0

    def write(self, data: Any) -> int:
        self._size += len(data)
        if self._size > _BEGINNING:
            raise _Enough
        return len(data)


class _shallow:
    """Keeps C from recursing beyond its stack, where that is left to us."""

    def __enter__(self) -> None:
        self._limit = sys.getrecursionlimit()
        if sys.version_info < (3, 12) and self._limit > _SHALLOW:
            sys.setrecursionlimit(_SHALLOW)

    def __exit__(self, *_: object) -> None:
        if sys.getrecursionlimit() != self._limit:
            sys.setrecursionlimit(self._limit)


class no_collection:
    """Millions of new objects that all stay are no reason to look for garbage."""

    def __enter__(self) -> None:
        self._on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._on:
            gc.enable()
