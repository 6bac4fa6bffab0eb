"""Memory that several objects use: it stays shared, or the receipt says so."""

from __future__ import annotations

from pathlib import Path

from cryo_requests import ask, reload, store

VIEWS = (
    "import numpy as np\n"
    "d = {'base': np.arange(1000.)}; d['v'] = d['base'][:10]\n"
    "class A:\n    def __init__(self): self.buf = np.zeros(10_000); self.head = self.buf[:5]\n"
    "a = A(); base = np.arange(10_000.); parts = [base[:10], base[:10], base[5:15]]; del base\n"
    "X = np.arange(100_000.).reshape(1000, 100); folds = {'train': X[:100], 'column': X[:, 3]}\n"
    "items = {'o': np.array([[1], [2]] * 50, dtype=object)}; items['v'] = items['o'][:3]\n"
    "raw = bytearray(1000); seen = {'v': np.frombuffer(raw, 'u1')[:5]}\n"
    "alone = [np.arange(100_000.)[:10]]; masked = [np.ma.array(np.arange(100_000.))[:5]]\n"
    "texts = np.array(['x', 'yy'] * 50, dtype=np.dtypes.StringDType()); copied = [texts[:2]]"
)
SHARED = (
    "np.shares_memory(d['base'], d['v']), np.shares_memory(a.buf, a.head), np.shares_memory(*parts[:2]), "
    "np.shares_memory(*parts[1:]), np.shares_memory(X, folds['train']), np.shares_memory(X, folds['column']), "
    "np.shares_memory(items['o'], items['v']), np.shares_memory(np.frombuffer(raw, 'u1'), seen['v'])"
)


def test_views_anywhere_in_variables_share_memory_or_are_altered(fork, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in store(fork(VIEWS), tmp_path / "s" / "1")}
    altered = {row["name"]: row["why"] for row in rows.values() if row["verdict"] == "altered"}
    assert altered == {"copied": "`copied[0]` is no longer a view of the same memory"}
    assert rows["alone"]["bytes"] < 1000  # not the memory that nothing else uses
    assert rows["masked"]["bytes"] < 3000
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, SHARED) == str((True,) * 8)


def test_columns_that_pandas_copies_before_a_write_are_stored_alone(fork, tmp_path: Path) -> None:
    code = (
        "import numpy as np, pandas as pd\nindex = pd.Index(np.arange(5)); s = pd.Series(index, copy=False)\n"
        "wide = pd.DataFrame(np.ones((10_000, 20))); column = wide[3]; keys = wide.set_index(4).index"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    assert {row["verdict"] for row in rows.values()} <= {"saved", "recipe"}
    assert max(rows[name]["bytes"] for name in ("column", "keys")) < 100_000
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    probe = "s.__setitem__(0, 9), int(index[0]), column.sum() == keys.size == 10_000"
    assert ask(kernel, probe) == "(None, 0, True)"


FOREIGN = """
import ctypes, io, mmap
import numpy as np
from multiprocessing.shared_memory import SharedMemory
c, mapped, stream = (ctypes.c_double * 100)(), mmap.mmap(-1, 8000), io.BytesIO(b'abc' * 100)
block = SharedMemory(create=True, size=800); block.unlink()
by_c, in_c, by_map = np.ctypeslib.as_array(c), {'v': np.frombuffer(c)[:5]}, np.frombuffer(mapped, 'u1')
by_stream, by_block = np.frombuffer(stream.getbuffer(), 'u1'), np.ndarray((100,), buffer=block.buf)
whole = np.ones(100); by_view = np.frombuffer(memoryview(whole))
alone_c, alone_stream = np.ctypeslib.as_array((ctypes.c_double * 9)()), np.frombuffer(io.BytesIO(b'ab').getbuffer(), 'u1')
fixed, alone_view = np.frombuffer(b'abc', 'u1'), np.frombuffer(memoryview(np.ones(3)))
"""


def test_arrays_over_memory_that_is_not_stored_with_them_are_altered(fork, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in store(fork(FOREIGN), tmp_path / "s" / "1")}
    altered = {row["name"]: row["why"] for row in rows.values() if row["verdict"] == "altered"}
    no_longer = "no longer shares its memory with a"
    assert altered == {
        "by_c": f"it {no_longer} `__main__.c_double_Array_100`",
        "in_c": f"`in_c['v']` {no_longer} `__main__.c_double_Array_100`",
        "by_map": f"it {no_longer} `mmap.mmap`",
        "by_stream": f"it {no_longer} `_io.BytesIO`",
        "by_block": f"it {no_longer} `mmap.mmap`",
        "by_view": f"it {no_longer} `numpy.ndarray`",
    }
    others = ("alone_c", "alone_stream", "fixed", "alone_view", "whole")
    assert {rows[name]["verdict"] for name in others} == {"saved"}


def test_an_array_under_columns_that_are_stored_alone_is_altered(fork, tmp_path: Path) -> None:
    code = (
        "import numpy as np, pandas as pd\n"
        "base = np.ones((1000, 3)); df = pd.DataFrame(base, copy=False); s = df[0]\n"
        "a = np.arange(1000.); b = pd.Series(a, copy=False); c = b[10:20]; part = {'p': a[:900]}\n"
        "own = pd.DataFrame({'x': np.ones(10), 'y': ['a'] * 10}); x = own['x']; v = x.values; n = own.to_numpy()\n"
        "keys = np.arange(5); index = pd.Index(keys); t = pd.Series(pd.date_range('2026', periods=5)); w = t.values\n"
        "alone = np.ones((10, 3)); over = pd.DataFrame(alone, copy=False)"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    altered = {row["name"]: row["why"] for row in rows.values() if row["verdict"] == "altered"}
    no_longer = "no longer shares its memory with an object of pandas"
    assert altered == {
        "base": f"it {no_longer}",
        "a": f"it {no_longer}",
        "part": f"`part['p']` {no_longer}",
    }
