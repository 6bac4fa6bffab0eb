"""Memory: the cost of a store, and memory that changes during a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cryo_requests import ask, reload, reload_reply, store, store_reply

PEAK = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"


def test_memory_that_changes_while_it_is_stored_can_be_reloaded(fork, tmp_path: Path) -> None:
    # Memory that changes between the checksum of a part and its write, as a thread would do.
    kernel = fork(
        "import numpy as np, os\na = np.zeros(4_000_000); precious = {'work': 1}; real = os.write\n"
        "def write(fd, data):\n    a[:] += 1\n    return real(fd, data)\nos.write = write"
    )
    reply = store_reply(kernel, tmp_path / "s" / "1")
    assert reply["error"] is None
    kernel = fork()
    assert reload_reply(kernel, tmp_path / "s" / "1")["error"] is None
    assert ask(kernel, "precious, a.size") == "({'work': 1}, 4000000)"


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("wide = np.ones((2_500_000, 5)); a = wide.T[:, ::2]; del wide", 100_000_000),
        ("a = np.ones((1000, 1250, 80))[:, :, ::8]", 100_000_000),
        ("a = np.ones((1000, 1250, 10)).transpose(1, 0, 2)", 100_000_000),
        ("import array; a = array.array('d', bytes(100_000_000))", 100_000_000),
        ("import pandas as pd; a = pd.DataFrame(np.ones((2_500_000, 5)))", 100_000_000),
    ],
)
@pytest.mark.parametrize("compress", [False, True])
def test_no_kind_of_array_is_doubled(
    fork, tmp_path: Path, code: str, more: int, compress: bool
) -> None:
    kernel = fork("import numpy as np, resource\n" + code)
    before = int(ask(kernel, PEAK) or 0)
    total = ask(kernel, "sum(map(float, np.asarray(a).flat[:1000]))")
    store(kernel, tmp_path / "s" / "1", compress=compress)
    assert int(ask(kernel, PEAK) or 0) - before < 40_000  # KiB
    kernel.run("del a")  # both do not fit into a small container
    kernel = fork("import resource, numpy as np, pandas")
    before = int(ask(kernel, PEAK) or 0)
    reload(kernel, tmp_path / "s" / "1")
    assert int(ask(kernel, PEAK) or 0) - before < more * 1.2 / 1024
    assert ask(kernel, "sum(map(float, np.asarray(a).flat[:1000]))") == total
