"""`!command` lines: a shell on fds 1 and 2 that is interrupted together with the cell."""

from __future__ import annotations

import os
import signal
import subprocess

from .interrupt import Interrupts

COMMAND_EXIT_TIMEOUT = 1.0


def run_command(line: str, interrupts: Interrupts) -> int:
    """Runs a line in the user's shell; returns its exit code, or minus the number of the ending
    signal."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    if not os.access(shell, os.X_OK):
        shell = "/bin/sh"
    try:
        where = os.getcwd()
    except OSError:
        where = "/"  # the working directory was removed
    child = None
    try:
        with interrupts:  # no interrupt between the start and the assignment
            child = subprocess.Popen([shell, "-c", line], cwd=where)
        return child.wait()
    except KeyboardInterrupt:
        if child is not None:
            _end_command(child)
        raise


def _end_command(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        child.send_signal(number)
        try:
            child.wait(COMMAND_EXIT_TIMEOUT)
            return
        except subprocess.TimeoutExpired:
            continue
    child.kill()
    child.wait()
