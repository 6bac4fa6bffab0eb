"""Weak references, and containers of weak references."""

from __future__ import annotations

import logging
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from . import make, make_weak
from .arrays import list_referents
from .unsaveable import Unsaveable
from .values import Reduced

_CONTAINERS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)

_NOT_STORED = (types.ModuleType, types.TracebackType)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_MAX_NEAR_OBJECTS, _MAX_OBJECTS = 50_000, 500_000


def weak_targets(value: Any) -> list[Any]:
    """Returns the targets of a weak reference or container."""
    kind = type(value)
    if is_reference(value):
        found = value()
        found = getattr(found, "__self__", found) if kind is weakref.WeakMethod else found
        return [] if found is None else [found]
    return _container_targets(kind, value) if any(kind is each for each in _CONTAINERS) else []


def _container_targets(base: type, container: Any) -> list[Any]:
    """Returns the targets without calling methods of a derived class."""
    look: Any = weakref.WeakValueDictionary.values
    return list((look if base is weakref.WeakValueDictionary else base.__iter__)(container))


def is_reference(value: Any) -> bool:
    return type(value) is weakref.ReferenceType or type(value) is weakref.WeakMethod


def find_unheld(
    wanted: set[int], near: Iterable[Any], holders: Iterable[Any], exempt: Iterable[Any]
) -> tuple[set[int], bool]:
    """Returns the wanted objects that the holders do not lead to, and whether all holders were
    searched. `near` are holders that are searched first, close objects before others."""
    seen = {id(each) for each in exempt}
    pending: deque[Any] = deque()
    missing = wanted - seen

    def add(found: Iterable[Any]) -> None:
        for each in found:
            if id(each) not in seen and not issubclass(type(each), _NOT_STORED):
                seen.add(id(each))
                missing.discard(id(each))
                pending.append(each)

    add(near)
    while pending and missing and len(seen) < _MAX_NEAR_OBJECTS:
        add(list_referents(pending.popleft()))
    add(holders)
    while pending and missing and len(seen) < _MAX_OBJECTS:
        add(list_referents(pending.pop()))
    return missing, not (pending and missing)


class WeakReferences:
    """The rules of weak references; records their targets."""

    def __init__(self, is_named: Callable[[Any], bool]) -> None:
        """`is_named` returns whether an import finds an object, independent of its holders."""
        self._is_named = is_named
        self.referred: list[Any] = []
        """The targets since the list was last cleared."""
        self.references: list[tuple[Any, list[Any]]] = []
        """All weak references and containers, with their targets."""

    def by_kind(self) -> dict[type, Callable[[Any], Reduced]]:
        return {
            weakref.ReferenceType: self._reduce_reference,
            weakref.WeakMethod: self._reduce_method,
            weakref.finalize: self._reduce_finalizer,
            weakref.ProxyType: self._reduce_proxy,
            weakref.CallableProxyType: self._reduce_proxy,
            **dict.fromkeys(_CONTAINERS, self._reduce_container),
        }

    def by_base(self, kind: type) -> Callable[[Any], Reduced] | None:
        if any(issubclass(kind, base) for base in _CONTAINERS):
            own = kind.__reduce__ is object.__reduce__
            own = own and kind.__reduce_ex__ is object.__reduce_ex__
            return self._reduce_derived if own or issubclass(kind, weakref.WeakSet) else None
        return None

    def _note_targets(self, reference: Any, targets: Iterable[Any]) -> None:
        begin = len(self.referred)
        for each in targets:
            kind = type(each)
            if issubclass(kind, (types.ModuleType, logging.Logger)):
                continue
            if issubclass(kind, _NAMED) and self._is_named(each):
                continue
            self.referred.append(each)
        if len(self.referred) > begin:
            self.references.append((reference, self.referred[begin:]))

    def _reduce_reference(self, reference: Any) -> Reduced:
        target, callback = reference(), reference.__callback__
        if target is None:
            return make.gone, ()
        self._note_targets(reference, (target,))
        return make.weak, (target,) if callback is None else (target, callback)

    def _reduce_method(self, reference: Any) -> Reduced:
        method = reference()
        if method is None:
            return make_weak.gone_method, ()
        self._note_targets(reference, (method.__self__,))
        return weakref.WeakMethod, (method,)

    def _reduce_finalizer(self, finalizer: Any) -> Reduced:
        alive = finalizer.peek()
        if alive is None:
            return make_weak.finalizer, ()
        self._note_targets(finalizer, alive[:1])
        return make_weak.finalizer, (*alive, finalizer.atexit)

    def _reduce_proxy(self, proxy: Any) -> Reduced:
        try:
            target = proxy.__repr__.__self__
        except ReferenceError:
            raise Unsaveable("a weak proxy of a deleted object") from None
        self._note_targets(proxy, (target,))
        return make.weak_proxy, (target,)

    def _reduce_container(self, target: Any) -> Reduced:
        self._note_targets(target, weak_targets(target))
        items = _container_items(target)
        return make.weak_items, (type(target),), items, None, None, make.set_weak_items

    def _reduce_derived(self, target: Any) -> Reduced:
        """Reduces an instance of a derived class: keeps its attributes, skips its `__init__`."""
        base: Any = next(each for each in _CONTAINERS if isinstance(target, each))
        self._note_targets(target, _container_targets(base, target))
        bare = vars(base())
        own = {name: value for name, value in vars(target).items() if name not in bare}
        state = (base, _container_items(target), own)
        args = (type(target), base)
        return make_weak.derived_weak, args, state, None, None, make_weak.set_derived_weak


def _container_items(target: Any) -> list[Any]:
    return list(target if isinstance(target, weakref.WeakSet) else target.items())
