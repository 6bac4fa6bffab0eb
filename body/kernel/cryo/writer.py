"""Writes one file of pieces."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from .disk import CHUNK_BYTES, Moved, Piece, import_zstd, wrap_os_error

_BUFFER_BYTES = 256 << 10
_HASH_BYTES = 1 << 20
"""Bytes that are still in the processor's cache when they are hashed."""
_WRITEBACK_BYTES = 32 << 20
"""Bytes after which the disk starts to write, so that it is not idle until the sync."""


class Writer:
    """One file of pieces."""

    def __init__(self, path: Path, moved: Moved, compress: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise wrap_os_error(error) from error
        self._moved = moved
        self._zstd = import_zstd() if compress else None
        self._packer: Any = None
        self._pending = bytearray()
        self._begin = self._size = self._raw = self._started = 0
        self._hash = xxhash.xxh3_128()
        self.failed: Exception | None = None
        """The error of the disk: the pickler propagates it like any other exception."""

    def begin_piece(self) -> None:
        """Starts a piece."""
        self._begin, self._raw = self._size, 0
        self._hash = xxhash.xxh3_128()
        if self._zstd is not None:
            self._packer = self._zstd.ZstdCompressor().compressobj()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._raw += len(view)
        for at in range(0, len(view), CHUNK_BYTES):
            part = view[at : at + CHUNK_BYTES]
            if self._packer is not None:
                self._buffer_part(self._packer.compress(part))
            else:
                self._buffer_part(part)
            self._moved(len(part))
        return len(view)

    def end_piece(self) -> Piece:
        if self._packer is not None:
            self._buffer_part(self._packer.flush())
        self._flush_pending()
        size = self._size - self._begin
        return Piece(self._begin, size, self._raw, self._hash.hexdigest())

    def discard_piece(self) -> None:
        """Drops the unfinished piece."""
        self._pending.clear()
        with self._guard_errors():
            os.ftruncate(self._fd, self._begin)
            os.lseek(self._fd, self._begin, os.SEEK_SET)
        self._size = self._begin
        self._started = min(self._started, self._size)

    def sync_file(self) -> None:
        with self._guard_errors():
            os.fsync(self._fd)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def size(self) -> int:
        return self._size

    def _buffer_part(self, part: Any) -> None:
        if len(self._pending) + len(part) < _BUFFER_BYTES:
            self._pending += part
            return
        self._flush_pending()
        self._write_parts(part, is_ours=isinstance(part, bytes) or type(part.obj) is bytes)

    def _flush_pending(self) -> None:
        pending, self._pending = self._pending, bytearray()
        if pending:
            self._write_parts(pending, is_ours=True)

    def _write_parts(self, whole: Any, *, is_ours: bool) -> None:
        """Threads and other processes may change memory of others during the write, but the
        checksum must match the disk: for such memory, the written file is hashed."""
        whole = memoryview(whole)
        for at in range(0, len(whole), _HASH_BYTES):
            part, begin = whole[at : at + _HASH_BYTES], self._size
            if is_ours:
                self._hash.update(part)
            self._write_bytes(part)
            if not is_ours:
                self._hash_written(begin, len(part))
        if self._size - self._started >= _WRITEBACK_BYTES:
            _begin_writeback(self._fd, self._started, self._size - self._started)
            self._started = self._size

    def _write_bytes(self, part: memoryview) -> None:
        with self._guard_errors():
            while part:
                written = os.write(self._fd, part)
                self._size += written
                part = part[written:]

    def _hash_written(self, begin: int, size: int) -> None:
        """Hashes the bytes just written, from the page cache."""
        page = begin % mmap.ALLOCATIONGRANULARITY
        try:
            seen = mmap.mmap(self._fd, page + size, _MAPPED, mmap.PROT_READ, offset=begin - page)
        except OSError:  # not every file system supports mmap
            with self._guard_errors():
                self._hash.update(os.pread(self._fd, size, begin))
            return
        with seen, memoryview(seen) as whole, whole[page:] as part:
            self._hash.update(part)

    def _guard_errors(self) -> _ErrorGuard:
        return _ErrorGuard(self)


class _ErrorGuard:
    """Records an error of the disk with its own message."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, OSError):
            self._writer.failed = wrap_os_error(error)
            raise self._writer.failed from error


_MAPPED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


def _begin_writeback(fd: int, offset: int, size: int) -> None:
    with suppress(AttributeError, OSError):  # a system without it is only slower
        call = ctypes.CDLL(None).sync_file_range
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        call(fd, offset, size, _SYNC_FILE_RANGE_WRITE)


_SYNC_FILE_RANGE_WRITE = 2
