"""What the kernel owes its parent: it ends with it, and it is the first to go when memory is short."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_FIRST_TO_GO = "900"


def depend_on_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be asked for
        raise SystemExit("the parent has ended")
    with contextlib.suppress(OSError):  # a system without /proc
        with open("/proc/self/oom_score_adj", "w") as adjustment:
            adjustment.write(_FIRST_TO_GO)
