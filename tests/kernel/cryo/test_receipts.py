"""The report of each variable, and the effect of a lost variable on others."""

from __future__ import annotations

from pathlib import Path

import pytest

from cryo_requests import ask, reload, store

NEVER = "class Bad:\n    def __init__(self): self.v = 1\n    def __setstate__(self, s): raise RuntimeError('never')\n"


def test_removing_an_object_copies_no_large_memo(fork, tmp_path: Path) -> None:
    kernel = fork(
        "import osctl_kernel.cryo.stream as stream\nclass Many: pass\nmany = Many(); many.all = [{'i': i} for i in range(100_000)]\n"
        "cuts = []; real = stream.Stream._cut_back\n"
        "def cut(self, first, *more): cuts.append(first); real(self, first, *more)\n"
        "stream.Stream._cut_back = cut\nfor n in range(30): globals()[f'zz{n}'] = [many, (i for i in [])][::-1]\nlast = many.all[-1]"
    )
    rows = {row["name"]: row for row in store(kernel, tmp_path / "s" / "1")}
    assert {rows[f"zz{n}"]["verdict"] for n in range(30)} == {"lost"}
    assert "`zz7[0]` is a generator" in rows["zz7"]["why"]
    assert ask(kernel, "sum(place > 100_000 for place in cuts) <= 1") == "True"  # of 30
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, "len(many.all), last is many.all[-1]") == "(100000, True)"


def test_a_partly_made_object_is_not_restored(fork, tmp_path: Path) -> None:
    code = (
        "import numpy as np\n"
        + NEVER
        + "bad = Bad(); holder = [bad]; boxed = np.array([bad, 1], dtype=object)\n"
        "whole = {'w': 1}; big = [whole, [5, Bad(), 6]]; mid = big[1]; fine = [whole]"
    )
    store(fork(code), tmp_path / "s" / "1")
    kernel = fork()
    rows = {row["name"]: row for row in reload(kernel, tmp_path / "s" / "1")}
    lost = {name for name, row in rows.items() if row["verdict"] == "lost"}
    assert lost == {"bad", "holder", "boxed", "big", "mid"}
    assert (
        ask(kernel, "[n for n in ('bad', 'holder', 'boxed', 'big', 'mid') if n in globals()]")
        == "[]"
    )
    assert ask(kernel, "fine, whole is fine[0]") == "([{'w': 1}], True)"


@pytest.mark.parametrize("first", ["head", "tail"])
def test_a_ring_that_could_not_be_made_is_lost_in_one_pass(
    fork, tmp_path: Path, first: str
) -> None:
    code = NEVER + (
        "class Node:\n    def __init__(self, n): self.next, self.back = n, None\n"
        "tail = head = Bad(); tail.back = None\nfor i in range(20_000): head = Node(head); head.next.back = head\n"
        f"nodes = {first}; del head, tail; free = [1]\n"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    assert (rows["nodes"]["verdict"], rows["free"]["verdict"]) == ("lost", "saved")
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, "free, 'nodes' in globals()") == "([1], False)"


def test_a_held_lock_comes_back_free_and_is_reported(fork, tmp_path: Path) -> None:
    kernel = fork(
        "import threading\nl = threading.Lock(); r = threading.RLock(); mine = threading.RLock(); mine.acquire(); free = threading.Lock()\n"
        "ready, end = threading.Event(), threading.Event()\nclass Box:\n    def __init__(self): self.lock, self.n = r, 1\nbox = {'deep': Box()}\n"
        "def hold():\n    with l, r: ready.set(); end.wait()\nt = threading.Thread(target=hold, daemon=True); t.start(); _ = ready.wait()"
    )
    rows = {row["name"]: row for row in store(kernel, tmp_path / "s" / "1")}
    told = {name: (rows[name]["verdict"], rows[name]["why"]) for name in ("l", "mine", "free")}
    free = "a free lock: its holder no longer exists"
    assert told == {"l": ("recipe", free), "mine": ("saved", None), "free": ("saved", None)}
    notes = [rows["box"]["why"], rows["r"]["why"]]
    assert any(note and "free" in note for note in notes), notes
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    probe = "l.acquire(False), r.acquire(False), box['deep'].lock is r, mine._is_owned()"
    assert ask(kernel, probe) == "(True, True, True, True)"


def test_a_filled_cache_is_reported(fork, tmp_path: Path) -> None:
    code = "import functools\n@functools.cache\ndef get(n): return [n]\nclass A:\n    one = functools.cache(lambda n: n)\nget(1); A.one(2); a = A(); box = [get]\ndef plain(): return get(1)"
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    assert {(rows[name]["verdict"], rows[name]["why"]) for name in ("get", "A", "box")} == {
        ("altered", "with an empty cache")
    }
    assert {rows["a"]["verdict"], rows["plain"]["verdict"]} == {"saved"}


def test_each_variable_that_holds_an_altered_object_says_so(fork, tmp_path: Path) -> None:
    code = (
        "import threading, weakref\nclass A: pass\n"
        "lock = threading.Lock(); _ = lock.acquire(); in_list = [lock]; other = {'l': lock, 'n': 1}\n"
        "gone = [A(), (i for i in 'a')]; ref = weakref.ref(gone[0]); refs = [ref]; same = [refs]; free = [threading.Lock()]"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    told = {name: (row["verdict"], row["why"]) for name, row in rows.items()}
    freed = ("altered", "a lock in it comes back free: its holder no longer exists")
    dead = ("altered", "without objects that no saved variable holds")
    assert told["lock"] == ("recipe", "a free lock: its holder no longer exists")
    assert told["in_list"] == told["other"] == freed
    assert told["refs"] == told["same"] == dead
    assert told["ref"] == ("lost", "it refers to an object that no saved variable holds")
    assert told["free"] == ("saved", None)
    kernel = fork()
    back = {row["name"]: row["verdict"] for row in reload(kernel, tmp_path / "s" / "1")}
    assert [back[name] for name in ("lock", "in_list", "refs")] == ["recipe", "altered", "altered"]


def test_a_weak_reference_among_too_many_objects_is_unverified(fork, tmp_path: Path) -> None:
    code = (
        "import weakref\nimport osctl_kernel.cryo.weakrefs as w; w._MAX_OBJECTS = 100; del w\nclass A: pass\n"
        "gone = [A(), (i for i in 'a')]; ref = weakref.ref(gone[0]); refs = {'r': weakref.ref(gone[0])}\n"
        "many = [[n] for n in range(1000)]; kept = A(); fine = weakref.ref(kept)"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    reason = "whether a variable holds the object of a weak reference was not checked"
    for name in ("ref", "refs"):
        assert (rows[name]["verdict"], rows[name]["why"]) == ("unverified", reason)
    assert {rows["fine"]["verdict"], rows["many"]["verdict"]} == {"saved"}


@pytest.mark.parametrize(
    "said",
    ["postgres://me:hunter2@db/x", "password=hunter2", "Bearer hunter2", "API_TOKEN: hunter2"],
)
def test_a_receipt_holds_no_secret_of_an_exception(fork, tmp_path: Path, said: str) -> None:
    code = (
        "class Bad:\n    def __reduce__(self): raise ConnectionError('no way to SAID, sorry\\nhunter2 ' + 'x' * 999)\n"
        "class Late:\n    def __init__(self): self.v = 1\n    def __setstate__(self, s): raise ConnectionError('no way to SAID, sorry')\n"
        "bad = Bad(); late = Late()"
    ).replace("SAID", said)
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    back = {row["name"]: row for row in reload(fork(), tmp_path / "s" / "1")}
    for why in (rows["bad"]["why"], back["late"]["why"]):
        assert why.startswith("ConnectionError: no way to "), why
        assert "hunter2" not in why, why
        assert len(why) < 150, why


def test_code_edited_after_its_import_is_reported(fork, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "edited.py").write_text("def f(): return 1\nclass K:\n    def m(self): return 'old'\n")
    (repo / "same.py").write_text("def g(): return 1\n")
    kernel = fork(
        f"import sys; sys.path.insert(0, {str(repo)!r})\nfrom edited import f, K\nfrom same import g\nk = K()"
    )
    (repo / "edited.py").write_text("def f(): return 2\nclass K:\n    def m(self): return 'new'\n")
    store(kernel, tmp_path / "s" / "1")
    rows = {row["name"]: row for row in reload(fork(), tmp_path / "s" / "1")}
    for name in ("f", "K", "k"):
        assert "edited.py` has changed since it was imported" in rows[name]["why"], rows[name]
    assert rows["g"]["why"] is None


def test_the_memory_of_a_file_that_got_shorter_is_lost(fork, tmp_path: Path) -> None:
    path = tmp_path / "data"
    kernel = fork(f"import numpy as np\nm = np.memmap({str(path)!r}, 'i4', 'w+', shape=(1000,))")
    store(kernel, tmp_path / "s" / "1", files=True)
    path.write_bytes(b"1234")
    rows = {row["name"]: row for row in reload(fork(), tmp_path / "s" / "1")}
    assert (rows["m"]["verdict"], rows["m"]["why"]) == ("lost", f"`{path}` is shorter than it was")
    assert path.read_bytes() == b"1234"


def test_a_weak_reference_whose_object_can_not_be_made_is_not_called_saved(
    fork, tmp_path: Path
) -> None:
    code = (
        NEVER
        + "import weakref\nclass A: pass\na = A(); hold = [Bad(), a]; w = weakref.ref(a); del a"
    )
    stored = store(fork(code), tmp_path / "s" / "1")
    for some in (stored, reload(fork(), tmp_path / "s" / "1")):
        rows = {row["name"]: row for row in some}
        assert {rows["hold"]["verdict"], rows["w"]["verdict"]} == {"lost"}


def test_a_weak_reference_in_a_container_is_reported_when_nothing_holds_its_object(
    fork, tmp_path: Path
) -> None:
    code = (
        "import threading, weakref\nclass A:\n    def m(self): pass\n"
        "kept, gone = A(), A(); both = [weakref.ref(kept), weakref.ref(gone)]\n"
        "hold = [gone, (i for i in 'a')]; fine = {'r': weakref.ref(kept), 's': weakref.WeakSet([kept, A])}\n"
        "by = {'v': weakref.WeakValueDictionary({1: gone})}; bound = [weakref.WeakMethod(gone.m)]; del gone\n"
        "box, ready, end = [], threading.Event(), threading.Event()\n"
        "def run():\n    mine = A(); box.append(weakref.proxy(mine)); ready.set(); end.wait()\n"
        "threading.Thread(target=run, daemon=True).start(); _ = ready.wait()"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    assert rows["hold"]["verdict"] == "lost"
    for name in ("both", "by", "bound", "box"):
        told = (rows[name]["verdict"], rows[name]["why"])
        assert told == ("altered", "without objects that no saved variable holds"), name
    assert (rows["fine"]["verdict"], rows["fine"]["why"]) == ("saved", None)
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, "both[0]() is kept, both[1](), len(fine['s'])") == "(True, None, 2)"


def test_losses_of_an_exception_are_reported(fork, tmp_path: Path) -> None:
    code = (
        "import math\nclass Big: pass\nbig = Big()\n"
        "def fail(of):\n    try: of.missing\n    except AttributeError as e: return e\n"
        "light, heavy = fail(math), [fail(big)]; plain = AttributeError('made', name='x')"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    assert rows["light"]["why"] == "without its traceback"
    missing = "without the object whose attribute was missing"
    assert rows["heavy"]["why"] == f"without its traceback; {missing}"
    assert rows["plain"]["why"] is None
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    probe = "light.obj is math, light.name, heavy[0].name, heavy[0].obj, plain.name"
    assert ask(kernel, probe) == "(True, 'missing', 'missing', None, 'x')"


def test_a_kind_that_comes_back_with_another_content_is_altered(fork, tmp_path: Path) -> None:
    code = (
        "class D(dict):\n    def __setitem__(self, k, v): super().__setitem__(k, v + 1)\n    def __reduce__(self): return D, (), None, None, iter(list(dict.items(self)))\n"
        "class S(set):\n    def __reduce__(self): return S, ([1, 2, 3],)\nclass T(str):\n    def __reduce__(self): return T, ('other',)\n"
        "d = D(a=1); s = S([1]); t = T('this'); class_ = D; same = T('other')"
    )
    stored = store(fork(code), tmp_path / "s" / "1")
    for some in (stored, reload(fork(), tmp_path / "s" / "1")):
        told = {row["name"]: row["why"] for row in some if row["verdict"] == "altered"}
        assert told.keys() == set("dst"), told
        assert all(" came back with " in why for why in told.values()), told


def test_a_lock_is_not_released_to_count_its_holds(fork, tmp_path: Path) -> None:
    kernel = fork(
        "import threading\nr = threading.RLock(); _ = [r.acquire() for _ in range(3)]; inside = []\n"
        "def wait():\n    with r: inside.append(1)\nthreading.Thread(target=wait, daemon=True).start()\n"
        "import osctl_kernel.cryo.make as make, osctl_kernel.cryo.recipes as recipes\n"
        "let_go = []; kind = type(r)\nclass Watched:\n    def __init__(self, lock): self.lock = lock\n    def __repr__(self): return repr(self.lock)\n"
        "    def _is_owned(self): return True\n    def release(self): let_go.append(1); self.lock.release()\n    def acquire(self): self.lock.acquire()\n"
        "told = recipes.Recipes.reduce_rlock(type('R', (), {'_notes': []})(), Watched(r))"
    )
    assert ask(kernel, "told[0] is make.rlock, told[1], let_go, inside") == "(True, (3,), [], [])"
    store(kernel, tmp_path / "s" / "1")
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, "[r.release() for _ in range(3)], r._is_owned()") == (
        "([None, None, None], False)"
    )
