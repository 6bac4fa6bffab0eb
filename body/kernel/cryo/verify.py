"""Loading back, before the receipt, of what was written: in a copy of the process, which ends then.

```text
kernel: written ──fork──▶ synced ──▶ verdicts, as they come ──▶ receipt, sealed, renamed
                   └▶ copy: like a fresh kernel ─▶ every piece loaded ─▶ compared ─▶ end
```

The copy has the originals beside what it loads, so both are compared pair by pair. It may take a
limited time and memory, and is ended then: what it has not told is unverified. It is the first that
the system ends when memory is short.
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
from . import fresh, make
from .compare import Comparison
from .disk import Damaged, NotWritten
from .live import MAGIC, anchors
from .loader import Content, Loader
from .receipt import ALTERED, LOST, SAVED, UNVERIFIED, Row, said
from .rules import Rules
from .slow import Lost

_FIRST_TO_GO = "1000"
"""Of all processes, when memory is short."""
_LEAST_S = 10.0
_AT_STOP_S = 1.5
"""The engine does not wait long for a companion that it stops."""
_PACE_S = 0.1
_NO_MEMORY = 3
"""The exit code of a copy that had not enough."""

Told = dict[str, Any]
"""`row`, its number, with a `verdict` and `why` where what came back is not what was stored; or why
the copy gave up: `error`, or `damaged`."""


@dataclass
class Budget:
    """What a look at what is stored may take."""

    seconds: float
    memory: int
    """Bytes, besides what the process has."""

    @classmethod
    def of(cls, reason: str, seconds: float) -> Budget:
        """For what took so long to write."""
        time_s = _AT_STOP_S if reason == "stop" else _LEAST_S + 2 * seconds
        return cls(time_s, _free_memory() // 2)


@dataclass
class Written:
    """What is on the disk, and of what."""

    shell: Shell
    folder: Path
    words: dict[str, Any]
    variables: dict[Any, Any]
    rules: Rules
    files: bool


class Copy:
    """The copy of this process that looks at what is stored; none is left behind."""

    def __init__(self, written: Written, budget: Budget) -> None:
        self._look, self._budget = _Look(written), budget
        self._until = time.monotonic() + budget.seconds
        self._error = "the process that did it has failed"
        self._pid: int | None = None
        self._told: int | None = None

    def __enter__(self) -> Copy:
        try:
            self._fork()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _fork(self) -> None:
        """An interrupt waits until the number of the copy is known."""
        self._told, tell = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _be_copy(self._look, self._budget, tell)
        except OSError as error:
            self._error = f"no process could be made for it: {error.strerror}"
        finally:
            os.close(tell)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def __exit__(self, *_: object) -> None:
        if self._told is not None:
            os.close(self._told)
        self._end(at_once=True)

    def turn(self, rows: list[Row]) -> None:
        """Gives the rows the verdicts of what comes back of them.

        # Errors
        `NotWritten` when the disk gives other bytes than were written.
        """
        known: set[int] = set()
        unread = b""
        while True:
            left = self._until - time.monotonic()
            if left <= 0 or not select.select([self._told], [], [], left)[0]:
                self._error = f"it takes more than {self._budget.seconds:.1f} s"
                break
            chunk = os.read(self._told, 1 << 16)
            if not chunk:
                self._note_end(self._end(at_once=False))
                break
            *lines, unread = (unread + chunk).split(b"\n")
            with suppress(ValueError):  # cut off when the copy ended
                known.update(self._hear(told, rows) for line in lines for told in json.loads(line))
        for number, row in enumerate(rows):
            if row.verdict != LOST and number not in known:
                _set(row, UNVERIFIED, f"it was not loaded back: {self._error}")

    def _hear(self, told: Told, rows: list[Row]) -> int:
        if "damaged" in told:
            raise NotWritten(
                f"the disk gives back other bytes than it was given: {told['damaged']}"
            )
        if "error" in told:
            self._error = f"the process that did it has failed: {told['error']}"
            return -1
        if "verdict" in told:
            _set(rows[told["row"]], told["verdict"], told["why"])
        return told["row"]

    def _note_end(self, status: int) -> None:
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            short = ", as when memory is short" if name == "SIGKILL" else ""
            self._error = f"the process that did it was ended by {name}{short}"
        elif os.waitstatus_to_exitcode(status) == _NO_MEMORY:
            size = self._budget.memory >> 20
            self._error = f"it takes more than {size} MiB of memory"

    def _end(self, *, at_once: bool) -> int:
        """Its status; code of the user's may have collected it before."""
        pid, self._pid = self._pid, None
        if pid is None:
            return 0
        with suppress(ChildProcessError, ProcessLookupError):
            if at_once:
                os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        return 0


def _set(row: Row, verdict: str, why: str) -> None:
    row.verdict = verdict
    row.why = why if row.why is None else f"{why}; {row.why}"
    if verdict == LOST:
        row.bytes = 0


def _free_memory() -> int:
    """Of the machine, and of the group of processes where that is limited."""
    free = 1 << 40
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text()
        free = int(text.partition("MemAvailable:")[2].split()[0]) << 10
    with suppress(OSError, ValueError):  # `max` where there is no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{each}").read_text()) for each in ("max", "current"))
        free = min(free, limit - used)
    return max(free, 0)


# In the copy.


def _be_copy(look: _Look, budget: Budget, tell: int) -> NoReturn:
    """Never returns, and runs no finalizer: what is made here stands for what is there."""
    code = 1
    try:
        _leave_the_kernel(budget.memory)
        for told in _in_bunches(look.results()):
            _tell(tell, told)
        code = 0
    except MemoryError:
        code = _NO_MEMORY
    except Damaged as error:
        _tell(tell, [{"damaged": str(error)}])
    except BaseException as error:
        _tell(tell, [{"error": said(error)}])
    finally:
        os._exit(code)


def _in_bunches(results: Iterator[Told]) -> Iterator[list[Told]]:
    """A write wakes the kernel: now and then is enough."""
    bunch, since = [], time.monotonic()
    for told in results:
        bunch.append(told)
        if time.monotonic() - since > _PACE_S:
            yield bunch
            bunch, since = [], time.monotonic()
    yield bunch


def _tell(pipe: int, words: list[Told]) -> None:
    os.write(pipe, json.dumps(words).encode() + b"\n")


def _leave_the_kernel(memory: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.disable()
    gc.disable()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    depend_on_parent()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    with suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.RLIM_INFINITY))


class _Look:
    """Of the copy at what is stored."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self._has_threads = threading.active_count() > 1
        self._hidden = fresh.users_modules()
        self._rows = written.words["variables"]
        self._held: list[Any] = []

    def results(self) -> Iterator[Told]:
        written = self._written
        values = list(written.variables.values())
        came: dict[int, Any] = {}
        for number, value in self._load():
            row = self._rows[number]
            if row["verdict"] == LOST:
                continue
            if type(value) is Lost:
                yield {"row": number, "verdict": LOST, "why": value.reason(row["name"])}
            else:
                came[number] = value
        comparison = self._comparison(came)
        for number, value in came.items():
            row, told = self._rows[number], {}
            if row["verdict"] == SAVED:
                told = self._compare(comparison, row["name"], values[number], value)
            yield {"row": number} | told

    def _load(self) -> Iterator[tuple[int, Any]]:
        """The numbers of rows, and what came back of them."""
        written = self._written
        before = anchors(written.shell)
        written.rules.values.loaded = fresh.hide_modules(self._hidden)
        origin = f"{written.words['name']} {written.words['generation']}"
        make.here = self._here = fresh.namespace(written.shell, origin)
        self._known = [(before[name], self._here.anchors[name]) for name in before]
        content = Content(str(written.folder), written.words, lambda _: None, mapped=True)
        loader = Loader(written.words, content, (KeyboardInterrupt, Damaged, MemoryError))
        self._held += (content, loader)
        numbers = {id(row): number for number, row in enumerate(self._rows)}
        for row, value in loader:
            is_lost = type(value) is Lost or row["verdict"] == LOST
            if not is_lost and not row["name"].startswith(MAGIC):
                self._here.namespace[row["name"]] = value
            yield numbers[id(row)], value

    def _comparison(self, came: dict[int, Any]) -> Comparison:
        after = Rules(self._here.namespace, came.values(), files=self._written.files)
        return Comparison(self._written.rules, after, self._known)

    def _compare(self, comparison: Comparison, name: str, was: Any, now: Any) -> Told:
        try:
            words = comparison.difference(name, was, now)
        except MemoryError:
            raise
        except Exception as error:
            return {"verdict": UNVERIFIED, "why": f"it could not be compared: {said(error)}"}
        if words is None:
            return {}
        if not self._has_threads:
            return {"verdict": ALTERED, "why": words}
        return {"verdict": UNVERIFIED, "why": f"{words}; a thread may have changed it meanwhile"}
