"""The functions that a stored stream calls for weak references; part of the format, like `make`."""

from __future__ import annotations

import weakref
from typing import Any


def finalizer(target: Any = None, *how: Any) -> Any:
    """Makes a finalizer, alive or already called."""
    if not how:
        made = weakref.finalize(gone_method, int)
        made.detach()
        return made
    function, args, words, at_exit = how
    made = weakref.finalize(target, function, *args, **words)
    made.atexit = at_exit
    return made


def gone_method() -> Any:
    class Nothing:
        def method(self) -> None:
            pass

    return weakref.WeakMethod(Nothing().method)


def derived_weak(kind: type, base: type) -> Any:
    made = kind.__new__(kind)
    base.__init__(made)
    return made


def set_derived_weak(target: Any, state: tuple[type, list[Any], dict[str, Any]]) -> None:
    """Sets the items by methods of the base class, without side effects of its own methods."""
    base: Any
    base, items, own = state
    target.__dict__.update(own)
    for item in items:
        if isinstance(item, tuple) and base is not weakref.WeakSet:
            base.__setitem__(target, *item)
        else:
            base.add(target, item)
