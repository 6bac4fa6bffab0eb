"""Content on disk: a folder that is written under a temporary name, synced, and renamed when
complete.

A file is a series of pieces, each with its checksum (XXH3, 128 bits: against damage, not against
attacks, and faster than any disk). With zstd each piece is compressed separately. `writer` writes
the pieces, `reader` reads them.
"""

from __future__ import annotations

import errno
import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

CHUNK_BYTES = 8 << 20
"""Bytes of one write: between two writes, interrupts are raised and progress is reported."""
PART_SUFFIX = ".part"
LIMIT_ERRORS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""The limits of a process that a mapping may reach."""

Moved = Callable[[int], None]
"""Called with the number of bytes moved since the last call."""


class DiskFull(Exception):
    """The disk is full; earlier stores are unchanged."""


class NotWritten(Exception):
    """The disk has refused a write; earlier stores are unchanged."""


class Damaged(Exception):
    """The stored content differs from the written content."""


class Piece(NamedTuple):
    """The position of a piece in its file, and its checksum."""

    offset: int
    size: int
    """Bytes on disk."""
    raw: int
    """Bytes before compression."""
    digest: str


class PartFolder:
    """A folder under a temporary name; it is removed unless it is committed."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.path = place.with_name(place.name + PART_SUFFIX)

    def __enter__(self) -> PartFolder:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(mode=0o700)
        except OSError as error:
            raise wrap_os_error(error) from error
        return self

    def commit_folder(self, manifest: str) -> None:
        """Writes the manifest last, and renames the folder when all content is on the disk."""
        try:
            fd = os.open(self.path / "manifest.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                view = memoryview(manifest.encode())
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            _sync_folder(self.path)
            os.rename(self.path, self._place)
            # The folder's name, and those of its parents, one of which may be new.
            for folder in list(self._place.parents)[:3]:
                _sync_folder(folder)
        except OSError as error:
            raise wrap_os_error(error) from error

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def import_zstd() -> Any:
    """Imports zstandard on first use."""
    return importlib.import_module("zstandard")


def wrap_os_error(error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull("the disk is full; earlier stores are unchanged")
    return NotWritten(f"the disk reported an error: {error.strerror or error}")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
