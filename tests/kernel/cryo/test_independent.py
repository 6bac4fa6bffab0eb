"""Variables beside objects that cannot be stored: only what needs such an object is lost."""

from __future__ import annotations

from pathlib import Path

from cryo_requests import ask, reload, store

NEVER = (
    "import socket, asyncio\nsock = socket.socket(); gen = (i for i in [1]); loop = asyncio.new_event_loop()\n"
    "nested = {'s': [sock]}\n"
)
"""Objects that cannot be stored."""
LOST = {"sock", "gen", "loop", "nested"}


def lost(rows: list[dict]) -> dict[str, str]:
    return {row["name"]: row["why"] for row in rows if row["verdict"] not in ("saved", "recipe")}


def test_classes_of_attrs_come_back(fork, tmp_path: Path) -> None:
    code = (
        "import attr, attrs\n@attr.define\nclass A:\n    v: int\n    w: list = attr.Factory(list)\n    def up(self): return A(self.v + 1)\n"
        "@attrs.frozen\nclass B:\n    a: 'A'\n@attr.define\nclass C(A):\n    z: 'B' = None\n@attr.s(auto_attribs=True)\nclass D:\n    v: int\n"
        "a, b, c, d = A(3), B(A(4)), C(5, z=B(A(6))), D(1)"
    )
    probe = "a, a.up(), A(3) == a, b, B(a), c, C(1), d == D(1), __import__('typing').get_type_hints(B.__init__)['a'] is A"
    kernel = fork(NEVER + code)
    expected = ask(kernel, probe)
    assert lost(store(kernel, tmp_path / "s" / "1")).keys() == LOST
    kernel = fork()
    assert lost(reload(kernel, tmp_path / "s" / "1")).keys() == LOST
    assert ask(kernel, probe) == expected


def test_functions_over_a_copy_of_the_namespace_take_only_what_they_use(
    fork, tmp_path: Path
) -> None:
    code = (
        "limit = 3\ndef twice(v): return 2 * v\ncode = '''count = 0\ndef add():\n    global count; count += limit\n    return count\n"
        "def show(): return [twice(v) for v in (count,)]\ndef needs(): return sock.fileno()\ndef asks(): return sorted(globals())\n"
        "def hinted(v: \"Own\"): return v\nclass Own:\n    kept = limit\n    def get(self): return lambda: twice(limit)'''\n"
        "space = dict(globals()); exec(code, space)\n"
        "add, show, needs, asks, hinted, Own = (space[n] for n in ('add', 'show', 'needs', 'asks', 'hinted', 'Own'))\n"
        "del space; own = Own(); add()"
    )
    kernel = fork(NEVER + code)
    reasons = lost(store(kernel, tmp_path / "s" / "1"))
    assert reasons.keys() == {*LOST, "needs", "asks"}
    assert "socket" in reasons["needs"]
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    probe = "show(), add(), show(), own.get()(), add.__globals__ is show.__globals__ is hinted.__globals__, limit"
    assert ask(kernel, probe) == "([6], 6, [12], 6, True, 3)"
    assert ask(kernel, "__import__('typing').get_type_hints(hinted)['v'] is Own") == "True"


def test_a_copy_of_the_namespace_that_is_a_variable_stays_the_globals(fork, tmp_path: Path) -> None:
    kernel = fork(
        "space = dict(globals()); exec('n = 1\\ndef get(): return n', space); get = space['get']"
    )
    assert lost(store(kernel, tmp_path / "s" / "1")) == {}
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, "space.update(n=5); get(), get.__globals__ is space") == "(5, True)"


def test_types_made_in_c_are_lost_with_their_own_reason(fork, tmp_path: Path) -> None:
    code = (
        "import ctypes\ncall = ctypes.CFUNCTYPE(ctypes.c_int); pointer = ctypes.POINTER(ctypes.c_int); held = {'call': call}\n"
        "class Own(ctypes.c_int * 3): pass\n"
        "one = ctypes.c_int(1); rest = [ctypes.c_double(2.5), ctypes.c_char(b'c')]; kinds = [ctypes.c_int, ctypes.Array]\n"
        "pointers = (ctypes.c_char_p * 2)(b'a', b'b')"
    )
    reasons = lost(store(fork(code), tmp_path / "s" / "1"))
    assert reasons.keys() == {"call", "held", "pointer", "pointers", "Own"}
    assert "pointers" in reasons.pop("pointers")
    for name, why in reasons.items():
        assert "has no importable name" in why, (name, why)
    kernel = fork()
    assert lost(reload(kernel, tmp_path / "s" / "1")).keys() == {*reasons, "pointers"}
    probe = "one.value, rest[0].value, rest[1].value, kinds == [ctypes.c_int, ctypes.Array]"
    assert ask(kernel, probe) == "(1, 2.5, b'c', True)"


def test_arrays_of_ctypes_come_back_with_their_types(fork, tmp_path: Path) -> None:
    code = (
        "import ctypes\nThree = ctypes.c_int * 3; three = Three(1, 2, 3); held = {'three': three}\n"
        "grid = ((ctypes.c_int * 2) * 2)((1, 2), (3, 4)); text = ctypes.create_string_buffer(b'abc', 6)"
    )
    assert lost(store(fork(code), tmp_path / "s" / "1")) == {}
    kernel = fork()
    assert lost(reload(kernel, tmp_path / "s" / "1")) == {}
    probe = (
        "Three is ctypes.c_int * 3, list(three), held['three'] is three, "
        "[list(row) for row in grid], text.value, len(text)"
    )
    assert ask(kernel, probe) == "(True, [1, 2, 3], True, [[1, 2], [3, 4]], b'abc', 6)"


def test_classes_whose_metaclass_answers_for_missing_attributes_come_back(
    fork, tmp_path: Path
) -> None:
    code = (
        "import pydantic, numpy as np\nclass M(pydantic.BaseModel):\n    a: int\n    b: list[str] = []\nm = M(a=1, b=['x'])\n"
        "class Meta(type):\n    def __getattr__(cls, name): raise AttributeError(name)\nclass C(metaclass=Meta):\n    v = 1\nc = C()\n"
        "kept = [np.dtype('f8'), {'d': np.zeros(2)}]; kept.append(kept[1]['d'].dtype)"
    )
    assert lost(store(fork(code), tmp_path / "s" / "1")) == {}
    kernel = fork()
    assert lost(reload(kernel, tmp_path / "s" / "1")) == {}
    assert ask(kernel, "m.model_dump(), M(a='2').a, c.v, type(C) is Meta") == (
        "({'a': 1, 'b': ['x']}, 2, 1, True)"
    )
