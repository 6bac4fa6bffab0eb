"""The limits of the check's process: an object that meets them is unverified, not lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from cryo_requests import ask, reload, store

LITTLE_MEMORY = "import osctl_kernel.cryo.verify as v; v._free_memory = lambda: 50 << 20; del v\n"
FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"


@pytest.mark.parametrize(
    ("code", "probe"),
    [
        (LITTLE_MEMORY + "import numpy as np\na = np.ones(15_000_000); n = 1", "a.sum(), n"),
        (
            FEW_FILES
            + "import numpy as np\nmany = [np.full(10_000, i) for i in range(200)]; n = 1",
            "len(many), many[199][0], n",
        ),
    ],
)
def test_large_arrays_are_checked_within_the_limits(
    fork, tmp_path: Path, code: str, probe: str
) -> None:
    kernel = fork(code)
    expected = ask(kernel, probe)
    rows = {
        row["name"]: (row["verdict"], row["why"]) for row in store(kernel, tmp_path / "s" / "1")
    }
    assert {row[0] for row in rows.values()} <= {"saved", "recipe"}, rows
    kernel = fork("import numpy as np")
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, probe) == expected
