"""The check before the receipt: a copy of the process loads the written generation and then exits.

```text
kernel: written ──fork──▶ synced ──▶ verdicts, as they come ──▶ receipt, sealed, renamed
                   └▶ copy: like a fresh kernel ─▶ every piece loaded ─▶ compared ─▶ exit
```

The copy has the originals in memory and compares them with the loaded objects, pair by pair. Its
time and memory are limited; variables without a verdict at the limit are unverified. The OOM killer
chooses the copy first.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..parent import depend_on_parent
from ..shell import Shell
from . import fresh_process, make
from .anchors import MAGIC, find_anchors
from .compare import Comparison
from .disk import Damaged, NotWritten
from .loader import Content, Loader
from .receipt import ALTERED, LOST, SAVED, UNMADE, UNVERIFIED, Row, summarize_error
from .rules import Rules
from .tolerant_reader import Lost

_OOM_SCORE_ADJ = "1000"
"""Makes the OOM killer choose the copy before all other processes."""
_MIN_TIMEOUT = 10.0
_STOP_TIMEOUT = 1.5
"""Seconds; the engine kills a companion that stops too slowly."""
_REPORT_INTERVAL = 0.1
_NO_MEMORY_CODE = 3
"""The exit code of a copy without enough memory."""

Verdict = dict[str, Any]
"""`row`, its number, with a `verdict` and `why` when the loaded object differs; or the reason of a
failure: `error`, or `damaged`."""


@dataclass
class Budget:
    """The limits of a check."""

    seconds: float
    memory: int
    """Bytes in addition to the memory of the process."""

    @classmethod
    def for_store(cls, reason: str, seconds: float) -> Budget:
        """Returns the limits for a store that took `seconds` to write."""
        time_s = _STOP_TIMEOUT if reason == "stop" else _MIN_TIMEOUT + 2 * seconds
        return cls(time_s, _free_memory() // 2)


@dataclass
class Written:
    """The written generation and its originals."""

    shell: Shell
    folder: Path
    manifest: dict[str, Any]
    variables: dict[Any, Any]
    rules: Rules
    files: bool


class Copy:
    """The copy of this process that checks the generation; the context manager ends it."""

    def __init__(self, written: Written, budget: Budget) -> None:
        self._check, self._budget = _Check(written), budget
        self._until = time.monotonic() + budget.seconds
        self._error = "the verification process failed"
        self._pid: int | None = None
        self._report_fd: int | None = None

    def __enter__(self) -> Copy:
        try:
            self._fork_copy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _fork_copy(self) -> None:
        """Forks the copy; delays an interrupt until its pid is known."""
        self._report_fd, write_fd = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _run_copy(self._check, self._budget, write_fd)
        except OSError as error:
            self._error = f"the verification process could not be started: {error.strerror}"
        finally:
            os.close(write_fd)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def __exit__(self, *_: object) -> None:
        if self._report_fd is not None:
            os.close(self._report_fd)
        self._end_copy(at_once=True)

    def apply_verdicts(self, rows: list[Row]) -> None:
        """Sets the verdicts of the rows from the copy's reports.

        # Errors
        `NotWritten` when the disk returns other bytes than were written.
        """
        known: set[int] = set()
        unread = b""
        while True:
            left = self._until - time.monotonic()
            if left <= 0 or not select.select([self._report_fd], [], [], left)[0]:
                self._error = f"the verification takes more than {self._budget.seconds:.1f} s"
                break
            chunk = os.read(self._report_fd, 1 << 16)
            if not chunk:
                self._note_end(self._end_copy(at_once=False))
                break
            *lines, unread = (unread + chunk).split(b"\n")
            with suppress(ValueError):  # incomplete when the copy ended
                known.update(
                    self._apply_verdict(verdict, rows)
                    for line in lines
                    for verdict in json.loads(line)
                )
        for number, row in enumerate(rows):
            if row.verdict != LOST and number not in known:
                _set_verdict(row, UNVERIFIED, f"it was not loaded back: {self._error}")

    def _apply_verdict(self, verdict: Verdict, rows: list[Row]) -> int:
        if "damaged" in verdict:
            raise NotWritten(
                f"the disk returned other bytes than were written: {verdict['damaged']}"
            )
        if "error" in verdict:
            self._error = f"the verification process failed: {verdict['error']}"
            return -1
        if "verdict" in verdict:
            _set_verdict(rows[verdict["row"]], verdict["verdict"], verdict["why"])
        return verdict["row"]

    def _note_end(self, status: int) -> None:
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            short = ", which the OOM killer uses" if name == "SIGKILL" else ""
            self._error = f"the verification process was ended by {name}{short}"
        elif os.waitstatus_to_exitcode(status) == _NO_MEMORY_CODE:
            size = self._budget.memory >> 20
            self._error = f"the verification takes more than {size} MiB of memory"

    def _end_copy(self, *, at_once: bool) -> int:
        """Ends the copy; returns its status. User code may have reaped it before."""
        pid, self._pid = self._pid, None
        if pid is None:
            return 0
        with suppress(ChildProcessError, ProcessLookupError):
            if at_once:
                os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        return 0


def _set_verdict(row: Row, verdict: str, why: str) -> None:
    row.verdict = verdict
    row.why = why if row.why is None else f"{why}; {row.why}"
    if verdict == LOST:
        row.bytes = 0


def _free_memory() -> int:
    """Returns the free memory of the machine or of the cgroup, whichever is less."""
    free = 1 << 40
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text()
        free = int(text.partition("MemAvailable:")[2].split()[0]) << 10
    with suppress(OSError, ValueError):  # `max` without a limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{each}").read_text()) for each in ("max", "current"))
        free = min(free, limit - used)
    return max(free, 0)


# In the copy.


def _run_copy(check: _Check, budget: Budget, write_fd: int) -> NoReturn:
    """Runs the copy and exits without finalizers, because its objects stand for those of the
    kernel."""
    code = 1
    try:
        _leave_kernel(budget.memory + check.mapped_bytes)
        for batch in _batch_verdicts(check.check_rows()):
            _send_verdicts(write_fd, batch)
        code = 0
    except MemoryError:
        code = _NO_MEMORY_CODE
    except Damaged as error:
        _send_verdicts(write_fd, [{"damaged": str(error)}])
    except BaseException as error:
        _send_verdicts(write_fd, [{"error": summarize_error(error)}])
    finally:
        os._exit(code)


def _batch_verdicts(results: Iterator[Verdict]) -> Iterator[list[Verdict]]:
    """Batches the verdicts: each write wakes the kernel."""
    batch, since = [], time.monotonic()
    for verdict in results:
        batch.append(verdict)
        if time.monotonic() - since > _REPORT_INTERVAL:
            yield batch
            batch, since = [], time.monotonic()
    yield batch


def _send_verdicts(pipe: int, verdicts: list[Verdict]) -> None:
    os.write(pipe, json.dumps(verdicts).encode() + b"\n")


def _leave_kernel(memory: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.disable()
    gc.disable()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    depend_on_parent()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJ)
    with suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.RLIM_INFINITY))


class _Check:
    """The check, in the copy, of the written generation."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self._has_threads = threading.active_count() > 1
        self._hidden = fresh_process.users_modules()
        self._rows = written.manifest["variables"]
        self._held: list[Any] = []

    @property
    def mapped_bytes(self) -> int:
        """The bytes of the file that arrays use in place: they take no memory of their own."""
        manifest = self._written.manifest
        return 0 if manifest.get("compress") else manifest["files"]["buffers"]

    def check_rows(self) -> Iterator[Verdict]:
        written = self._written
        values = list(written.variables.values())
        came: dict[int, Any] = {}
        for number, value in self._load_rows():
            row = self._rows[number]
            if row["verdict"] == LOST:
                continue
            if type(value) is Lost:
                yield {"row": number} | _judge_loss(value, row["name"])
            else:
                came[number] = value
        comparison = self._create_comparison(came)
        for number, value in came.items():
            row, verdict = self._rows[number], {}
            if row["verdict"] == SAVED:
                verdict = self._compare_value(comparison, row["name"], values[number], value)
            yield {"row": number} | verdict

    def _load_rows(self) -> Iterator[tuple[int, Any]]:
        """Yields row numbers with their loaded objects."""
        written = self._written
        before = find_anchors(written.shell)
        written.rules.values.loaded = fresh_process.hide_modules(self._hidden)
        origin = f"{written.manifest['name']} {written.manifest['generation']}"
        make.current_reload = self._here = fresh_process.create_namespace(written.shell, origin)
        self._known = [(before[name], self._here.anchors[name]) for name in before]
        content = Content(str(written.folder), written.manifest, lambda _: None, mapped=True)
        loader = Loader(written.manifest, content)
        self._held += (content, loader)
        numbers = {id(row): number for number, row in enumerate(self._rows)}
        for row, value in loader:
            is_lost = type(value) is Lost or row["verdict"] == LOST
            if not is_lost and not row["name"].startswith(MAGIC):
                self._here.namespace[row["name"]] = value
            yield numbers[id(row)], value

    def _create_comparison(self, came: dict[int, Any]) -> Comparison:
        after = Rules(self._here.namespace, came.values(), files=self._written.files)
        return Comparison(self._written.rules, after, self._known)

    def _compare_value(self, comparison: Comparison, name: str, was: Any, now: Any) -> Verdict:
        try:
            difference = comparison.find_difference(name, was, now)
        except Exception as error:
            return {
                "verdict": UNVERIFIED,
                "why": f"it could not be compared: {summarize_error(error)}",
            }
        if difference is None:
            return {}
        if not self._has_threads:
            return {"verdict": ALTERED, "why": difference}
        return {
            "verdict": UNVERIFIED,
            "why": f"{difference}; a thread may have changed it during the check",
        }


def _judge_loss(lost: Lost, name: str) -> Verdict:
    """A limit of the copy, or an object that refuses a forked process, shows nothing about a
    reload."""
    why = lost.explain_loss(name)
    if lost.is_process_limit:
        return {"verdict": UNVERIFIED, "why": f"{UNMADE}: {why}"}
    return {"verdict": LOST, "why": why}
