"""What the kernel owes its parent: it ends with it, and goes before it when memory is short."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Before the companion, and after the browser, which comes back with all that it has.
_READINESS_TO_GO = "100"


def depend_on_parent(parent: int | None = None) -> None:
    """With `parent` given, also one that has ended before this is called is noticed."""
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be asked for
        raise SystemExit("the parent has ended")
    with contextlib.suppress(OSError):  # a system without /proc
        Path("/proc/self/oom_score_adj").write_text(_READINESS_TO_GO)
