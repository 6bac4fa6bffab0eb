"""Kinds that pickle refuses or would tell wrongly, and how they come back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import logging
import re
import struct
import subprocess
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .. import resources
from . import make
from .opened import FILES, opened
from .refusal import Unsaveable
from .values import Told, Values
from .weak import Weak

_NEVER: dict[type, str] = {
    types.GeneratorType: "a generator, whose frame only the running process has",
    types.CoroutineType: "a coroutine, whose frame only the running process has",
    types.AsyncGeneratorType: "an asynchronous generator, whose frame only the process has",
    types.FrameType: "a frame of running code",
    types.TracebackType: "a traceback, which leads to frames of running code",
    memoryview: "a memoryview of a part of other memory",
}
_BY_BASE: list[tuple[type, str]] = [
    (threading.Thread, "a thread, which only the running process has"),
    (asyncio.AbstractEventLoop, "an event loop, with sockets of its own"),
    (asyncio.Future, "a task or future of a running event loop"),
]
_SENTINELS = {type(getattr(dataclasses, name)): name for name in ("MISSING", "KW_ONLY")}
_FIELD_KIND = type(dataclasses._FIELD)  # type: ignore[attr-defined]
LOCKS = (type(threading.Lock()), type(threading.RLock()))
FREED = "a lock in it comes back free: who held it is not there any more"
_LIGHT = frozenset((bool, int, float, complex, str, bytes, types.ModuleType))
_COUNT = re.compile(r" count=(\d+) ")
"""How often a lock is held: to release it for that would let others in."""
_PLAIN_INIT = (types.WrapperDescriptorType, types.MethodDescriptorType)


class Recipes:
    """How each kind is told; `files` says whether open ones are."""

    def __init__(self, values: Values, notes: list[str], weak: Weak, *, files: bool) -> None:
        self._values = values
        self._notes = notes
        self._weak = weak
        self._files = files
        self._live = {id(each._object): each for each in resources._live}

    def resource_of(self, obj: Any) -> resources.Resource | None:
        """The resource whose live object that is."""
        return self._live.get(id(obj))

    def by_kind(self) -> dict[type, Callable[[Any], Told]]:
        never = {kind: _refuse(why) for kind, why in _NEVER.items() if kind is not memoryview}
        return never | {
            types.ModuleType: self.module,
            types.MethodType: lambda method: (
                types.MethodType,
                (method.__func__, method.__self__),
            ),
            types.MappingProxyType: lambda proxy: (types.MappingProxyType, (_behind(proxy),)),
            type({}.keys()): lambda view: (_behind(view.mapping).keys, ()),
            type({}.values()): lambda view: (_behind(view.mapping).values, ()),
            type({}.items()): lambda view: (_behind(view.mapping).items, ()),
            type(OrderedDict().keys()): lambda view: (_behind(view.mapping).keys, ()),
            type(OrderedDict().values()): lambda view: (_behind(view.mapping).values, ()),
            type(OrderedDict().items()): lambda view: (_behind(view.mapping).items, ()),
            property: lambda each: (property, _accessors(each)),
            staticmethod: lambda each: (staticmethod, (each.__func__,)),
            classmethod: lambda each: (classmethod, (each.__func__,)),
            memoryview: _memory,
            struct.Struct: lambda each: (struct.Struct, (each.format,)),
            _FIELD_KIND: lambda each: (make.named, ("dataclasses", each.name)),
            **{
                kind: lambda _, name=name: (make.named, ("dataclasses", name))
                for kind, name in _SENTINELS.items()
            },
            LOCKS[0]: self.lock,
            LOCKS[1]: self.rlock,
            **self._weak.by_kind(),
            **dict.fromkeys(FILES, self.file),
            subprocess.Popen: _process,
        }

    def by_base(self, kind: type) -> Callable[[Any], Told] | None:
        """For kinds that derive from one that is known."""
        for base, why in _BY_BASE:
            if issubclass(kind, base):
                return _refuse(why)
        if issubclass(kind, concurrent.futures.Future):
            return _future
        if issubclass(kind, types.ModuleType):
            return self.module
        if issubclass(kind, logging.Logger):
            return self.logger
        if issubclass(kind, BaseException):
            return self.exception
        if issubclass(kind, property) and kind.__reduce_ex__ is object.__reduce_ex__:
            return _derived_property
        return self._weak.by_base(kind)

    def module(self, module: types.ModuleType) -> Told:
        name = module.__name__
        if self._values.loaded.get(name) is module and self._values.is_importable(name):
            self._values.modules.add(name)
            if "__path__" in vars(module):
                self._values.packages.add(name)
            return make.module, (name,)
        if type(module) is not types.ModuleType:
            raise Unsaveable(f"the module `{name}`, which no import finds")
        self._values.spaces[id(vars(module))] = module
        state = {key: value for key, value in vars(module).items() if key != "__builtins__"}
        for key in ("__spec__", "__loader__"):
            state.pop(key, None)
        return make.new_module, (name,), state, None, None, make.set_module

    def file(self, file: Any) -> Told:
        if not self._files:
            raise Unsaveable("an open file; `--files` stores its path and position")
        return opened(file)

    def lock(self, lock: Any) -> Told:
        """Nobody knows who holds it, and after a reload nobody is left to release it."""
        if lock.locked():
            self._notes.append(FREED)
        return make.lock, (False,)

    def rlock(self, lock: Any) -> Told:
        """As often as the main thread has it, which goes on; no other does."""
        found = _COUNT.search(repr(lock)) if lock._is_owned() else None
        count = int(found[1]) if found else 0
        if count == 0 and "owner=0 " not in repr(lock):
            self._notes.append(FREED)
        return make.rlock, (count,)

    def logger(self, logger: logging.Logger) -> Told:
        is_root = logger is logging.root
        if not is_root and logging.Logger.manager.loggerDict.get(logger.name) is not logger:
            return NotImplemented
        state = {name: getattr(logger, name) for name in ("level", "propagate", "disabled")}
        state |= {"handlers": logger.handlers, "filters": logger.filters}
        args = () if is_root else (logger.name,)
        return logging.getLogger, args, state, None, None, make.set_logger

    def exception(self, error: BaseException) -> Told:
        """With its cause and context; tracebacks lead to frames, and go."""
        if error.__traceback__ is not None:
            self._notes.append("without its traceback")
        kind = type(error)
        told: Any
        own = any(
            each.__module__ != "builtins"
            and ("__reduce__" in vars(each) or "__reduce_ex__" in vars(each))
            for each in kind.__mro__
        )
        if isinstance(kind.__init__, _PLAIN_INIT) or own:
            told = error.__reduce_ex__(5)
            if isinstance(told, str) or len(told) > 3:
                return told
            state = {"__dict__": told[2] if len(told) == 3 else {}}
            if kind.__setstate__ is not BaseException.__setstate__:
                return told
            state["__dict__"] = state["__dict__"] or {}
            told = told[:2]
        else:  # of OSError, that is more than its `args`
            told = (make.exception, (kind, error.__reduce__()[1]))
            state = {"__dict__": dict(error.__dict__)}
        for name in ("__cause__", "__context__", "__suppress_context__", *_slots(kind)):
            if getattr(error, name, None):
                state[name] = getattr(error, name)
        if isinstance(error, AttributeError) and error.obj is not None:
            if type(error.obj) in _LIGHT:
                state["obj"] = error.obj
            else:  # it may be anything, and lead anywhere
                self._notes.append("without the object whose attribute was missing")
        return (*told, state, None, None, make.set_exception)


def _refuse(why: str) -> Callable[[Any], Told]:
    def refuse(_: Any) -> Told:
        raise Unsaveable(why)

    return refuse


def _behind(proxy: Any) -> Any:
    """The mapping that a read-only view shows."""

    class Reveal:
        def __ror__(self, other: Any) -> Any:
            return other

    return proxy | Reveal()


def _memory(view: memoryview) -> Told:
    whole = view.obj
    if whole is None or not view.c_contiguous or view.nbytes != memoryview(whole).nbytes:
        raise Unsaveable(_NEVER[memoryview])
    if view.format != memoryview(whole).format or view.readonly != memoryview(whole).readonly:
        raise Unsaveable(_NEVER[memoryview])
    return memoryview, (whole,)


def _accessors(each: property) -> tuple[Any, ...]:
    return each.fget, each.fset, each.fdel, each.__doc__


def _derived_property(each: property) -> Told:
    args = (type(each), *_accessors(each))
    return make.derived_property, args, dict(getattr(each, "__dict__", None) or {}) or None


def _process(process: Any) -> Told:
    if process.returncode is None:
        raise Unsaveable("a child process, which ends with the kernel")
    return NotImplemented


def _future(future: Any) -> Told:
    if not future.done():
        raise Unsaveable("a future that is not done, whose worker only the running process has")
    return NotImplemented


def _slots(kind: type[BaseException]) -> list[str]:
    """What builtin exceptions know besides their arguments. `obj` has a rule of its own."""
    bases = [each for each in kind.__mro__ if each.__module__ == "builtins"]
    return [
        name
        for base in bases
        if issubclass(base, Exception)
        for name, value in vars(base).items()
        if type(value) is types.MemberDescriptorType and name != "obj"
    ]
