"""Variables are loaded back before the receipt: a failure is reported and does not affect
others."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from client import Run
from cryo_requests import ask, reload, store, store_reply

BESIDE = (
    "import numpy as np, pandas as pd, enum\nweights = np.arange(100_000.).reshape(100, 1000); row = weights[3]\n"
    "df = pd.DataFrame({'a': range(1000), 'b': ['x'] * 1000}); history = [{'step': i, 'loss': 1 / (i + 1)} for i in range(100)]\n"
    "class Own:\n    def __init__(self): self.w = weights\n    def size(self): return self.w.size\n"
    "own = Own(); cfg = {'lr': 0.1}\ndef use(): return own.size()\nclass Color(enum.Enum):\n    RED = 1\nred = {'c': Color.RED}"
)
"""Objects that must come back, in any namespace."""
THERE = "use(), row.base is not None, int(weights[3, 1]), df.shape, history[9]['step'], cfg, red['c'] is Color(1)"
GUILTY = {
    "a template": ("import jinja2\npage = jinja2.Template('<h1>{{t}}</h1>')", "page"),
    "a template of an environment": (
        "import jinja2\npage = jinja2.Environment().from_string('{{t}}')",
        "page",
    ),
    "a struct": ("import msgspec\nclass R(msgspec.Struct):\n    a: int\nr = R(1)", "R r"),
    "a declared model": (
        "import sqlalchemy as sa, sqlalchemy.orm as orm\nBase = orm.declarative_base()\n"
        "class M(Base):\n    __tablename__ = 'm'\n    id = sa.Column(sa.Integer, primary_key=True)\nm = M(id=1)",
        "Base M m",
    ),
    "a class of attrs behind one that delegates": (
        "import attr\nclass P:\n    def __init__(self, to): self.to = to\n    def __getattr__(self, n): return getattr(self.to, n)\n"
        "p = P([1])\n@attr.define\nclass A:\n    v: int\na = A(3)",
        "",
    ),
    "a state without a field": (
        "import attr, dataclasses\n@attr.s(slots=True)\nclass S:\n    x = attr.ib()\n@attr.s\nclass A(S):\n    y = attr.ib()\ns, a = S(1), A(1, 2)\n"
        "@dataclasses.dataclass\nclass D:\n    v: int\n    w: int\n    def __getstate__(self): return {'v': self.v}\nd = D(1, 2)",
        "a d",
    ),
    "classes that answer for all": (
        "class Opt:\n    def __init__(self): self.v = 1\n    def __getattr__(self, n): return None\n"
        "class Cfg:\n    def __init__(self): self.d = {'k': 1}\n    def __getattr__(self, n): return self.d[n]\no, c = Opt(), Cfg()",
        "",
    ),
    "types of C": (
        "import ctypes\ntable = (ctypes.c_int * 3)(1, 2, 3); call = ctypes.CFUNCTYPE(ctypes.c_int)\nnumber = ctypes.c_int(7)",
        "call",
    ),
    "a reduce to what fails": (
        "class Bad:\n    def __reduce__(self): return int, ('none',)\nbad = Bad(); holder = {'h': [bad]}",
        "bad holder",
    ),
    "a ring by its hash": (
        "class K:\n    def __init__(self, k): self.k = k\n    def __hash__(self): return hash(self.k)\n    def __eq__(self, o): return self.k == o.k\n"
        "k = K(1); k.ring = {k: 1}",
        "k",
    ),
}


@pytest.mark.parametrize("title", GUILTY)
def test_an_unmade_object_does_not_affect_others(fork, tmp_path: Path, title: str) -> None:
    code, lost = GUILTY[title]
    kernel = fork(f"{code}\n{BESIDE}")
    expected = ask(kernel, THERE)
    stored = store(kernel, tmp_path / "s" / "1")
    kernel = fork()
    for rows in (stored, reload(kernel, tmp_path / "s" / "1")):
        bad = {row["name"]: row["why"] for row in rows if row["verdict"] not in ("saved", "recipe")}
        assert bad.keys() == set(lost.split()), bad
    assert ask(kernel, THERE) == expected


def test_objects_first_defined_in_a_failed_piece_come_back(fork, tmp_path: Path) -> None:
    code = (
        "import collections, decimal\nclass Bad:\n    def __init__(self, *a): self.a = a\n    def __setstate__(self, s): raise RuntimeError('never')\n"
        "bad = Bad(decimal.Decimal(1), inner := [collections.Counter('aab')], lambda: inner); seen = {'i': inner, 'f': bad.a[2]}; d = decimal.Decimal(2)"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    assert [name for name, row in rows.items() if row["verdict"] == "lost"] == ["bad"]
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, "seen['i'] is inner, seen['f']() is inner, inner, d + 1") == (
        "(True, True, [Counter({'a': 2, 'b': 1})], Decimal('3'))"
    )


def test_a_variable_that_needs_a_lost_object_names_it(fork, tmp_path: Path) -> None:
    code = (
        "class Bad:\n    def __setstate__(self, s): raise RuntimeError('never')\n"
        "first = Bad(); first.v = 1; box = {'k': [first]}; later = (box, 1); own = [Bad()]; own[0].v = 1"
    )
    rows = {row["name"]: row["why"] for row in store(fork(code), tmp_path / "s" / "1")}
    needs = "it needs `__main__.Bad`{}, which can't be made: RuntimeError: never"
    told = {"first": "RuntimeError: never", "own": needs.format("")}
    told |= dict.fromkeys(("box", "later"), needs.format(" of `first`"))
    assert {name: why for name, why in rows.items() if name != "Bad"} == told


def test_a_module_that_can_not_be_imported_again_is_found_at_the_store(
    fork, tmp_path: Path
) -> None:
    (tmp_path / "once.py").write_text(
        "import os\nif os.environ.pop('FIRST', None) is None: raise RuntimeError('only once')\n"
        "class K:\n    def __init__(self): self.v = 1\ndef f(): return 1\n"
    )
    (tmp_path / "again.py").write_text("class A: pass\n")
    kernel = fork(
        f"import os, sys; sys.path.insert(0, {str(tmp_path)!r}); os.environ['FIRST'] = '1'\n"
        "import once, types\nfrom again import A\nk = [once.K()]; f = once.f; a = A(); n = 1\n"
        "made = types.ModuleType('made'); exec('def g(): return 2', vars(made)); sys.modules['made'] = made; g = made.g"
    )
    rows = {row["name"]: row for row in store(kernel, tmp_path / "s" / "1")}
    lost = {name for name, row in rows.items() if row["verdict"] == "lost"}
    assert lost == {"once", "k", "f"}
    assert "only once" in rows["f"]["why"]
    assert ask(kernel, "once.f(), sys.modules['once'] is once, g()") == "(1, True, 2)"


def test_a_name_that_code_put_into_a_module_is_not_importable(fork, tmp_path: Path) -> None:
    kernel = fork(
        "import copyreg, json\nclass Own:\n    def get(self): return 1\nOwn.__module__ = 'json'; json.Own = Own; o = Own()\n"
        "def f(): return 5\nf.__module__ = 'json'; json.f = f\n"
        "class E: pass\ncopyreg.add_extension('__main__', 'E', 0x77); e = [E, E()]"
    )
    stored = {row["name"]: row for row in store(kernel, tmp_path / "s" / "1")}
    kernel = fork()
    back = {row["name"]: row for row in reload(kernel, tmp_path / "s" / "1")}
    assert {n: r["verdict"] for n, r in back.items()} == {
        n: r["verdict"] for n, r in stored.items()
    }


def test_a_variable_that_comes_back_different_is_altered(fork, tmp_path: Path) -> None:
    code = (
        "class Halved:\n    def __init__(self, v): self.v = v\n    def __reduce__(self): return Halved, (self.v // 2,)\n"
        "h = Halved(8); box = [{'k': [h]}]; n = 1"
    )
    kernel = fork(code)
    rows = {row["name"]: row for row in store(kernel, tmp_path / "s" / "1")}
    assert (rows["h"]["verdict"], rows["box"]["verdict"]) == ("altered", "altered")
    assert rows["box"]["why"].startswith("`box[0]['k'][0]")
    reply = store_reply(kernel, tmp_path / "s" / "2", strict=True)
    assert reply["error"]["type"] == "Losses"
    assert "`h` (" in reply["error"]["message"]
    words = json.loads((tmp_path / "s" / "1" / "manifest.json").read_text())
    told = {row["name"]: (row["verdict"], row["why"]) for row in words["variables"]}
    assert told == {name: (row["verdict"], row["why"]) for name, row in rows.items()}
    back = {row["name"]: row for row in reload(fork(), tmp_path / "s" / "1")}
    assert back == rows


SLOW = "import time\nclass Slow:\n    def __setstate__(self, s): time.sleep(60)\ns = Slow(); s.v = 1; n = 1"
FULL = """
import osctl_kernel.cryo.verify as v
def no_memory(rows): raise MemoryError
v._batch_verdicts = no_memory; n = 1
"""
DYING = "import os\nclass Dying:\n    def __setstate__(self, s): os.abort()\nd = Dying(); d.v = 1; n = 1"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (SLOW, "the verification takes more than 0.5 s"),
        (DYING, "the verification process was ended by SIGABRT"),
        (FULL, " MiB of memory"),
    ],
)
def test_a_variable_not_loaded_back_within_the_limits_is_unverified(
    fork, tmp_path: Path, code: str, why: str
) -> None:
    kernel = fork(f"{code}\nimport osctl_kernel.cryo.verify as v; v._MIN_TIMEOUT = 0.5; del v")
    began = time.monotonic()
    rows = {row["name"]: row for row in store(kernel, tmp_path / "s" / "1")}
    assert time.monotonic() - began < 20
    assert rows["n"]["verdict"] == "unverified"
    assert why in rows["n"]["why"]
    reply = store_reply(kernel, tmp_path / "s" / "2", strict=True)
    assert reply["error"]["type"] == "Losses"
    assert children(kernel.pid) == []


def test_a_thread_that_changes_a_variable_makes_it_unverified_at_most(fork, tmp_path: Path) -> None:
    kernel = fork(
        "import threading, time\nbusy, still = {'n': 0}, [1]\ndef run():\n    while True: busy['n'] += 1; busy[f'k{busy[\"n\"] % 9}'] = [busy['n']]; time.sleep(0)\n"
        "threading.Thread(target=run, daemon=True).start()"
    )
    rows = {row["name"]: row for row in store(kernel, tmp_path / "s" / "1")}
    assert rows["busy"]["verdict"] in ("saved", "unverified")
    assert rows["still"]["verdict"] == "saved"


def test_an_interrupt_ends_the_copy_too(fork, tmp_path: Path) -> None:
    kernel = fork(
        SLOW + "\nimport os; os.register_at_fork(before=lambda: print('forks', flush=True))"
    )
    folder = str(tmp_path / "s" / "1")
    words = {"name": "s", "generation": 1, "reason": "requested", "session": "default"}
    kernel.send({"type": "cryo_store", "id": "s", "folder": folder, **words})
    kernel.wait_for("forks")
    (reply,) = kernel.interrupted(Run()).of("reply")
    assert reply["error"]["type"] == "KeyboardInterrupt"
    assert children(kernel.pid) == []
    assert not list((tmp_path / "s").iterdir())


def test_the_copy_leaves_no_trace(fork, tmp_path: Path) -> None:
    kernel = fork(
        "import tempfile, os, atexit, logging\nkept = tempfile.TemporaryDirectory(); atexit.register(print, 'ended')\n"
        "class Loud:\n    def __setstate__(self, s): print('made'); os.write(1, b'raw')\n    def __del__(self): os.rmdir(kept.name)\n"
        "l = Loud(); l.v = 1; log = logging.getLogger('kept'); log.addHandler(logging.NullHandler())\n"
        "made = runtime.resource(lambda: open(kept.name + '/connected', 'x'), 'r'); live = made.get()"
    )
    store(kernel, tmp_path / "s" / "1")
    run = kernel.run("os.path.isdir(kept.name), len(log.handlers), os.listdir(kept.name)")
    assert (run.stdout, run.result) == ("", "(True, 1, ['connected'])")
    kernel.run("Loud.__del__ = lambda self: None")


def test_arrays_are_compared_without_a_further_copy(fork, tmp_path: Path) -> None:
    kernel = fork(
        "import numpy as np, os\na = np.ones(25_000_000); m = np.ones((5_000_000, 5))[:, 0]"
    )
    # The largest of all processes that were waited for: the copy shares unmodified memory.
    peak = "__import__('resource').getrusage(__import__('resource').RUSAGE_CHILDREN).ru_maxrss"
    own = "__import__('resource').getrusage(__import__('resource').RUSAGE_SELF).ru_maxrss"
    rows = store(kernel, tmp_path / "s" / "1")
    assert {row["verdict"] for row in rows} <= {"saved", "recipe"}
    # Resident are the originals and the pages of the file, but no third copy.
    assert int(ask(kernel, peak) or 0) < int(ask(kernel, own) or 0) + 2 * 240_000


def test_magics_and_views_come_back_as_they_were(fork, tmp_path: Path) -> None:
    kernel = fork(
        "from IPython.core.magic import register_line_magic, register_cell_magic\nimport numpy as np\n"
        "@register_line_magic\ndef double(line): return 2 * int(line)\n@register_cell_magic\ndef up(line, cell): return cell.upper()\n"
        "base = np.arange(1_000_000.); windows = np.lib.stride_tricks.sliding_window_view(base, 1000)\n"
        "fixed = np.arange(100_000.); fixed.flags.writeable = False"
    )
    rows = {row["name"]: row for row in store(kernel, tmp_path / "s" / "1")}
    assert rows["%double"]["verdict"] == rows["%%up"]["verdict"] == "recipe"
    assert rows["windows"]["bytes"] < 1000
    size = sum(file.stat().st_size for file in (tmp_path / "s" / "1").iterdir())
    assert size < 9_000_000
    kernel = fork()
    assert [row["verdict"] for row in reload(kernel, tmp_path / "s" / "1")] == [
        row["verdict"] for row in rows.values()
    ]
    assert kernel.run("%double 21").result == "42"
    assert kernel.run("%%up\nabc").result == "'ABC\\n'"
    probe = "base[5] = 7; float(windows[5, 0]), windows.flags.writeable, fixed.flags.writeable"
    assert ask(kernel, probe) == "(7.0, False, False)"


def children(pid: int) -> list[str]:
    return (
        Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if os.path.exists(f"/proc/{pid}/task/{pid}/children")
        else []
    )
