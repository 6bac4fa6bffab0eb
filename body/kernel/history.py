"""`In` and the rest of IPython's history: in memory, bounded, without a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from IPython.core.history import HistoryManager

KEPT = 1000


class Inputs(list[str]):
    """A list whose oldest entries are given up; the others keep their numbers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dropped = 0

    def put(self, number: int, source: str) -> None:
        """Stores cell `number`, filling gaps, so that `In[7]` is what ran as 7."""
        while len(self) < min(number, self.dropped + 2 * KEPT):
            self.append("")
        if len(self) < number:  # a gap wider than what is kept
            super().clear()
            self.dropped = number
        self.append(source)
        if super().__len__() > 2 * KEPT:
            super().__delitem__(slice(0, KEPT))
            self.dropped += KEPT

    def __len__(self) -> int:
        return self.dropped + super().__len__()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self[index] for index in range(*key.indices(len(self)))]
        index = key if key < 0 else key - self.dropped
        if index < 0 <= key < len(self):
            return ""  # given up
        return super().__getitem__(index)


class History(HistoryManager):
    """What `In`, `Out`, `%history` and `%rerun` read."""

    _i = _ii = _iii = _i00 = ""  # plain instead of observed: each cell sets them

    def __init__(self, **traits: Any) -> None:
        super().__init__(enabled=False, hist_file=":memory:", **traits)
        self.input_hist_parsed = Inputs([""])
        self.input_hist_raw = Inputs([""])

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        """Stores one cell, without a numbered `_i7` of its own in the namespace."""
        raw = (source if source_raw is None else source_raw).rstrip("\n")
        self.input_hist_parsed.put(line_num, source.rstrip("\n"))
        self.input_hist_raw.put(line_num, raw)
        self._iii, self._ii, self._i, self._i00 = self._ii, self._i, self._i00, raw
        self.shell.user_ns.update(_i=self._i, _ii=self._ii, _iii=self._iii)

    def last(self, n: int) -> list[tuple[int, str]]:
        """Number and source of the last `n` cells, as far as they are kept."""
        raw = self.input_hist_raw
        numbers = range(max(1, len(raw) - n), len(raw))
        return [(number, raw[number]) for number in numbers if raw[number]]

    def reset(self, new_session: bool = True) -> None:
        self.output_hist.clear()
        self.output_hist_reprs.clear()
        try:
            self.dir_hist[:] = [Path.cwd()]
        except OSError:  # the working directory is gone
            self.dir_hist[:] = []
        for inputs in (self.input_hist_parsed, self.input_hist_raw):
            list.clear(inputs)
            inputs.dropped = self.shell.execution_count
        self._i00 = self._i = self._ii = self._iii = ""
