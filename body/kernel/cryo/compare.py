"""Comparison of objects with what came back of them, pair by pair: kinds, parts, what is shared.

Builtin containers and plain instances go through C, all of a level at once; anything else is
compared by what the rules tell of it, so an object that leaves something out of its state is the
same without that. Atoms are compared by value alone: that texts are shared shows nowhere.

```text
pairs ──of one kind──▶ pairs of their parts ──▶ … ──one differs──▶ again, one by one: where?
```
"""

from __future__ import annotations

import copyreg
import io
import pickle
import types
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, compress
from operator import itemgetter
from typing import Any

from .. import resources
from ..variables import type_name
from . import arrays, culprit, make_based, rows
from .around import is_installed
from .based import base_of, content_of
from .opened import FILES
from .receipt import BECOMES
from .rules import Rules
from .values import attributes

Pairs = tuple[list[Any], list[Any]]
Holders = tuple[Any, "Holders"] | None
"""What an object was reached by, from the inside out."""


class _Kinds:
    """Asked by identity: metaclasses hash and compare as they like."""

    def __init__(self, *kinds: type) -> None:
        self._ids = frozenset(map(id, kinds))

    def __contains__(self, kind: type) -> bool:
        return id(kind) in self._ids


_ATOMS = _Kinds(type(None), bool, int, float, complex, str, bytes, type(...), types.CodeType)
_MEMORY = _Kinds(bytearray, array, pickle.PickleBuffer)
_CHANGING = _Kinds(list, dict, set, bytearray, array, pickle.PickleBuffer)
_TRUSTED = _Kinds(*FILES, resources.Resource)
"""Come back another way than by what they consist of."""
_LIST_ITERATOR = type(iter([]))
_TEXT = {id(str)}
_MANY = 100
_BUNCH = 10_000
_HEAP = 1 << 9
_STATE = 2
"""Its place in what an object tells."""
_WAYS = ("__reduce__", "__reduce_ex__", "__getstate__", "__getattribute__")
_ARGUMENTS = ("__getnewargs__", "__getnewargs_ex__", "__setstate__")


class Different(Exception):
    """An object that was stored, and how what came back differs."""

    def __init__(self, was: Any, words: str) -> None:
        super().__init__(words)
        self.was, self.words = was, words
        self.holders: Holders = None


class Comparison:
    """Of all variables of a namespace, which may share what they consist of."""

    def __init__(self, before: Rules, after: Rules, known: Iterable[tuple[Any, Any]] = ()) -> None:
        """`known` are pairs that stand for each other, and are not compared."""
        self._before, self._after = before, after
        self._met = {id(was): id(now) for was, now in known}
        """The id of what came back, by that of what was stored."""
        self._taken: set[int] = set()
        """Of what came back, where no two objects may have become one."""
        self._journal: list[tuple[dict[int, int], set[int]]] = []
        """What both have got since the variable began."""
        self._kept: list[Any] = []
        """Whose ids are in use."""
        self._plain: dict[int, bool] = {}
        self._own: dict[int, bool | None] = {}

    def difference(self, name: str, was: Any, now: Any) -> str | None:
        """Where they differ and how; nothing where they do not."""
        for one_by_one in (False, True):  # a first look may have an object cache something
            self._journal.clear()
            try:
                self._walk(was, now, one_by_one=one_by_one)
                return None
            except Different as found:
                told = found
            self._forget()
        return f"{_place(name, was, told)} {told.words}"

    def _forget(self) -> None:
        for numbers, others in self._journal:
            for number in numbers:
                self._met.pop(number, None)
            self._taken -= others

    def _walk(self, was: Any, now: Any, *, one_by_one: bool = False) -> None:
        ahead: list[tuple[Pairs, bool, Holders]] = [(([was], [now]), False, None)]
        while ahead:
            pairs, is_own, holders = ahead.pop()
            for kind, xs, ys in _by_kind(*pairs):
                inner = self._is_own_business(kind, is_own)
                step = 1 if one_by_one else len(xs)
                for at in range(0, len(xs), step):
                    try:
                        parts = self._step(kind, xs[at : at + step], ys[at : at + step])
                    except Different as found:
                        if is_own and not arrays.is_array(kind):
                            continue
                        found.holders = holders
                        raise
                    ahead += [(part, inner, (xs[at], holders)) for part in parts]

    def _is_own_business(self, kind: type, outer: bool) -> bool:
        """Whether what differs in an instance is left to its class: of a library's that has code of
        its own to restore one, and so may count or cache something again. The content of arrays and
        objects of the user's classes are compared in any case."""
        if not kind.__flags__ & _HEAP:
            return outer
        known = self._own.get(id(kind))
        if known is None:
            ways = (type(getattr(kind, way, None)) for way in (*_WAYS[:-1], "__setstate__"))
            has_own = any(way is types.FunctionType for way in ways)
            known = self._own[id(kind)] = is_installed(kind.__module__) and (has_own or None)
        return outer if known is None else known

    def _step(self, kind: type, xs: list[Any], ys: list[Any]) -> list[Pairs]:
        """The pairs of what those pairs consist of."""
        other = type(ys[0])
        if kind is not other and not _are_kin(kind, other):
            raise Different(xs[0], f"came back as `{type_name(other)}`")
        if kind in _ATOMS or arrays.is_scalar(kind):
            if not _are_equal(kind, xs, ys):
                raise Different(xs[0], "came back with another value")
            return []
        if kind in _TRUSTED:
            return []
        is_plain = self._is_plain(kind)
        is_one = is_plain or kind in _CHANGING or arrays.is_array(kind)
        xs, ys = self._new(xs, ys, is_one=is_one)
        if not xs:
            return []
        if kind is list or kind is tuple:
            _same_length(xs, ys)
            if kind is list and len(xs) == 1 and rows.texts(xs[0]) is not None:
                return _rows(xs[0], ys[0])
            return [(_joined(xs), _joined(ys))]
        if kind is dict:
            _same_length(xs, ys)
            keys = _joined(xs), _joined(ys)
            if set(map(id, map(type, chain(*keys)))) <= _TEXT and keys[0] == keys[1]:
                return _values(xs, ys, keys[0])
            return [(_joined(map(dict.values, xs)), _joined(map(dict.values, ys))), keys]
        if is_plain:
            states = list(map(_state, xs)), list(map(_state, ys))
            is_known = kind is other or self._met.get(id(kind)) == id(other)
            return [states] if is_known else [([kind], [other]), states]
        way = self._way(kind)
        return [pair for x, y in zip(xs, ys, strict=True) if x is not y for pair in way(x, y)]

    def _way(self, kind: type) -> Callable[[Any, Any], list[Pairs]]:
        if kind in _MEMORY:
            return _memory
        if arrays.is_array(kind):
            return self._arrays
        if issubclass(kind, type):
            return self._classes
        if base_of(kind) in (set, frozenset):
            return self._sets
        if issubclass(kind, weakref.WeakSet):
            return lambda x, y: self._items(x, list(x), list(y))
        return self._told

    def _is_plain(self, kind: type) -> bool:
        """Whether an instance is its `__dict__`, and nothing tells it in another way."""
        known = self._plain.get(id(kind))
        if known is None:
            known = self._plain[id(kind)] = (
                bool(kind.__flags__ & _HEAP and kind.__dictoffset__)
                and not issubclass(kind, type)
                and base_of(kind) is None
                and all(getattr(kind, way) is getattr(object, way) for way in _WAYS)
                and not any(hasattr(kind, each) for each in _ARGUMENTS)
                and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
                and kind not in copyreg.dispatch_table
                and self._before.rule(kind) is None
            )
        return known

    def _new(self, xs: list[Any], ys: list[Any], *, is_one: bool) -> Pairs:
        """Those that were not met before; `is_one` of kinds of which no two may become one."""
        met = dict(zip(map(id, xs), map(id, ys), strict=True))
        if len(met) < len(xs) or not self._met.keys().isdisjoint(met):
            new = [pair for pair in zip(xs, ys, strict=True) if self._is_new(*pair)]
            xs, ys = [x for x, _ in new], [y for _, y in new]
            met = dict(zip(map(id, xs), map(id, ys), strict=True))
        self._met.update(met)
        taken = set(met.values()) if is_one else set()
        if is_one and (len(taken) < len(ys) or not self._taken.isdisjoint(taken)):
            raise Different(xs[0], "shares with others what it did not share before")
        self._taken |= taken
        self._journal.append((met, taken))
        return xs, ys

    def _is_new(self, x: Any, y: Any) -> bool:
        there = self._met.get(id(x))
        if there == id(y):
            return False
        if there is not None and type(x) is not tuple and x is not y:
            raise Different(x, "is not shared any more")
        self._met[id(x)] = id(y)
        return True

    # Kinds of their own.

    def _told(self, x: Any, y: Any) -> list[Pairs]:
        told, there = _reduced(self._before, x), _reduced(self._after, y)
        if isinstance(told, str) or isinstance(there, str):
            if told != there:
                raise Different(x, "came back as something else")
            return []
        if type(x) is not type(y) and type(y) is _LIST_ITERATOR:
            return [([*told[1]], [there[1][0][there[2] :]])]
        some, same = _parts(told), _parts(there)
        base = base_of(type(x))
        if base is not None and base is not type(x):  # whatever the class tells of it
            some.append(list(content_of(x, base)))
            same.append(list(content_of(y, base)))
        if type(some[_STATE]) is type(same[_STATE]) is dict:
            some[_STATE], same[_STATE] = _aligned(x, some[_STATE], same[_STATE])
        self._kept += (some, same, told, there)
        return [(some, same)]

    def _classes(self, x: type, y: type) -> list[Pairs]:
        """In any order of their attributes."""
        if not x.__flags__ & _HEAP or self._before.values.is_named(x):
            if not self._after.values.is_named(y) or type_name(x) != type_name(y):
                raise Different(x, f"came back as the class `{type_name(y)}`")
            return []
        own = attributes(x), attributes(y)
        for each in own:
            each["_abc_registry"] = sorted(each.get("_abc_registry", ()), key=type_name)
        was, now = _aligned(x, *own)
        some, same = (
            [type(x), x.__name__, x.__bases__, was],
            [type(y), y.__name__, y.__bases__, now],
        )
        self._kept += (some, same)
        return [(some, same)]

    def _sets(self, x: Any, y: Any) -> list[Pairs]:
        base: Any = base_of(type(x))
        pairs = self._items(x, list(base.__iter__(x)), list(base.__iter__(y)))
        if type(x) is not base:
            states = (
                [_state_of_set(_reduced(self._before, x))],
                [_state_of_set(_reduced(self._after, y))],
            )
            self._kept += states
            pairs += [([type(x)], [type(y)]), states]
        return pairs

    def _items(self, x: Any, was: list[Any], now: list[Any]) -> list[Pairs]:
        """In no order: by equality, and what has none by what it is known as elsewhere."""
        atoms, others = _by_atoms(was)
        same_atoms, ahead = _by_atoms(now)
        if len(was) != len(now) or atoms != same_atoms:
            raise Different(x, "came back with other items")
        by_id = {id(each): each for each in ahead}
        equal = {each: each for each in ahead}
        pairs: Pairs = ([], [])
        unknown = []
        for each in others:
            found = by_id.get(self._met.get(id(each), 0), equal.get(each))
            if found is None or by_id.pop(id(found), None) is None:
                unknown.append(each)
            else:
                pairs[0].append(each)
                pairs[1].append(found)
        if len(unknown) == 1:
            pairs[0].extend(unknown)
            pairs[1].extend(by_id.values())
        elif sorted(map(_kind, unknown)) != sorted(map(_kind, by_id.values())):
            raise Different(x, "came back with other items")
        return [pairs]

    def _arrays(self, x: Any, y: Any) -> list[Pairs]:
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise Different(x, "came back with another shape or type")
        if x.flags.writeable != y.flags.writeable:
            raise Different(x, "came back " + ("writable" if y.flags.writeable else "read-only"))
        view = self._before.arrays.view(x)
        if view is not None:
            there = self._after.arrays.view(y, is_any=True)
            if there is None or view[1:] != there[1:]:
                raise Different(x, "is no view of the same memory any more")
            return [([view[0]], [there[0]])]
        if (
            x.flags.c_contiguous > y.flags.c_contiguous
            or x.flags.f_contiguous > y.flags.f_contiguous
        ):
            raise Different(x, "came back in another order")
        if x.dtype.hasobject or x.dtype.kind == "T":
            items = x.ravel().tolist(), y.ravel().tolist()
            self._kept += items
            return [items]
        for was, now in zip(arrays.blocks(x), arrays.blocks(y, like=x), strict=True):
            if was != now:
                raise Different(x, "came back with another content")
        return []


def _place(name: str, was: Any, found: Different) -> str:
    """The innermost object that has a place, as one would write it."""
    holders: Holders = (found.was, found.holders)
    while holders is not None:
        each, holders = holders
        if each is was:
            return "it"
        where = None if type(each) in _ATOMS else culprit.place(name, was, each)
        if where is not None:
            return f"`{where}`"
    return "something in it"


def _by_kind(xs: list[Any], ys: list[Any]) -> Iterable[tuple[type, list[Any], list[Any]]]:
    """Not by the kinds themselves: metaclasses hash and compare as they like."""
    if len(set(map(id, map(type, chain(xs, ys))))) == 1:
        yield type(xs[0]), xs, ys
        return
    kinds: list[Any] = list(map(id, map(type, xs)))
    others = list(map(id, map(type, ys)))
    if kinds != others:
        kinds = list(zip(kinds, others, strict=True))
    found = set(kinds)
    for each in found:
        some, same = xs, ys
        if len(found) > 1:
            chosen = list(map(each.__eq__, kinds))
            some, same = list(compress(xs, chosen)), list(compress(ys, chosen))
        yield type(some[0]), some, same


def _are_kin(kind: type, other: type) -> bool:
    if kind.__name__ in BECOMES:
        return other.__name__ == BECOMES[kind.__name__]
    return type_name(kind) == type_name(other) and bool(kind.__flags__ & _HEAP)


def _rows(x: list[Any], y: list[Any]) -> list[Pairs]:
    """Long lists of rows that nothing else leads to: their streams without memo are the same."""
    for at in range(0, len(x), _BUNCH):
        some, same = x[at : at + _BUNCH], y[at : at + _BUNCH]
        if _plain(some) != _plain(same):
            return [(some, same)]
    return []


def _plain(some: list[Any]) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.fast = True
    pickler.dump(some)
    return file.getvalue()


def _values(xs: list[Any], ys: list[Any], keys: list[str]) -> list[Pairs]:
    """Of dicts; of many that have the same names, name by name: those are of one kind."""
    names, size = list(xs[0]), len(xs)
    if size < _MANY or keys != names * size:
        return [(_joined(map(dict.values, xs)), _joined(map(dict.values, ys)))]
    ways = [itemgetter(name) for name in names]
    return [(list(map(way, xs)), list(map(way, ys))) for way in ways]


def _joined(some: Iterable[Any]) -> list[Any]:
    return list(chain.from_iterable(some))


def _state(obj: Any) -> Any:
    return object.__getattribute__(obj, "__dict__")


def _kind(each: Any) -> str:
    return type_name(type(each))


def _are_equal(kind: type, xs: list[Any], ys: list[Any]) -> bool:
    """Also of what is not equal to itself, and of zeros with a sign."""
    if kind is float:
        return array("d", xs).tobytes() == array("d", ys).tobytes()
    if kind is complex:
        return list(map(repr, xs)) == list(map(repr, ys))
    if kind.__module__ == "numpy":
        told = ([(each.dtype, each.tobytes()) for each in some] for some in (xs, ys))
        return next(told) == next(told)
    return xs == ys


def _same_length(xs: list[Any], ys: list[Any]) -> None:
    was, now = list(map(len, xs)), list(map(len, ys))
    if was != now:
        at = next(n for n, (one, other) in enumerate(zip(was, now, strict=True)) if one != other)
        raise Different(xs[at], f"came back with {now[at]} items instead of {was[at]}")


def _memory(x: Any, y: Any) -> list[Pairs]:
    if type(x) is array and x.typecode != y.typecode:
        raise Different(x, f"came back as an array of `{y.typecode}`")
    was, now = (
        memoryview(e.raw() if type(e) is pickle.PickleBuffer else e).cast("B") for e in (x, y)
    )
    for some, same in zip(arrays.parts(was), arrays.parts(now), strict=len(was) == len(now)):
        if some != same:
            raise Different(x, "came back with another content")
    if len(was) != len(now):
        raise Different(x, "came back with another size")
    return []


def _by_atoms(items: list[Any]) -> tuple[Counter[Any], list[Any]]:
    atoms = Counter((type(each), repr(each)) for each in items if type(each) in _ATOMS)
    return atoms, [each for each in items if type(each) not in _ATOMS]


def _reduced(rules: Rules, obj: Any) -> Any:
    """What the stream writes for the object: its name, or its parts."""
    told, kind = rules.told(obj), type(obj)
    if told is NotImplemented:
        if kind is types.FunctionType:
            return f"{obj.__module__}.{obj.__qualname__}"
        reduce = copyreg.dispatch_table.get(kind)
        told = reduce(obj) if reduce is not None else obj.__reduce_ex__(5)
    return f"{getattr(obj, '__module__', None)}.{told}" if isinstance(told, str) else told


def _parts(told: Any) -> list[Any]:
    make, args, state, items, pairs, setter = (*told, *(None,) * (6 - len(told)))
    more = [None if items is None else list(items), None if pairs is None else _joined(pairs)]
    return [make, args, state, *more, setter]


def _aligned(x: Any, was: dict[Any, Any], now: dict[Any, Any]) -> Pairs:
    """Values of attributes, whose order is of no account."""
    if was.keys() != now.keys():
        names = ", ".join(sorted(map(str, was.keys() ^ now.keys()))[:3])
        raise Different(x, f"came back with other attributes: {names}")
    return list(was.values()), [now[name] for name in was]


def _state_of_set(told: Any) -> Any:
    state = told[2] if len(told) > 2 else None
    return state[2] if told[0] is make_based.based else state
