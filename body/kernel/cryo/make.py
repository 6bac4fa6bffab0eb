"""The functions that a stored stream calls: their names and arguments are part of the format,
permanently."""

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
"""Functions that the first streams call under a name of this module."""


class NotMade(Exception):
    """An object cannot be made here; the message is the reason."""


class ReloadContext:
    """The context of the current reload, for the functions that make objects."""

    def __init__(self, namespace: dict[str, Any], anchors: dict[str, Any], origin: str) -> None:
        self.namespace = namespace
        self.anchors = anchors
        self.origin = origin
        self.live_of: Callable[[Any], Any] = lambda resource: resource.get()
        """Returns the live object of a `runtime.resource`."""
        self.aliases: dict[int, list[Any]] = {}
        """The values of type aliases, by id, until they are known."""


current_reload: ReloadContext | None = None


def require_reload() -> ReloadContext:
    if current_reload is None:
        raise NotMade("only a reload can make objects of cryo")
    return current_reload


def live(name: str) -> Any:
    """Returns an object that every kernel has: the namespace itself, its streams, `runtime`."""
    return require_reload().anchors.get(name)


def named(module: str, name: str) -> Any:
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def module(name: str) -> types.ModuleType:
    return importlib.import_module(name)


def new_module(name: str) -> types.ModuleType:
    """Returns a module that code made, and adds it to `sys.modules`."""
    found = sys.modules[name] = types.ModuleType(name)
    return found


def set_module(target: types.ModuleType, state: dict[str, Any]) -> None:
    """Sets the state, and the builtins, which `exec` adds to a module and which are not stored."""
    target.__dict__.update(state)
    target.__dict__.setdefault("__builtins__", vars(builtins))


# Functions.


def code(magic: bytes, *args: Any) -> types.CodeType:
    if magic != MAGIC_NUMBER:
        raise NotMade("its bytecode is of another version of Python")
    filename = args[10]
    if filename.startswith("<cell ") and " of " not in filename:
        filename = f"{filename[:-1]} of {require_reload().origin}>"
    return types.CodeType(*args[:10], filename, *args[11:])


def cell() -> types.CellType:
    return types.CellType()


def fill_cell(target: types.CellType, contents: tuple[Any]) -> None:
    (target.cell_contents,) = contents


def function(
    body: types.CodeType, where: Any, name: str, closure: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    """Makes a function; `where` is its globals: the namespace, a module or its name, or a dict."""
    if where is None:
        scope = require_reload().namespace
    elif isinstance(where, (str, types.ModuleType)):
        scope = (importlib.import_module(where) if isinstance(where, str) else where).__dict__
    else:
        scope = where
    return types.FunctionType(body, scope, name, None, closure)


def set_function(target: types.FunctionType, state: dict[str, Any]) -> None:
    """Sets the state; `__globals__` are names that a copy of a namespace has for this function."""
    target.__globals__.update(state.pop("__globals__", {}))
    target.__dict__.update(state.pop("__dict__", {}))
    for name, value in state.items():
        setattr(target, name, value)


def cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


# Classes.


class _Silent:
    """Prevents a second call of `__init_subclass__` of the bases."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        pass


class _SilentToo:
    """The same, with the layout of classes without slots."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass


def class_(meta: type, name: str, bases: tuple[type, ...], words: dict[str, Any]) -> type:
    """Makes a class without the side effects of its metaclass and bases, which are part of the
    state."""
    new = abc.ABCMeta.__new__ if issubclass(meta, abc.ABCMeta) else type.__new__
    speaks = any("__init_subclass__" in vars(each) for base in bases for each in base.__mro__[:-1])
    for silent in (_SilentToo, _Silent) if speaks else ():
        try:
            made = new(meta, name, (silent, *bases), dict(words))
            type.__dict__["__bases__"].__set__(made, bases)
            return made
        except TypeError:  # a layout that cannot be changed
            pass
    return new(meta, name, bases, dict(words))


def dress(target: type, methods: dict[str, Any]) -> None:
    for name, value in methods.items():
        type.__setattr__(target, name, value)


def set_class(target: type, state: Any) -> None:
    """Sets the state of a class; in format 1, without `dress`, the state was one dict."""
    if isinstance(state, tuple):
        _, state = state
    registered = state.pop("_abc_registry", ())
    for name, value in state.items():
        type.__setattr__(target, name, value)
    for each in registered:
        abc.ABCMeta.register(target, each)


def member(kind: type, base: type, data: tuple[Any, ...]) -> Any:
    """Makes a member of an enumeration."""
    return base.__new__(kind, *data)


# Other kinds.


def exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Makes an exception without its own `__init__`, whose arguments are unknown."""
    made = kind.__new__(kind, *args)
    base = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    base.__init__(made, *args)
    return made


def set_exception(target: BaseException, state: dict[str, Any]) -> None:
    target.__dict__.update(state.pop("__dict__", {}))
    for name, value in state.items():
        setattr(target, name, value)


def bare(kind: type) -> Any:
    """Makes an instance without a call of its class."""
    return kind.__new__(kind)


def new(kind: type, args: tuple[Any, ...], words: dict[str, Any] | None = None) -> Any:
    """Makes an instance without its `__init__`, for a class that claims to be another."""
    return kind.__new__(kind, *args, **(words or {}))


def derived_property(kind: type, *accessors: Any) -> Any:
    """Makes a property without its own `__init__`."""
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
    """Returns a weak reference to a deleted object."""

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
    """Opens the file again, at its position."""
    path, mode = how["path"], how["mode"]
    if not os.path.exists(path):
        raise NotMade(f"`{path}` no longer exists")
    words = {key: how[key] for key in ("encoding", "errors", "newline") if key in how}
    buffering = 0 if how.get("raw") else -1
    made = open(path, mode, buffering, **words)  # noqa: SIM115
    made.seek(how["position"])
    return made


def resource(target: Any) -> Any:
    """Returns the live object of a `runtime.resource`, made again."""
    return require_reload().live_of(target)


BUILTINS = builtins.__dict__
