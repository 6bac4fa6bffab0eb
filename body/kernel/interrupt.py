"""SIGINT: a KeyboardInterrupt in user code, ignored elsewhere.

```text
idle ──begin──▶ running ──end──▶ idle        a signal while idle is ignored
                 │    ▲
               hold  release                 a signal while held is raised at the release
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
    """Owns SIGINT; `with interrupts:` delays it in the main thread."""

    def __init__(self) -> None:
        self.arrived = False
        """Whether a signal arrived since `begin_code`."""
        self.interrupt_in_loop: Callable[[FrameType | None], bool] = lambda _frame: False
        """Interrupts through the event loop that the main thread runs; returns whether it did. Its
        argument is the frame in which the signal arrived."""
        self.handed_at: float | None = None
        """When an interrupt was handed to a loop that has not handled it yet, in monotonic
        seconds."""
        self._running = False
        self._held = 0
        self._pending = False
        self._main = threading.get_ident()

    def install_handler(self) -> None:
        """Installs the handler, again if user code has replaced it."""
        if signal.getsignal(signal.SIGINT) != self._handle_signal:
            signal.signal(signal.SIGINT, self._handle_signal)

    def begin_code(self) -> None:
        self.arrived = self._pending = False
        self.handed_at = None
        self._running = True

    def end_code(self) -> None:
        self._running = self._pending = False

    def _handle_signal(self, _signal: int, frame: FrameType | None) -> None:
        if not self._running:
            return
        if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []):
            # Another thread handles the signal while this thread forks and runs fork hooks.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            return
        self.arrived = True
        if self._held:
            self._pending = True
        elif not self.interrupt_in_loop(frame):
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
