"""The contracts of a store and a reload, in addition to an equal namespace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from client import Run
from cryo_requests import ask, reload, reload_reply, request, store, store_reply

SAMPLES = Path(__file__).parent / "samples"


def names(rows: list[dict], verdict: str) -> set[str]:
    return {row["name"] for row in rows if row["verdict"] == verdict}


def test_ten_stores_and_reloads_keep_values_and_identities(fork, tmp_path: Path) -> None:
    code = (
        "class A:\n    def get(self): return n, self.v\na = A(); a.v = [0]; alias = a.v; n = 0\n"
        "def counter():\n    c = 0\n    def up():\n        nonlocal c\n        c += 1\n        return c\n    return up, lambda: c\n"
        "up, seen = counter()\nimport numpy as np\narr = np.zeros(20_000)"
    )
    kernel = fork(code)
    for number in range(1, 11):
        receipt = store(kernel, tmp_path / "s" / str(number))
        kernel = fork()
        back = reload(kernel, tmp_path / "s" / str(number))
        assert [row["verdict"] for row in back] == [row["verdict"] for row in receipt]
        probe = f"alias.append({number}); n = {number}; arr += 1; str(a.get()), (up(), seen(), a.v is alias, int(arr[-1]), type(a) is A)"
        values = list(range(number + 1))
        expected = f"('({number}, {values})', ({number}, {number}, True, {number}, True))"
        assert ask(kernel, probe) == expected


def test_a_store_loads_all_code_that_a_reload_needs(fork, tmp_path: Path) -> None:
    kernel = fork("import pkgutil, sys, osctl_kernel.cryo as cryo; x = 1")
    store(kernel, tmp_path / "s" / "1")
    names = "{each.name for each in pkgutil.iter_modules(cryo.__path__)}"
    missing = f"{{name for name in {names} if 'osctl_kernel.cryo.' + name not in sys.modules}}"
    before = ask(kernel, f"known = {missing}; known")
    assert reload_reply(kernel, tmp_path / "s" / "1")["error"] is None
    assert ask(kernel, missing) == before


def test_the_namespace_is_not_touched(fork, tmp_path: Path) -> None:
    kernel = fork(
        "x = [1]; __v = 2; before = dict(globals()); import sys; limit = sys.getrecursionlimit(), sys.stdout"
    )
    request(kernel, "variables")
    store(kernel, tmp_path / "s" / "1")
    probe = "{k for k in globals() if k not in before} <= {'before', 'sys', 'limit', '_i', '_ii', '_iii', '_'}"
    assert ask(kernel, probe) == "True"
    assert (
        ask(kernel, "(sys.getrecursionlimit(), sys.stdout) == limit, __import__('gc').isenabled()")
        == "(True, True)"
    )


def test_nothing_that_was_stored_is_kept_alive(fork, tmp_path: Path) -> None:
    kernel = fork(
        "import weakref, gc\nclass A: pass\na = A(); a.me = [a]; w = weakref.ref(a); gc.disable()"
    )
    store(kernel, tmp_path / "s" / "1")
    assert ask(kernel, "a.me.clear(); del a; w() is None") == "True"


def test_strict_and_dry_runs_write_nothing(fork, tmp_path: Path) -> None:
    kernel = fork("x = 1; g = (i for i in 'a')")
    reply = store_reply(kernel, tmp_path / "s" / "1", strict=True)
    assert reply["error"]["type"] == "Losses"
    assert "`g` (a generator" in reply["error"]["message"]
    rows = store(kernel, tmp_path / "s" / "1", dry_run=True)
    assert (names(rows, "saved"), names(rows, "lost")) == ({"x"}, {"g"})
    assert not list(tmp_path.glob("s/*"))


def test_every_changed_byte_is_found(fork, tmp_path: Path) -> None:
    place = tmp_path / "s" / "1"
    store(
        fork("import numpy as np\nx = ['text'] * 3; a = np.arange(9000)\ndef f(): return x"), place
    )
    kernel = fork("x = 'mine'; own = 1")
    for name in ("objects", "buffers", "manifest.json"):
        path = place / name
        whole = path.read_bytes()
        step = max(1, len(whole) // 60)
        for at in [*range(0, len(whole), step), len(whole) - 1]:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            reply = reload_reply(kernel, place)
            assert reply["error"] is not None, (name, at)
            assert reply["error"]["type"] in ("Damaged", "OtherFormat"), (name, at, reply["error"])
        for cut in (0, 1, len(whole) // 2, len(whole) - 2):
            path.write_bytes(whole[:cut])
            assert reload_reply(kernel, place)["error"]["type"] == "Damaged", (name, cut)
        path.unlink()
        assert reload_reply(kernel, place)["error"]["type"] == "Damaged"
        path.write_bytes(whole)
    assert ask(kernel, "x, own, 'f' in globals(), 'np' in globals()") == "('mine', 1, False, False)"
    reload(kernel, place)
    assert ask(kernel, "f(), own") == "(['text', 'text', 'text'], 1)"


def test_a_later_format_is_refused_by_its_number(fork, tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "1" / "1", tmp_path / "1")
    manifest = tmp_path / "1" / "manifest.json"
    kernel = fork()
    body = manifest.read_text().rpartition(',"seal"')[0].replace('"format":1', '"format":7', 1)
    code = f"import hashlib; hashlib.sha256({body!r}.encode()).hexdigest()"
    seal = (ask(kernel, code) or "").strip("'")
    manifest.write_text(f'{body},"seal":"{seal}"}}\n')
    error = reload_reply(kernel, tmp_path / "1")["error"]
    assert error["type"] == "OtherFormat"
    assert "format 7" in error["message"]


@pytest.mark.parametrize(
    "sample", sorted(SAMPLES.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_earlier_formats_are_readable(fork, sample: Path) -> None:
    kernel = fork()
    rows = reload(kernel, sample)
    assert "generator" in names(rows, "lost")
    values = "numbers['big'] == 10**40, text, alias is numbers, ring[1] is ring, row.base is array, row.tolist(), matrix.flags.f_contiguous"
    assert ask(kernel, values) == "(True, 'größe', True, True, True, [3.0, 4.0], True)"
    code = names(rows, "lost") - {"generator"}
    if ask(kernel, "import importlib.util as u; u.MAGIC_NUMBER") == recorded_with(sample):
        assert not code
        probe = "scaled(3), up(), up(), point.x, Color.RED is red['color'] is Color(1)"
        assert ask(kernel, probe) == "(3, 1, 2, 4, True)"
    else:  # functions are bytecode of one version of Python
        reasons = {row["why"] for row in rows if row["name"] in code}
        assert "its bytecode is of another version of Python" in reasons


def recorded_with(sample: Path) -> str:
    python = json.loads((sample / "manifest.json").read_text())["python"]
    return {"3.13": repr((3571).to_bytes(2, "little") + b"\r\n")}[python.rpartition(".")[0]]


def test_code_changed_after_the_store_is_reported(fork, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "lib.py").write_text(
        "class K:\n    def get(self): return 'old'\ndef f(): return 'old'\n"
    )
    (repo / "gone.py").write_text("class G: pass\n")
    code = f"import sys; sys.path.insert(0, {str(repo)!r})\nimport lib\nfrom lib import f\nfrom gone import G\nk = lib.K(); ks = [k]; g = G(); n = 1"
    rows = store(fork(code), tmp_path / "s" / "1")
    assert names(rows, "lost") == set()
    value = reload_reply(fork(), tmp_path / "s" / "1")["value"]
    assert (value["warnings"], names(value["receipt"], "lost")) == ([], set())
    (repo / "lib.py").write_text(
        "class K:\n    def get(self): return 'new, and longer'\ndef f(): return 'new'\n"
    )
    (repo / "gone.py").unlink()
    kernel = fork()
    value = reload_reply(kernel, tmp_path / "s" / "1")["value"]
    told = {row["name"]: row for row in value["receipt"]}
    assert len(value["warnings"]) == 2
    for name in ("lib", "f", "k"):
        assert "lib.py` has changed since it was stored" in told[name]["why"], told[name]
    assert (told["g"]["verdict"], told["G"]["verdict"], told["n"]["verdict"]) == (
        "lost",
        "lost",
        "saved",
    )
    assert "`gone`, which can't be imported" in told["G"]["why"]
    assert ask(kernel, "k.get(), f(), ks[0] is k, n") == "('new, and longer', 'new', True, 1)"


def test_a_lost_variable_affects_only_its_dependents(fork, tmp_path: Path) -> None:
    code = (
        "import numpy as np\nshared = ['s']\n"
        "class Bad:\n    def __init__(self, *a): self.a = a\n    def __setstate__(self, s):\n        if fail: raise RuntimeError('never')\n        self.__dict__.update(s)\n"
        "fail = False\nfirst = np.arange(9000); before = [shared]; bad = Bad(inner := ['inner'], np.ones(9000)); uses = [inner]; after = {'k': [shared, (1, 2)]}; last = np.ones(9000); again = last; text = 't' * 70000"
    )
    kernel = fork(code)
    kernel.run("fail = True")
    store(kernel, tmp_path / "s" / "1")
    kernel = fork()
    rows = {row["name"]: row for row in reload(kernel, tmp_path / "s" / "1")}
    assert rows["bad"]["verdict"] == "lost"
    assert rows["bad"]["why"] == "RuntimeError: never"
    lost = {name for name, row in rows.items() if row["verdict"] == "lost"} - {"bad"}
    assert lost <= {"inner", "uses"}  # its parts are shared with a later variable
    probe = "before[0] is shared is after['k'][0], after['k'][1], first[-1], last.sum(), again is last, len(text)"
    assert ask(kernel, probe) == "(True, (1, 2), np.int64(8999), np.float64(9000.0), True, 70000)"


def test_an_interrupt_leaves_the_namespace_as_it_was(fork, tmp_path: Path) -> None:
    store(
        fork(
            "import time\nclass Slow:\n    def __setstate__(self, s): print('here', flush=True); time.sleep(60)\na = 1; s = Slow(); s.x = 1; z = 2"
        ),
        tmp_path / "s" / "1",
    )
    kernel = fork("a = 'mine'")
    kernel.send({"type": "cryo_reload", "id": "r", "folder": str(tmp_path / "s" / "1")})
    kernel.wait_for("here")
    (reply,) = kernel.interrupted(Run()).of("reply")
    assert reply["error"]["type"] == "KeyboardInterrupt"
    assert ask(kernel, "a, 'Slow' in globals(), 's' in globals()") == "('mine', False, False)"


def test_memory_is_not_doubled(fork, tmp_path: Path) -> None:
    kernel = fork("import numpy as np, resource\na = np.ones(12_500_000); raw = bytes(25_000_000)")
    peak = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
    before = int(ask(kernel, peak) or 0)
    store(kernel, tmp_path / "s" / "1")
    assert int(ask(kernel, peak) or 0) - before < 15_000  # KiB, of 125 MB
    kernel = fork("import resource, numpy")
    before = int(ask(kernel, peak) or 0)
    reload(kernel, tmp_path / "s" / "1")
    assert int(ask(kernel, peak) or 0) - before < 125_000_000 * 1.2 / 1024


def test_compressed_and_plain_are_the_same(fork, tmp_path: Path) -> None:
    code = "import numpy as np\nz = np.zeros(100_000); r = np.random.default_rng(1).random(20_000); t = 'x' * 100_000; e = np.empty(0)"
    kernel = fork(code)
    for number, compress in ((1, False), (2, True)):
        store(kernel, tmp_path / "s" / str(number), compress=compress)
        other = fork()
        reload(other, tmp_path / "s" / str(number))
        assert ask(other, "z.sum(), r.sum(), len(t), e.size") == ask(
            kernel, "z.sum(), r.sum(), len(t), e.size"
        )
    sizes = [sum(f.stat().st_size for f in (tmp_path / "s" / n).iterdir()) for n in "12"]
    assert sizes[1] < sizes[0] / 4
    path = tmp_path / "s" / "2" / "objects"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert reload_reply(fork(), tmp_path / "s" / "2")["error"]["type"] == "Damaged"


def test_read_progress_is_in_bytes_on_disk(fork, tmp_path: Path) -> None:
    place = tmp_path / "s" / "1"
    store(fork("import numpy as np\nz = np.zeros(1_000_000)"), place, compress=True)
    kernel = fork(
        "from pathlib import Path\nfrom osctl_kernel.cryo import manifest\nfrom osctl_kernel.cryo.disk import Piece\nfrom osctl_kernel.cryo.reader import Reader\n"
        f"folder = Path({str(place)!r}); words = manifest.read_manifest(folder); size = words['files']['buffers']; moved = []\n"
        "reader = Reader(folder / 'buffers', size, moved.append, True)\n"
        "raw = sum(len(reader.read_piece(Piece(*each[:4]))) for each in words['buffers'])"
    )
    assert ask(kernel, "raw, sum(moved) == size, size < 100_000") == "(8000000, True, True)"


def test_the_cell_count_continues(fork, tmp_path: Path) -> None:
    kernel = fork("def f(): 1 / 0")
    for _ in range(4):
        kernel.run("1")
    store(kernel, tmp_path / "s" / "1")
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    run = kernel.run("f()")
    assert run.of("done")[0]["execution_count"] == 6
    assert "def f(): 1 / 0" in run.traceback


def test_submodules_that_cells_have_imported_come_back(fork, tmp_path: Path) -> None:
    kernel = fork(
        "import wsgiref.headers, xml.dom.minidom\ndef f(): return wsgiref.headers.Headers"
    )
    probe = "f().__name__, xml.dom.minidom.parseString('<a/>').documentElement.tagName"
    for number in (1, 2):  # the second process has no cell that names it
        folder = tmp_path / "s" / str(number)
        store(kernel, folder)
        kernel = fork()
        reload(kernel, folder)
    assert ask(kernel, probe) == "('Headers', 'a')"


def test_a_variable_that_differs_at_a_reload_is_altered_and_stays(fork, tmp_path: Path) -> None:
    module = tmp_path / "lib.py"
    text = (
        "class L(list):\n    def __reduce__(self): return make, ()\ndef make(): return L([1, 2])\n"
    )
    module.write_text(text)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport lib\nx = lib.make(); y = [3]"
    folder = tmp_path / "s" / "1"
    stored = {row["name"]: row["verdict"] for row in store(fork(code), folder)}
    assert (stored["x"], stored["y"]) == ("saved", "saved")
    module.write_text(text.replace("[1, 2]", "[1]"))
    fresh = fork()
    rows = {row["name"]: row for row in reload(fresh, folder)}
    assert (rows["x"]["verdict"], rows["x"]["why"]) == ("altered", "its len is 1 and was 2")
    assert rows["y"]["verdict"] == "saved"
    assert ask(fresh, "list(x), y") == "([1], [3])"


def test_a_reload_leaves_the_own_value_of_a_lost_variable_and_says_so(fork, tmp_path: Path) -> None:
    kernel = fork("rows = (n for n in range(3))")
    folder = tmp_path / "s" / "1"
    why = store(kernel, folder)[0]["why"]
    told = [(row["verdict"], row["why"]) for row in reload(kernel, folder)]
    assert told == [("lost", f"{why}; the kernel keeps its own value of that name")]
    assert ask(kernel, "next(rows)") == "0"
    assert [row["why"] for row in reload(fork(), folder)] == [why]
