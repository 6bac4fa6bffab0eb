"""What nobody uses any more goes back to the system while a stream is written.

A memo of a million objects has grown by doubling, and what its earlier tables took stays with the
allocator, for which it is nothing; for who stores a namespace that fills the memory, it is.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from time import thread_time

_STEP = 1 << 20
"""Bytes of the stream after which it is worth a look: some hundred thousand small objects."""
_PACE = 2_000_000_000
"""Bytes for each second that a look takes: it is to cost a small part of the whole."""


class Slack:
    def __init__(self) -> None:
        self._ahead = _STEP

    def moved(self, size: int) -> None:
        self._ahead -= size
        if self._ahead < 0:
            begin = thread_time()
            _give_back()
            self._ahead = max(_STEP, int((thread_time() - begin) * _PACE))


def _give_back() -> None:
    with suppress(AttributeError):  # not every C library can
        ctypes.CDLL(None).malloc_trim(0)
