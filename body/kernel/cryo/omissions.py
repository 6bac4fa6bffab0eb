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
from collections.abc import Iterable
from typing import Any

from .fresh_process import is_users

_ABSTRACT = [getattr(collections.abc, name) for name in collections.abc.__all__]
_ABSTRACT += [numbers.Number, numbers.Complex, numbers.Real, numbers.Rational, numbers.Integral]
_ABSTRACT += [os.PathLike, contextlib.AbstractContextManager]
_ABSTRACT = [each for each in _ABSTRACT if isinstance(each, abc.ABCMeta)]

Holders = tuple[Any, "Holders"] | None
"""The objects that lead to an object, innermost first."""


class Different(Exception):
    """A stored object, and how the loaded one differs."""

    def __init__(self, was: Any, difference: str) -> None:
        super().__init__(difference)
        self.was, self.difference = was, difference
        self.holders: Holders = None


def check_attributes(was: Any, now: Any) -> None:
    """Compares the names of fields, and of all attributes for a class of the user.

    # Errors
    `Different`.
    """
    kind = type(was)
    for name in _declared_fields(kind):
        if _has_attribute(was, name) and not _has_attribute(now, name):
            raise Different(was, f"came back without its field `{name}`")
    if not _is_users_class(kind):
        return
    for name in _attribute_names(was):
        if not _has_attribute(now, name) and not _is_cached(kind, name):
            raise Different(was, f"came back without its attribute `{name}`")


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


def _attribute_names(obj: Any) -> Iterable[str]:
    try:
        names = [*object.__getattribute__(obj, "__dict__")]
    except AttributeError:
        names = []
    slots = copyreg._slotnames(type(obj))  # type: ignore[attr-defined]
    names += [name for name in slots if _has_attribute(obj, name)]
    return (name for name in names if isinstance(name, str))


def _is_cached(kind: type, name: str) -> bool:
    """Whether an attribute is made again on use."""
    found = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
    return isinstance(found, functools.cached_property)


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
