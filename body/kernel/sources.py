"""The lines of past cells, for tracebacks and `inspect.getsource`, within limits.

Recent cells are kept by count. Older cells that define functions or classes are kept longer, within
a number of bytes, because a later traceback may lead into them.
"""

from __future__ import annotations

import linecache
import re
from collections import deque

from IPython.core.compilerop import CachingCompiler

MAX_RECENT_CELLS = 2000
MAX_DEFINING_BYTES = 8 << 20
MAX_RECENT_BYTES = 32 << 20
_DEFINES = re.compile(r"\b(?:def|class|lambda)\b")

FILES_OF_CELLS: dict[str, str] = {}
"""The files of kept cells that ran as programs: their tracebacks name the file."""


class Sources(CachingCompiler):
    """IPython's compiler; names cells `<cell 7>` and drops the oldest."""

    def __init__(self) -> None:
        super().__init__()
        self.program: str | None = None
        """The file of the running program."""
        self._recent: deque[tuple[str, int, bool]] = deque()
        self._defining: deque[tuple[str, int]] = deque()
        self._recent_bytes = self._defining_bytes = 0
        self._number = -1
        self._again = 0

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        self._again = self._again + 1 if number == self._number else 0
        self._number = number
        return f"<cell {number}.{self._again}>" if self._again else f"<cell {number}>"

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        name = super().cache(transformed_code, number, raw_code)
        FILES_OF_CELLS.pop(name, None)
        if self.program is not None:
            FILES_OF_CELLS[name] = self.program
        size = len(transformed_code)
        self._recent.append((name, size, _DEFINES.search(transformed_code) is not None))
        self._recent_bytes += size
        while len(self._recent) > MAX_RECENT_CELLS or self._recent_bytes > MAX_RECENT_BYTES:
            self._age_entry(*self._recent.popleft())
        return name

    def undo_cache(self, name: str) -> None:
        """Undoes the last `cache`, so that its name is free again."""
        taken, size, _ = self._recent.pop()
        assert taken == name
        self._recent_bytes -= size
        self._again -= 1
        if self._again < 0:
            self._number = -1
        self._forget_source(name)

    def _age_entry(self, name: str, size: int, defines: bool) -> None:
        self._recent_bytes -= size
        if not defines:
            self._forget_source(name)
            return
        self._defining.append((name, size))
        self._defining_bytes += size
        while self._defining_bytes > MAX_DEFINING_BYTES:
            oldest, freed = self._defining.popleft()
            self._defining_bytes -= freed
            self._forget_source(oldest)

    def _forget_source(self, name: str) -> None:
        linecache.cache.pop(name, None)
        self._filename_map.pop(name, None)
        FILES_OF_CELLS.pop(name, None)
