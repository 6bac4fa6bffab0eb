"""Objects that the stream restores in another state: held locks, filled caches, weak references to
objects that nothing holds.

The stream reduces an object once, with the first variable that leads to it; `Search` finds the
object in later variables.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable
from typing import Any

from .arrays import list_referents

_MAX_OBJECTS = 200_000
_CODE = (type, types.FunctionType, types.ModuleType, types.TracebackType)


class Notes(list[str]):
    """Notes about the objects that were reduced since the list was last cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.altered: list[tuple[Any, str]] = []
        """All objects that come back in another state, with their notes."""

    def add_altered(self, obj: Any, note: str) -> None:
        self.append(note)
        self.altered.append((obj, note))


class Search:
    """A search for objects in variables, which ends after a number of objects."""

    def __init__(self, wanted: Iterable[Any]) -> None:
        self._wanted = {id(each) for each in wanted}
        self._left = _MAX_OBJECTS if self._wanted else 0

    def find_held(self, value: Any) -> set[int]:
        """Returns the ids of wanted objects among a variable and its parts, not among the objects
        that its code refers to."""
        seen, pending = {id(value)}, deque([value])
        while pending and self._left > 0:
            held = pending.popleft()
            kind = type(held)
            if issubclass(kind, _CODE) and not (held is value and issubclass(kind, type)):
                continue  # the globals of a function are the whole namespace
            for each in list_referents(held):
                if id(each) not in seen:
                    seen.add(id(each))
                    pending.append(each)
                    self._left -= 1
        return seen & self._wanted
