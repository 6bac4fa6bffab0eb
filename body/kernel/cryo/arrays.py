"""Arrays: their memory is written to the disk unchanged, and read back into new memory.

An array over the memory of another array or a `bytearray` is stored as a view, so that a write to
one still shows in the others. A small part of a large array that nothing else uses is stored alone;
the reference counts of the arrays in between show other uses. Columns of pandas are stored alone
where pandas copies on a write: a restored column does not know which others use its memory.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import io
import mmap
import os
import pickle
import sys
from array import array as typed_array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from sys import getrefcount
from typing import Any

from ..variables import type_name
from . import make_arrays
from .unsaveable import Unsaveable

_MAX_OWNER_RATIO = 4
"""The maximum size of an owner that is stored for a view, as a multiple of the view's size."""
_COPY_BYTES = 4 << 20
"""Bytes that are copied at a time from an array that is not contiguous."""
_CHUNK_BYTES = 1 << 20


_LENDERS = frozenset((bytearray, typed_array))
"""Types with writable memory that an array may use."""
_C_DATA = ctypes.c_int.__mro__[-2]
"""The base of all types of `ctypes`."""


def is_array(kind: type) -> bool:
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray"


def list_referents(held: Any) -> list[Any]:
    """Returns the referents of an object; the collector does not report those of object arrays."""
    found = gc.get_referents(held)
    if is_array(type(held)) and held.dtype.hasobject:
        found += held.ravel().tolist()
    return found


def is_scalar(kind: type) -> bool:
    """Whether a type is a numpy scalar: a number, a text or a time."""
    if kind.__module__ != "numpy" or kind.__name__ in ("void", "object_"):
        return False
    return issubclass(kind, sys.modules["numpy"].generic)


def is_dtype(kind: type) -> bool:
    """Whether instances are types of array items, which pickle copies and numpy shares."""
    return kind.__module__ in ("numpy", "numpy.dtypes") and issubclass(
        kind, sys.modules["numpy"].dtype
    )


def split_memory(memory: memoryview) -> Iterator[bytes]:
    """Yields parts as bytes: C compares bytes as a whole, but not memory views."""
    for at in range(0, len(memory), _CHUNK_BYTES):
        yield memory[at : at + _CHUNK_BYTES].tobytes()


def split_array(array: Any, like: Any = None) -> Iterator[bytes]:
    """Yields the content of an array, in the memory order of `like`, if given."""
    flags = (array if like is None else like).flags
    if array.dtype.itemsize == 0 or array.size == 0:
        return
    if flags.c_contiguous or flags.f_contiguous:
        order = "C" if flags.c_contiguous else "F"
        yield from split_memory(memoryview(array.reshape(-1, order=order).view("u1")))
        return
    step = max(1, _CHUNK_BYTES // array.itemsize)
    for at in range(0, array.size, step):
        yield array.flat[at : at + step].tobytes()


def is_mapped(kind: type) -> bool:
    return kind.__module__ == "numpy" and kind.__name__ == "memmap"


class Arrays:
    """The rules of arrays; knows which memory is shared."""

    def __init__(self, values: Iterable[Any], *, files: bool) -> None:
        self._files = files
        self._direct: deque[Any] = deque(maxlen=2)
        self._plain: dict[int, tuple[Any, Any]] = {}
        self._used_elsewhere: dict[int, tuple[bool, Any]] = {}
        """Whether other objects use the memory, by the id of its owner; decided once, because the
        stream and the comparison hold references of their own."""
        self._separate: dict[int, Any] = {}
        """Arrays that are stored alone although others use their memory."""
        self._separate_roots: set[int] = set()
        """Ids of the owners of their memory."""
        values = list(values)
        self._variables = {id(each) for each in values}
        arrays = [each for each in values if _is_any_array(each)]
        roots = Counter(id(self._root_of(each)) for each in arrays)
        owners = {id(self._root_of(each)) for each in arrays if _owner_of(each) is each}
        owners |= {id(each) for each in values if type(each) in _LENDERS}
        self._shared = {number for number, count in roots.items() if count > 1} | owners

    def find_rule(self, kind: type) -> Callable[[Any], Any] | None:
        if kind.__module__ == "array" and kind.__name__ == "array":
            return self.reduce_typed
        base = _array_base()
        # Code can give a class a module that is no text.
        if str(kind.__module__).partition(".")[0] == "pandas":
            return self._find_pandas_rule(kind)
        if base is None or not issubclass(kind, base):
            return None
        if kind is base:
            return self.reduce_array
        if is_mapped(kind):
            return self.reduce_mapped
        ways = ("__reduce__", "__reduce_ex__", "__setstate__")
        is_plain = all(getattr(kind, way) is getattr(base, way) for way in ways)
        is_masked = kind.__name__ == "MaskedArray" and kind.__module__.startswith("numpy.ma")
        return self.reduce_derived if is_plain or is_masked else None

    def is_direct(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether the reader fills the buffer directly in its array's memory."""
        return any(each is buffer for each in self._direct)

    def find_view(self, array: Any, *, is_any: bool = False) -> tuple[Any, ...] | None:
        """Returns the object whose memory a view uses, and the position of the view in it."""
        root = self._root_of(array)
        if root is array or id(array) in self._separate:
            return None
        is_near = self._is_shared(array, root) or (
            _bytes_of(root) <= _MAX_OWNER_RATIO * array.nbytes
        )
        if is_any or is_mapped(type(root)) or (is_near and _can_overlay(root, array)):
            return (
                root,
                array.shape,
                array.dtype,
                array.strides,
                _address_of(array) - _address_of(root),
            )
        return None

    def find_lost_sharing(self, array: Any) -> str | None:
        """Returns how an array that is stored alone no longer shares its memory."""
        root = self._root_of(array)
        if id(array) in self._separate:
            return None
        if root is not array and self.find_view(array) is None and self._is_shared(array, root):
            return "is no longer a view of the same memory"
        if self._uses_foreign_memory(_owner_of(array)):
            return f"no longer shares its memory with a `{type_name(type(_buffer_of(root)))}`"
        return None

    def is_used_by_pandas(self, array: Any) -> bool:
        """Whether columns that are stored alone use the memory."""
        return id(array) not in self._separate and id(self._root_of(array)) in self._separate_roots

    def _uses_foreign_memory(self, owner: Any) -> bool:
        """Whether others may write to the memory of an object that lends it to an array, and that
        is stored alone. Libraries lend memory of objects that only the array refers to."""
        kind = type(_buffer_of(owner))
        if is_mapped(type(owner)) or kind in _LENDERS or kind in (bytes, type(None)):
            return False
        if kind is mmap.mmap:  # other processes may use it
            return True
        if issubclass(kind, (_C_DATA, io.BytesIO)) or is_array(kind):
            return getrefcount(_buffer_of(owner)) > _single_lender_count()
        return owner.flags.writeable and id(_buffer_of(owner)) in self._variables

    def _is_shared(self, array: Any, root: Any) -> bool:
        used, _ = self._used_elsewhere.get(id(_owner_of(array)), (False, None))
        return array.nbytes > 0 and (used or id(root) in self._shared)

    def reduce_array(self, array: Any) -> Any:
        view = self.find_view(array)
        if view is not None:
            return self._reduce_view(array, view)
        kind, flags = array.dtype, array.flags
        if kind.hasobject or kind.kind == "T" or kind.itemsize == 0 or array.size == 0:
            return _reduce_own(array)
        if flags.c_contiguous or flags.f_contiguous:
            order = "C" if flags.c_contiguous else "F"
            data = self._make_buffer(_as_writable(array.reshape(-1, order="A").view("u1")))
            return make_arrays.array, (array.shape, kind, order, bool(flags.writeable), data)
        if array.nbytes < _CHUNK_BYTES:
            return _reduce_own(array)
        state = (bool(flags.writeable), _Blocks(array, self._make_buffer))
        return make_arrays.empty, (array.shape, kind), state, None, None, make_arrays.writable

    def reduce_derived(self, array: Any) -> Any:
        """Reduces an array of a derived class without its own pickling."""
        self._root_of(array)  # before the plain array and a name here refer to the owner
        owner = _owner_of(array)
        plain = (
            self._plain_of(array) if owner is array else _array_base().view(array, _array_base())
        )
        args, state = (plain, type(array)), dict(getattr(array, "__dict__", None) or {})
        return make_arrays.array_as, args, state or None, None, None, make_arrays.set_attributes

    def reduce_mapped(self, array: Any) -> Any:
        """Reduces a memory-mapped file."""
        view = self.find_view(array)
        if view is not None:
            return self._reduce_view(array, view)
        if not self._files:
            raise Unsaveable("the memory of a file; `--files` stores its path, place and shape")
        path = getattr(array, "filename", None)
        if not isinstance(path, (str, os.PathLike)) or not os.path.isfile(path):
            raise Unsaveable("the memory of a file that has no path")
        if array.mode == "c":
            raise Unsaveable("the memory of a file with private changes, which are not in the file")
        array.flush()
        order = "C" if array.flags.c_contiguous else "F"
        how = {"path": os.path.abspath(path), "mode": array.mode.replace("w", "r")}
        how |= {"offset": array.offset, "shape": array.shape, "order": order}
        return make_arrays.mapped, (how, array.dtype)

    def reduce_typed(self, array: Any) -> Any:
        """Reduces an `array.array` with its memory."""
        if not len(array):
            return NotImplemented
        data = self._make_buffer(array)
        return make_arrays.typed, (array.typecode, array.itemsize, len(array), data)

    def _find_pandas_rule(self, kind: type) -> Callable[[Any], Any] | None:
        if kind.__module__ == "pandas.core.internals.blocks":
            return self._reduce_block
        if kind.__name__ == "SingleBlockManager":
            return self._reduce_manager
        index = getattr(sys.modules.get("pandas"), "Index", ())
        return self._reduce_index if issubclass(kind, index) else None

    def _reduce_block(self, block: Any) -> Any:
        """Reduces columns with arrays of their own, if pandas would copy them before a write."""
        reduced = block.__reduce__()
        if not block.refs.has_reference():
            return reduced
        make, (values, *more) = reduced
        return make, (self._separate_values(values), *more)

    def _reduce_manager(self, manager: Any) -> Any:
        """Reduces the content of a series, in the same way."""
        make, args, state, *more = manager.__reduce_ex__(5)
        block = manager.blocks[0]
        if block.refs.has_reference() and len(state) == 4 and "0.14.1" in state[3]:
            values, known = self._separate_values(block.values), state[3]["0.14.1"]
            blocks = [known["blocks"][0] | {"values": values}]
            state = (state[0], [values], state[2], {"0.14.1": known | {"blocks": blocks}})
        return make, args, state, *more

    def _reduce_index(self, index: Any) -> Any:
        """Reduces an index, which does not change, without the rest of the memory it may use."""
        self._note_separate(getattr(index, "_data", None))
        return index.__reduce_ex__(5)

    def _separate_values(self, values: Any) -> Any:
        values = values.view()  # other objects may hold the array itself
        self._note_separate(values)
        return values

    def _note_separate(self, values: Any) -> None:
        held = [values, *(getattr(values, name, None) for name in ("_ndarray", "_data", "_mask"))]
        held = [each for each in held if is_array(type(each))]
        self._separate |= {id(each): each for each in held}
        self._separate_roots |= {id(self._root_of(each)) for each in held}

    def _make_buffer(self, memory: Any) -> pickle.PickleBuffer:
        made = pickle.PickleBuffer(memory)
        self._direct.append(made)
        return made

    @staticmethod
    def _reduce_view(array: Any, args: tuple[Any, ...]) -> Any:
        if is_mapped(type(array)):
            return make_arrays.mapped_view, args
        if type(args[0]) in _LENDERS:
            made: Any = make_arrays.bytes_view
        else:
            made = make_arrays.objects_view if array.dtype.hasobject else make_arrays.array_view
        return made, args, (bool(array.flags.writeable),), None, None, make_arrays.writable

    def _root_of(self, array: Any) -> Any:
        """Returns the object that owns the memory: a plain array, mapped memory, or a bytearray."""
        used = _is_used_elsewhere(array)  # before a name here refers to the owner
        owner = _owner_of(array)
        if owner is not array:
            self._used_elsewhere.setdefault(id(owner), (used, owner))
        lender = owner.base
        lender = lender.obj if type(lender) is memoryview else lender
        if type(lender) in _LENDERS:
            return lender
        if is_array(type(owner)) or is_mapped(type(owner)):
            return owner
        return self._plain_of(owner)

    def _plain_of(self, owner: Any) -> Any:
        """Returns a plain array over the memory of a derived one; always the same object."""
        known = self._plain.get(id(owner))
        if known is None:
            known = self._plain[id(owner)] = (_array_base().view(owner, _array_base()), owner)
        return known[0]


class _Blocks:
    """An array that is not contiguous, copied one part at a time, in C order."""

    def __init__(self, array: Any, buffer: Callable[[Any], pickle.PickleBuffer]) -> None:
        self._array, self._make_buffer = array, buffer

    def __reduce__(self) -> Any:
        return make_arrays.Filling, (self._array,), None, self._split_parts()

    def _split_parts(self) -> Iterator[pickle.PickleBuffer]:
        flat = self._array.flat
        step = max(1, _COPY_BYTES // self._array.itemsize)
        for at in range(0, self._array.size, step):
            yield self._make_buffer(flat[at : at + step].view("u1"))


def _reduce_own(array: Any) -> Any:
    """Reduces an array as numpy does, and keeps the read-only flag, which numpy drops."""
    if array.flags.writeable:
        return NotImplemented
    make, args, state = array.__reduce__()
    return make, args, (state, False), None, None, make_arrays.set_array


class _Writable:
    """An array by its address."""

    def __init__(self, array: Any) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = array.__array_interface__ | {"data": (address, False)}
        self.held = array


def _as_writable(array: Any) -> Any:
    """Returns a writable array over the same memory: a read-only buffer would be read into a
    copy."""
    return array if array.flags.writeable else sys.modules["numpy"].asarray(_Writable(array))


def _array_base() -> Any:
    return getattr(sys.modules.get("numpy"), "ndarray", None)


def _is_any_array(value: Any) -> bool:
    base = _array_base()
    return base is not None and issubclass(type(value), base)


def _owner_of(array: Any) -> Any:
    while _is_any_array(lender := _lender_of(array)):
        array = lender
    return array


def _lender_of(array: Any) -> Any:
    """Returns the source of an array's memory; `as_strided` and others put an object in between."""
    lender = array.base
    kind = type(lender)
    is_between = kind.__name__ == "DummyArray" and kind.__module__.startswith("numpy.")
    return lender.base if is_between else lender


def _buffer_of(owner: Any) -> Any:
    """Returns the object whose memory the owner of an array uses, or None."""
    lender = getattr(owner, "base", None)
    lender = lender.obj if type(lender) is memoryview else lender
    if type(lender).__name__ == "_BytesIOBuffer":
        held = gc.get_referents(lender)
        return next((each for each in held if isinstance(each, io.BytesIO)), None)
    return lender


@functools.cache
def _single_lender_count() -> int:
    """Returns the count of a lender that only one array refers to."""
    array = sys.modules["numpy"].frombuffer((ctypes.c_int * 2)(), "u1")
    return getrefcount(_buffer_of(array))


def _can_overlay(root: Any, array: Any) -> bool:
    """Whether the array can be made again as a view of that memory."""
    if type(root) in _LENDERS:
        return not array.dtype.hasobject and len(root) > 0
    flags, kind = root.flags, root.dtype
    is_one = bool(flags.c_contiguous or flags.f_contiguous)
    if not is_one or kind.kind == "T" or root.nbytes == 0:
        return False
    if not kind.hasobject:
        return not array.dtype.hasobject
    return kind == array.dtype and (_address_of(array) - _address_of(root)) % kind.itemsize == 0


def _bytes_of(root: Any) -> int:
    return memoryview(root).nbytes if type(root) in _LENDERS else int(root.nbytes)


def _address_of(root: Any) -> int:
    if type(root) in _LENDERS:
        root = sys.modules["numpy"].frombuffer(root, "u1")
    return int(root.__array_interface__["data"][0])


def _holder_counts(array: Any) -> Iterator[int]:
    """Yields the reference counts of the objects from an array to the owner of its memory."""
    link = _next_link(array)
    while link is not None:
        yield getrefcount(link)
        link = _next_link(link)


def _next_link(link: Any) -> Any:
    if type(link) is memoryview:
        link = link.obj
        return link if type(link) in _LENDERS else None
    lender = getattr(link, "base", None) if type(link) not in _LENDERS else None
    is_link = _is_any_array(lender) or type(lender) in (memoryview, *_LENDERS)
    return lender if is_link or type(lender).__name__ == "DummyArray" else None


@functools.cache
def _single_holder_count() -> int:
    """Returns the count of an owner that only one array refers to."""
    array = sys.modules["numpy"].empty(2)[:1]
    return next(_holder_counts(array))


def _is_used_elsewhere(array: Any) -> bool:
    return any(count > _single_holder_count() for count in _holder_counts(array))
