"""Content on disk: written beside its place, synced, and renamed when it is whole.

A file is a row of pieces, each with its checksum (XXH3, 128 bits: damage, not malice, and faster
than any disk). With zstd each piece is compressed by itself. `writer` writes them, `reader` reads.
"""

from __future__ import annotations

import errno
import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

CHUNK = 8 << 20
"""Bytes of one write: in between, interrupts strike and progress is told."""
BESIDE = ".part"

Moved = Callable[[int], None]
"""Is told how many bytes more have been moved."""


class DiskFull(Exception):
    """There is no room for a store; what was there before is untouched."""


class NotWritten(Exception):
    """The disk refused; what was there before is untouched."""


class Damaged(Exception):
    """What is stored is not what was written."""


class Piece(NamedTuple):
    """Where in a file it is, and what it must be."""

    offset: int
    size: int
    """Bytes on disk."""
    raw: int
    """Bytes before compression."""
    digest: str


class Beside:
    """A folder that is written beside its place; leaves nothing when it is not committed."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.path = place.with_name(place.name + BESIDE)

    def __enter__(self) -> Beside:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(mode=0o700)
        except OSError as error:
            raise refused(error) from error
        return self

    def commit(self, manifest: str) -> None:
        """The manifest comes last, and the name when all of it is on the disk."""
        try:
            fd = os.open(self.path / "manifest.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                view = memoryview(manifest.encode())
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            _sync(self.path)
            os.rename(self.path, self._place)
            # Its name, and those of the folders, one of which may be new.
            for folder in list(self._place.parents)[:3]:
                _sync(folder)
        except OSError as error:
            raise refused(error) from error

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def zstd() -> Any:
    """Imported when somebody asks for it."""
    return importlib.import_module("zstandard")


def refused(error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull("the disk is full; what was stored before is untouched")
    return NotWritten(f"the disk refused: {error.strerror or error}")


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
