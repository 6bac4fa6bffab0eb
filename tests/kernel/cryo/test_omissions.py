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


def test_the_identity_of_a_nan_and_a_registration_are_reported(fork, tmp_path: Path) -> None:
    code = (
        "import collections.abc\nn = float('nan'); l = [n, 1]; d = {n: 1}; twice = [float('nan')] * 2; apart = [float('nan'), 1.0, float('nan')]\n"
        "class C: pass\nclass Whole: pass\ncollections.abc.Sized.register(C); x = C()"
    )
    rows = {row["name"]: row for row in store(fork(code), tmp_path / "s" / "1")}
    altered = {row["name"]: row["why"] for row in rows.values() if row["verdict"] == "altered"}
    nan = "it came back with a NaN that is no longer the same object elsewhere"
    registered = "no longer registered in `collections.abc.Sized`"
    assert altered.keys() == {"l", "d", "twice", "C", "x"}
    assert {altered[name] for name in ("l", "d", "twice")} == {nan}
    assert altered["C"] == f"it is {registered}"
    assert registered in altered["x"]
    assert {rows[name]["verdict"] for name in ("n", "apart", "Whole")} == {"saved"}
