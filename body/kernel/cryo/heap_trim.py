"""Returns unused heap memory to the system while a stream is written.

The memo of a million objects grows by doubling, and the allocator keeps the memory of its earlier
tables. That matters when the stored namespace fills the memory.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from time import thread_time

_TRIM_INTERVAL_BYTES = 1 << 20
"""Bytes of the stream between two trims: some hundred thousand small objects."""
_BYTES_PER_TRIM_SECOND = 2_000_000_000
"""Bytes of the stream for each second of a trim, which limits the cost of trims."""


class HeapTrimmer:
    def __init__(self) -> None:
        self._bytes_left = _TRIM_INTERVAL_BYTES

    def count_bytes(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            begin = thread_time()
            _trim_heap()
            self._bytes_left = max(
                _TRIM_INTERVAL_BYTES, int((thread_time() - begin) * _BYTES_PER_TRIM_SECOND)
            )


def _trim_heap() -> None:
    with suppress(AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)
