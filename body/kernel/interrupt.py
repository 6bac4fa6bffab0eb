"""SIGINT: a KeyboardInterrupt in user code, nothing anywhere else.

```text
idle ──begin──▶ running ──end──▶ idle        a signal while idle is forgotten
                 │    ▲
               hold  release                 a signal while held strikes at the release
                 ▼    │
                 held
```
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


class Interrupts:
    """The one owner of SIGINT; `with interrupts:` holds it back in the main thread."""

    def __init__(self) -> None:
        self.arrived = False
        """Whether a signal came since `begin`."""
        self.in_loop: Callable[[FrameType | None], bool] = lambda _frame: False
        """Strikes by the means of the event loop that the main thread runs; says whether it did.
        Gets the frame that the signal came in."""
        self.handed: float | None = None
        """When a strike was handed to a loop that has not come to it yet, in monotonic seconds."""
        self._running = False
        self._held = 0
        self._pending = False
        self._main = threading.get_ident()

    def install(self) -> None:
        """(Re)takes the signal; user code may have taken it in between."""
        if signal.getsignal(signal.SIGINT) != self._handle:
            signal.signal(signal.SIGINT, self._handle)

    def begin(self) -> None:
        self.arrived = self._pending = False
        self.handed = None
        self._running = True

    def end(self) -> None:
        self._running = self._pending = False

    def _handle(self, _signal: int, frame: FrameType | None) -> None:
        if not self._running:
            return
        if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []):
            # Another thread took it while this one forks, and runs what a fork calls.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            return
        self.arrived = True
        if self._held:
            self._pending = True
        elif not self.in_loop(frame):
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            self._held += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() != self._main:
            return
        self._held -= 1
        if self._pending and not self._held:
            self._pending = False
            raise KeyboardInterrupt
