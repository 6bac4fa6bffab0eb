"""Makes instances of subclasses of builtin classes, past their overridden methods; part of the
format."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


def based(kind: type, base: type, args: tuple[Any, ...]) -> Any:
    """Makes an instance by `__new__` of the builtin class."""
    return base.__new__(kind, *args)


def fill(target: Any, parts: tuple[type, Any, Any]) -> None:
    """Sets the content by methods of the builtin class, then the attributes."""
    base, content, state = parts
    if base.__name__ == "OrderedDict":
        for key, value in content:
            OrderedDict.__setitem__(target, key, value)
    elif base.__name__ == "defaultdict":
        factory, items = content
        base.__init__(target, factory)
        dict.update(target, items)
    elif base.__name__ == "deque":
        items, length = content
        base.__init__(target, items, length)
    elif issubclass(base, dict):
        dict.update(target, content)
    elif base is list:
        list.extend(target, content)
    elif base is set:
        set.update(target, content)
    set_state(target, state)


def set_state(target: Any, state: Any) -> None:
    """Sets a state as pickle does: a dict, or a dict and the values of slots."""
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes:
        object.__getattribute__(target, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(target, name, value)
