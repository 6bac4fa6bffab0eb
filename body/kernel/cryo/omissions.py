"""What an object leaves out of its own state: attributes, and registrations elsewhere."""

from __future__ import annotations

import abc
import collections.abc
import contextlib
import copyreg
import functools
import numbers
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from .fresh_process import is_users

_ABSTRACT = [getattr(collections.abc, name) for name in collections.abc.__all__]
_ABSTRACT += [numbers.Number, numbers.Complex, numbers.Real, numbers.Rational, numbers.Integral]
_ABSTRACT += [os.PathLike, contextlib.AbstractContextManager]
_ABSTRACT = [each for each in _ABSTRACT if isinstance(each, abc.ABCMeta)]

_PICKLE_METHODS = ("__getstate__", "__reduce__", "__reduce_ex__")

Holders = tuple[Any, "Holders"] | None
"""The objects that lead to an object, innermost first."""


class Attribute(NamedTuple):
    """The holder of the value of an attribute."""

    owner: Any
    name: str


class Different(Exception):
    """A stored object, and how the loaded one differs."""

    def __init__(self, was: Any, difference: str) -> None:
        super().__init__(difference)
        self.was, self.difference = was, difference
        self.holders: Holders = None


class Omission(Different):
    """An instance of a class of the user came back without an attribute."""


class UserClass(NamedTuple):
    """What is known of a class that may be one of the user."""

    is_users: bool
    defines_pickling: bool
    """Whether a class of the user defines what is stored: it may be other values."""

    @classmethod
    def of(cls, kind: type) -> UserClass:
        is_users = _is_users_class(kind)
        return cls(is_users, is_users and _defines_pickling(kind))


def check_attributes(known: UserClass, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Compares the names of fields, and of all attributes for a class of the user. Yields the
    attributes of both objects, with their values, where the stored form may have other values.

    # Errors
    `Different`; `Omission` for a class of the user.
    """
    kind = type(was)
    for name in _declared_fields(kind):
        if _has_attribute(was, name) and not _has_attribute(now, name):
            raise Different(was, f"came back without its field `{name}`")
    if not known.is_users:
        return
    values = _attributes_of(was)
    for name in values:
        is_there = _has_attribute(now, name) or name in _attributes_of(now)
        if not is_there and not _is_cached(kind, name):
            raise Omission(was, f"came back without its attribute `{name}`")
    if not known.defines_pickling:
        return
    others = _attributes_of(now)
    for name, value in values.items():
        if name in others and not _is_cached(kind, name):
            yield name, value, others[name]


def check_registrations(was: type, now: type) -> None:
    """Compares the abstract classes of the standard library in which a class is registered.

    # Errors
    `Different`.
    """
    for each in _ABSTRACT:
        # Not `issubclass`: protocols among the subclasses of `each` add attributes to the class.
        registered = [there() for there in abc._get_dump(each)[0]]  # type: ignore[attr-defined]
        if _holds(registered, was) and not _holds(registered, now):
            name = f"{each.__module__}.{each.__name__}"
            raise Different(was, f"is no longer registered in `{name}`")


def _holds(some: list[Any], wanted: Any) -> bool:
    return any(each is wanted for each in some)


def _is_users_class(kind: type) -> bool:
    module = sys.modules.get(str(getattr(kind, "__module__", None)))
    return module is None or is_users(module)


def _defines_pickling(kind: type) -> bool:
    if kind in copyreg.dispatch_table:
        return True
    definers = (find_definer(kind, way) for way in _PICKLE_METHODS)
    return any(each is not None and _is_users_class(each) for each in definers)


def find_definer(kind: type, name: str) -> type | None:
    return next((each for each in kind.__mro__ if name in vars(each)), None)


def _attributes_of(obj: Any) -> dict[str, Any]:
    """Returns the attributes of an instance, without calling its properties."""
    try:
        found = dict(object.__getattribute__(obj, "__dict__"))
    except AttributeError:
        found = {}
    for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]
        if name not in found and _has_attribute(obj, name):
            found[name] = object.__getattribute__(obj, name)
    if issubclass(type(obj), BaseException):  # objects may claim any class
        found["args"] = BaseException.args.__get__(obj)  # type: ignore[attr-defined]
    return {name: value for name, value in found.items() if isinstance(name, str)}


def _is_cached(kind: type, name: str) -> bool:
    """Whether an attribute is made again on use."""
    definer = find_definer(kind, name)
    return definer is not None and isinstance(vars(definer)[name], functools.cached_property)


def _declared_fields(kind: type) -> list[str]:
    """The fields of a data class or a class of attrs. A class of attrs without slots has the state
    of its base with slots, which leaves out its own fields."""
    own = getattr(kind, "__attrs_attrs__", ())
    return [*getattr(kind, "__dataclass_fields__", ()), *(each.name for each in own)]


def _has_attribute(obj: Any, name: str) -> bool:
    try:
        object.__getattribute__(obj, name)
    except AttributeError:
        return False
    return True
