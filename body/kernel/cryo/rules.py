"""The rule of each kind of object; searched once for a kind, then a lookup."""

from __future__ import annotations

import copyreg
import enum
import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from .. import resources
from . import builtin_subclasses, make, make_based
from .alterations import Notes
from .arrays import Arrays
from .recipes import Recipes
from .unsaveable import Unsaveable
from .values import Reduced, Values
from .weakrefs import WeakReferences

Rule = Callable[[Any], Reduced]
_HEAP_TYPE = 1 << 9
"""The flag of classes that Python code has made."""


class Rules:
    """The rules for both picklers, called by `reducer_override` for all but the simplest
    objects."""

    def __init__(self, namespace: dict[str, Any], values: Iterable[Any], *, files: bool) -> None:
        self.notes = Notes()
        self.values = Values(namespace, self.notes)
        self.weak = WeakReferences(self.values.is_named)
        self.recipes = Recipes(self.values, self.notes, self.weak, files=files)
        self.arrays = Arrays(values, files=files)
        self._rules: dict[type, Rule | None] = self.values.by_kind() | self.recipes.by_kind()
        for each in resources._live:
            kind = type(each._object)
            if issubclass(kind, types.ModuleType):  # an import makes it again
                continue
            self._rules[kind] = partial(self._reduce_live, self._rules.get(kind))
        self.last_object: Any = None
        """The last object that was reduced: the object of a failure."""

    def reduce_object(self, obj: Any) -> Reduced:
        self.last_object = obj
        kind = type(obj)
        try:
            rule = self._rules[kind]
        except KeyError:
            rule = self.find_rule(kind)
        return NotImplemented if rule is None else rule(obj)

    def find_rule(self, kind: type) -> Rule | None:
        """Returns the rule of a type; None leaves the type to pickle."""
        if kind not in self._rules:
            rule = self._search_rule(kind)
            if _is_disguised(kind):
                rule = partial(_reduce_disguised, rule)
            elif _answers_for_all(kind):
                rule = partial(_reduce_unasked, rule)
            self._rules[kind] = rule
        return self._rules[kind]

    def _search_rule(self, kind: type) -> Rule | None:
        if issubclass(kind, type):
            return self.values.reduce_class
        rule = self.arrays.find_rule(kind) or self.recipes.by_base(kind)
        if rule is not None:
            return rule
        if issubclass(kind, enum.Enum):
            return self.values.reduce_member
        if kind in copyreg.dispatch_table:
            return None
        rule = builtin_subclasses.find_rule(kind)
        if rule is not None:
            return rule
        own = kind.__reduce__ is not object.__reduce__
        if own or kind.__reduce_ex__ is not object.__reduce_ex__:
            return self._reduce_own
        return None

    def _reduce_own(self, obj: Any) -> Reduced:
        """Reduces an object that defines its own pickling; by name only when the name is found
        again."""
        reduced = obj.__reduce_ex__(5)
        if isinstance(reduced, str):
            module = getattr(obj, "__module__", None)
            if module is not None and not self.values.is_importable(module):
                if self.values.is_variable(reduced, obj) and not hasattr(type(obj), "__slots__"):
                    return make.bare, (type(obj),), dict(vars(obj)) or None
                raise Unsaveable(
                    f"it pickles itself as `{module}.{reduced}`, which no import finds"
                )
        return reduced

    def _reduce_live(self, known: Rule | None, obj: Any) -> Reduced:
        found = self.recipes.resource_of(obj)
        if found is not None:
            return make.resource, (found,)
        rule = known or self._search_rule(type(obj))
        return NotImplemented if rule is None else rule(obj)


def _is_disguised(kind: type) -> bool:
    if issubclass(kind, type) or kind in copyreg.dispatch_table:
        return False
    return any("__class__" in vars(each) for each in kind.__mro__[:-1])


def _answers_for_all(kind: type) -> bool:
    """Whether instances may answer for attributes that they do not have, such as the `__setstate__`
    that pickle looks up before the object is filled."""
    if kind in copyreg.dispatch_table or not kind.__flags__ & _HEAP_TYPE:
        return False
    if issubclass(kind, type):  # `reduce_class` sets the state of classes itself
        return False
    own = [vars(each) for each in kind.__mro__ if each.__flags__ & _HEAP_TYPE]
    overrides = any(way in names for names in own for way in ("__getattr__", "__getattribute__"))
    return overrides and not any("__setstate__" in vars(each) for each in kind.__mro__)


def _reduce_unasked(rule: Rule | None, obj: Any) -> Reduced:
    """Reduces an object so that its state is set without calling the object."""
    reduced = NotImplemented if rule is None else rule(obj)
    if reduced is NotImplemented:
        reduced = type(obj).__reduce_ex__(obj, 5)
    if (
        not isinstance(reduced, tuple)
        or len(reduced) < 3
        or reduced[2] is None
        or len(reduced) == 6
    ):
        return reduced
    return (*reduced, *(None,) * (5 - len(reduced)), make_based.set_state)


def _reduce_disguised(rule: Rule | None, obj: Any) -> Reduced:
    """Reduces an object that claims another class, which pickle would believe and then refuse."""
    reduced = NotImplemented if rule is None else rule(obj)
    if reduced is NotImplemented:
        reduced = object.__reduce_ex__(obj, 5)
    name = getattr(reduced[0], "__name__", "") if isinstance(reduced, tuple) else ""
    if name == "__newobj__":
        kind, *args = reduced[1]
        return (make.new, (kind, tuple(args)), *reduced[2:])
    if name == "__newobj_ex__":
        return (make.new, reduced[1], *reduced[2:])
    return reduced
