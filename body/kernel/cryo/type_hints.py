"""Parts of annotations: new types, type aliases, type variables."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import make, make_types
from .unsaveable import Unsaveable

if TYPE_CHECKING:
    from .values import Reduced, Values

_TYPE_VARIABLES = tuple(
    getattr(typing, name)
    for name in ("TypeVar", "ParamSpec", "TypeVarTuple")
    if hasattr(typing, name)
)


class TypeHints:
    """The rules of these kinds; an object that an import finds is stored by name."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def by_kind(self) -> dict[type, Callable[[Any], Reduced]]:
        known: dict[Any, Callable[[Any], Reduced]] = {typing.NewType: self.reduce_new_type}
        if hasattr(typing, "TypeAliasType"):
            known[typing.TypeAliasType] = self.reduce_alias
        return known | dict.fromkeys(_TYPE_VARIABLES, self.reduce_type_variable)

    def reduce_new_type(self, kind: typing.NewType) -> Reduced:
        if self._values.is_named(kind):
            return NotImplemented
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        return make_types.new_type, (kind.__name__, kind.__supertype__, names)

    def reduce_alias(self, alias: Any) -> Reduced:
        """Reduces `type X = …`."""
        if self.is_named_variable(alias):
            return NotImplemented
        name, value, variables = alias.__name__, alias.__value__, alias.__type_params__
        if not variables:
            args, state = (name, alias.__module__), (value,)
            return make_types.alias, args, state, None, None, make_types.set_alias
        if _leads_to(value, alias):
            raise Unsaveable("a type alias with parameters that leads to itself")
        return make_types.generic_alias, (name, value, variables)

    def reduce_type_variable(self, variable: Any) -> Reduced:
        if self.is_named_variable(variable):
            return NotImplemented
        kind, options = type(variable).__name__, {}
        for option in ("bound", "covariant", "contravariant", "infer_variance"):
            value = getattr(variable, f"__{option}__", None)
            if value:
                options[option] = value
        if constraints := getattr(variable, "__constraints__", ()):
            options["constraints"] = constraints
        return make.type_variable, (kind, variable.__name__, options)

    def is_named_variable(self, variable: Any) -> bool:
        module = getattr(variable, "__module__", None)
        found = self._values.is_importable(module) and getattr(
            self._values.loaded[module], variable.__name__, None
        )
        return found is variable


def _leads_to(value: Any, wanted: Any) -> bool:
    """Whether a type contains another, at any depth."""
    pending, seen = [value], set()
    while pending:
        each = pending.pop()
        if each is wanted:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            pending += getattr(each, "__args__", None) or ()
            pending += [getattr(each, "__origin__", None)]
    return False
