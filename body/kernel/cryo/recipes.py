"""The rules of kinds that pickle refuses or restores wrongly."""

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
from .alterations import Notes
from .open_files import FILES, reduce_file
from .unsaveable import Unsaveable
from .values import Reduced, Values
from .weakrefs import WeakReferences

_REFUSED: dict[type, str] = {
    types.GeneratorType: "a generator, whose frame only the running process has",
    types.CoroutineType: "a coroutine, whose frame only the running process has",
    types.AsyncGeneratorType: "an asynchronous generator, whose frame only the process has",
    types.FrameType: "a frame of running code",
    types.TracebackType: "a traceback, which leads to frames of running code",
    memoryview: "a memoryview of a part of other memory",
}
_BY_BASE: list[tuple[type, str]] = [
    (threading.Thread, "a thread, which only the running process has"),
    (asyncio.AbstractEventLoop, "an event loop with its own sockets"),
    (asyncio.Future, "a task or future of a running event loop"),
]
_SENTINELS = {type(getattr(dataclasses, name)): name for name in ("MISSING", "KW_ONLY")}
_FIELD_KIND = type(dataclasses._FIELD)  # type: ignore[attr-defined]
LOCKS = (type(threading.Lock()), type(threading.RLock()))
FREED = "a lock in it comes back free: its holder no longer exists"
_SMALL_TYPES = frozenset((bool, int, float, complex, str, bytes, types.ModuleType))
_LOCK_COUNT = re.compile(r" count=(\d+) ")
"""The lock count in a repr: releasing the lock to count its holds would admit other threads."""
_PLAIN_INIT = (types.WrapperDescriptorType, types.MethodDescriptorType)


class Recipes:
    """The rules by kind; `files` includes open files."""

    def __init__(self, values: Values, notes: Notes, weak: WeakReferences, *, files: bool) -> None:
        self._values = values
        self._notes = notes
        self._weak = weak
        self._files = files
        self._live = {id(each._object): each for each in resources._live}

    def resource_of(self, obj: Any) -> resources.Resource | None:
        """Returns the resource that owns a live object."""
        return self._live.get(id(obj))

    def by_kind(self) -> dict[type, Callable[[Any], Reduced]]:
        never = {
            kind: _refuse_kind(why) for kind, why in _REFUSED.items() if kind is not memoryview
        }
        return never | {
            types.ModuleType: self.reduce_module,
            types.MethodType: lambda method: (
                types.MethodType,
                (method.__func__, method.__self__),
            ),
            types.MappingProxyType: lambda proxy: (
                types.MappingProxyType,
                (_mapping_behind(proxy),),
            ),
            type({}.keys()): lambda view: (_mapping_behind(view.mapping).keys, ()),
            type({}.values()): lambda view: (_mapping_behind(view.mapping).values, ()),
            type({}.items()): lambda view: (_mapping_behind(view.mapping).items, ()),
            type(OrderedDict().keys()): lambda view: (_mapping_behind(view.mapping).keys, ()),
            type(OrderedDict().values()): lambda view: (_mapping_behind(view.mapping).values, ()),
            type(OrderedDict().items()): lambda view: (_mapping_behind(view.mapping).items, ()),
            property: lambda each: (property, _property_accessors(each)),
            staticmethod: lambda each: (staticmethod, (each.__func__,)),
            classmethod: lambda each: (classmethod, (each.__func__,)),
            memoryview: _reduce_memoryview,
            struct.Struct: lambda each: (struct.Struct, (each.format,)),
            _FIELD_KIND: lambda each: (make.named, ("dataclasses", each.name)),
            **{
                kind: lambda _, name=name: (make.named, ("dataclasses", name))
                for kind, name in _SENTINELS.items()
            },
            LOCKS[0]: self.reduce_lock,
            LOCKS[1]: self.reduce_rlock,
            **self._weak.by_kind(),
            **dict.fromkeys(FILES, self.reduce_open_file),
            subprocess.Popen: _reduce_process,
        }

    def by_base(self, kind: type) -> Callable[[Any], Reduced] | None:
        """Returns the rule of a kind that derives from a known one."""
        for base, why in _BY_BASE:
            if issubclass(kind, base):
                return _refuse_kind(why)
        if issubclass(kind, concurrent.futures.Future):
            return _reduce_future
        if issubclass(kind, types.ModuleType):
            return self.reduce_module
        if issubclass(kind, logging.Logger):
            return self.reduce_logger
        if issubclass(kind, BaseException):
            return self.reduce_exception
        if issubclass(kind, property) and kind.__reduce_ex__ is object.__reduce_ex__:
            return _reduce_property
        return self._weak.by_base(kind)

    def reduce_module(self, module: types.ModuleType) -> Reduced:
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

    def reduce_open_file(self, file: Any) -> Reduced:
        if not self._files:
            raise Unsaveable("an open file; `--files` stores its path and position")
        return reduce_file(file)

    def reduce_lock(self, lock: Any) -> Reduced:
        """Stores a lock as free: its holder is unknown, and does not exist after a reload."""
        if lock.locked():
            self._notes.add_altered(lock, FREED)
        return make.lock, (False,)

    def reduce_rlock(self, lock: Any) -> Reduced:
        """Stores the lock count of the main thread, which still runs after a reload; other holders
        do not."""
        found = _LOCK_COUNT.search(repr(lock)) if lock._is_owned() else None
        count = int(found[1]) if found else 0
        if count == 0 and "owner=0 " not in repr(lock):
            self._notes.add_altered(lock, FREED)
        return make.rlock, (count,)

    def reduce_logger(self, logger: logging.Logger) -> Reduced:
        is_root = logger is logging.root
        if not is_root and logging.Logger.manager.loggerDict.get(logger.name) is not logger:
            return NotImplemented
        state = {name: getattr(logger, name) for name in ("level", "propagate", "disabled")}
        state |= {"handlers": logger.handlers, "filters": logger.filters}
        args = () if is_root else (logger.name,)
        return logging.getLogger, args, state, None, None, make.set_logger

    def reduce_exception(self, error: BaseException) -> Reduced:
        """Keeps cause and context; drops the traceback, which leads to frames."""
        if error.__traceback__ is not None:
            self._notes.append("without its traceback")
        kind = type(error)
        reduced: Any
        own = any(
            each.__module__ != "builtins"
            and ("__reduce__" in vars(each) or "__reduce_ex__" in vars(each))
            for each in kind.__mro__
        )
        if isinstance(kind.__init__, _PLAIN_INIT) or own:
            reduced = error.__reduce_ex__(5)
            if isinstance(reduced, str) or len(reduced) > 3:
                return reduced
            state = {"__dict__": reduced[2] if len(reduced) == 3 else {}}
            if kind.__setstate__ is not BaseException.__setstate__:
                return reduced
            state["__dict__"] = state["__dict__"] or {}
            reduced = reduced[:2]
        else:  # an OSError has more than its `args`
            reduced = (make.exception, (kind, error.__reduce__()[1]))
            state = {"__dict__": dict(error.__dict__)}
        for name in ("__cause__", "__context__", "__suppress_context__", *_exception_slots(kind)):
            if getattr(error, name, None):
                state[name] = getattr(error, name)
        if isinstance(error, AttributeError) and error.obj is not None:
            if type(error.obj) in _SMALL_TYPES:
                state["obj"] = error.obj
            else:  # it may be any object
                self._notes.append("without the object whose attribute was missing")
        return (*reduced, state, None, None, make.set_exception)


def _refuse_kind(why: str) -> Callable[[Any], Reduced]:
    def raise_refusal(_: Any) -> Reduced:
        raise Unsaveable(why)

    return raise_refusal


def _mapping_behind(proxy: Any) -> Any:
    """Returns the mapping behind a read-only view."""

    class Reveal:
        def __ror__(self, other: Any) -> Any:
            return other

    return proxy | Reveal()


def _reduce_memoryview(view: memoryview) -> Reduced:
    whole = view.obj
    if whole is None or not view.c_contiguous or view.nbytes != memoryview(whole).nbytes:
        raise Unsaveable(_REFUSED[memoryview])
    if view.format != memoryview(whole).format or view.readonly != memoryview(whole).readonly:
        raise Unsaveable(_REFUSED[memoryview])
    return memoryview, (whole,)


def _property_accessors(each: property) -> tuple[Any, ...]:
    return each.fget, each.fset, each.fdel, each.__doc__


def _reduce_property(each: property) -> Reduced:
    args = (type(each), *_property_accessors(each))
    return make.derived_property, args, dict(getattr(each, "__dict__", None) or {}) or None


def _reduce_process(process: Any) -> Reduced:
    if process.returncode is None:
        raise Unsaveable("a child process, which ends with the kernel")
    return NotImplemented


def _reduce_future(future: Any) -> Reduced:
    if not future.done():
        raise Unsaveable("a future that is not done, whose worker only the running process has")
    return NotImplemented


def _exception_slots(kind: type[BaseException]) -> list[str]:
    """Returns the slots of builtin exceptions in addition to `args`. `obj` has its own rule."""
    bases = [each for each in kind.__mro__ if each.__module__ == "builtins"]
    return [
        name
        for base in bases
        if issubclass(base, Exception)
        for name, value in vars(base).items()
        if type(value) is types.MemberDescriptorType and name != "obj"
    ]
