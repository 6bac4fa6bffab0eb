"""The functions that a stored stream calls for parts of annotations; part of the format, like
`make`."""

from __future__ import annotations

import typing
from typing import Any

from .make import require_reload


def alias(name: str, module: str) -> Any:
    """Makes a type alias, whose value is set later: it may lead back to the alias."""
    held: list[Any] = []
    scope: dict[str, Any] = {"__name__": module, "_held": held}
    exec(f"type {name} = _held[0]", scope)
    require_reload().aliases[id(scope[name])] = held
    return scope[name]


def set_alias(target: Any, state: tuple[Any]) -> None:
    require_reload().aliases.pop(id(target)).append(state[0])


def generic_alias(name: str, value: Any, variables: tuple[Any, ...]) -> Any:
    made: Any = vars(typing)["TypeAliasType"]
    return made(name, value, type_params=variables)


def new_type(name: str, base: Any, names: dict[str, str]) -> Any:
    made = typing.NewType(name, base)
    made.__dict__.update(names)
    return made


def c_array(element: Any, length: int, module: str) -> Any:
    """Returns the array type of `ctypes`, of which a process has one. `ctypes` names the module of
    the first caller in it."""
    made = element * length
    if made.__module__ == __name__:
        made.__module__ = module
    return made
