"""The tie to the parent: the kernel ends with its parent, and the OOM killer chooses it earlier."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Killed before the companion, and after the browser, which restores its state.
_OOM_SCORE_ADJ = "100"


def depend_on_parent(parent: int | None = None) -> None:
    """Ends this process with its parent; with `parent`, also detects a parent that has already
    ended."""
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        raise SystemExit("the parent has ended")
    with contextlib.suppress(OSError):  # a system without /proc
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJ)
