"""Long lists of plain, unshared rows: written without a memo entry for each row.

A pickler remembers every list, dict and text to write it once. For a million rows the memo takes a
fifth of their size. When reference counts show that nothing else refers to the rows, and the rows
hold plain values only, the memo is not needed. Readers see the same stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from sys import getrefcount
from typing import Any

_MIN_ROWS = 50_000
_CHECKED_ROWS = 10_000
"""Rows that are checked together."""
_MAX_TEXTS = 1000
"""The maximum number of texts shared between rows; they are written once, before the rows."""
_PLAIN = frozenset((int, float, bool, type(None), str))


def shared_texts(value: Any) -> list[str] | None:
    """Returns the texts that such a list shares between its rows; None for any other list."""
    if type(value) is not list or len(value) < _MIN_ROWS:
        return None
    found: dict[int, str] = {}
    for at in range(0, len(value), _CHECKED_ROWS):
        piece = value[at : at + _CHECKED_ROWS]
        if not _is_plain(piece, found) or len(found) > _MAX_TEXTS:
            return None
    return list(found.values())


class Rows:
    """Stands for the list while it is written."""

    def __init__(self, rows: list[Any], pickler: Any) -> None:
        self._rows, self._pickler = rows, pickler

    def __reduce__(self) -> Any:
        return list, (), None, self._iter_rows()

    def _iter_rows(self) -> Iterator[Any]:
        self._pickler.fast = True  # it adds nothing to the memo, and keeps its entries
        yield from self._rows
        self._pickler.fast = False


def _is_plain(piece: list[Any], found: dict[int, str]) -> bool:
    kinds = set(map(type, piece))
    if len(kinds) != 1 or _max_refcount(piece) > _OWN:
        return False
    if kinds == {dict}:
        names = set(chain.from_iterable(piece))
        if set(map(type, names)) - {str}:
            return False
        # Equal names that are different objects would be written repeatedly.
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
        found.update(_find_shared(held))
    return True


def _max_refcount(piece: list[Any]) -> int:
    return max(map(getrefcount, piece))


def _find_shared(held: list[Any]) -> Iterator[tuple[int, str]]:
    return ((id(each), each) for each in held if type(each) is str and getrefcount(each) > _ALONE)


def _own_refcount() -> int:
    """Returns the reference count of a row that only one list and a piece of it hold."""
    whole = [[object()]]
    return _max_refcount(whole[:1])


def _single_refcount() -> int:
    """Returns the reference count of a text that only one row holds, during the check."""
    row = [f"a text of {len(__name__)} characters"]
    return max(getrefcount(each) for each in list(chain.from_iterable([row])))


_OWN = _own_refcount()
_ALONE = _single_refcount()
