"""The one asyncio loop: created on first use, alive between cells.

A cell runs inside the loop when it awaits, and when it or an earlier cell starts tasks by name, so
that `asyncio.create_task` finds a running loop. Cells with their own loop (`asyncio.run`) run
outside, as in plain Python.
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
_STUCK_TIMEOUT = 0.5
"""Seconds; a loop that has not handled an interrupt by then is in a call outside Python."""
_OWN_LOOP = re.compile(r"\basyncio\.(?:run|Runner)\b|\brun_until_complete\b|\brun_forever\b")


def _running_loop_of(frame: FrameType | None) -> asyncio.AbstractEventLoop | None:
    """Returns the loop whose own code `frame` is in, not the code of one of its steps. An exception
    raised in a loop's own code leaves a task that is never stepped again, or a loop that never
    stops."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        if frame.f_code in _RUN:
            return frame.f_locals["self"]
        if frame.f_code is _STEP:
            handle = frame.f_locals["self"]  # None at its end, without a next step
            return handle and handle._loop
        frame = frame.f_back
    return None


def _is_in_step(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not _STEP:
        frame = frame.f_back
    return frame is not None


def _is_from_task(error: BaseException) -> bool:
    """Whether a task has raised the error and keeps it; an error of a callback is not kept."""
    entry = error.__traceback__
    while entry is not None and not entry.tb_frame.f_code.co_flags & inspect.CO_COROUTINE:
        entry = entry.tb_next
    return entry is not None


class Loop:
    """Owns the loop and is the only code that runs it."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cell: asyncio.Task[None] | None = None
        interrupts.interrupt_in_loop = self._attempt_interrupt

    def needs_running_loop(self, source: str) -> bool:
        """Whether a cell without `await` needs a running loop."""
        if self._loop is None and _TASKS.search(source) is None:
            return False
        return _OWN_LOOP.search(source) is None

    def run_cell(self, cell: Coroutine[Any, Any, None]) -> None:
        """Runs a cell to its end; an interrupt, or a callback that exits, cancels its current
        wait."""
        loop, task, exits = self._ensure_loop(), None, None
        try:
            while task is None or not task.done():
                try:
                    if task is None:
                        with self._interrupts:  # a later interrupt ends the task
                            task = self._cell = loop.create_task(cell)
                    loop.run_until_complete(task)
                except KeyboardInterrupt:
                    if task is None:
                        cell.close()
                    if task is None or task.done():
                        raise
                    task.cancel()  # it was raised in a background task or a callback
                except SystemExit as error:
                    if not task.done() and not _is_from_task(error):
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

    def run_until_readable(self, fd: int) -> None:
        """Runs background tasks of earlier cells until `fd` is readable."""
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return
        ready = False

        def stop_loop() -> None:
            nonlocal ready
            ready = True
            loop.stop()

        try:
            loop.add_reader(fd, stop_loop)
        except OSError:  # user code has closed the loop's own fds
            self._loop = None
            return
        while not ready:
            if not self._run_guarded(loop.run_forever):
                break
        if not loop.is_closed():
            self._run_guarded(lambda: loop.remove_reader(fd))

    def drop_loop(self) -> None:
        """Drops the loop in a forked child: the selector is shared with the parent."""
        self._loop = None

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.SelectorEventLoop(selectors.DefaultSelector())
        asyncio.set_event_loop(loop)
        return loop

    def _run_guarded(self, step: Callable[[], Any]) -> bool:
        """Runs a step. A task that raises SystemExit must not end the kernel; a dead loop must not
        spin."""
        try:
            step()
        except (OSError, RuntimeError):
            self._loop = None
            return False
        except BaseException:
            pass  # the task keeps it
        return True

    def _attempt_interrupt(self, frame: FrameType | None) -> bool:
        """Interrupts the awaiting cell, or the cell's own loop, between two steps; returns whether
        it could."""
        loop, cell = _running_loop_of(frame), self._cell
        if loop is None and (cell is None or _is_in_step(frame)):
            return False
        now, handed_at = time.monotonic(), self._interrupts.handed_at
        if handed_at is not None and now - handed_at > _STUCK_TIMEOUT:
            return False
        if handed_at is None:
            self._interrupts.handed_at = now
        if cell is not None and loop in (None, cell.get_loop()):
            cell.cancel()
            cell.get_loop().call_soon_threadsafe(self._clear_handed)
        else:
            loop.call_soon_threadsafe(self._raise_interrupt)
        return True

    def _clear_handed(self) -> None:
        self._interrupts.handed_at = None

    def _raise_interrupt(self) -> None:
        self._interrupts.handed_at = None
        if self._interrupts.arrived:  # not a later cell that runs the rest of this loop
            raise KeyboardInterrupt
