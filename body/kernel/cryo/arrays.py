"""Arrays: their memory goes to the disk as it is, and is read back into memory of their own.

What looks at the same memory as an array, or a `bytearray`, is told as a view of it: what is
written into one is seen in the others, as before. That holds where two of them, or the owner, are
variables, and where the owner is not much larger; a small part of a large array that nobody else
has is stored alone.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from array import array as typed_array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import make_arrays
from .refusal import Unsaveable

_NEAR = 4
"""An owner that weighs at most so many times what a view of it does is stored for its sake."""
_BLOCK = 4 << 20
"""Bytes of a part of an array that lies scattered in memory: what its copy takes."""
_SMALL = 1 << 20


_LENDERS = frozenset((bytearray, typed_array))
"""Have memory that an array may lie in, and that is written to."""


def is_array(kind: type) -> bool:
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray"


def referents(held: Any) -> list[Any]:
    """What an object leads to; the collector knows nothing of arrays of objects."""
    found = gc.get_referents(held)
    if is_array(type(held)) and held.dtype.hasobject:
        found += held.ravel().tolist()
    return found


def is_scalar(kind: type) -> bool:
    """Of a number, a text or a time, as arrays have them."""
    if kind.__module__ != "numpy" or kind.__name__ in ("void", "object_"):
        return False
    return issubclass(kind, sys.modules["numpy"].generic)


def parts(memory: memoryview) -> Iterator[bytes]:
    """A part at a time: bytes are compared in C as a whole, memory is not."""
    for at in range(0, len(memory), _SMALL):
        yield memory[at : at + _SMALL].tobytes()


def blocks(array: Any, like: Any = None) -> Iterator[bytes]:
    """Its content; in the order of another one that has the same content."""
    flags = (array if like is None else like).flags
    if array.dtype.itemsize == 0 or array.size == 0:
        return
    if flags.c_contiguous or flags.f_contiguous:
        order = "C" if flags.c_contiguous else "F"
        yield from parts(memoryview(array.reshape(-1, order=order).view("u1")))
        return
    step = max(1, _SMALL // array.itemsize)
    for at in range(0, array.size, step):
        yield array.flat[at : at + step].tobytes()


def is_mapped(kind: type) -> bool:
    return kind.__module__ == "numpy" and kind.__name__ == "memmap"


class Arrays:
    """Knows which memory is shared."""

    def __init__(self, values: Iterable[Any], notes: list[str], *, files: bool) -> None:
        self._notes = notes
        self._files = files
        self._direct: deque[Any] = deque(maxlen=2)
        self._plain: dict[int, tuple[Any, Any]] = {}
        values = list(values)
        arrays = [each for each in values if _is_any(each)]
        roots = Counter(id(self._root(each)) for each in arrays)
        owners = {id(self._root(each)) for each in arrays if _owner(each) is each}
        owners |= {id(each) for each in values if type(each) in _LENDERS}
        self._shared = {number for number, count in roots.items() if count > 1} | owners

    def rule(self, kind: type) -> Callable[[Any], Any] | None:
        if kind.__module__ == "array" and kind.__name__ == "array":
            return self.typed
        base = _base()
        if base is None or not issubclass(kind, base):
            return None
        if kind is base:
            return self.array
        if is_mapped(kind):
            return self.mapped
        ways = ("__reduce__", "__reduce_ex__", "__setstate__")
        is_plain = all(getattr(kind, way) is getattr(base, way) for way in ways)
        is_masked = kind.__name__ == "MaskedArray" and kind.__module__.startswith("numpy.ma")
        return self.derived if is_plain or is_masked else None

    def is_direct(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether a reader fills it in its array's memory."""
        return any(each is buffer for each in self._direct)

    def view(self, array: Any, *, is_any: bool = False) -> tuple[Any, ...] | None:
        """The object whose memory a view uses, and the place of the view in it."""
        root = self._root(array)
        if root is array:
            return None
        is_near = id(root) in self._shared or _size(root) <= _NEAR * array.nbytes
        if is_any or is_mapped(type(root)) or (is_near and _fits(root, array)):
            return root, array.shape, array.dtype, array.strides, _address(array) - _address(root)
        return None

    def array(self, array: Any) -> Any:
        view = self.view(array)
        if view is not None:
            return self._view(array, view)
        root = self._root(array)
        is_shared = id(root) in self._shared
        kind, flags = array.dtype, array.flags
        if kind.hasobject or kind.kind == "T" or kind.itemsize == 0 or array.size == 0:
            if root is not array and is_shared and array.size:
                self._notes.append("with a copy of memory that was shared")
            return _own_way(array)
        if flags.c_contiguous or flags.f_contiguous:
            order = "C" if flags.c_contiguous else "F"
            data = self._buffer(_writable(array.reshape(-1, order="A").view("u1")))
            return make_arrays.array, (array.shape, kind, order, bool(flags.writeable), data)
        if array.nbytes < _SMALL:
            return _own_way(array)
        state = (bool(flags.writeable), _Blocks(array, self._buffer))
        return make_arrays.empty, (array.shape, kind), state, None, None, make_arrays.writable

    def derived(self, array: Any) -> Any:
        """Of a class that derives from arrays and tells itself as they do."""
        owner = _owner(array)
        plain = self._plain_of(array) if owner is array else _base().view(array, _base())
        args, state = (plain, type(array)), dict(getattr(array, "__dict__", None) or {})
        return make_arrays.array_as, args, state or None, None, None, make_arrays.set_attributes

    def mapped(self, array: Any) -> Any:
        """The memory of a file."""
        view = self.view(array)
        if view is not None:
            return self._view(array, view)
        if not self._files:
            raise Unsaveable("the memory of a file; `--files` stores its path, place and shape")
        path = getattr(array, "filename", None)
        if not isinstance(path, (str, os.PathLike)) or not os.path.isfile(path):
            raise Unsaveable("the memory of a file that has no path")
        if array.mode == "c":
            raise Unsaveable("the memory of a file with changes of its own, which no file has")
        array.flush()
        order = "C" if array.flags.c_contiguous else "F"
        how = {"path": os.path.abspath(path), "mode": array.mode.replace("w", "r")}
        how |= {"offset": array.offset, "shape": array.shape, "order": order}
        return make_arrays.mapped, (how, array.dtype)

    def typed(self, array: Any) -> Any:
        """`array.array`: its memory, too."""
        if not len(array):
            return NotImplemented
        data = self._buffer(array)
        return make_arrays.typed, (array.typecode, array.itemsize, len(array), data)

    def _buffer(self, memory: Any) -> pickle.PickleBuffer:
        made = pickle.PickleBuffer(memory)
        self._direct.append(made)
        return made

    @staticmethod
    def _view(array: Any, args: tuple[Any, ...]) -> Any:
        if is_mapped(type(array)):
            return make_arrays.mapped_view, args
        if type(args[0]) in _LENDERS:
            made: Any = make_arrays.bytes_view
        else:
            made = make_arrays.objects_view if array.dtype.hasobject else make_arrays.array_view
        return made, args, (bool(array.flags.writeable),), None, None, make_arrays.writable

    def _root(self, array: Any) -> Any:
        """What has its memory: a plain array, mapped memory, or a bytearray."""
        owner = _owner(array)
        lender = owner.base
        lender = lender.obj if type(lender) is memoryview else lender
        if type(lender) in _LENDERS:
            return lender
        if is_array(type(owner)) or is_mapped(type(owner)):
            return owner
        return self._plain_of(owner)

    def _plain_of(self, owner: Any) -> Any:
        """A plain array over the memory of one that is not; always the same."""
        known = self._plain.get(id(owner))
        if known is None:
            known = self._plain[id(owner)] = (_base().view(owner, _base()), owner)
        return known[0]


class _Blocks:
    """An array that lies scattered, copied a part at a time, in the order of C."""

    def __init__(self, array: Any, buffer: Callable[[Any], pickle.PickleBuffer]) -> None:
        self._array, self._buffer = array, buffer

    def __reduce__(self) -> Any:
        return make_arrays.Filling, (self._array,), None, self._parts()

    def _parts(self) -> Iterator[pickle.PickleBuffer]:
        flat = self._array.flat
        step = max(1, _BLOCK // self._array.itemsize)
        for at in range(0, self._array.size, step):
            yield self._buffer(flat[at : at + step].view("u1"))


def _own_way(array: Any) -> Any:
    """As numpy tells it, which forgets that it is read-only."""
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


def _writable(array: Any) -> Any:
    """Over the same memory: a buffer that says it is read-only would be read into a copy."""
    return array if array.flags.writeable else sys.modules["numpy"].asarray(_Writable(array))


def _base() -> Any:
    return getattr(sys.modules.get("numpy"), "ndarray", None)


def _is_any(value: Any) -> bool:
    base = _base()
    return base is not None and issubclass(type(value), base)


def _owner(array: Any) -> Any:
    while _is_any(lender := _lender(array)):
        array = lender
    return array


def _lender(array: Any) -> Any:
    """What its memory comes from; `as_strided` and its like put an object in between."""
    lender = array.base
    kind = type(lender)
    is_between = kind.__name__ == "DummyArray" and kind.__module__.startswith("numpy.")
    return lender.base if is_between else lender


def _fits(root: Any, array: Any) -> bool:
    """Whether it can be laid over that memory again."""
    if type(root) in _LENDERS:
        return not array.dtype.hasobject and len(root) > 0
    flags, kind = root.flags, root.dtype
    is_one = bool(flags.c_contiguous or flags.f_contiguous)
    if not is_one or kind.kind == "T" or root.nbytes == 0:
        return False
    if not kind.hasobject:
        return not array.dtype.hasobject
    return kind == array.dtype and (_address(array) - _address(root)) % kind.itemsize == 0


def _size(root: Any) -> int:
    return memoryview(root).nbytes if type(root) in _LENDERS else int(root.nbytes)


def _address(root: Any) -> int:
    if type(root) in _LENDERS:
        root = sys.modules["numpy"].frombuffer(root, "u1")
    return int(root.__array_interface__["data"][0])
