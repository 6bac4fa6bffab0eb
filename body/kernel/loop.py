"""The one asyncio loop: made when first needed, alive between cells.

A cell runs inside of it when it awaits, and when it or a cell before it starts tasks by name, so
that `asyncio.create_task` finds a running loop. Cells that bring a loop of their own
(`asyncio.run`) run outside, as plain Python does.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import selectors
import time
from collections.abc import Callable, Coroutine
from os.path import dirname
from types import FrameType
from typing import Any

from .interrupt import Interrupts

_TASKS = re.compile(
    r"\b(?:create_task|ensure_future|get_running_loop|get_event_loop|gather|run_in_executor)\b"
)
_LIBRARY = (dirname(asyncio.__file__), selectors.__file__)
_RUN = (asyncio.BaseEventLoop.run_forever.__code__, asyncio.BaseEventLoop._run_once.__code__)
_STEP = asyncio.Handle._run.__code__
_STUCK_S = 0.5
"""A loop that has not come to a strike within this is in a call that is not Python's."""
_OWN_LOOP = re.compile(r"\basyncio\.(?:run|Runner)\b|\brun_until_complete\b|\brun_forever\b")


def _loop_at_work(frame: FrameType | None) -> asyncio.AbstractEventLoop | None:
    """The loop whose own code `frame` is in, and not what one of its steps calls. An exception
    that is raised in a loop's own code leaves behind a task that nobody ever steps again, or a
    loop that runs for ever."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        if frame.f_code in _RUN:
            return frame.f_locals["self"]
        if frame.f_code is _STEP:
            handle = frame.f_locals["self"]  # None at its very end, where nothing is left to step
            return handle and handle._loop
        frame = frame.f_back
    return None


def _is_in_a_step(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not _STEP:
        frame = frame.f_back
    return frame is not None


def _is_of_a_task(error: BaseException) -> bool:
    """Whether a task has raised it, and keeps it for who asks; nobody keeps a callback's."""
    entry = error.__traceback__
    while entry is not None and not entry.tb_frame.f_code.co_flags & inspect.CO_COROUTINE:
        entry = entry.tb_next
    return entry is not None


class Loop:
    """Owns the loop; nothing else runs it."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cell: asyncio.Task[None] | None = None
        interrupts.in_loop = self._strike

    def wanted_by(self, source: str) -> bool:
        """Whether a cell without `await` is to find a running loop."""
        if self._loop is None and _TASKS.search(source) is None:
            return False
        return _OWN_LOOP.search(source) is None

    def run(self, cell: Coroutine[Any, Any, None]) -> None:
        """Runs a cell to its end; an interrupt cancels what it waits for, and so does a callback
        that exits."""
        loop, task, exits = self._ready(), None, None
        try:
            while task is None or not task.done():
                try:
                    if task is None:
                        with self._interrupts:  # one that comes from here on ends the task
                            task = self._cell = loop.create_task(cell)
                    loop.run_until_complete(task)
                except KeyboardInterrupt:
                    if task is None:
                        cell.close()
                    if task is None or task.done():
                        raise
                    task.cancel()  # it has struck a task in the background, or a callback
                except SystemExit as error:
                    if not task.done() and not _is_of_a_task(error):
                        exits = error
                        task.cancel()
                except asyncio.CancelledError:
                    if exits is None:
                        raise
        finally:
            self._cell = None
        if exits is not None:
            raise exits
        task.result()

    def idle(self, fd: int) -> None:
        """Runs what cells have left behind until `fd` is readable."""
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return
        ready = False

        def stop() -> None:
            nonlocal ready
            ready = True
            loop.stop()

        try:
            loop.add_reader(fd, stop)
        except OSError:  # user code has closed the loop's own fds
            self._loop = None
            return
        while not ready:
            if not self._survive(loop.run_forever):
                break
        if not loop.is_closed():
            self._survive(lambda: loop.remove_reader(fd))

    def forget(self) -> None:
        """For forked children: the selector is shared with the parent."""
        self._loop = None

    def _ready(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.SelectorEventLoop(selectors.DefaultSelector())
        asyncio.set_event_loop(loop)
        return loop

    def _survive(self, step: Callable[[], Any]) -> bool:
        """A task that raises SystemExit must not end the kernel; a dead loop must not spin."""
        try:
            step()
        except (OSError, RuntimeError):
            self._loop = None
            return False
        except BaseException:
            pass  # kept by the task, for who asks it
        return True

    def _strike(self, frame: FrameType | None) -> bool:
        """Ends the cell that awaits, or the loop that the cell has brought, between two steps."""
        loop, cell = _loop_at_work(frame), self._cell
        if loop is None and (cell is None or _is_in_a_step(frame)):
            return False
        now, handed = time.monotonic(), self._interrupts.handed
        if handed is not None and now - handed > _STUCK_S:
            return False
        if handed is None:
            self._interrupts.handed = now
        if cell is not None and loop in (None, cell.get_loop()):
            cell.cancel()
            cell.get_loop().call_soon_threadsafe(self._come)
        else:
            loop.call_soon_threadsafe(self._raise)
        return True

    def _come(self) -> None:
        self._interrupts.handed = None

    def _raise(self) -> None:
        self._interrupts.handed = None
        if self._interrupts.arrived:  # and not a later cell that runs what is left of this loop
            raise KeyboardInterrupt
