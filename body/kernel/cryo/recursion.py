"""Pickling without recursion, for deep nesting: lists of lists, chains of nodes.

It writes the same opcodes as `pickle`. Each object is a generator of its parts, and one loop runs
the generators. It is a few times slower than pickling in C, so it runs only for deep objects.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator
from itertools import islice
from typing import Any

Steps = Generator[Any, None, None]
_BATCH = 1000
_WHOLE = frozenset({bytes, bytearray, str, pickle.PickleBuffer})
_PLAIN = frozenset({type(None), bool, int, float})
_END = object()


class DeepPickler(pickle._Pickler):
    """A pickler whose depth is limited by memory only."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        self.framer.commit_frame()
        stack = [self._save_steps(obj)]
        while stack:
            child = next(stack[-1], _END)
            if child is _END:
                stack.pop()
            else:
                self.framer.commit_frame()
                stack.append(self._save_steps(child))

    def _save_steps(self, obj: Any) -> Steps:
        kind = type(obj)
        if kind not in _PLAIN:
            known = self.memo.get(id(obj))
            if known is not None:
                self.write(self.get(known[0]))
                return
        if kind in _PLAIN or kind in _WHOLE:
            pickle._Pickler.dispatch[kind](self, obj)
        elif kind is tuple:
            yield from self._save_tuple_parts(obj)
        elif kind is list:
            self._write_empty(obj, pickle.EMPTY_LIST)
            yield from self._save_batches(iter(obj), pickle.APPEND, pickle.APPENDS)
        elif kind is dict:
            self._write_empty(obj, pickle.EMPTY_DICT)
            yield from self._save_pairs(iter(obj.items()))
        elif kind is set:
            self._write_empty(obj, pickle.EMPTY_SET)
            yield from self._save_batches(iter(obj), None, pickle.ADDITEMS)
        elif kind is frozenset:
            yield from self._save_frozenset_parts(obj)
        else:
            yield from self._save_other(obj, kind)

    def _write_empty(self, obj: Any, opcode: bytes) -> None:
        self.write(opcode)
        self.memoize(obj)

    def _save_tuple_parts(self, obj: tuple[Any, ...]) -> Steps:
        if not obj:
            self.write(pickle.EMPTY_TUPLE)
            return
        short = len(obj) <= 3
        if not short:
            self.write(pickle.MARK)
        yield from obj
        known = self.memo.get(id(obj))
        if known is None:
            self.write(pickle._tuplesize2code[len(obj)] if short else pickle.TUPLE)
            self.memoize(obj)
        else:  # it leads to itself, and is already made
            self.write((pickle.POP * len(obj) if short else pickle.POP_MARK) + self.get(known[0]))

    def _save_frozenset_parts(self, obj: frozenset[Any]) -> Steps:
        self.write(pickle.MARK)
        yield from obj
        known = self.memo.get(id(obj))
        if known is None:
            self.write(pickle.FROZENSET)
            self.memoize(obj)
        else:
            self.write(pickle.POP_MARK + self.get(known[0]))

    def _save_batches(self, items: Any, one: bytes | None, many: bytes) -> Steps:
        while batch := list(islice(items, _BATCH)):
            if len(batch) == 1 and one is not None:
                yield batch[0]
                self.write(one)
                continue
            self.write(pickle.MARK)
            yield from batch
            self.write(many)

    def _save_pairs(self, items: Any) -> Steps:
        while batch := list(islice(items, _BATCH)):
            self.write(pickle.MARK)
            for key, value in batch:
                yield key
                yield value
            self.write(pickle.SETITEMS)

    def _save_other(self, obj: Any, kind: type) -> Steps:
        reduced = self.reducer_override(obj)
        if reduced is NotImplemented:
            if kind in pickle._Pickler.dispatch:  # type, function: by name
                pickle._Pickler.dispatch[kind](self, obj)
                return
            reduce = self.dispatch_table.get(kind)
            if reduce is not None:
                reduced = reduce(obj)
            elif issubclass(kind, type):
                self.save_global(obj)
                return
            else:
                reduced = obj.__reduce_ex__(self.proto)
        if isinstance(reduced, str):
            self.save_global(obj, reduced)
        elif not isinstance(reduced, tuple) or not 2 <= len(reduced) <= 6:
            raise pickle.PicklingError(
                f"the reduced form of `{kind.__name__}` is a `{type(reduced).__name__}`"
            )
        else:
            yield from self._save_reduced(obj, *reduced, *(None,) * (6 - len(reduced)))

    def _save_reduced(self, obj: Any, make: Any, args: tuple[Any, ...], *more: Any) -> Steps:
        state, items, pairs, setter = more
        name = getattr(make, "__name__", "")
        if name == "__newobj__":
            yield args[0]
            yield args[1:]
            opcode = pickle.NEWOBJ
        elif name == "__newobj_ex__":
            yield from args
            opcode = pickle.NEWOBJ_EX
        else:
            yield make
            yield args
            opcode = pickle.REDUCE
        self.write(opcode)
        known = self.memo.get(id(obj))
        if known is not None:
            self.write(pickle.POP + self.get(known[0]))
        else:
            self.memoize(obj)
        if items is not None:
            yield from self._save_batches(iter(items), pickle.APPEND, pickle.APPENDS)
        if pairs is not None:
            yield from self._save_pairs(iter(pairs))
        if state is None:
            return
        if setter is None:
            yield state
            self.write(pickle.BUILD)
        else:
            yield setter
            yield obj
            yield state
            self.write(pickle.TUPLE2 + pickle.REDUCE + pickle.POP)
