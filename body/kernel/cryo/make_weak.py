"""What a stored stream calls for what refers to objects without keeping them; as `make`."""

from __future__ import annotations

import weakref
from typing import Any


def finalizer(target: Any = None, *how: Any) -> Any:
    """One that is alive, or was called."""
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
    """Past what its class does when something is put in: that was done, and is state."""
    base: Any
    base, items, own = state
    target.__dict__.update(own)
    for item in items:
        if isinstance(item, tuple) and base is not weakref.WeakSet:
            base.__setitem__(target, *item)
        else:
            base.add(target, item)
