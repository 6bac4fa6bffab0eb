"""What a stored stream calls for what annotations are made of; part of the format, as `make`."""

from __future__ import annotations

import typing
from typing import Any

from .make import the_reload


def alias(name: str, module: str) -> Any:
    """A type alias, whose value comes later: it may lead back to it."""
    held: list[Any] = []
    scope: dict[str, Any] = {"__name__": module, "_held": held}
    exec(f"type {name} = _held[0]", scope)
    the_reload().aliases[id(scope[name])] = held
    return scope[name]


def set_alias(target: Any, state: tuple[Any]) -> None:
    the_reload().aliases.pop(id(target)).append(state[0])


def generic_alias(name: str, value: Any, variables: tuple[Any, ...]) -> Any:
    made: Any = vars(typing)["TypeAliasType"]
    return made(name, value, type_params=variables)


def new_type(name: str, base: Any, names: dict[str, str]) -> Any:
    made = typing.NewType(name, base)
    made.__dict__.update(names)
    return made
