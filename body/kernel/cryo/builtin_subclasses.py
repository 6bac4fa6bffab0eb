"""Subclasses of builtin classes that override methods which pickle calls.

The content of such an instance is stored and made again by the methods of the builtin class, so
that a `__setitem__` that changes its argument does not do so twice.
"""

from __future__ import annotations

import copyreg
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, takewhile
from typing import Any

from . import make_based

_OVERRIDDEN: dict[type, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        OrderedDict: "items __setitem__ __init__ __new__",
        dict: "items __setitem__ __new__",
        list: "__iter__ append extend __new__",
        set: "__iter__ __init__ __new__",
        frozenset: "__iter__ __init__ __new__",
        deque: "__iter__ append extend __init__ __new__",
        **dict.fromkeys((tuple, int, float, complex, str, bytes), "__new__"),
    }.items()
}
"""The methods that pickle calls, by builtin class."""
_FORGETFUL = frozenset((Counter, defaultdict))
"""Classes whose pickling omits the attributes of an instance."""
_BUILTIN = _FORGETFUL | _OVERRIDDEN.keys()
_PICKLE_METHODS = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__")


def base_of(kind: type) -> type | None:
    """Returns the builtin class that holds the content of the instances."""
    return next((each for each in kind.__mro__ if any(each is known for known in _BUILTIN)), None)


def content_of(obj: Any, base: type) -> Iterable[Any]:
    """Returns the content of an instance, read by methods of the builtin class."""
    if issubclass(base, dict):
        return chain.from_iterable(_iter_pairs(obj, base))
    if base in (list, set, frozenset, tuple, deque):
        return base.__iter__(obj)  # type: ignore[attr-defined]
    return base.__getnewargs__(obj)  # type: ignore[attr-defined]


def find_rule(kind: type) -> Callable[[Any], Any] | None:
    """Returns the rule of a class that overrides methods which pickle calls and defines no
    pickling."""
    base = base_of(kind)
    if kind is base or not _is_silent(kind, base or object):
        return None
    if base is not None:
        own = {name for each in _classes_above(kind, base) for name in vars(each)}
        if base in _FORGETFUL or own & _OVERRIDDEN[base]:
            return partial(_reduce_based, base)
    if _find_static(kind, "__setattr__") is not object.__setattr__ and _slot_names(kind):
        return _reduce_slotted
    return None


def _classes_above(kind: type, base: type) -> Iterable[type]:
    return takewhile(lambda each: each is not base, kind.__mro__)


def _is_silent(kind: type, base: type) -> bool:
    same = all(_find_static(kind, way) is _find_static(base, way) for way in _PICKLE_METHODS)
    return same and not any(
        _find_static(kind, way) for way in ("__setstate__", "__getnewargs_ex__")
    )


def _find_static(kind: type, name: str) -> Any:
    """Looks a name up without `getattr`, which metaclasses may override."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)


def _iter_pairs(obj: Any, base: type) -> Iterable[tuple[Any, Any]]:
    if base is OrderedDict:
        return ((key, dict.__getitem__(obj, key)) for key in OrderedDict.__iter__(obj))
    return dict.items(obj)


def _slot_names(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # type: ignore[attr-defined]


def _reduce_based(base: type, obj: Any) -> Any:
    args: tuple[Any, ...] = ()
    content: Any = None
    if issubclass(base, dict):
        pairs = _iter_pairs(obj, base)
        content = list(pairs) if base is OrderedDict else dict(pairs)
        if base is defaultdict:
            content = (defaultdict.default_factory.__get__(obj), content)  # type: ignore[attr-defined]
    elif base is list:
        content = list.copy(obj)
    elif base is set:
        content = list(set.__iter__(obj))
    elif base is frozenset:
        args = (list(frozenset.__iter__(obj)),)
    elif base is deque:
        content = (list(deque.__iter__(obj)), deque.maxlen.__get__(obj))  # type: ignore[attr-defined]
    else:
        args = base.__getnewargs__(obj)  # type: ignore[attr-defined]
    state = object.__getstate__(obj)  # type: ignore[attr-defined]
    reduced = (base, content, state)
    return make_based.based, (type(obj), base, args), reduced, None, None, make_based.fill


def _reduce_slotted(obj: Any) -> Any:
    """Reduces an instance so that its slots are set without its own `__setattr__`."""
    reduced = object.__reduce_ex__(obj, 5)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or reduced[2] is None:
        return reduced
    more = (None,) * (5 - len(reduced))
    return (*reduced, *more, make_based.set_state)
