"""The forks by which a template makes a kernel and its supervisor process.

```text
template ─▶ middle ─▶ supervisor ─▶ kernel
            exits     execs         returns into `main`
```

The middle process exits immediately, so that the supervisor leaves no zombie in the template. The
supervisor reaps orphans of the kernel, and its own exit ends the kernel.
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

from .encode import encode_json
from .parent import depend_on_parent

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)


@dataclass
class SupervisorCommand:
    """The kernel's parent process: its command, which gets the kernel's pid as last argument, its
    standard input, and the standard error of both."""

    command: list[str]
    channel: int
    stderr: int


@dataclass
class ForkedKernel:
    """The pids of a new kernel and of its supervisor."""

    supervisor: int
    kernel: int


def fork_kernel(supervisor: SupervisorCommand) -> ForkedKernel | None:
    """Makes a kernel under a supervisor; returns None in the kernel, where it never raises.

    # Errors
    ChildProcessError when a process cannot be made, or the supervisor's command cannot be executed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    report_read, report_write = os.pipe()
    try:
        middle = os.fork()
    except BaseException:
        os.close(report_read)
        os.close(report_write)
        raise
    if middle == 0:
        os.close(report_read)
        try:
            if os.fork() > 0:
                os._exit(0)
            parent = os.getpid()
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            kernel = os.fork()
        except BaseException as error:
            _report_failure(report_write, error)
        if kernel > 0:
            _become_supervisor(supervisor, kernel, report_write)
        _become_kernel(supervisor, parent, report_write)
        return None
    os.close(report_write)
    with os.fdopen(report_read, "rb") as pipe:
        report = pipe.read()  # until EOF at the supervisor's exec
    os.waitpid(middle, 0)
    return _parse_report(report)


def _become_supervisor(supervisor: SupervisorCommand, kernel: int, report_write: int) -> NoReturn:
    try:
        os.setpgid(kernel, 0)  # the kernel does the same: the order does not matter
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.write(report_write, encode_json({"supervisor": os.getpid(), "kernel": kernel}) + b"\n")
        os.dup2(supervisor.channel, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(supervisor.stderr, 2)
        os.closerange(3, report_write)
        os.closerange(report_write + 1, os.sysconf("SC_OPEN_MAX"))
        os.execvp(supervisor.command[0], [*supervisor.command, str(kernel)])
    except BaseException as error:
        os.kill(kernel, signal.SIGKILL)
        _report_failure(report_write, error)


def _become_kernel(supervisor: SupervisorCommand, parent: int, report_write: int) -> None:
    try:
        os.close(report_write)
        os.dup2(supervisor.stderr, 2)
        os.setpgid(0, 0)
        depend_on_parent(parent)
    except BaseException:  # it must not unwind the template's stack
        traceback.print_exc()
        os._exit(1)


def _report_failure(report_write: int, error: BaseException) -> NoReturn:
    os.write(report_write, encode_json({"error": f"{type(error).__name__}: {error}"}) + b"\n")
    os._exit(1)


def _parse_report(report: bytes) -> ForkedKernel:
    lines = [json.loads(line) for line in report.splitlines()]
    for line in lines:
        if "error" in line:
            raise ChildProcessError(line["error"])
    if not lines:
        raise ChildProcessError("the new process ended before it reported its pid")
    return ForkedKernel(**lines[0])
