"""The functions that a stored stream calls for arrays; part of the format, like `make`."""

from __future__ import annotations

import array as arrays
import os
from collections.abc import Iterable
from typing import Any

Shape = tuple[int, ...]


def array(shape: Shape, kind: Any, order: str, writable: bool, data: Any) -> Any:
    """Makes an array from bytes, or from a buffer that is read directly into its memory."""
    import numpy as np

    memory = getattr(data, "memory", None)  # of an array that is only read
    made = np.ndarray(shape, kind, memory, order=order)
    if memory is None:
        _fill(memoryview(made.reshape(-1, order="A").view("u1")), data)
    made.flags.writeable = writable
    return made


def array_view(base: Any, shape: Shape, kind: Any, strides: Shape, offset: int) -> Any:
    import numpy as np

    # The bytes of the base: not every kind of array lends its memory, and not in every order.
    return np.ndarray(shape, kind, base.reshape(-1, order="A").view("u1"), offset, strides)


def bytes_view(base: bytearray, shape: Shape, kind: Any, strides: Shape, offset: int) -> Any:
    import numpy as np

    return np.ndarray(shape, kind, base, offset, strides)


def objects_view(base: Any, shape: Shape, kind: Any, strides: Shape, offset: int) -> Any:
    from numpy.lib.stride_tricks import as_strided

    flat = base.reshape(-1, order="A")
    return as_strided(flat[offset // kind.itemsize :], shape, strides)


def writable(target: Any, state: tuple[Any, ...]) -> None:
    if target.flags.writeable != state[0]:
        target.flags.writeable = state[0]


def set_array(target: Any, state: tuple[Any, bool]) -> None:
    """Sets the state as numpy does, and the writable flag."""
    own, target_is_writable = state
    target.__setstate__(own)
    target.flags.writeable = target_is_writable


def empty(shape: Shape, kind: Any) -> Any:
    import numpy as np

    return np.empty(shape, kind)


class Filling:
    """Receives the parts of an array in order."""

    def __init__(self, target: Any) -> None:
        self._flat, self._at = target.reshape(-1).view("u1"), 0

    def append(self, part: Any) -> None:
        size = part.size if hasattr(part, "read_into") else memoryview(part).nbytes
        _fill(memoryview(self._flat[self._at : self._at + size]), part)
        self._at += size

    def extend(self, parts: Iterable[Any]) -> None:
        for part in parts:
            self.append(part)


def array_as(plain: Any, kind: type) -> Any:
    """Returns a view of a class that derives from arrays."""
    import numpy as np

    return np.ndarray.view(plain, kind)


def set_attributes(target: Any, state: dict[str, Any]) -> None:
    target.__dict__.update(state)


def mapped(how: dict[str, Any], kind: Any) -> Any:
    """Maps the file again."""
    import numpy as np

    from .make import NotMade

    path, shape = how["path"], how["shape"]
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if not os.path.exists(path):
        raise NotMade(f"`{path}` no longer exists")
    if os.path.getsize(path) < how["offset"] + size:
        raise NotMade(f"`{path}` is shorter than it was")
    return np.memmap(path, kind, how["mode"], how["offset"], shape, how["order"])


def mapped_view(base: Any, *how: Any) -> Any:
    import numpy as np

    made = np.ndarray.view(array_view(base, *how), type(base))
    made.__dict__.update(base.__dict__)
    return made


def typed(code: str, itemsize: int, size: int, data: Any) -> Any:
    """Makes an `array.array`."""
    made = arrays.array(code, (0,) if code not in "uw" else "\0") * size
    if made.itemsize != itemsize:
        from .make import NotMade

        raise NotMade(f"an array of `{code}` has items of another size here")
    _fill(memoryview(made).cast("B"), data)
    return made


def _fill(memory: memoryview, data: Any) -> None:
    if hasattr(data, "read_into"):
        data.read_into(memory)
    else:
        memory[:] = memoryview(data).cast("B")
