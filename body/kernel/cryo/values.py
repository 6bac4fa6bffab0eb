"""Functions and classes that no import finds: stored by content.

A function of the namespace is made over the namespace of the reload, so that it sees globals set
later; `scopes` has the rule of copies of it. Closure cells are separate objects, so that closures
share them.
"""

from __future__ import annotations

import abc
import ctypes
import enum
import functools
import importlib.util
import linecache
import sys
import types
from collections.abc import Callable
from typing import Any

from . import make, make_types
from .alterations import Notes
from .environment import is_environment, read_attribute
from .scopes import CopiedScope, is_copy, used_names
from .type_hints import TypeHints
from .unsaveable import Unsaveable

Reduced = Any
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_C_METHODS = (
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
)
_STATE_NAMES = ("__module__", "__qualname__", "__doc__", "__annotations__", "__annotate__")
_SETTABLE = frozenset((*_STATE_NAMES, "__abstractmethods__", "__type_params__"))
"""Attributes of classes that `type` defines."""
_NAMELESS = (type(None), type(NotImplemented), type(...))


class Values:
    """Decides between storage by content and by name."""

    def __init__(self, namespace: dict[str, Any], notes: Notes) -> None:
        self._namespace = namespace
        self._notes = notes
        self.loaded: dict[str, types.ModuleType] = sys.modules
        """The modules in which objects are looked up by name."""
        self._importable: dict[str, bool] = {}
        self.spaces: dict[int, types.ModuleType] = {}
        """Modules made by code, by the id of their functions' globals."""
        self._copies: dict[int, CopiedScope | None] = {}
        """Copies of namespaces, by the id of the dict."""
        self.modules: set[str] = set()
        """Modules of objects that are stored by name."""
        self.packages: set[str] = set()
        """Packages among them that are stored themselves."""
        self.names: set[str] = set()
        """The names in stored code."""
        self.sources: dict[str, str] = {}
        """The text of cells that functions come from."""

    def is_importable(self, name: Any) -> bool:
        """Whether a fresh process can import the module."""
        if not isinstance(name, str) or name in ("__main__", "__mp_main__"):
            return False
        known = self._importable.get(name)
        if known is None:
            known = self._importable[name] = _is_importable(name, self.loaded)
        return known

    def is_variable(self, name: str, obj: Any) -> bool:
        return self._namespace.get(name) is obj

    def is_named(self, obj: Any) -> bool:
        """Whether the object's module has it under its name."""
        module = getattr(obj, "__module__", None)
        if not self.is_importable(module):
            return False
        found: Any = self.loaded.get(module)
        for part in getattr(obj, "__qualname__", "<locals>").split("."):
            found = getattr(found, part, None)
            if found is None:
                return False
        if found is not obj or _is_from_cell(obj):  # a module may have got it from a cell
            return False
        self.modules.add(module)
        return True

    # Functions.

    def reduce_function(self, function: types.FunctionType) -> Reduced:
        if self.is_named(function):
            return NotImplemented
        scope = function.__globals__
        where: Any = scope
        if scope is self._namespace:
            where = None
        else:
            name = scope.get("__name__")
            module = self.spaces.get(id(scope)) or self.loaded.get(str(name))
            if module is not None and module.__dict__ is scope:
                where = module  # a module made by code
                if self.is_importable(name):
                    where = str(name)
                    self.modules.add(where)
            else:
                where = self._find_copy(scope) or scope
        args = (function.__code__, where, function.__name__, function.__closure__)
        state = {
            "__qualname__": function.__qualname__,
            "__module__": function.__module__,
            "__doc__": function.__doc__,
            "__defaults__": function.__defaults__,
            "__kwdefaults__": function.__kwdefaults__,
            "__annotations__": function.__annotations__,
            "__dict__": function.__dict__,
        }
        if getattr(function, "__type_params__", ()):
            state["__type_params__"] = function.__type_params__
        if type(where) is CopiedScope:
            state["__globals__"] = used_names(function)
        return make.function, args, state, None, None, make.set_function

    def _find_copy(self, scope: dict[str, Any]) -> CopiedScope | None:
        """Returns what stands for a copy of a namespace; a variable is stored in whole."""
        if id(scope) not in self._copies:
            is_variable = any(each is scope for each in self._namespace.values())
            copied = is_copy(scope, self.loaded) and not is_variable
            self._copies[id(scope)] = CopiedScope(scope) if copied else None
        return self._copies[id(scope)]

    def reduce_code(self, code: types.CodeType) -> Reduced:
        name = code.co_filename
        if name.startswith("<cell ") and name not in self.sources:
            self.sources[name] = "".join(linecache.cache.get(name, (0, 0, []))[2])
        self.names.update(code.co_names)
        args = (
            importlib.util.MAGIC_NUMBER,
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_nlocals,
            code.co_stacksize,
            code.co_flags,
            code.co_code,
            code.co_consts,
            code.co_names,
            code.co_varnames,
            name,
            code.co_name,
            code.co_qualname,
            code.co_firstlineno,
            code.co_linetable,
            code.co_exceptiontable,
            code.co_freevars,
            code.co_cellvars,
        )
        return make.code, args

    @staticmethod
    def reduce_cell(cell: types.CellType) -> Reduced:
        try:
            contents = cell.cell_contents
        except ValueError:
            return make.cell, ()
        return make.cell, (), (contents,), None, None, make.fill_cell

    def reduce_cached(self, wrapper: Any) -> Reduced:
        """Reduces an `lru_cache` with an empty cache."""
        if self.is_named(wrapper):
            return NotImplemented
        settings = wrapper.cache_parameters()
        if wrapper.cache_info().currsize:
            self._notes.add_altered(wrapper, "with an empty cache")
        args = (wrapper.__wrapped__, settings["maxsize"], settings["typed"])
        return make.cached, args, dict(wrapper.__dict__)

    # Classes.

    def reduce_class(self, cls: type) -> Reduced:
        if any(cls is each for each in _NAMELESS) or self.is_named(cls):
            return NotImplemented
        if _is_c_array(cls):
            array: Any = cls
            return make_types.c_array, (array._type_, array._length_, cls.__module__)
        if not cls.__flags__ & (1 << 9) or _is_made_in_c(cls):  # without a known name
            named = _types_name(cls)
            if named is None:
                raise Unsaveable(f"the type `{cls.__qualname__}` has no importable name")
            return make.named, ("types", named)
        settings: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        state = class_attributes(cls)
        fixed = [name for name in state if name == "__slots__" or _is_fixed(cls, name)]
        settings |= {name: state.pop(name) for name in fixed}
        args = (type(cls), cls.__name__, cls.__bases__, settings)
        methods = {name: value for name, value in state.items() if _is_method(name, value)}
        if "__new__" in state and hasattr(cls, "__getnewargs__"):  # it makes the instances
            methods["__new__"] = state["__new__"]
        rest = {name: value for name, value in state.items() if name not in methods}
        dressed = [_Dressed(cls, methods)]
        last = {name: rest.pop(name) for name in ("__new__", "_abc_registry") if name in rest}
        dressed += [_Dressed(cls, {name: value}) for name, value in rest.items()]
        return make.class_, args, (dressed, last), None, None, make.set_class

    def reduce_member(self, member: enum.Enum) -> Reduced:
        """Reduces an enumeration member: the class is stored with its members, which lead back to
        it."""
        kind = type(member)
        if self.is_named(kind):
            return NotImplemented
        base = kind._member_type_
        data: tuple[Any, ...]
        if base.__new__ is object.__new__:  # it consists of its attributes
            data = ()
        elif base in _CONVERTERS:
            data = (_plain_member(base, member),)
        else:
            reduced = base.__reduce_ex__(member, 2)
            if not isinstance(reduced, tuple) or reduced[0] is not kind or any(reduced[2:]):
                raise Unsaveable(f"a member of an enumeration over `{base.__name__}`")
            data = reduced[1]
        return make.member, (kind, base, data), dict(member.__dict__)

    def by_kind(self) -> dict[type, Callable[[Any], Reduced]]:
        known: dict[type, Callable[[Any], Reduced]] = {
            types.FunctionType: self.reduce_function,
            types.CodeType: self.reduce_code,
            types.CellType: self.reduce_cell,
            functools._lru_cache_wrapper: self.reduce_cached,
        }
        return known | TypeHints(self).by_kind()


def class_attributes(cls: type) -> dict[str, Any]:
    """Returns the attributes of a class, without its name and bases."""
    found = {name: value for name, value in vars(cls).items() if not _is_made(cls, name, value)}
    for name in ("__module__", "__slotnames__"):  # the second is a cache of pickle
        found.pop(name, None)
    if isinstance(cls, abc.ABCMeta):
        found.pop("_abc_impl", None)
        registered = [each() for each in abc._get_dump(cls)[0]]  # type: ignore[attr-defined]
        found["_abc_registry"] = [each for each in registered if each is not None]
    return found


class _Dressed:
    """Sets the methods of a class before its attributes are made: instances among them may need the
    methods to be made, hashed or compared."""

    def __init__(self, cls: type, methods: dict[str, Any]) -> None:
        self._told = (make.dress, (cls, methods))

    def __reduce__(self) -> Reduced:
        return self._told


def _is_from_cell(obj: Any) -> bool:
    """Whether a cell defines the function, or a method of the class."""
    if isinstance(obj, type):
        return any(
            type(each) is types.FunctionType and _is_from_cell(each) for each in vars(obj).values()
        )
    code = getattr(obj, "__code__", None)
    return isinstance(code, types.CodeType) and code.co_filename.startswith("<cell ")


def _is_method(name: str, value: Any) -> bool:
    """Whether an attribute is a method. `__new__` is set with the rest: it may look up an
    attribute."""
    kinds = (types.FunctionType, staticmethod, classmethod, property)
    return (type(value) in kinds and name != "__new__") or (name == "__hash__" and value is None)


def _is_importable(name: str, loaded: dict[str, types.ModuleType]) -> bool:
    module = loaded.get(name)
    if module is None:
        return False
    spec = read_attribute(module, "__spec__")
    if spec is None or getattr(spec, "loader", None) is None:
        return False
    if name.partition(".")[0] == __name__.partition(".")[0]:
        return True
    above = name.rpartition(".")[0]
    if spec.name != name:  # an alias in its package: `collections.abc`
        is_there = _is_importable(spec.name, loaded)
        return is_there and (not above or _is_importable(above, loaded))
    parent = loaded.get(above)
    path = read_attribute(parent, "__path__")
    for finder in sys.meta_path:  # not `find_spec` of importlib, which trusts `sys.modules`
        try:
            found = finder.find_spec(name, path)
        except Exception:
            continue
        if found is not None:
            return found.origin == spec.origin or is_environment(found.origin)
    return False


def _is_fixed(cls: type, name: str) -> bool:
    """Whether an attribute must be set on creation: later, the assignment would set the metaclass's
    attribute of that name, such as `__class__`."""
    found = next((vars(each)[name] for each in type(cls).__mro__ if name in vars(each)), None)
    return name not in _SETTABLE and hasattr(type(found), "__set__")


def _is_made(cls: type, name: str, value: Any) -> bool:
    """Whether Python adds this attribute to each class."""
    return isinstance(value, _DESCRIPTORS) and getattr(value, "__objclass__", None) is cls


def _is_c_array(cls: type) -> bool:
    """Whether `ctypes` makes this very class for `element * length`."""
    if not issubclass(cls, ctypes.Array) or cls is ctypes.Array:
        return False
    kind: Any = cls
    return hasattr(kind, "_length_") and kind._type_ * kind._length_ is kind


def _is_made_in_c(cls: type) -> bool:
    """Whether a class has methods in C that no class made by Python code has of its own."""
    return any(
        type(each) in _C_METHODS and each.__objclass__ is cls
        for each in type.__dict__["__dict__"].__get__(cls).values()
    )


def _types_name(cls: type) -> str | None:
    return next((name for name, value in vars(types).items() if value is cls), None)


_CONVERTERS = {
    int: int.__int__,
    float: float.__float__,
    tuple: tuple,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}


def _plain_member(base: type, member: Any) -> Any:
    """Returns the plain value of a member."""
    return _CONVERTERS[base](member)
