"""What the classes of the user leave out of their state: the receipt names the attribute."""

from __future__ import annotations

from pathlib import Path

from cryo_requests import store

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
