"""What a stored stream calls: these names and their arguments are part of the format, for ever."""

from __future__ import annotations

import abc
import builtins
import functools
import importlib
import os
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable
from importlib.util import MAGIC_NUMBER
from typing import Any

from .make_arrays import array, array_view, writable

BY_THIS_MODULE = (array, array_view, writable)
"""What the first streams call by a name of this module."""


class NotMade(Exception):
    """Something can't be made here; says why."""


class Here:
    """What the reload that is going on offers to those who make things."""

    def __init__(self, namespace: dict[str, Any], anchors: dict[str, Any], origin: str) -> None:
        self.namespace = namespace
        self.anchors = anchors
        self.origin = origin
        self.live_of: Callable[[Any], Any] = lambda resource: resource.get()
        """The live object of a `runtime.resource`."""
        self.aliases: dict[int, list[Any]] = {}
        """What type aliases stand for, by their id, until it is known."""


here: Here | None = None


def the_reload() -> Here:
    if here is None:
        raise NotMade("objects of cryo are made by a reload alone")
    return here


def live(name: str) -> Any:
    """What every kernel has: the namespace itself, its streams, `runtime`."""
    return the_reload().anchors.get(name)


def named(module: str, name: str) -> Any:
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def module(name: str) -> types.ModuleType:
    return importlib.import_module(name)


def new_module(name: str) -> types.ModuleType:
    """One that code made; it belongs where imports find it."""
    found = sys.modules[name] = types.ModuleType(name)
    return found


def set_module(target: types.ModuleType, state: dict[str, Any]) -> None:
    """With the builtins, which `exec` gives to a module and which are not stored."""
    target.__dict__.update(state)
    target.__dict__.setdefault("__builtins__", vars(builtins))


# Functions.


def code(magic: bytes, *args: Any) -> types.CodeType:
    if magic != MAGIC_NUMBER:
        raise NotMade("its bytecode is of another version of Python")
    filename = args[10]
    if filename.startswith("<cell ") and " of " not in filename:
        filename = f"{filename[:-1]} of {the_reload().origin}>"
    return types.CodeType(*args[:10], filename, *args[11:])


def cell() -> types.CellType:
    return types.CellType()


def fill_cell(target: types.CellType, contents: tuple[Any]) -> None:
    (target.cell_contents,) = contents


def function(
    body: types.CodeType, where: Any, name: str, closure: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    """`where` its globals are: the namespace, a module by name or itself, or a dict."""
    if where is None:
        scope = the_reload().namespace
    elif isinstance(where, (str, types.ModuleType)):
        scope = (importlib.import_module(where) if isinstance(where, str) else where).__dict__
    else:
        scope = where
    return types.FunctionType(body, scope, name, None, closure)


def set_function(target: types.FunctionType, state: dict[str, Any]) -> None:
    target.__dict__.update(state.pop("__dict__", {}))
    for name, value in state.items():
        setattr(target, name, value)


def cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


# Classes.


class _Silent:
    """Keeps `__init_subclass__` of bases from being called a second time."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        pass


class _SilentToo:
    """The same, of the layout that classes without slots have."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass


def class_(meta: type, name: str, bases: tuple[type, ...], words: dict[str, Any]) -> type:
    """Without what its metaclass and bases do with a new class: that was done, and is state."""
    new = abc.ABCMeta.__new__ if issubclass(meta, abc.ABCMeta) else type.__new__
    speaks = any("__init_subclass__" in vars(each) for base in bases for each in base.__mro__[:-1])
    for silent in (_SilentToo, _Silent) if speaks else ():
        try:
            made = new(meta, name, (silent, *bases), dict(words))
            type.__dict__["__bases__"].__set__(made, bases)
            return made
        except TypeError:  # a layout that can't be changed
            pass
    return new(meta, name, bases, dict(words))


def dress(target: type, methods: dict[str, Any]) -> None:
    for name, value in methods.items():
        type.__setattr__(target, name, value)


def set_class(target: type, state: Any) -> None:
    """Format 1 began without `dress`: its state was one dict."""
    if isinstance(state, tuple):
        _, state = state
    registered = state.pop("_abc_registry", ())
    for name, value in state.items():
        type.__setattr__(target, name, value)
    for each in registered:
        abc.ABCMeta.register(target, each)


def member(kind: type, base: type, data: tuple[Any, ...]) -> Any:
    """A member of an enumeration, by itself."""
    return base.__new__(kind, *data)


# Others.


def exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Without its own `__init__`, whose arguments nobody knows."""
    made = kind.__new__(kind, *args)
    base = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    base.__init__(made, *args)
    return made


def set_exception(target: BaseException, state: dict[str, Any]) -> None:
    target.__dict__.update(state.pop("__dict__", {}))
    for name, value in state.items():
        setattr(target, name, value)


def bare(kind: type) -> Any:
    """Without what a call of its class does."""
    return kind.__new__(kind)


def new(kind: type, args: tuple[Any, ...], words: dict[str, Any] | None = None) -> Any:
    """Without its `__init__`: of a class that claims to be another."""
    return kind.__new__(kind, *args, **(words or {}))


def derived_property(kind: type, *accessors: Any) -> Any:
    """Without its own `__init__`."""
    made = kind.__new__(kind)
    property.__init__(made, *accessors)
    return made


def lock(locked: bool) -> Any:
    made = threading.Lock()
    if locked:
        made.acquire()
    return made


def rlock(count: int) -> Any:
    made = threading.RLock()
    for _ in range(count):
        made.acquire()
    return made


def set_logger(target: Any, state: dict[str, Any]) -> None:
    target.setLevel(state.pop("level"))
    target.__dict__.update(state)


def type_variable(kind: str, name: str, words: dict[str, Any]) -> Any:
    constraints = words.pop("constraints", ())
    return getattr(typing, kind)(name, *constraints, **words)


def weak(target: Any, callback: Callable[[Any], Any] | None = None) -> Any:
    return weakref.ref(target, callback)


def gone() -> Any:
    """A weak reference to what is gone."""

    class Nothing:
        pass

    return weakref.ref(Nothing())


def weak_proxy(target: Any) -> Any:
    return weakref.proxy(target)


def weak_items(kind: type, *args: Any) -> Any:
    return kind(*args)


def set_weak_items(target: Any, items: list[Any]) -> None:
    for item in items:
        if isinstance(item, tuple):
            target[item[0]] = item[1]
        else:
            target.add(item)


def file(how: dict[str, Any]) -> Any:
    """Opened again, where it was."""
    path, mode = how["path"], how["mode"]
    if not os.path.exists(path):
        raise NotMade(f"`{path}` is not there any more")
    words = {key: how[key] for key in ("encoding", "errors", "newline") if key in how}
    buffering = 0 if how.get("raw") else -1
    made = open(path, mode, buffering, **words)  # noqa: SIM115
    made.seek(how["position"])
    return made


def resource(target: Any) -> Any:
    """The live object of a `runtime.resource`, made again."""
    return the_reload().live_of(target)


BUILTINS = builtins.__dict__
