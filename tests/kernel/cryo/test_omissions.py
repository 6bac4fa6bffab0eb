"""What the classes of the user leave out of their state: the receipt names the attribute."""

from __future__ import annotations

from pathlib import Path

from cryo_requests import ask, reload, store

CODE = """
import functools
class Q:
    def __init__(self): self.a, self.cache = 1, {'x': 1}
    def __getstate__(self): return {'a': self.a}
class P:
    __slots__ = ('a', 'b')
    def __init__(self): self.a, self.b = 1, 2
    def __getstate__(self): return (None, {'a': self.a})
class R:
    def __init__(self, v): self.v = v
    def __reduce__(self): return R, (self.v,)
class Again:
    def __init__(self): self.a, self.lock = 1, [2]
    def __getstate__(self): return {'a': self.a}
    def __setstate__(self, state): self.a, self.lock = state['a'], [2]
class Lazy:
    def __init__(self): self.a = 1
    def __getstate__(self): return {'a': self.a}
    @functools.cached_property
    def b(self): return [self.a]
q, p, r, again, lazy = Q(), P(), R(1), Again(), Lazy()
r.extra = 1; lazy.b; box = {'k': [q]}; inside = [R(2)]
"""


def test_an_attribute_that_a_class_leaves_out_is_named(fork, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in store(fork(CODE), tmp_path / "s" / "1")}
    altered = {row["name"]: row["why"] for row in rows.values() if row["verdict"] == "altered"}
    assert altered == {
        "q": "it came back without its attribute `cache`",
        "p": "it came back without its attribute `b`",
        "r": "it came back without its attribute `extra`",
        "box": "`box['k'][0]` came back without its attribute `cache`",
    }
    assert {rows[name]["verdict"] for name in ("again", "lazy", "inside")} == {"saved"}


RESET = """
import dataclasses, pandas as pd
class Dropped:
    def __init__(self): self.a, self.conn = 1, [1, 2]
    def __getstate__(self): return self.__dict__ | {'conn': None}
class Default:
    def __init__(self): self.v = [1]
    def __reduce__(self): return Default, ()
class Stateless:
    def __new__(cls, v=1): made = super().__new__(cls); made.v = [v]; return made
    def __getnewargs__(self): return (1,)
    def __getstate__(self): return None
@dataclasses.dataclass
class Fields:
    a: int
    b: list
    def __getstate__(self): return {'a': self.a, 'b': []}
class Error(Exception):
    def __reduce__(self): return Error, (1,)
class Slots:
    __slots__ = ('n',)
    def __init__(self, n=1): self.n = n
    def __reduce__(self): return Slots, ()
class Set(set):
    def __reduce__(self): return Set.of, (list(self),)
    @classmethod
    def of(cls, items): made = cls(items); made.v = []; return made
dropped, default, stateless, fields = Dropped(), Default(), Stateless(8), Fields(1, [2])
error, slots, same, items = Error(5), Slots(2), Default(), Set([1])
default.v = [5]; items.v = [6]; frame = pd.DataFrame({'o': [same, default]}); box = {'k': [fields]}
"""


def test_an_attribute_that_a_class_changes_is_named(fork, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in store(fork(RESET), tmp_path / "s" / "1")}
    altered = {row["name"]: row["why"] for row in rows.values() if row["verdict"] == "altered"}
    assert altered.pop("frame").endswith("came back with another value")
    assert altered == {
        "dropped": "`dropped.conn` came back as `NoneType`",
        "default": "`default.v` came back with another value",
        "stateless": "`stateless.v` came back with another value",
        "fields": "`fields.b` came back with 0 items instead of 1",
        "error": "`error.args` came back with another value",
        "slots": "`slots.n` came back with another value",
        "items": "`items.v` came back with 0 items instead of 1",
        "box": "`box['k'][0].b` came back with 0 items instead of 1",
    }
    assert rows["same"]["verdict"] == "saved"


MODULE = """
import pathlib, sys, tempfile
folder = tempfile.mkdtemp(); sys.path.insert(0, folder)
_ = pathlib.Path(folder, 'reset_kinds.py').write_text('''
class Default:
    def __init__(self): self.v = [1]
    def __reduce__(self): return Default, ()
class Named:
    def __init__(self): self.v = 1
    def __reduce__(self): return 'NAMED'
NAMED = Named()
''')
import reset_kinds
default, same, named = reset_kinds.Default(), reset_kinds.Default(), reset_kinds.NAMED
default.v = [5]; box = [named]
"""


def test_an_attribute_that_a_class_of_a_file_changes_is_named(fork, tmp_path: Path) -> None:
    kernel = fork(MODULE)
    rows = {row["name"]: row for row in store(kernel, tmp_path / "s" / "1")}
    assert rows["default"]["why"] == "`default.v` came back with another value"
    assert {rows[name]["verdict"] for name in ("same", "named", "box")} == {"saved"}
    ask(kernel, "named.v = 5")
    rows = {row["name"]: row for row in store(kernel, tmp_path / "s" / "2")}
    named = "came back with another value"
    assert rows["named"]["why"] == f"`named.v` {named}"
    assert rows["box"]["why"] == f"`box[0].v` {named}"


MADE_AGAIN = """
import dataclasses, functools, random, socket, sqlite3, threading, weakref
class Open:
    def __init__(self): self.a = 1; self._open()
    def _open(self):
        self.socket, self.db = socket.socket(), sqlite3.connect(':memory:')
        self.pool, self.lock = [self.db, {'s': self.socket}], threading.Lock()
        self.me, self.local, self.task = weakref.ref(self), threading.local(), (n for n in ())
        self.call, self.add = functools.partial(print, 1), lambda: self.a
    def __getstate__(self): return {'a': self.a}
    def __setstate__(self, state): self.a = state['a']; self._open()
class Renewed:
    def __init__(self, v): self.v = v; self.all = {'me': self, 'rng': random.Random(1)}
    def __reduce__(self): return Renewed, (self.v,)
@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: list
    y: float = float('nan')
opened, renewed, points = Open(), Renewed([1]), [Point([n]) for n in range(100)]
some = [opened, renewed, Open(), Renewed(renewed.v)]
"""


def test_attributes_that_a_class_makes_again_are_no_difference(fork, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in store(fork(MADE_AGAIN), tmp_path / "s" / "1")}
    names = ("opened", "renewed", "points", "some", "Open", "Renewed", "Point")
    told = {name: (rows[name]["verdict"], rows[name]["why"]) for name in names}
    assert told == dict.fromkeys(names, ("saved", None))
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, "opened.socket.fileno() > 0, renewed.all['me'] is renewed") == "(True, True)"


def test_a_registration_that_is_forgotten_is_named(fork, tmp_path: Path) -> None:
    code = (
        "import collections.abc\nclass C: pass\nclass Whole: pass\n"
        "collections.abc.Sized.register(C); x = C()"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    registered = "no longer registered in `collections.abc.Sized`"
    assert {name for name, row in rows.items() if row["verdict"] == "altered"} == {"C", "x"}
    assert rows["C"]["why"] == f"it is {registered}"
    assert registered in rows["x"]["why"]
    assert rows["Whole"]["verdict"] == "saved"
