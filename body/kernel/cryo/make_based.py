"""Makes instances of classes over builtin ones, past what these override; part of the format."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


def based(kind: type, base: type, args: tuple[Any, ...]) -> Any:
    """By the `__new__` of what it derives from."""
    return base.__new__(kind, *args)


def fill(target: Any, told: tuple[type, Any, Any]) -> None:
    """With its content, by the methods of what it derives from, and its attributes."""
    base, content, state = told
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
    """As pickle has it: a dict, or that and what is in slots."""
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes:
        object.__getattribute__(target, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(target, name, value)
