"""The output of a child, until the child itself ends, whoever still holds its pipes."""

from __future__ import annotations

import os
import selectors
import subprocess
import time

_CHUNK = 1 << 16
_BURST = 1 << 20
"""As much as a pipe can hold; more is of someone who goes on writing."""


def capture(child: subprocess.Popen[bytes], timeout: float | None) -> tuple[bool, bytes, bytes]:
    """Whether it ended within `timeout` seconds, and what it wrote to its two pipes.

    Whoever runs on in the background must not be ended by a broken pipe, nor wait in front of a
    full one: what it writes goes to a `cat` that ends with it.
    """
    assert child.stdout is not None and child.stderr is not None
    until = None if timeout is None else time.monotonic() + timeout
    outputs = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    stdout, stderr = outputs.values()
    ended = os.pidfd_open(child.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for fd in (*outputs, ended):
                selector.register(fd, selectors.EVENT_READ)
            for fd in outputs:
                os.set_blocking(fd, False)
            while True:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False, bytes(stdout), bytes(stderr)
                ready = [key.fd for key, _ in selector.select(left)]
                for fd in ready:
                    if fd != ended and not _read(fd, outputs[fd], _CHUNK):
                        selector.unregister(fd)
                        del outputs[fd]
                if ended in ready:
                    break
        for fd, output in outputs.items():
            if _read(fd, output, _BURST):
                os.set_blocking(fd, True)
                subprocess.Popen(["cat"], stdin=fd, stdout=subprocess.DEVNULL)
        return True, bytes(stdout), bytes(stderr)
    finally:
        os.close(ended)


def _read(fd: int, output: bytearray, limit: int) -> bool:
    """Reads what there is, up to a limit; False at the end of the pipe."""
    while limit > 0:
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        output += chunk
        limit -= len(chunk)
    return True
