"""Writes one file of pieces."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from .disk import CHUNK, Moved, Piece, refused, zstd

_GATHER = 256 << 10
_LOOK = 1 << 20
"""Bytes that are still in the processor's cache when they are looked at again."""
_AHEAD = 32 << 20
"""Bytes after which the disk is to begin, so that it is not idle until the sync."""


class Writer:
    """One file of pieces."""

    def __init__(self, path: Path, moved: Moved, compress: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise refused(error) from error
        self._moved = moved
        self._zstd = zstd() if compress else None
        self._packer: Any = None
        self._pending = bytearray()
        self._begin = self._size = self._raw = self._started = 0
        self._hash = xxhash.xxh3_128()
        self.failed: Exception | None = None
        """Why the disk refused: the pickler passes it on as any other exception."""

    def begin(self) -> None:
        """A piece begins."""
        self._begin, self._raw = self._size, 0
        self._hash = xxhash.xxh3_128()
        if self._zstd is not None:
            self._packer = self._zstd.ZstdCompressor().compressobj()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._raw += len(view)
        for at in range(0, len(view), CHUNK):
            part = view[at : at + CHUNK]
            if self._packer is not None:
                self._put(self._packer.compress(part))
            else:
                self._put(part)
            self._moved(len(part))
        return len(view)

    def end(self) -> Piece:
        if self._packer is not None:
            self._put(self._packer.flush())
        self._flush()
        size = self._size - self._begin
        return Piece(self._begin, size, self._raw, self._hash.hexdigest())

    def take_back(self) -> None:
        """Forgets the piece that was begun."""
        self._pending.clear()
        with self._told():
            os.ftruncate(self._fd, self._begin)
            os.lseek(self._fd, self._begin, os.SEEK_SET)
        self._size = self._begin
        self._started = min(self._started, self._size)

    def sync(self) -> None:
        with self._told():
            os.fsync(self._fd)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def size(self) -> int:
        return self._size

    def _put(self, part: Any) -> None:
        if len(self._pending) + len(part) < _GATHER:
            self._pending += part
            return
        self._flush()
        self._out(part, is_ours=isinstance(part, bytes) or type(part.obj) is bytes)

    def _flush(self) -> None:
        pending, self._pending = self._pending, bytearray()
        if pending:
            self._out(pending, is_ours=True)

    def _out(self, whole: Any, *, is_ours: bool) -> None:
        """Whoever has the memory may write to it meanwhile, as threads and other processes do, and
        the checksum has to be that of what is on the disk: of theirs, the file is looked at."""
        whole = memoryview(whole)
        for at in range(0, len(whole), _LOOK):
            part, begin = whole[at : at + _LOOK], self._size
            if is_ours:
                self._hash.update(part)
            self._write(part)
            if not is_ours:
                self._look(begin, len(part))
        if self._size - self._started >= _AHEAD:
            _begin_writeback(self._fd, self._started, self._size - self._started)
            self._started = self._size

    def _write(self, part: memoryview) -> None:
        with self._told():
            while part:
                written = os.write(self._fd, part)
                self._size += written
                part = part[written:]

    def _look(self, begin: int, size: int) -> None:
        """Hashes what was just written, in the memory that the system has it in."""
        page = begin % mmap.ALLOCATIONGRANULARITY
        try:
            seen = mmap.mmap(self._fd, page + size, _MAPPED, mmap.PROT_READ, offset=begin - page)
        except OSError:  # not every file system maps files
            with self._told():
                self._hash.update(os.pread(self._fd, size, begin))
            return
        with seen, memoryview(seen) as whole, whole[page:] as part:
            self._hash.update(part)

    def _told(self) -> _Told:
        return _Told(self)


class _Told:
    """Notes what the disk refused, in words of its own."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, OSError):
            self._writer.failed = refused(error)
            raise self._writer.failed from error


_MAPPED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


def _begin_writeback(fd: int, offset: int, size: int) -> None:
    with suppress(AttributeError, OSError):  # a system without it is slower, no more
        call = ctypes.CDLL(None).sync_file_range
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        call(fd, offset, size, _SYNC_FILE_RANGE_WRITE)


_SYNC_FILE_RANGE_WRITE = 2
