"""Comparison of stored objects with the loaded ones, pair by pair: kinds, parts, sharing.

Builtin containers and plain instances are compared in C, one level at a time; other objects are
compared by their reduced form, and then by the attributes that the form may leave out or change
(`omissions`). Atoms are compared by value only: the sharing of texts has no effect.

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
from functools import partial
from itertools import chain, compress
from operator import itemgetter
from typing import Any

from .. import resources
from ..variables import type_name
from . import arrays, failing_object, make_based, omissions, rows
from .builtin_subclasses import base_of, content_of
from .environment import is_installed
from .omissions import Attribute, Different, Holders, Omission, UserClass
from .open_files import FILES
from .receipt import BECOMES
from .rules import Rules
from .values import class_attributes

Pairs = tuple[list[Any], list[Any]]


class _Kinds:
    """A set of types by identity: metaclasses may override hash and comparison."""

    def __init__(self, *kinds: type) -> None:
        self._ids = frozenset(map(id, kinds))

    def __contains__(self, kind: type) -> bool:
        return id(kind) in self._ids


_ATOMS = _Kinds(type(None), bool, int, float, complex, str, bytes, type(...), types.CodeType)
_MEMORY = _Kinds(bytearray, array, pickle.PickleBuffer)
_CHANGING = _Kinds(list, dict, set, bytearray, array, pickle.PickleBuffer)
_TRUSTED = _Kinds(*FILES, resources.Resource)
"""Types that are restored by other means than their content."""
_LIST_ITERATOR = type(iter([]))
_TEXT = {id(str)}
_MIN_COLUMN_DICTS = 100
_ROWS_COMPARED = 10_000
_HEAP_TYPE = 1 << 9
_STATE_INDEX = 2
"""The index of the state in a reduced object."""
_PICKLE_METHODS = ("__reduce__", "__reduce_ex__", "__getstate__", "__getattribute__")
_ARGUMENTS = ("__getnewargs__", "__getnewargs_ex__", "__setstate__")


class Comparison:
    """The comparison of all variables of a namespace, which may share objects."""

    def __init__(self, before: Rules, after: Rules, known: Iterable[tuple[Any, Any]] = ()) -> None:
        """`known` are pairs that correspond to each other and are not compared."""
        self._before, self._after = before, after
        self._met = {id(was): id(now) for was, now in known}
        """The id of each loaded object, by the id of the stored one."""
        self._taken: set[int] = set()
        """Ids of loaded objects that must not stand for two stored objects."""
        self._journal: list[tuple[dict[int, int], set[int]]] = []
        """The entries of both that were added for the current variable."""
        self._kept: list[Any] = []
        """Objects whose ids are in use."""
        self._attributes: dict[tuple[int, str], tuple[list[Any], Pairs]] = {}
        """Objects and the values of one attribute, by the id of their class and by its name."""
        self._is_stored = True
        """Whether the stream has the compared objects; it may not have values of attributes."""
        self._holders: Holders = None
        """The objects that lead to the compared ones."""
        self._plain: dict[int, bool] = {}
        self._own: dict[int, bool | None] = {}
        self._users: dict[int, UserClass] = {}

    def find_difference(self, name: str, was: Any, now: Any) -> str | None:
        """Returns where and how the objects differ, or None."""
        for one_by_one in (False, True):  # the first comparison may make an object cache a value
            self._journal.clear()
            self._attributes.clear()
            try:
                self._is_stored = True
                self._walk_pairs(([was], [now]), one_by_one=one_by_one)
                self._is_stored = False
                self._walk_attributes(one_by_one=one_by_one)
                return None
            except Different as found:
                error = found
            self._roll_back()
        return f"{_describe_place(name, was, error)} {error.difference}"

    def _roll_back(self) -> None:
        for numbers, others in self._journal:
            for number in numbers:
                self._met.pop(number, None)
            self._taken -= others

    def _walk_attributes(self, *, one_by_one: bool) -> None:
        while self._attributes:
            (_, name), (owners, (xs, ys)) = self._attributes.popitem()
            self._kept += (xs, ys)  # a `__dict__` of its own may have made the values
            step = 1 if one_by_one else len(owners)
            for at in range(0, len(owners), step):
                pairs = xs[at : at + step], ys[at : at + step]
                holder = Attribute(owners[at], name)
                self._walk_pairs(pairs, (holder, None), one_by_one=one_by_one)

    def _walk_pairs(self, pairs: Pairs, holders: Holders = None, *, one_by_one: bool) -> None:
        pending: list[tuple[Pairs, bool, Holders]] = [(pairs, False, holders)]
        while pending:
            pairs, is_own, holders = pending.pop()
            self._holders = holders
            for kind, xs, ys in _by_kind(*pairs):
                inner = self._is_own_business(kind, is_own)
                step = 1 if one_by_one else len(xs)
                for at in range(0, len(xs), step):
                    try:
                        parts = self._compare_pairs(kind, xs[at : at + step], ys[at : at + step])
                    except Different as found:
                        if is_own and not arrays.is_array(kind) and type(found) is not Omission:
                            continue
                        found.holders = holders
                        raise
                    pending += [(part, inner, (xs[at], holders)) for part in parts]

    def _is_own_business(self, kind: type, outer: bool) -> bool:
        """Whether a difference in an instance is left to its class: a library class with its own
        code to restore an instance may count or cache again. The content of arrays and objects of
        user classes are always compared."""
        if not kind.__flags__ & _HEAP_TYPE:
            return outer
        known = self._own.get(id(kind))
        if known is None:
            ways = (
                type(getattr(kind, way, None)) for way in (*_PICKLE_METHODS[:-1], "__setstate__")
            )
            has_own = any(way is types.FunctionType for way in ways)
            known = self._own[id(kind)] = is_installed(kind.__module__) and (has_own or None)
        return outer if known is None else known

    def _compare_pairs(self, kind: type, xs: list[Any], ys: list[Any]) -> list[Pairs]:
        """Returns the pairs of the parts of those pairs."""
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
        xs, ys = self._new_pairs(xs, ys, is_one=is_one)
        if not xs:
            return []
        if kind is list or kind is tuple:
            _check_lengths(xs, ys)
            if kind is list and len(xs) == 1 and rows.shared_texts(xs[0]) is not None:
                return _compare_rows(xs[0], ys[0])
            return [(_join_all(xs), _join_all(ys))]
        if kind is dict:
            _check_lengths(xs, ys)
            keys = _join_all(xs), _join_all(ys)
            if set(map(id, map(type, chain(*keys)))) <= _TEXT and keys[0] == keys[1]:
                return _pair_values(xs, ys, keys[0])
            return [(_join_all(map(dict.values, xs)), _join_all(map(dict.values, ys))), keys]
        if is_plain:
            states = list(map(_state_of, xs)), list(map(_state_of, ys))
            is_known = kind is other or self._met.get(id(kind)) == id(other)
            return [states] if is_known else [([kind], [other]), states]
        way = self._find_comparer(kind)
        if not self._is_stored:
            way = partial(_skip_unsaveable, way)
        return [pair for x, y in zip(xs, ys, strict=True) if x is not y for pair in way(x, y)]

    def _find_comparer(self, kind: type) -> Callable[[Any, Any], list[Pairs]]:
        if kind in _MEMORY:
            return _compare_memory
        if arrays.is_array(kind):
            return self._compare_arrays
        if issubclass(kind, type):
            return self._compare_classes
        if base_of(kind) in (set, frozenset):
            return self._compare_sets
        if issubclass(kind, weakref.WeakSet):
            return lambda x, y: self._compare_items(x, list(x), list(y))
        return self._compare_reduced

    def _is_plain(self, kind: type) -> bool:
        """Whether an instance consists of its `__dict__` only, without its own pickling."""
        known = self._plain.get(id(kind))
        if known is None:
            known = self._plain[id(kind)] = (
                bool(kind.__flags__ & _HEAP_TYPE and kind.__dictoffset__)
                and not issubclass(kind, type)
                and base_of(kind) is None
                and all(getattr(kind, way) is getattr(object, way) for way in _PICKLE_METHODS)
                and not any(hasattr(kind, each) for each in _ARGUMENTS)
                and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
                and kind not in copyreg.dispatch_table
                and type(_find_static(kind, "__dict__")) is types.GetSetDescriptorType
                and self._before.find_rule(kind) is None
            )
        return known

    def _new_pairs(self, xs: list[Any], ys: list[Any], *, is_one: bool) -> Pairs:
        """Returns the pairs that are new; `is_one` for kinds of which two objects must not become
        one."""
        met = dict(zip(map(id, xs), map(id, ys), strict=True))
        if len(met) < len(xs) or not self._met.keys().isdisjoint(met):
            new = [pair for pair in zip(xs, ys, strict=True) if self._is_new(*pair)]
            xs, ys = [x for x, _ in new], [y for _, y in new]
            met = dict(zip(map(id, xs), map(id, ys), strict=True))
        self._met.update(met)
        taken = set(met.values()) if is_one else set()
        if is_one and (len(taken) < len(ys) or not self._taken.isdisjoint(taken)):
            raise Different(xs[0], "shares objects that were separate before")
        self._taken |= taken
        self._journal.append((met, taken))
        return xs, ys

    def _is_new(self, x: Any, y: Any) -> bool:
        there = self._met.get(id(x))
        if there == id(y):
            return False
        is_value = type(x) is tuple or arrays.is_dtype(type(x))
        if there is not None and not is_value and x is not y:
            raise Different(x, "is no longer shared")
        self._met[id(x)] = id(y)
        return True

    # Special kinds.

    def _compare_reduced(self, x: Any, y: Any) -> list[Pairs]:
        reduced, there = _reduce_object(self._before, x), _reduce_object(self._after, y)
        if isinstance(reduced, str) or isinstance(there, str):
            if reduced != there:
                raise Different(x, "came back as another object")
            self._note_attributes(x, y)
            return []
        if type(x) is not type(y) and type(y) is _LIST_ITERATOR:
            return [([*reduced[1]], [there[1][0][there[2] :]])]
        some, same = _list_parts(reduced), _list_parts(there)
        base = base_of(type(x))
        if base is not None and base is not type(x):  # independent of the reduced form
            some.append(list(content_of(x, base)))
            same.append(list(content_of(y, base)))
        if type(some[_STATE_INDEX]) is type(same[_STATE_INDEX]) is dict:
            some[_STATE_INDEX], same[_STATE_INDEX] = _align_attributes(
                x, some[_STATE_INDEX], same[_STATE_INDEX]
            )
        self._note_attributes(x, y)
        self._kept += (some, same, reduced, there)
        return [(some, same)]

    def _note_attributes(self, x: Any, y: Any) -> None:
        """Compares the names of attributes, and notes values that the reduced form may not have."""
        kind = id(type(x))
        known = self._users.get(kind)
        if known is None:
            known = self._users[kind] = UserClass.of(type(x))
        for name, was, now in omissions.check_attributes(known, x, y):
            owners, (xs, ys) = self._attributes.setdefault((kind, name), ([], ([], [])))
            owners.append(x)
            xs.append(was)
            ys.append(now)

    def _compare_classes(self, x: type, y: type) -> list[Pairs]:
        """Compares classes; the order of attributes does not matter."""
        if not x.__flags__ & _HEAP_TYPE or self._before.values.is_named(x):
            if not self._after.values.is_named(y) or type_name(x) != type_name(y):
                raise Different(x, f"came back as the class `{type_name(y)}`")
            return []
        omissions.check_registrations(x, y)
        own = class_attributes(x), class_attributes(y)
        for each in own:
            each["_abc_registry"] = sorted(each.get("_abc_registry", ()), key=type_name)
        was, now = _align_attributes(x, *own)
        some, same = (
            [type(x), x.__name__, x.__bases__, was],
            [type(y), y.__name__, y.__bases__, now],
        )
        self._kept += (some, same)
        return [(some, same)]

    def _compare_sets(self, x: Any, y: Any) -> list[Pairs]:
        base: Any = base_of(type(x))
        pairs = self._compare_items(x, list(base.__iter__(x)), list(base.__iter__(y)))
        if type(x) is not base:
            states = (
                [_state_of_set(_reduce_object(self._before, x))],
                [_state_of_set(_reduce_object(self._after, y))],
            )
            self._note_attributes(x, y)
            self._kept += states
            pairs += [([type(x)], [type(y)]), states]
        return pairs

    def _compare_items(self, x: Any, was: list[Any], now: list[Any]) -> list[Pairs]:
        """Compares without order: by equality, else by a pair that is already known."""
        atoms, others = _by_atoms(was)
        same_atoms, pending = _by_atoms(now)
        if len(was) != len(now) or atoms != same_atoms:
            raise Different(x, "came back with other items")
        by_id = {id(each): each for each in pending}
        equal = {each: each for each in pending}
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
        elif sorted(map(_type_name_of, unknown)) != sorted(map(_type_name_of, by_id.values())):
            raise Different(x, "came back with other items")
        return [pairs]

    def _compare_arrays(self, x: Any, y: Any) -> list[Pairs]:
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise Different(x, "came back with another shape or type")
        if x.flags.writeable != y.flags.writeable:
            raise Different(x, "came back " + ("writable" if y.flags.writeable else "read-only"))
        view = self._before.arrays.find_view(x)
        if view is not None:
            there = self._after.arrays.find_view(y, is_any=True)
            if there is None or view[1:] != there[1:]:
                raise Different(x, "is no longer a view of the same memory")
            if x.flags.writeable or not self._before.arrays.is_used_by_pandas(x):
                return [([view[0]], [there[0]])]
        if (
            x.flags.writeable
            and self._before.arrays.is_used_by_pandas(x)
            and not _are_of_pandas(self._holders)
        ):
            raise Different(x, "no longer shares its memory with an object of pandas")
        lost_sharing = self._before.arrays.find_lost_sharing(x)
        if lost_sharing is not None:
            raise Different(x, lost_sharing)
        if (
            x.flags.c_contiguous > y.flags.c_contiguous
            or x.flags.f_contiguous > y.flags.f_contiguous
        ):
            raise Different(x, "came back in another order")
        if x.dtype.hasobject or x.dtype.kind == "T":
            items = x.ravel().tolist(), y.ravel().tolist()
            self._kept += items
            return [items]
        for was, now in zip(arrays.split_array(x), arrays.split_array(y, like=x), strict=True):
            if was != now:
                raise Different(x, "came back with another content")
        return []


def _find_static(kind: type, name: str) -> Any:
    definer = omissions.find_definer(kind, name)
    return None if definer is None else vars(definer)[name]


def _describe_place(name: str, was: Any, found: Different) -> str:
    """Returns the expression of the innermost object that has one."""
    holders: Holders = (found.was, found.holders)
    while holders is not None:
        each, holders = holders
        if each is was:
            return "it"
        if type(each) is Attribute:
            owner = name if each.owner is was else failing_object.find_path(name, was, each.owner)
            where = None if owner is None else f"{owner}.{each.name}"
        else:
            where = None if type(each) in _ATOMS else failing_object.find_path(name, was, each)
        if where is not None:
            return f"`{where}`"
    return "an object in it"


def _are_of_pandas(holders: Holders) -> bool:
    """Whether the innermost holder that is no builtin container is an object of pandas."""
    while holders is not None:
        holder, holders = holders
        package = str(type(holder).__module__).partition(".")[0]
        if package not in ("builtins", "numpy"):
            return package == "pandas"
    return False


def _skip_unsaveable(compare: Callable[[Any, Any], list[Pairs]], x: Any, y: Any) -> list[Pairs]:
    """Skips what can't be stored, such as a socket that `__setstate__` has opened again."""
    try:
        return compare(x, y)
    except (Different, MemoryError):
        raise
    except Exception:
        return []


def _by_kind(xs: list[Any], ys: list[Any]) -> Iterable[tuple[type, list[Any], list[Any]]]:
    """Groups pairs by type identity: metaclasses may override hash and comparison."""
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
    return type_name(kind) == type_name(other) and bool(kind.__flags__ & _HEAP_TYPE)


def _compare_rows(x: list[Any], y: list[Any]) -> list[Pairs]:
    """Compares long lists of unshared rows by their streams without a memo."""
    for at in range(0, len(x), _ROWS_COMPARED):
        some, same = x[at : at + _ROWS_COMPARED], y[at : at + _ROWS_COMPARED]
        if _pickle_rows(some) != _pickle_rows(same):
            return [(some, same)]
    return []


def _pickle_rows(some: list[Any]) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.fast = True
    pickler.dump(some)
    return file.getvalue()


def _pair_values(xs: list[Any], ys: list[Any], keys: list[str]) -> list[Pairs]:
    """Pairs the values of dicts; with many equal key lists name by name, as those have one kind."""
    names, size = list(xs[0]), len(xs)
    if size < _MIN_COLUMN_DICTS or keys != names * size:
        return [(_join_all(map(dict.values, xs)), _join_all(map(dict.values, ys)))]
    ways = [itemgetter(name) for name in names]
    return [(list(map(way, xs)), list(map(way, ys))) for way in ways]


def _join_all(some: Iterable[Any]) -> list[Any]:
    return list(chain.from_iterable(some))


def _state_of(obj: Any) -> Any:
    return object.__getattribute__(obj, "__dict__")


def _type_name_of(each: Any) -> str:
    return type_name(type(each))


def _are_equal(kind: type, xs: list[Any], ys: list[Any]) -> bool:
    """Compares values, including NaN and signed zeros."""
    if kind is float:
        return array("d", xs).tobytes() == array("d", ys).tobytes()
    if kind is complex:
        return list(map(repr, xs)) == list(map(repr, ys))
    if kind.__module__ == "numpy":
        contents = ([(each.dtype, each.tobytes()) for each in some] for some in (xs, ys))
        return next(contents) == next(contents)
    return xs == ys


def _check_lengths(xs: list[Any], ys: list[Any]) -> None:
    was, now = list(map(len, xs)), list(map(len, ys))
    if was != now:
        at = next(n for n, (one, other) in enumerate(zip(was, now, strict=True)) if one != other)
        raise Different(xs[at], f"came back with {now[at]} items instead of {was[at]}")


def _compare_memory(x: Any, y: Any) -> list[Pairs]:
    if type(x) is array and x.typecode != y.typecode:
        raise Different(x, f"came back as an array of `{y.typecode}`")
    was, now = (
        memoryview(e.raw() if type(e) is pickle.PickleBuffer else e).cast("B") for e in (x, y)
    )
    for some, same in zip(
        arrays.split_memory(was), arrays.split_memory(now), strict=len(was) == len(now)
    ):
        if some != same:
            raise Different(x, "came back with another content")
    if len(was) != len(now):
        raise Different(x, "came back with another size")
    return []


def _by_atoms(items: list[Any]) -> tuple[Counter[Any], list[Any]]:
    atoms = Counter((type(each), repr(each)) for each in items if type(each) in _ATOMS)
    return atoms, [each for each in items if type(each) not in _ATOMS]


def _reduce_object(rules: Rules, obj: Any) -> Any:
    """Returns what the stream writes for the object: its name, or its parts."""
    reduced, kind = rules.reduce_object(obj), type(obj)
    if reduced is NotImplemented:
        if kind is types.FunctionType:
            return f"{obj.__module__}.{obj.__qualname__}"
        reduce = copyreg.dispatch_table.get(kind)
        reduced = reduce(obj) if reduce is not None else obj.__reduce_ex__(5)
    return f"{getattr(obj, '__module__', None)}.{reduced}" if isinstance(reduced, str) else reduced


def _list_parts(reduced: Any) -> list[Any]:
    make, args, state, items, pairs, setter = (*reduced, *(None,) * (6 - len(reduced)))
    more = [None if items is None else list(items), None if pairs is None else _join_all(pairs)]
    return [make, args, state, *more, setter]


def _align_attributes(x: Any, was: dict[Any, Any], now: dict[Any, Any]) -> Pairs:
    """Pairs the values of attributes, whose order does not matter."""
    if was.keys() != now.keys():
        names = ", ".join(sorted(map(str, was.keys() ^ now.keys()))[:3])
        raise Different(x, f"came back with other attributes: {names}")
    return list(was.values()), [now[name] for name in was]


def _state_of_set(reduced: Any) -> Any:
    state = reduced[2] if len(reduced) > 2 else None
    return state[2] if reduced[0] is make_based.based else state
