"""Long lists of plain rows that nothing else leads to: written without remembering each.

A pickler remembers every list, dict and text, to tell it only once. For a million rows that takes a
fifth of what they take themselves. Where counts of references show that nobody else has them, and
nothing in them leads anywhere, there is nothing to remember. The stream is the same for readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from sys import getrefcount
from typing import Any

_MANY = 50_000
_PIECE = 10_000
"""Rows that are looked at together."""
_TEXTS = 1000
"""Texts that may be shared between rows; they are told before them, once."""
_PLAIN = frozenset((int, float, bool, type(None), str))


def texts(value: Any) -> list[str] | None:
    """What such a list shares between its rows; nothing where it is no such list."""
    if type(value) is not list or len(value) < _MANY:
        return None
    found: dict[int, str] = {}
    for at in range(0, len(value), _PIECE):
        piece = value[at : at + _PIECE]
        if not _is_plain(piece, found) or len(found) > _TEXTS:
            return None
    return list(found.values())


class Rows:
    """Stands for the list while it is written."""

    def __init__(self, rows: list[Any], pickler: Any) -> None:
        self._rows, self._pickler = rows, pickler

    def __reduce__(self) -> Any:
        return list, (), None, self._each()

    def _each(self) -> Iterator[Any]:
        self._pickler.fast = True  # it remembers nothing, and goes on knowing what it knew
        yield from self._rows
        self._pickler.fast = False


def _is_plain(piece: list[Any], found: dict[int, str]) -> bool:
    kinds = set(map(type, piece))
    if len(kinds) != 1 or _most(piece) > _OWN:
        return False
    if kinds == {dict}:
        names = set(chain.from_iterable(piece))
        if set(map(type, names)) - {str}:
            return False
        # Equal names that are not the same would be told again and again.
        if len(names) != len(set(map(id, chain.from_iterable(piece)))):
            return False
        found.update((id(name), name) for name in names)
        held = list(chain.from_iterable(map(dict.values, piece)))
    elif kinds <= {list, tuple}:
        held = list(chain.from_iterable(piece))
    else:
        return False
    kinds = set(map(type, held))
    if not kinds <= _PLAIN:
        return False
    if str in kinds:
        found.update(_shared(held))
    return True


def _most(piece: list[Any]) -> int:
    return max(map(getrefcount, piece))


def _shared(held: list[Any]) -> Iterator[tuple[int, str]]:
    return ((id(each), each) for each in held if type(each) is str and getrefcount(each) > _ALONE)


def _own() -> int:
    """The count of what one list has, and a piece of it."""
    whole = [[object()]]
    return _most(whole[:1])


def _alone() -> int:
    """The count of a text that one row has, while it is looked at."""
    row = [f"a text of {len(__name__)} characters"]
    return max(getrefcount(each) for each in list(chain.from_iterable([row])))


_OWN = _own()
_ALONE = _alone()
