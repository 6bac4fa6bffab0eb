"""The pipes behind fds 1 and 2, and the numbers of the kernel's private fds.

The kernel holds both ends of both pipes, so that they survive a checkpoint, and reads neither: C
code that fills a pipe while it holds the GIL would block forever.
"""

from __future__ import annotations

import fcntl
import os
import resource
from dataclasses import dataclass

PIPE_BYTES = 1 << 20
FIRST_PRIVATE_FD = 4000


def move_fd_high(fd: int) -> int:
    """Moves `fd` to a high, close-on-exec number, which loops over low fds do not close."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    floor = FIRST_PRIVATE_FD
    if limit != resource.RLIM_INFINITY:
        floor = max(3, min(floor, limit - 64))
    kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor)
    os.close(fd)
    return kept


@dataclass
class Pipe:
    """One output pipe: `target` is 1 or 2, where the write end is installed."""

    target: int
    read: int
    write: int
    identity: tuple[int, int]

    @classmethod
    def create_pipe(cls, target: int) -> Pipe:
        read, write = os.pipe()
        try:
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # beyond the user's pipe budget: the default size works as well
        read, write = move_fd_high(read), move_fd_high(write)
        status = os.fstat(write)
        pipe = cls(target, read, write, (status.st_dev, status.st_ino))
        os.dup2(write, target, inheritable=True)
        return pipe

    def restore_target(self) -> None:
        """Reinstalls the write end after user code has closed or replaced it."""
        try:
            status = os.fstat(self.target)
            if (status.st_dev, status.st_ino) == self.identity:
                return
        except OSError:
            pass
        os.dup2(self.write, self.target, inheritable=True)

    def close_ends(self) -> None:
        """Closes both ends in a forked child, which writes only to fds 1 and 2."""
        os.close(self.read)
        os.close(self.write)
