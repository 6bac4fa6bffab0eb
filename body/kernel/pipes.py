"""The pipes behind fds 1 and 2, and where fds are kept out of the user's way.

The kernel holds both ends of both pipes, so that they survive a dump, and reads neither: C code
that fills one while it holds the GIL would then wait for ever.
"""

from __future__ import annotations

import fcntl
import os
import resource
from dataclasses import dataclass

CAPACITY = 1 << 20
FIRST_KEPT_FD = 4000


def keep(fd: int) -> int:
    """Moves `fd` to a high, close-on-exec number, where loops over low fds do not close it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    floor = FIRST_KEPT_FD
    if limit != resource.RLIM_INFINITY:
        floor = max(3, min(floor, limit - 64))
    kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor)
    os.close(fd)
    return kept


@dataclass
class Pipe:
    """One output pipe: `target` is 1 or 2, the write end is installed there."""

    target: int
    read: int
    write: int
    identity: tuple[int, int]

    @classmethod
    def make(cls, target: int) -> Pipe:
        read, write = os.pipe()
        try:
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, CAPACITY)
        except OSError:
            pass  # beyond the user's pipe budget: the default size works as well
        read, write = keep(read), keep(write)
        status = os.fstat(write)
        pipe = cls(target, read, write, (status.st_dev, status.st_ino))
        os.dup2(write, target, inheritable=True)
        return pipe

    def restore(self) -> None:
        """Puts the write end back where user code has closed or replaced it."""
        try:
            status = os.fstat(self.target)
            if (status.st_dev, status.st_ino) == self.identity:
                return
        except OSError:
            pass
        os.dup2(self.write, self.target, inheritable=True)

    def close_kept(self) -> None:
        """For forked children, which only write to fds 1 and 2."""
        os.close(self.read)
        os.close(self.write)
