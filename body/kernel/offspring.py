"""The forks by which a template makes a kernel and its guard.

```text
template ─▶ middle ─▶ guard ─▶ kernel
            exits     execs    returns into `main`
```

The middle one ends at once, so that the guard is nobody's zombie. The guard collects whatever the
kernel leaves behind, and as the kernel's parent it takes the kernel with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import NoReturn

from .encode import encode
from .parent import depend_on_parent

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)


@dataclass
class Guard:
    """What becomes the kernel's parent: its command, which gets the kernel's pid as last argument,
    its standard input, and the standard error of both."""

    command: list[str]
    channel: int
    stderr: int


@dataclass
class Born:
    """The pids of a new kernel and of its guard."""

    guard: int
    kernel: int


def fork(guard: Guard) -> Born | None:
    """Makes a kernel under a guard; returns None in the kernel, where it never raises.

    # Errors
    ChildProcessError when a process can't be made, or the guard can't be executed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    told, tell = os.pipe()
    try:
        middle = os.fork()
    except BaseException:
        os.close(told)
        os.close(tell)
        raise
    if middle == 0:
        os.close(told)
        try:
            if os.fork() > 0:
                os._exit(0)
            parent = os.getpid()
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            kernel = os.fork()
        except BaseException as error:
            _give_up(tell, error)
        if kernel > 0:
            _become(guard, kernel, tell)
        _be_kernel(guard, parent, tell)
        return None
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        words = pipe.read()  # to its end, which is the guard's exec
    os.waitpid(middle, 0)
    return _born(words)


def _become(guard: Guard, kernel: int, tell: int) -> NoReturn:
    try:
        os.setpgid(kernel, 0)  # as the kernel does: whoever is first
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.write(tell, encode({"guard": os.getpid(), "kernel": kernel}) + b"\n")
        os.dup2(guard.channel, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(guard.stderr, 2)
        os.closerange(3, tell)
        os.closerange(tell + 1, os.sysconf("SC_OPEN_MAX"))
        os.execvp(guard.command[0], [*guard.command, str(kernel)])
    except BaseException as error:
        os.kill(kernel, signal.SIGKILL)
        _give_up(tell, error)


def _be_kernel(guard: Guard, parent: int, tell: int) -> None:
    try:
        os.close(tell)
        os.dup2(guard.stderr, 2)
        os.setpgid(0, 0)
        depend_on_parent(parent)
    except BaseException:  # the template's stack is no place for it
        traceback.print_exc()
        os._exit(1)


def _give_up(tell: int, error: BaseException) -> NoReturn:
    os.write(tell, encode({"error": f"{type(error).__name__}: {error}"}) + b"\n")
    os._exit(1)


def _born(words: bytes) -> Born:
    lines = [json.loads(line) for line in words.splitlines()]
    for line in lines:
        if "error" in line:
            raise ChildProcessError(line["error"])
    if not lines:
        raise ChildProcessError("the new process ended before it could tell its number")
    return Born(**lines[0])
