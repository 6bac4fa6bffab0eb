"""Which rule each kind of object is told by; found once for a kind, and then a lookup."""

from __future__ import annotations

import copyreg
import enum
import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from .. import resources
from . import based, make, make_based
from .arrays import Arrays
from .recipes import Recipes
from .refusal import Unsaveable
from .values import Told, Values
from .weak import Weak

Rule = Callable[[Any], Told]
_HEAP = 1 << 9
"""The flag of classes that code made."""


class Rules:
    """For both picklers: `reducer_override` is asked about all but the simplest objects."""

    def __init__(self, namespace: dict[str, Any], values: Iterable[Any], *, files: bool) -> None:
        self.notes: list[str] = []
        """What is worth telling of what was told since somebody emptied it."""
        self.values = Values(namespace, self.notes)
        self.weak = Weak(self.values.is_named)
        self.recipes = Recipes(self.values, self.notes, self.weak, files=files)
        self.arrays = Arrays(values, self.notes, files=files)
        self._rules: dict[type, Rule | None] = self.values.by_kind() | self.recipes.by_kind()
        for each in resources._live:
            kind = type(each._object)
            if issubclass(kind, types.ModuleType):  # an import makes it again
                continue
            self._rules[kind] = partial(self._live, self._rules.get(kind))
        self.last: Any = None
        """What was asked about last: what a failure is about."""

    def told(self, obj: Any) -> Told:
        self.last = obj
        kind = type(obj)
        try:
            rule = self._rules[kind]
        except KeyError:
            rule = self.rule(kind)
        return NotImplemented if rule is None else rule(obj)

    def rule(self, kind: type) -> Rule | None:
        """The rule for a type; none leaves it to pickle."""
        if kind not in self._rules:
            rule = self._find(kind)
            if _is_disguised(kind):
                rule = partial(_disguised, rule)
            elif _answers_for_all(kind):
                rule = partial(_past_answers, rule)
            self._rules[kind] = rule
        return self._rules[kind]

    def _find(self, kind: type) -> Rule | None:
        if issubclass(kind, type):
            return self.values.class_
        rule = self.arrays.rule(kind) or self.recipes.by_base(kind)
        if rule is not None:
            return rule
        if issubclass(kind, enum.Enum):
            return self.values.member
        if kind in copyreg.dispatch_table:
            return None
        rule = based.rule(kind)
        if rule is not None:
            return rule
        own = kind.__reduce__ is not object.__reduce__
        if own or kind.__reduce_ex__ is not object.__reduce_ex__:
            return self._own_way
        return None

    def _own_way(self, obj: Any) -> Told:
        """A kind that tells itself; by a name only where the name is found again."""
        told = obj.__reduce_ex__(5)
        if isinstance(told, str):
            module = getattr(obj, "__module__", None)
            if module is not None and not self.values.is_importable(module):
                if self.values.is_variable(told, obj) and not hasattr(type(obj), "__slots__"):
                    return make.bare, (type(obj),), dict(vars(obj)) or None
                raise Unsaveable(f"it says that it is `{module}.{told}`, which no import finds")
        return told

    def _live(self, known: Rule | None, obj: Any) -> Told:
        found = self.recipes.resource_of(obj)
        if found is not None:
            return make.resource, (found,)
        rule = known or self._find(type(obj))
        return NotImplemented if rule is None else rule(obj)


def _is_disguised(kind: type) -> bool:
    if issubclass(kind, type) or kind in copyreg.dispatch_table:
        return False
    return any("__class__" in vars(each) for each in kind.__mro__[:-1])


def _answers_for_all(kind: type) -> bool:
    """Whether instances may answer for attributes that they do not have, as the `__setstate__` that
    pickle looks for in an object which is not yet filled."""
    if kind in copyreg.dispatch_table or not kind.__flags__ & _HEAP:
        return False
    own = [vars(each) for each in kind.__mro__ if each.__flags__ & _HEAP]
    asks = any(way in names for names in own for way in ("__getattr__", "__getattribute__"))
    return asks and not any("__setstate__" in vars(each) for each in kind.__mro__)


def _past_answers(rule: Rule | None, obj: Any) -> Told:
    """Its state is set without asking it."""
    told = NotImplemented if rule is None else rule(obj)
    if told is NotImplemented:
        told = type(obj).__reduce_ex__(obj, 5)
    if not isinstance(told, tuple) or len(told) < 3 or told[2] is None or len(told) == 6:
        return told
    return (*told, *(None,) * (5 - len(told)), make_based.set_state)


def _disguised(rule: Rule | None, obj: Any) -> Told:
    """What says that it is of another class: pickle believes that, and refuses it then."""
    told = NotImplemented if rule is None else rule(obj)
    if told is NotImplemented:
        told = object.__reduce_ex__(obj, 5)
    name = getattr(told[0], "__name__", "") if isinstance(told, tuple) else ""
    if name == "__newobj__":
        kind, *args = told[1]
        return (make.new, (kind, tuple(args)), *told[2:])
    if name == "__newobj_ex__":
        return (make.new, told[1], *told[2:])
    return told
