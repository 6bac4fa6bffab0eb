"""A reader that finds its way after a failure: Python's own, with a memo that may have gaps."""

from __future__ import annotations

import gc
import pickle
from typing import Any, ClassVar

from .arrays import referents
from .make import NotMade

_ATOMS = frozenset({str, bytes, int, float, bool, type(None)})


def _held(each: Any) -> set[int]:
    """What it leads to at once, or by a dict or tuple that nobody else has."""
    direct = referents(each)
    inner = [gc.get_referents(held) for held in direct if type(held) in (dict, tuple)]
    return {id(held) for some in (direct, *inner) for held in some}


class Slow(pickle._Unpickler):
    """Goes on behind a variable that could not be made. Those that share objects with it fail, too,
    and say so; all others come back."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: Any, buffers: list[Any], memo: dict[int, Any]) -> None:
        super().__init__(file, buffers=None)
        self.memo = memo
        self._all = buffers
        self._place = 0
        self._used = 0
        self._named: dict[int, Any] = {}

    def variable(self, place: int, buffer: int = 0) -> Any:
        """The variable whose first object is the memo's number `place`."""
        self.forget(place)
        self._place, self._used = place, buffer
        self.load()  # the mark
        try:
            return self.load()
        except BaseException:
            self._forget_halves(place)
            raise

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        self._named[id(found)] = found
        return found

    def _forget_halves(self, place: int) -> None:
        """What was still being made, and what leads to it; the rest is whole, and others use it."""
        on = (each for stack in (*self.metastack, self.stack) for each in stack)
        halves = {id(each) for each in on if type(each) not in _ATOMS} - self._named.keys()
        new = [(key, each) for key, each in self.memo.items() if key >= place]
        holders: dict[int, list[int]] = {}
        for _, each in new:
            if type(each) not in _ATOMS:
                for held in _held(each):
                    holders.setdefault(held, []).append(id(each))
        ahead = list(halves)
        while ahead:
            for holder in holders.get(ahead.pop(), ()):
                if holder not in halves:
                    halves.add(holder)
                    ahead.append(holder)
        for key, each in new:
            if id(each) in halves:
                del self.memo[key]

    def forget(self, place: int) -> None:
        """Everything from that number on; they are in order, so this costs what it forgets."""
        while self.memo and next(reversed(self.memo)) >= place:
            self.memo.popitem()

    def load_memoize(self) -> None:
        self.memo[self._place] = self.stack[-1]
        self._place += 1

    def load_get(self, number: int) -> None:
        if number not in self.memo:
            raise NotMade("it shares an object with a variable that could not be made")
        self.append(self.memo[number])

    def load_binget(self) -> None:
        self.load_get(self.read(1)[0])

    def load_long_binget(self) -> None:
        self.load_get(int.from_bytes(self.read(4), "little"))

    def load_next_buffer(self) -> None:
        self.append(self._all[self._used].given())
        self._used += 1

    dispatch[pickle.MEMOIZE[0]] = load_memoize
    dispatch[pickle.BINGET[0]] = load_binget
    dispatch[pickle.LONG_BINGET[0]] = load_long_binget
    dispatch[pickle.NEXT_BUFFER[0]] = load_next_buffer
