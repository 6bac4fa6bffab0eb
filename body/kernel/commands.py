"""`!command` lines: a shell on fds 1 and 2, interrupted together with the cell."""

from __future__ import annotations

import os
import signal
import subprocess

from .interrupt import Interrupts

GRACE_S = 1.0


def run(line: str, interrupts: Interrupts) -> int:
    """Runs a line in the user's shell; its exit code, or minus the signal that ended it."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    if not os.access(shell, os.X_OK):
        shell = "/bin/sh"
    try:
        where = os.getcwd()
    except OSError:
        where = "/"  # the working directory was removed
    child = None
    try:
        with interrupts:  # none comes between the begin and whoever ends it
            child = subprocess.Popen([shell, "-c", line], cwd=where)
        return child.wait()
    except KeyboardInterrupt:
        if child is not None:
            _end(child)
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        child.send_signal(number)
        try:
            child.wait(GRACE_S)
            return
        except subprocess.TimeoutExpired:
            continue
    child.kill()
    child.wait()
