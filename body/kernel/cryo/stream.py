"""The stream of all variables: one pickler with one memo, and a piece of the file for each
variable.

Before each piece the stream pickles an empty list twice: the second result is the list's memo
number. The memo is cut there when the variable fails, and a reader resumes there. `DeepPickler`
pickles objects that nest too deep for C, with the same memo.
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
from .disk import Piece
from .heap_trim import HeapTrimmer
from .recursion import DeepPickler
from .rows import Rows, shared_texts
from .rules import Rules
from .writer import Writer

PROTOCOL = 5
OUT_OF_BAND_BYTES = 64 << 10
"""The minimum size in bytes of a buffer that is written to a separate file."""
_MAX_ATTEMPTS = 3
_LARGE_MEMO = 50_000
"""The memo size from which a variable is tried before it is written."""
_TRIAL_BYTES = 32 << 10
"""Bytes of such a trial."""
_MAX_RECURSION = 2500
"""Before Python 3.12 the recursion limit of Python also limits C, and users raise it beyond the
stack."""


class _Named:
    """Stands for an anchor until the memo has it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return make.live, (self.name,)


class _Ruled:
    """Applies the rules of a stream to each object."""

    rules: Rules
    dispatch_table = copyreg.dispatch_table

    def reducer_override(self, obj: Any) -> Any:
        return self.rules.reduce_object(obj)


class _Fast(_Ruled, pickle.Pickler):
    pass


class _Deep(_Ruled, DeepPickler):
    pass


class Stream:
    """Writes variables in order; holds their objects until it is closed."""

    def __init__(self, objects: Writer, buffers: Writer | None, rules: Rules) -> None:
        self._file = objects
        self._buffers = buffers
        self._rules = rules
        self._echo = io.BytesIO()
        self._target: Any = objects
        self.pieces: list[tuple[Any, ...]] = []
        """The pieces of the buffers in reading order, each with a flag: an array reads the buffer
        directly into its memory."""
        self._marks: list[list[Any]] = []
        self._known = 0
        """Memo size at the last mark."""
        self._heap_trimmer = HeapTrimmer()
        self._fast = _Fast(self, PROTOCOL, buffer_callback=self._write_buffer)
        self._fast.rules = rules

    def write_anchors(self, found: dict[str, Any]) -> tuple[Piece, int]:
        """Writes the anchors, which take the first places of the memo."""
        self._file.begin_piece()
        stands = {name: _Named(name) for name in found}
        self._fast.dump(list(stands.values()))
        memo = self._fast.memo.copy()
        for name, stand in stands.items():
            place, _ = memo.pop(id(stand))
            memo[id(found[name])] = (place, found[name])
        self._fast.memo = memo
        self._marks.append(list(stands.values()))  # their ids must not be used again
        return self._file.end_piece(), 0

    def write_variable(self, value: Any) -> tuple[Piece, int]:
        """Writes a variable; returns its piece and the memo size before it.

        # Errors
        Any exception of the pickling; stream and memo are unchanged.
        """
        shared = None
        if self._known > _LARGE_MEMO:
            self._try_beginning(value)
        else:
            shared = shared_texts(value)
        first_buffer = len(self.pieces)
        self._file.begin_piece()
        first = self._known = self._write_mark(shared)
        for attempt in range(_MAX_ATTEMPTS):
            try:
                if shared is None:
                    self._dump_value(value, first, first_buffer)
                else:
                    self._dump_rows(value)
                return self._file.end_piece(), first
            except BaseException as error:
                if self.write_error() is not None:
                    raise
                self._cut_back(first, first_buffer)
                changed = isinstance(error, RuntimeError) and "changed" in str(error)
                if not changed or attempt == _MAX_ATTEMPTS - 1:
                    raise
                self._file.begin_piece()
                first = self._write_mark(shared)
        raise AssertionError

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Drops all objects: the stream is a cycle, and garbage collection may be off."""
        self._fast.clear_memo()
        del self._fast, self._rules.last_object
        self._rules.weak.referred.clear()
        self._rules.weak.references.clear()
        self._rules.notes.altered.clear()
        self._marks.clear()

    def write(self, data: Any) -> int:
        self._heap_trimmer.count_bytes(len(data))
        return self._target.write(data)

    def _try_beginning(self, value: Any) -> None:
        """Pickles the beginning to nowhere: removing a failed variable from a large memo copies the
        memo."""
        trial = _Fast(_TrialFile(), PROTOCOL, buffer_callback=_stop_trial)
        trial.rules = self._rules
        with suppress(_TrialDone, RuntimeError), _limited_recursion():
            trial.dump(value)

    def _dump_value(self, value: Any, first: int, first_buffer: int) -> None:
        try:
            with _limited_recursion():
                self._fast.dump(value)
            return
        except RecursionError:
            if self.write_error() is not None:
                raise
        self._cut_back(first, first_buffer)
        self._file.begin_piece()
        self._write_mark()
        deep = _Deep(self, PROTOCOL, buffer_callback=self._write_buffer)
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

    def _write_mark(self, shared_texts: list[str] | None = None) -> int:
        """Writes a mark, with texts that the memo has from there on."""
        mark: list[Any] = shared_texts or []
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

    def _cut_back(self, first: int, first_buffer: int) -> None:
        """Restores stream and memo to the mark at `first`. Buffers already written stay in their
        file unused."""
        self._file.discard_piece()
        del self.pieces[first_buffer:]
        memo = self._fast.memo.copy()
        self._fast.memo = {key: each for key, each in memo.items() if each[0] < first}

    def _write_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if self._buffers is None or memory.nbytes < OUT_OF_BAND_BYTES:
            return True
        self._buffers.begin_piece()
        self._buffers.write(memory)
        is_direct = self._rules.arrays.is_direct(buffer)
        self.pieces.append((*self._buffers.end_piece(), is_direct))
        return False

    def write_error(self) -> Exception | None:
        return self._file.failed or (self._buffers and self._buffers.failed)


class _TrialDone(Exception):
    """The trial has succeeded."""


def _stop_trial(_: pickle.PickleBuffer) -> bool:
    raise _TrialDone


class _TrialFile:
    def __init__(self) -> None:
        self._size = 0

    def write(self, data: Any) -> int:
        self._size += len(data)
        if self._size > _TRIAL_BYTES:
            raise _TrialDone
        return len(data)


class _limited_recursion:
    """Limits the recursion of C to its stack, where Python does not do so."""

    def __enter__(self) -> None:
        self._limit = sys.getrecursionlimit()
        if sys.version_info < (3, 12) and self._limit > _MAX_RECURSION:
            sys.setrecursionlimit(_MAX_RECURSION)

    def __exit__(self, *_: object) -> None:
        if sys.getrecursionlimit() != self._limit:
            sys.setrecursionlimit(self._limit)


class paused_collection:
    """Pauses garbage collection: millions of new objects that stay need no collection."""

    def __enter__(self) -> None:
        self._on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._on:
            gc.enable()
