"""What refers to objects without keeping them."""

from __future__ import annotations

import logging
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from . import make, make_weak
from .arrays import referents
from .refusal import Unsaveable
from .values import Told

_CONTAINERS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)

_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_LOOKED_AT = 500_000


def targets(value: Any) -> list[Any]:
    """What a weak reference or container refers to."""
    kind = type(value)
    if is_reference(value):
        found = value()
        found = getattr(found, "__self__", found) if kind is weakref.WeakMethod else found
        return [] if found is None else [found]
    return _referred(kind, value) if any(kind is each for each in _CONTAINERS) else []


def _referred(base: type, container: Any) -> list[Any]:
    """Without what its class does when somebody looks."""
    look: Any = weakref.WeakValueDictionary.values
    return list((look if base is weakref.WeakValueDictionary else base.__iter__)(container))


def is_reference(value: Any) -> bool:
    return type(value) is weakref.ReferenceType or type(value) is weakref.WeakMethod


def unheld(wanted: set[int], holders: Iterable[Any], besides: Iterable[Any]) -> set[int]:
    """Which of the wanted nothing leads to that those hold; of very many objects, none is said."""
    ahead = [each for each in holders if not issubclass(type(each), types.ModuleType)]
    seen = {id(each) for each in besides} | {id(each) for each in ahead}
    missing = wanted - seen
    while ahead and missing and len(seen) < _LOOKED_AT:
        for each in referents(ahead.pop()):
            if id(each) not in seen and not issubclass(type(each), types.ModuleType):
                seen.add(id(each))
                missing.discard(id(each))
                ahead.append(each)
    return set() if ahead else missing


class Weak:
    """How they are told; notes what they refer to."""

    def __init__(self, is_named: Callable[[Any], bool]) -> None:
        """`is_named` tells what an import finds again, whoever holds it."""
        self._is_named = is_named
        self.referred: list[Any] = []
        """What was referred to since somebody emptied it."""

    def by_kind(self) -> dict[type, Callable[[Any], Told]]:
        return {
            weakref.ReferenceType: self._reference,
            weakref.WeakMethod: self._method,
            weakref.finalize: self._finalizer,
            weakref.ProxyType: self._proxy,
            weakref.CallableProxyType: self._proxy,
            **dict.fromkeys(_CONTAINERS, self._container),
        }

    def by_base(self, kind: type) -> Callable[[Any], Told] | None:
        if any(issubclass(kind, base) for base in _CONTAINERS):
            own = kind.__reduce__ is object.__reduce__
            own = own and kind.__reduce_ex__ is object.__reduce_ex__
            return self._derived if own or issubclass(kind, weakref.WeakSet) else None
        return None

    def _refer(self, targets: Iterable[Any]) -> None:
        for each in targets:
            kind = type(each)
            if issubclass(kind, (types.ModuleType, logging.Logger)):
                continue
            if issubclass(kind, _NAMED) and self._is_named(each):
                continue
            self.referred.append(each)

    def _reference(self, reference: Any) -> Told:
        target, callback = reference(), reference.__callback__
        if target is None:
            return make.gone, ()
        self._refer((target,))
        return make.weak, (target,) if callback is None else (target, callback)

    def _method(self, reference: Any) -> Told:
        method = reference()
        if method is None:
            return make_weak.gone_method, ()
        self._refer((method.__self__,))
        return weakref.WeakMethod, (method,)

    def _finalizer(self, finalizer: Any) -> Told:
        alive = finalizer.peek()
        if alive is None:
            return make_weak.finalizer, ()
        self._refer(alive[:1])
        return make_weak.finalizer, (*alive, finalizer.atexit)

    def _proxy(self, proxy: Any) -> Told:
        try:
            target = proxy.__repr__.__self__
        except ReferenceError:
            raise Unsaveable("a weak proxy of what is gone") from None
        self._refer((target,))
        return make.weak_proxy, (target,)

    def _container(self, target: Any) -> Told:
        self._refer(targets(target))
        items = _items(target)
        return make.weak_items, (type(target),), items, None, None, make.set_weak_items

    def _derived(self, target: Any) -> Told:
        """Of a class of its own: with its attributes, and without its `__init__`."""
        base: Any = next(each for each in _CONTAINERS if isinstance(target, each))
        self._refer(_referred(base, target))
        bare = vars(base())
        own = {name: value for name, value in vars(target).items() if name not in bare}
        state = (base, _items(target), own)
        args = (type(target), base)
        return make_weak.derived_weak, args, state, None, None, make_weak.set_derived_weak


def _items(target: Any) -> list[Any]:
    return list(target if isinstance(target, weakref.WeakSet) else target.items())
