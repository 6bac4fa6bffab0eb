"""Reads pieces of one file and verifies their checksums."""

from __future__ import annotations

import io
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from .disk import CHUNK_BYTES, LIMIT_ERRORS, Damaged, Moved, Piece, import_zstd

_GATHER = 1 << 20


class Reader:
    """One file of pieces."""

    def __init__(self, path: Path, size: int, moved: Moved, compressed: bool) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Damaged(f"`{path.name}` is missing") from None
        self._name = path.name
        self._moved = moved
        self._mapped: memoryview | None = None
        self._zstd = import_zstd() if compressed else None
        with suppress(OSError, AttributeError):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        found = os.fstat(self._fd).st_size
        if found != size:
            self.close()
            raise Damaged(f"`{path.name}` has {found} bytes instead of {size}")

    def read_into(self, piece: Piece, target: memoryview) -> None:
        """Reads the bytes of a piece before compression into `target`."""
        if len(target) != piece.raw:
            raise Damaged(f"a piece of `{self._name}` has another size than its object")
        if self._zstd is None:
            self._fill_target(piece, target)
            return
        at, source = 0, self.open_piece(piece)
        try:
            while got := source.readinto(target[at : at + CHUNK_BYTES]):
                at += got
            at += len(source.read(1))
        except self._zstd.ZstdError as error:
            raise Damaged(f"`{self._name}` can't be decompressed: {error}") from None
        if at != piece.raw:
            raise Damaged(f"a piece of `{self._name}` has another size than was written")

    def read_piece(self, piece: Piece) -> bytearray:
        whole = bytearray(piece.raw)
        self.read_into(piece, memoryview(whole))
        return whole

    def map_piece(self, piece: Piece) -> memoryview:
        """Maps a piece into memory; writes to the mapping do not reach the file."""
        if self._mapped is None:
            self._mapped = self._map_file()
        memory = self._mapped[piece.offset : piece.offset + piece.size]
        self._check_digest(piece, xxhash.xxh3_128(memory))
        self._moved(piece.size)
        return memory

    def _map_file(self) -> memoryview:
        """Maps the whole file: each mapping needs a descriptor."""
        try:
            return memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_COPY))
        except OSError as error:
            if error.errno in LIMIT_ERRORS:  # the bytes are whole
                raise MemoryError(f"`{self._name}` can't be mapped: {error.strerror}") from None
            raise

    def open_piece(self, piece: Piece) -> io.BufferedIOBase:
        """Opens a piece as a file after a check of its checksum; the piece is not held in
        memory."""
        space = memoryview(bytearray(min(piece.size, CHUNK_BYTES)))
        self._fill_target(piece, space, again=True)
        section: Any = _Section(self._fd, piece)
        if self._zstd is not None:
            section = _Unpacked(self._zstd.ZstdDecompressor().stream_reader(section))
        return io.BufferedReader(section, _GATHER)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _fill_target(self, piece: Piece, target: memoryview, *, again: bool = False) -> None:
        """With `again`, each chunk is read into the same memory."""
        digest = xxhash.xxh3_128()
        at = 0
        while at < piece.size:
            part = target[: piece.size - at] if again else target[at : at + CHUNK_BYTES]
            got = os.preadv(self._fd, [part], piece.offset + at)
            if got == 0:
                raise Damaged(f"`{self._name}` ends early")
            digest.update(part[:got])
            at += got
            self._moved(got)  # bytes on disk, as in the total
        self._check_digest(piece, digest)

    def _check_digest(self, piece: Piece, found: Any) -> None:
        if found.hexdigest() != piece.digest:
            raise Damaged(f"`{self._name}` was changed: its checksum differs")


class _Section(io.RawIOBase):
    """A piece of a file, with its own position."""

    def __init__(self, fd: int, piece: Piece) -> None:
        self._fd, self._at, self._end = fd, piece.offset, piece.offset + piece.size

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target)[: self._end - self._at]
        got = os.preadv(self._fd, [view], self._at) if view else 0
        self._at += got
        return got


class _Unpacked(io.RawIOBase):
    """The output of a decompressor."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        return self._source.readinto(target)
