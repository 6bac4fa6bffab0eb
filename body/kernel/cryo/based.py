"""Classes over builtin ones whose own methods pickle would go through, in both directions.

What such a class holds is told and made again by the methods of the builtin one, so that a
`__setitem__` which changes what it is given does not do so a second time.
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
"""What pickle calls of each."""
_FORGETFUL = frozenset((Counter, defaultdict))
"""Tell nothing of an instance's own attributes."""
_BUILTIN = _FORGETFUL | _OVERRIDDEN.keys()
_WAYS = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__")


def base_of(kind: type) -> type | None:
    """The builtin class that holds what its instances consist of."""
    return next((each for each in kind.__mro__ if any(each is known for known in _BUILTIN)), None)


def content_of(obj: Any, base: type) -> Iterable[Any]:
    """What an instance consists of, by the builtin class's own methods."""
    if issubclass(base, dict):
        return chain.from_iterable(_pairs(obj, base))
    if base in (list, set, frozenset, tuple, deque):
        return base.__iter__(obj)  # type: ignore[attr-defined]
    return base.__getnewargs__(obj)  # type: ignore[attr-defined]


def rule(kind: type) -> Callable[[Any], Any] | None:
    """For a class that overrides what pickle calls, and says nothing about being pickled."""
    base = base_of(kind)
    if kind is base or not _is_silent(kind, base or object):
        return None
    if base is not None:
        own = {name for each in _above(kind, base) for name in vars(each)}
        if base in _FORGETFUL or own & _OVERRIDDEN[base]:
            return partial(_based, base)
    if _found(kind, "__setattr__") is not object.__setattr__ and _slots(kind):
        return _slotted
    return None


def _above(kind: type, base: type) -> Iterable[type]:
    return takewhile(lambda each: each is not base, kind.__mro__)


def _is_silent(kind: type, base: type) -> bool:
    same = all(_found(kind, way) is _found(base, way) for way in _WAYS)
    return same and not any(_found(kind, way) for way in ("__setstate__", "__getnewargs_ex__"))


def _found(kind: type, name: str) -> Any:
    """Not by `getattr`: metaclasses answer that as they like."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)


def _pairs(obj: Any, base: type) -> Iterable[tuple[Any, Any]]:
    if base is OrderedDict:
        return ((key, dict.__getitem__(obj, key)) for key in OrderedDict.__iter__(obj))
    return dict.items(obj)


def _slots(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # type: ignore[attr-defined]


def _based(base: type, obj: Any) -> Any:
    args: tuple[Any, ...] = ()
    content: Any = None
    if issubclass(base, dict):
        pairs = _pairs(obj, base)
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
    told = (base, content, state)
    return make_based.based, (type(obj), base, args), told, None, None, make_based.fill


def _slotted(obj: Any) -> Any:
    """Its slots are filled past its own `__setattr__`."""
    told = object.__reduce_ex__(obj, 5)
    if not isinstance(told, tuple) or len(told) < 3 or told[2] is None:
        return told
    more = (None,) * (5 - len(told))
    return (*told, *more, make_based.set_state)
