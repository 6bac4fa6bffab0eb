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


UNMADE = """
import os
PARENT = os.getpid()
class Device:
    def __init__(self): self.v = [1, 2]
    def __setstate__(self, state):
        if os.getppid() == PARENT: raise RuntimeError('can not re-initialize in a forked process')
        self.__dict__.update(state)
class Shy(Device):
    def __setstate__(self, state):
        if os.getppid() == PARENT: raise RuntimeError('refused')
        self.__dict__.update(state)
class Greedy(Device):
    def __setstate__(self, state):
        if os.getppid() == PARENT: bytearray(1 << 50)
        self.__dict__.update(state)
class Full(Device):
    def __setstate__(self, state):
        if os.getppid() == PARENT: raise MemoryError('of its own')
        self.__dict__.update(state)
class Hungry:
    def __init__(self): self.v = [1, 2]
    def __getstate__(self):
        if os.getppid() == PARENT: raise MemoryError('to compare')
        return self.__dict__
device = Device(); holder = {'d': device, 'rest': [3]}; shy = Shy(); greedy = Greedy(); full = Full(); hungry = Hungry(); n = 1
never = []
"""


def test_an_object_that_only_the_check_could_not_make_is_restored(fork, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in store(fork(UNMADE), tmp_path / "s" / "1")}
    refused = "RuntimeError: can not re-initialize in a forked process"
    expected = {
        "device": ("unverified", f"the check could not make it: {refused}"),
        "holder": (
            "unverified",
            "the check could not make it: it needs `__main__.Device` of `device`, which can't be made: "
            + refused,
        ),
        "shy": ("lost", "RuntimeError: refused"),
        "greedy": ("unverified", "the check could not make it: MemoryError"),
        "full": ("unverified", "the check could not make it: MemoryError: of its own"),
        "hungry": ("unverified", "it could not be compared: MemoryError: to compare"),
        "n": ("saved", None),
        "never": ("saved", None),
    }
    assert {name: (rows[name]["verdict"], rows[name]["why"]) for name in expected} == expected
    kernel = fork()
    back = {row["name"]: row for row in reload(kernel, tmp_path / "s" / "1")}
    expected["shy"] = ("unverified", "the check could not make it: RuntimeError: refused")
    assert {name: (back[name]["verdict"], back[name]["why"]) for name in expected} == expected
    probe = "device.v, holder['d'] is device, shy.v, greedy.v, full.v, hungry.v, n"
    assert ask(kernel, probe) == "([1, 2], True, [1, 2], [1, 2], [1, 2], [1, 2], 1)"
