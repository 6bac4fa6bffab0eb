"""Kinds of objects that only code has made and no import finds; like `kinds_code`.

They come from cloudpickle's tests, as far as another process can be probed: tests of stream bytes,
of running workers and of class identity in this process are not here.
"""

from __future__ import annotations

BY_NAME = [
    ("X = operator.itemgetter(1), operator.itemgetter(0, 3)", "[g('abcd') for g in X]"),
    (
        "class C:\n    def __getattr__(self, n): return C() if n == 'e' else 'got ' + n\nX = [operator.attrgetter(n) for n in ('a', 'e.a')] + [operator.attrgetter('a', 'e.b'), C()]",
        "[g(X[3]) for g in X[:3]]",
    ),
    ("import sys\nX = [sys.stderr]", "X[0] is sys.stderr"),
    (
        "X = [math, os.path, collections.abc, ET]",
        "X[0].pi, X[1].sep, X[2].Sized, X[3].Comment.__name__",
    ),
    (
        "X = [..., NotImplemented, type(...), type(NotImplemented), type(None)]",
        "X, X[0] is ..., X[1] is NotImplemented, X[4] is type(None)",
    ),
    (
        "X = [zip, os.mkdir, np.add, np.linalg.norm]",
        "X[0] is zip, X[1] is os.mkdir, X[2] is np.add",
    ),
    (
        "X = [t.__new__ for t in (list, tuple, set, frozenset, dict, object)]",
        "[type(f(t)) for f, t in zip(X, (list, tuple, set, frozenset, dict, object))]",
    ),
    (
        "X = [(1.5).hex, float.hex, float.__dict__['hex']]",
        "X[0](), X[1] is X[2] is float.hex",
    ),
    ("X = [(1.5).fromhex, float.fromhex]", "[f('0x1') for f in X]"),
    ("X = float.__dict__['fromhex']", "X.__get__(None, float)('0x1')"),
    (
        "X = [(1.5).__repr__, float.__repr__, float.__dict__['__repr__']]",
        "X[0](), X[1] is X[2] is float.__repr__",
    ),
    ("X = ['t'.maketrans, str.maketrans]", "[f('a', 'b') for f in X]"),
    ("X = str.__dict__['maketrans']", "X.__func__ is str.maketrans, X.__func__('a', 'b')"),
    ("X = [float.real, int.numerator]", "X[0] is float.real, X[1].__get__(5)"),
    ("X = types.FunctionType.__code__", "X.__name__"),
    ("X = str.upper, {'a': 1}.get", "X[0]('abc'), X[1]('a'), X[1]('b')"),
    ("X = unittest.mock.DEFAULT", "X is unittest.mock.DEFAULT"),
    ("X = [typing.AnyStr, typing.Any]", "X[0] is typing.AnyStr, X[1] is typing.Any"),
    ("X = typing.Union[list, int], typing.Union[int, None]", "X, X[0] == typing.Union[int, list]"),
    (
        "X = [logging.getLogger(), logging.getLogger('dynamic.one')]; X[1].setLevel(15)",
        "X[0] is logging.getLogger(), X[1] is logging.getLogger('dynamic.one'), X[1].level",
    ),
    ("import multiprocessing\nX = multiprocessing.Lock()", "type(X).__name__"),
]

VIEWS = [
    ("X = memoryview(b'Hello')", "X.tobytes(), X.readonly"),
    ("X = memoryview(b'Hello!' * 3)[2:15:2]", "X.tobytes()"),
    ("X = memoryview(bytearray(b'Hello!' * 100_000))", "len(X), bytes(X[:6]), X.readonly"),
    ("X = {'a': 1, 'b': [2]}; X = [X.keys(), X.values(), X.items()]", "X, [type(v) for v in X]"),
    (
        "X = collections.OrderedDict(b=1, a=2); X = [X.keys(), X.values(), X.items()]",
        "[list(v) for v in X], [type(v).__name__ for v in X]",
    ),
    (
        "X = types.MappingProxyType({'some': ['v']})",
        "X, X == {'some': ['v']}, _raises(dict.update, X)",
    ),
    ("X = itertools.count(1, step=2); next(X); next(X)", "[next(X) for _ in range(10)]"),
    (
        "class C:\n    def __init__(self, v): self.v = v\nX = [C(1), C(2), C(3)]; X.append(weakref.WeakSet(X[:2]))",
        "len(X[3]), set(X[3]) == set(X[:2]), X[2] in X[3], [c.v for c in X[:3]]",
    ),
    ("class C: data = np.zeros(10)\nX = C()", "X.data.tolist(), X.data is C.data"),
    ("X = 1, 2, 3, 4", "X"),
]

CLOSURES = [
    ("X = lambda: 1", "X(), X.__name__, X.__qualname__"),
    (
        "def F():\n    a, b = 1, 2\n    one = lambda v: v + a\n    return lambda v: one(v) // b\nX = F()",
        "X(1), X(6)",
    ),
    ("def F():\n    def g(): return g\n    return g\nX = F()", "X() is X, X()() is X"),
    (
        "def F(base):\n    def g(n): return base if n <= 1 else n * g(n - 1)\n    return g\nX = F(2)",
        "X(5), X.__closure__[1].cell_contents is X",
    ),
    ("def F(): 'no cells'\nX = F", "X.__closure__, X.__doc__"),
    (
        "def F():\n    if False: held = None\n    def g(): return held\n    return g\nX = F()",
        "_raises(X), X.__code__.co_freevars",
    ),
    ("def F():\n    s = {1, 2}\n    return lambda: (len(s), s.add(3), len(s))\nX = F()", "X()"),
    (
        "X = [types.CellType(), types.CellType(5), types.CellType()]; X[2].cell_contents = X",
        "_raises(getattr, X[0], 'cell_contents'), X[1].cell_contents, X[2].cell_contents is X",
    ),
    (
        "def F():\n    fixed = 42\n    def add(x, y): sum(range(10)); return (x + y) / fixed\n    hidden = lambda: fixed\n    class C:\n        'Nested in many names.'\n        def __init__(self, v): self.v = v\n        def one(self): return fixed / hidden()\n        def more(self, x): return self.one() + add(x, 1) + self.v\n    return add, C, C(1), C(5).more\nX = F()",
        "X[0](41, 1), X[1](1).one(), X[2].more(41), X[3](41), type(X[2]) is X[1]",
    ),
    ("X = functools.partial(min, 1)", "X(4), X(0), X.args"),
    ("def F(n): yield from range(n)\nX = F", "list(X(3)), type(X(3)).__name__"),
    (
        "class Unkept:\n    def __reduce__(self): raise Exception('not this one')\nexit_kept = Unkept()\ndef F():\n    import sys\n    sys.exit_kept = 0\nX = F",
        "'exit_kept' in X.__code__.co_names, X()",
    ),
    (
        "space = {f'g{n}': n % 100 for n in range(700)}\nexec('def f(): return sum((' + ', '.join(space) + '))', space); X = [space['f'], space['f']]; del space",
        "X[0](), X[0] is X[1]",
    ),
    (
        "import xml.etree.ElementTree\ndef F(): return xml.etree.ElementTree.Comment\nX = F",
        "X().__name__",
    ),
    (
        "def F():\n    import xml.etree as held\n    import wsgiref.headers\n    return lambda: (held.ElementTree.Comment.__name__, wsgiref.headers.Headers.__name__)\nX = F()",
        "X()",
    ),
    (
        "def F(x): return x\nF.__qualname__ = '<given>'; F.__name__ = 'given'; X = F",
        "X.__qualname__, X.__name__, X.__module__, X(3)",
    ),
    ("def F(x): return x ** 2\nF.__module__ = None; X = F", "X(2), X.__module__"),
    (
        "def F(x: int) -> float: 'forty-two'\nX = functools.wraps(F)(lambda x: F(x)); X.own = [1]",
        "X.__name__, X.__doc__, X.__annotations__, X.__wrapped__ is F, X.own",
    ),
    ("def F(a, *, b=1): return a + b\nX = F", "X(2), X(2, b=3), X.__kwdefaults__"),
    (
        "def F(a, /, b=1): return a + b\nX = F",
        "X(2), X.__code__.co_posonlyargcount, _raises(lambda: X(a=2))",
    ),
    (
        "def F(a: int, b: 'list[str]' = None) -> str: pass\nX = F",
        "X.__annotations__, typing.get_type_hints(X)",
    ),
    (
        "dynamic_shared = 'as given'\ndef dynamic_set():\n    global dynamic_shared\n    dynamic_shared = 'changed'\ndef F(): return dynamic_shared\nX = [dynamic_set, F]",
        "X[1](), X[0](), X[1](), X[0].__globals__ is X[1].__globals__ is globals()",
    ),
    (
        "dynamic_nested = [5]\ndef F():\n    def inner():\n        global dynamic_nested\n        return dynamic_nested\n    return inner\nX = F",
        "X()() is dynamic_nested",
    ),
    (
        "def dynamic_step(x): return x + 1\ndef F(x): return dynamic_step(x)\nX = [dynamic_step, F]\ndef dynamic_step(x): return x - 1",
        "X[0](41), X[1](41), X[0] is dynamic_step",
    ),
    (
        "class DynamicFoo:\n    def m(self, x): return x\ndynamic_foo = DynamicFoo(); DYNAMIC_N = 42\ndef F(x): return dynamic_foo.m(x) if x <= 0 else F(x - 1) + 1\nX = [lambda x: x ** 2, lambda: DynamicFoo, lambda x: DynamicFoo().m(x), lambda: DynamicFoo().m(DYNAMIC_N), F]",
        "X[0](3), X[1]()().m('a'), X[2](2), X[3](), X[4](7)",
    ),
    (
        "dynamic_count = 0\nclass C:\n    def up(self):\n        global dynamic_count\n        dynamic_count += 1\n        return dynamic_count\nX = C().up",
        "X(), X(), dynamic_count",
    ),
    (
        "X = functools.partial(functools.partial(lambda *a, **k: (a, k), 1, z=2), 3); X.own = 4",
        "X(5), X.own, X.keywords",
    ),
    (
        "X = functools.partialmethod(lambda self, a, b: (a, b), 1)._make_unbound_method()",
        "X(None, 2)",
    ),
    (
        "async def F():\n    async with contextlib.AsyncExitStack(): return [v async for v in F_many()]\nasync def F_many():\n    for n in range(3): yield n\nX = F",
        "await X()",
    ),
]

CLASSES = [
    (
        "class C: pass\nX = C",
        "X.__firstlineno__ if hasattr(X, '__firstlineno__') else 0, X.__qualname__",
    ),
    (
        "class C:\n    def m(self): return 1\nclass F(C):\n    'Told.'\n    def m(self): return super().m() + 1\nX = [F, F()]",
        "X[0]().m(), X[1].m(), X[0].__doc__, X[0].__mro__[1] is C",
    ),
    (
        "class C:\n    def m(self): return 'works'\nC.again = C; C.one = C()\nX = [C, C()]",
        "X[0]().m(), X[0].again().m(), X[0].one.m(), X[1].again is X[0], type(X[0].one) is C",
    ),
    (
        "class C:\n    @staticmethod\n    def s(): return 's'\n    @classmethod\n    def c(cls): return cls\nX = [C.__dict__['s'], C.__dict__['c'], C.c]",
        "X[0].__func__(), X[1].__func__(5), X[2]() is C, [type(v).__name__ for v in X]",
    ),
    ("class C:\n    def m(self, x): return x + 1\nX = C.m", "X.__name__, X(C(), 1), X is C.m"),
    (
        "class C:\n    _r = _w = 1\n    @property\n    def r(self):\n        'Read only.'\n        return self._r\n    @property\n    def w(self): return self._w\n    @w.setter\n    def w(self, v): self._w = v\nX = C(); X.w = 2",
        "X.r, C.r.__doc__, _raises(setattr, X, 'r', 2), X.w, setattr(X, 'w', 3), X.w",
    ),
    (
        "C = collections.namedtuple('C', 'a b c'); X = [C(1, 2, 3), C, C(3, 2, 1)]",
        "X[0], X[1] is C is type(X[2]), X[0]._fields, X[2].c",
    ),
    (
        "class C(typing.NamedTuple):\n    a: int\n    b: int = 2\n    def sum(self): return self.a + self.b\nX = [C(1), C, C(3, 2)]",
        "X[0].sum(), X[1] is type(X[2]), X[1]._field_defaults, X[1].__annotations__",
    ),
    (
        "X = dataclasses.make_dataclass('D_dynamic', [('x', int)])(x=42)",
        "X, X.x, type(X)(1) == type(X)(1)",
    ),
    (
        "@dataclasses.dataclass\nclass C:\n    x: int\n    y: dataclasses.InitVar[int]\n    z: typing.ClassVar[int]\nX = C",
        "[(f.name, f._field_type.name, f._field_type is getattr(dataclasses, f._field_type.name)) for f in X.__dataclass_fields__.values()]",
    ),
    (
        "@dataclasses.dataclass\nclass C:\n    x: int\n    y: dataclasses.InitVar[int] = None\n    z: typing.ClassVar[int] = 42\n    def __post_init__(self, y=0): self.x += y\n    def big(self): return self.x > self.z\nX = C(2, y=2)",
        "dataclasses.asdict(X), X.z, X.big(), setattr(C, 'z', 0), X.big(), C(1, 1)",
    ),
    (
        "class DynamicText(str, enum.Enum): 'Of texts.'\nclass C(DynamicText):\n    'Colours.'\n    RED = '1'\n    GREEN = '2'\n    def is_green(self): return self is C.GREEN\nX = [C.GREEN, C.GREEN, C]",
        "X[0] is X[1] is X[2].GREEN, X[0] is C('2'), isinstance(X[0], str), X[0].is_green(), X[2].RED.is_green(), C.__doc__",
    ),
    (
        "C = enum.IntEnum('C', {'RED': 1, 'GREEN': 2}); X = [C.GREEN, C, C(1)]",
        "X[0] is X[1].GREEN, X[2] is C.RED, X[0] + 1, list(X[1])",
    ),
    (
        "class C(enum.Enum): RED = 1; GREEN = 2\nX = [C.GREEN, lambda v: C.GREEN if v else C.RED]\nclass C(enum.Enum): RED = 1; GREEN = 3",
        "X[0].value, X[1](1).value, X[0] is X[1](1), X[1](0) is C.RED",
    ),
    (
        "class C:\n    __slots__ = ['kept']\n    def __init__(self): self.kept = 42\nX = C()",
        "X.kept, C.__slots__, _raises(setattr, X, 'other', 1)",
    ),
    (
        "class C:\n    __slots__ = 'kept'\nclass F(C):\n    def __init__(self): self.kept, self.other = 1, 2\nX = F()",
        "X.kept, X.other, C.__slots__, _raises(setattr, C(), 'other', 1)",
    ),
    (
        "class C:\n    def __init__(self): self.n = 0\n    def up(self): self.n += 1; return self\nX = C().up().up",
        "X().n, type(X.__self__) is C",
    ),
    (
        "class C: 'The first.'\nX = [C(), C]\nclass C: 'The second.'\nX += [C(), C]; C.echo = lambda self, v: v",
        "[type(X[0]) is X[1], type(X[2]) is X[3], X[1] is X[3]], X[1].__doc__, X[2].echo(5), hasattr(X[0], 'echo')",
    ),
    (
        "class C:\n    join = 'join'\n    def m(self, join): return join\nC.m.join = 'join'; X = C",
        "X.m.join, X().m(1), sorted(n for n in vars(X) if n[0] != '_')",
    ),
    (
        "class C: pass\nC.__annotations__ = {'a': int}; C.__doc__ = 'Later.'; X = C",
        "X.__annotations__, X.__doc__",
    ),
    (
        "import copyreg\nclass C: pass\ncopyreg.pickle(C, lambda made: (C, (), {'own_way': True})); X = C(); X.own_way = True",
        "X.own_way, type(X) is C",
    ),
    (
        "class C:\n    __values__ = property(lambda self: ())\n    __type__ = property(lambda self: int)\nX = C(); X.v = 1",
        "X.__values__, X.__type__, X.v",
    ),
    (
        "class C:\n    def __getattribute__(self, n): return getattr(self, n)\nX = C()",
        "type(X).__name__",
    ),
    (
        "class C(type):\n    def __new__(m, n, b, d, tag=0): d['tag'] = tag; return super().__new__(m, n, b, d)\n    def __init__(c, *a, **k): super().__init__(*a)\n    def __len__(c): return 7\n    @property\n    def shown(c): return c.__name__\nclass F(metaclass=C, tag=3): pass\nX = [F, F()]",
        "X[0].tag, len(X[0]), X[0].shown == F.__name__, type(X[0]) is C, X[1].tag",
    ),
    (
        "class C(type):\n    def __prepare__(n, b): return collections.OrderedDict(made_by='prepare')\nclass F(metaclass=C): pass\nX = F()",
        "X.made_by, type(type(X)) is C",
    ),
    (
        "class C:\n    def __init__(self, v): self.v = v\n    def __set_name__(self, o, n): self.n = o.__name__, n\n    def __get__(self, o, t): return self.n if o is None else o.__dict__.get('held', self.v)\n    def __set__(self, o, v): o.__dict__['held'] = v * 2\nclass F: a = C(5)\nX = [F(), F()]; X[0].a = 4",
        "X[0].a, X[1].a, F.a[1]",
    ),
]

ABSTRACT = [
    (
        "class C(metaclass=abc.ABCMeta): pass\nclass F: pass\nclass F_none: pass\nC.register(F); issubclass(F_none, C); X = [C, F, F_none]",
        "issubclass(X[1], X[0]), issubclass(X[2], X[0]), issubclass(int, X[0])",
    ),
    (
        "class C(abc.ABC):\n    @abc.abstractmethod\n    def m(self): 'One.'\n    @classmethod\n    @abc.abstractmethod\n    def c(cls): ...\n    @staticmethod\n    @abc.abstractmethod\n    def s(): ...\n    @property\n    @abc.abstractmethod\n    def p(self): ...\nclass F(C):\n    def m(self): return 1\n    @classmethod\n    def c(cls): return cls\n    @staticmethod\n    def s(): return 2\n    @property\n    def p(self): return 3\nC.register(tuple); X = [C, F, F()]",
        "X[2].m(), X[1].c() is F, X[1].s(), X[2].p, issubclass(tuple, X[0]), _raises(X[0]), sorted(X[0].__abstractmethods__), _raises(type('Part', (X[0],), {'m': len}))",
    ),
    (
        "class C(abc.ABC):\n    @abc.abstractclassmethod\n    def c(cls): ...\n    @abc.abstractstaticmethod\n    def s(): ...\n    @abc.abstractproperty\n    def p(self): ...\nclass F(C):\n    c, s, p = 1, 2, 3\nX = [C, F()]",
        "X[1].c, X[1].s, X[1].p, _raises(X[0]), sorted(X[0].__abstractmethods__)",
    ),
]

TYPING = [
    (
        "X = typing.TypeVar('T_dyn', bound=int), typing.TypeVar('U_dyn', int, str), typing.TypeVar('V_dyn', covariant=True)",
        "[(t.__name__, t.__bound__, t.__constraints__, t.__covariant__, t.__contravariant__) for t in X]",
    ),
    ("X = typing.TypeVar('T_twice'); X = [X, X, list[X]]", "X[0] is X[1] is X[2].__args__[0]"),
    (
        "X = [typing.ParamSpec('P_dyn'), typing.TypeVarTuple('Ts_dyn')]; X.append(typing.Callable[X[0], int])",
        "X[0].__name__, X[1].__name__, X[2].__args__[0] is X[0]",
    ),
    (
        "class C(typing.Generic[typing.TypeVar('T_gen')]): pass\nX = [C[int], C]",
        "X[0] == X[1][int], X[0].__origin__ is C, X[0].__args__, len(C.__orig_bases__), C.__parameters__[0] is C.__orig_bases__[0].__args__[0]",
    ),
    (
        "T_sub = typing.TypeVar('T_sub')\nclass C(typing.Generic[T_sub]): pass\nclass DynAny(C): pass\nclass DynInt(C[int]): pass\nclass DynT(C[T_sub]): pass\nclass DynLeaf(DynT[T_sub]): pass\nX = [DynAny, DynInt, DynT, DynLeaf]",
        "[[k.__name__ for k in c.mro()][:1] for c in X], [c.mro()[-3] is C for c in X], X[3].__parameters__ == (T_sub,), X[1].__orig_bases__ == (C[int],)",
    ),
    *(
        (
            f"class C:\n    a: {each}\n    def m(self, arg: {each}) -> {each}: return arg\nX = C()",
            f"C.__annotations__['a'] == {each}, X.m.__annotations__['arg'] == {each}, X.m(1), C.__annotations__",
        )
        for each in (
            "typing.Optional[int]",
            "typing.Union[int, str]",
            "typing.Callable[[int], typing.Any]",
            "typing.Literal[1, 'a']",
            "typing.ClassVar[typing.List[int]]",
            "typing.Final[int]",
            "typing.Annotated[int, 'm', [1]]",
            "typing.Type[int]",
            "typing.NoReturn",
            "typing.Generator[int, None, str]",
            "dict[str, list[int] | None]",
            "collections.abc.Callable[..., int]",
        )
    ),
]

MODULES = [
    (
        "X = types.ModuleType('dynamic_mod'); exec('x = 1\\ndef f(y): return x + y\\nclass Foo:\\n    def m(self, x): return f(x)', vars(X)); X = [X, X]",
        "X[0] is X[1], X[0].x, X[0].f(5), X[0].Foo().m(5), X[0].__package__, X[0].f.__globals__ is vars(X[0])",
    ),
    (
        "X = types.ModuleType('dynamic_bare'); del X.__package__; X.x = 1",
        "hasattr(X, '__package__'), X.x",
    ),
    (
        "X = types.ModuleType('dynamic_shown'); exec('n = 2\\ndef f(y): return n * y', vars(X))\nimport sys; sys.modules['dynamic_shown'] = X; X = X.f",
        "X(5), X.__globals__['n'], X.__module__",
    ),
    (
        "X = types.ModuleType('dynamic_built'); exec('f = lambda x: abs(x)', vars(X))",
        "X.f(-1), '__builtins__' in vars(X), eval('abs(-2)', vars(X))",
    ),
    (
        "X = types.ModuleType('dynamic_pkg'); X.__package__ = 'xml.etree'; exec('def f():\\n    from . import ElementTree\\n    from .. import parsers\\n    return ElementTree.__name__, parsers.__name__', vars(X))\nX = X.f",
        "X()",
    ),
]

_GROUPS = (BY_NAME, VIEWS, CLOSURES, CLASSES, ABSTRACT, TYPING, MODULES)
DYNAMIC = [each for group in _GROUPS for each in group]
IMPORTS = "import abc, sys, xml.etree.ElementTree\n"
