"""`In` and the rest of IPython's history: in memory, limited, without a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from IPython.core.history import HistoryManager

MAX_INPUTS = 1000


class Inputs(list[str]):
    """A list that drops its oldest entries; the other entries keep their numbers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dropped = 0

    def store_input(self, number: int, source: str) -> None:
        """Stores cell `number` and fills gaps, so that `In[7]` is cell 7."""
        while len(self) < min(number, self.dropped + 2 * MAX_INPUTS):
            self.append("")
        if len(self) < number:  # a gap wider than the kept inputs
            super().clear()
            self.dropped = number
        self.append(source)
        if super().__len__() > 2 * MAX_INPUTS:
            super().__delitem__(slice(0, MAX_INPUTS))
            self.dropped += MAX_INPUTS

    def __len__(self) -> int:
        return self.dropped + super().__len__()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self[index] for index in range(*key.indices(len(self)))]
        index = key if key < 0 else key - self.dropped
        if index < 0 <= key < len(self):
            return ""  # dropped
        return super().__getitem__(index)


class History(HistoryManager):
    """The data behind `In`, `Out`, `%history` and `%rerun`."""

    _i = _ii = _iii = _i00 = ""  # plain attributes instead of traits: each cell sets them

    def __init__(self, **traits: Any) -> None:
        super().__init__(enabled=False, hist_file=":memory:", **traits)
        self.input_hist_parsed = Inputs([""])
        self.input_hist_raw = Inputs([""])

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        """Stores one cell, without a numbered name such as `_i7` in the namespace."""
        raw = (source if source_raw is None else source_raw).rstrip("\n")
        self.input_hist_parsed.store_input(line_num, source.rstrip("\n"))
        self.input_hist_raw.store_input(line_num, raw)
        self._iii, self._ii, self._i, self._i00 = self._ii, self._i, self._i00, raw
        self.shell.user_ns.update(_i=self._i, _ii=self._ii, _iii=self._iii)

    def list_recent(self, n: int) -> list[tuple[int, str]]:
        """Returns number and source of the last `n` cells that are still kept."""
        raw = self.input_hist_raw
        numbers = range(max(1, len(raw) - n), len(raw))
        return [(number, raw[number]) for number in numbers if raw[number]]

    def reset(self, new_session: bool = True) -> None:
        self.output_hist.clear()
        self.output_hist_reprs.clear()
        try:
            self.dir_hist[:] = [Path.cwd()]
        except OSError:  # the working directory does not exist
            self.dir_hist[:] = []
        for inputs in (self.input_hist_parsed, self.input_hist_raw):
            list.clear(inputs)
            inputs.dropped = self.shell.execution_count
        self._i00 = self._i = self._ii = self._iii = ""
