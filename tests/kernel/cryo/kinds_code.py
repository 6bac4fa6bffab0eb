"""Kinds of objects that need statements: `X` is the variable, `C` and `F` are its private names.

Each has a probe, whose answer must be the same after a reload.
"""

from __future__ import annotations

FAILING = [
    ("class C:\n    def __reduce__(self): return int, ('no number',)\nX = C()", "X"),
    (
        "class C:\n    def __init__(self): self.v = 1\n    def __setstate__(self, s): raise RuntimeError('never')\nX = C()",
        "X.v",
    ),
    (
        "class C:\n    def __init__(self, k): self.k = k\n    def __hash__(self): return hash(self.k)\n    def __eq__(self, o): return self.k == o.k\nX = C(1); X.ring = {X: 1}",
        "list(X.ring)[0] is X",
    ),
    ("class C:\n    def __new__(cls, a): return super().__new__(cls)\nX = C(1); X.v = 1", "X.v"),
    ("class C:\n    def __reduce_ex__(self, p): raise ValueError('refused')\nX = [C()]", "X"),
    ("class C:\n    def __getstate__(self): raise OSError('none')\nX = {'k': C()}", "X"),
    ("def F():\n    yield 1\nX = [F(), {'k': 1}]", "X[1]"),
    (
        "class C:\n    __slots__ = ('a',)\n    def __getstate__(self): return 5\nX = C(); X.a = 1",
        "X.a",
    ),
]
"""Some of these cannot be made again: their loss must not affect others."""

ANSWERING = [
    (
        "class C:\n    def __init__(self): self.a = [1]\n    def __getattr__(self, n): return lambda *a: None\nX = C()",
        "X.__dict__",
    ),
    (
        "class C:\n    def __init__(self): self.a = 1\n    def __getattr__(self, n): return None\nX = C()",
        "X.__dict__",
    ),
    (
        "class C:\n    def __init__(self, to): self.to = to\n    def __getattr__(self, n): return getattr(self.to, n)\nX = C([3])",
        "X.to, X.count(3)",
    ),
    (
        "class C(dict):\n    def __getattr__(self, n): return self[n]\n    def __setattr__(self, n, v): self[n] = v\nX = C(a=1); X.b = [2]",
        "X.a, X.b, dict(X)",
    ),
    (
        "class C:\n    def __init__(self): self.__dict__['_d'] = {'k': 1}\n    def __getattr__(self, n): return self._d[n]\n    def __setattr__(self, n, v): self._d[n] = v\nX = C(); X.z = 2",
        "X.k, X.z",
    ),
    (
        "class C:\n    __slots__ = ('a', 'b')\n    def __getattr__(self, n): return 'dyn ' + n\nX = C(); X.a = [1]",
        "X.a, X.b, X.c",
    ),
    (
        "class C(list):\n    def __getattr__(self, n): return len(self)\nX = C([1, 2]); X.own = 5",
        "list(X), X.own, X.any",
    ),
    (
        "class C:\n    def __init__(self): self.v = 1\n    def __getattribute__(self, n): return object.__getattribute__(self, n)\nX = C()",
        "X.v",
    ),
    (
        "class C:\n    def __call__(self, *a): return self\n    def __getattr__(self, n): return self\nX = C(); X.kept = 1",
        "X.kept, X.chain is X",
    ),
    (
        "class C:\n    def __init__(self, v): self.v = v\n    @property\n    def __class__(self): return int\nX = C(3)",
        "isinstance(X, int), type(X) is C, X.v",
    ),
]

CLASSES = [
    ("class C: pass\nX = C()\nX.a = {'k': [1]}", "vars(X)"),
    (
        "class C:\n    n = [1]\n    def get(self): return self.n, self.m\nX = C(); X.m = 2",
        "X.get()",
    ),
    ("class C:\n    __slots__ = ('a', '__b')\nX = C(); X.a = 1; X._C__b = 2", "X.a, X._C__b"),
    ("class C:\n    __slots__ = ('a', '__dict__')\nX = C(); X.a = 1; X.z = 2", "X.a, X.z"),
    ("class C(list): pass\nX = C([1, [2]]); X.t = 't'", "X, X.t"),
    ("class C(dict): pass\nX = C(a=1); X.t = 't'", "X, X.t"),
    ("class C(set): pass\nX = C({1, 'a'}); X.t = 't'", "sorted(X, key=str), X.t"),
    ("class C(frozenset): pass\nX = C({1}); X.t = 't'", "X, X.t"),
    ("class C(tuple): pass\nX = C((1, [2])); X.t = 't'", "X, X.t"),
    ("class C(str): pass\nX = C('s'); X.t = 't'", "X, X.t"),
    ("class C(int): pass\nX = C(5); X.t = 't'", "X + 1, X.t"),
    ("class C(float): pass\nX = C(0.5); X.t = 't'", "X + 1, X.t"),
    ("class C(bytes): pass\nX = C(b'b'); X.t = 't'", "X, X.t"),
    ("class C(bytearray): pass\nX = C(b'b'); X.t = 't'", "bytes(X), X.t"),
    ("class C(collections.OrderedDict): pass\nX = C(b=1, a=2)", "list(X.items())"),
    ("class C(collections.Counter): pass\nX = C('aab')", "X, X['zz']"),
    ("class C(collections.defaultdict): pass\nX = C(list); X['a'].append(1)", "X, X['b']"),
    ("class C(collections.deque): pass\nX = C([1, 2], 5); X.t = 1", "list(X), X.maxlen, X.t"),
    ("class C(collections.UserDict): pass\nX = C(a=[1])", "X.data"),
    ("class C(datetime.date): pass\nX = C(2026, 1, 2)", "X, X.year"),
    ("class C(decimal.Decimal): pass\nX = C('1.5')", "X + 1"),
    ("class C(pathlib.PurePosixPath): pass\nX = C('a/b')", "X.name"),
    ("class C(threading.local): pass\nX = C(); X.v = 1", "X.v"),
    (
        "class C(Exception):\n    def __init__(self, a, *, b): super().__init__(a); self.b = b\nX = C(1, b=2)",
        "X.args, X.b",
    ),
    (
        "class C(ExceptionGroup): pass\nX = C('m', [ValueError(1)]); X.n = 1",
        "X.exceptions[0].args, X.n",
    ),
    ("class C(enum.Enum):\n    A = 1; B = 2\nX = [C.B, C]", "X[0] is C.B, list(C)"),
    ("class C(enum.Flag):\n    A = 1; B = 2\nX = C.A | C.B", "X, X in C"),
    ("class C(enum.StrEnum):\n    A = 'x'\nX = {C.A: 1}", "X['x'], C('x')"),
    ("class C(typing.NamedTuple):\n    a: int\n    b: list = []\nX = C(1)", "X, X._asdict()"),
    ("C = collections.namedtuple('C', 'x y', defaults=[3]); X = C(1)", "X, X._replace(x=2)"),
    (
        "C = dataclasses.make_dataclass('C', [('a', int)]); X = C(4)",
        "X, dataclasses.fields(C)[0].name",
    ),
    (
        "@dataclasses.dataclass\nclass C:\n    a: int\n    b: list = dataclasses.field(default_factory=list)\nX = C(1, [2])",
        "X, C(3)",
    ),
    (
        "@dataclasses.dataclass(frozen=True, slots=True)\nclass C:\n    a: int\n    b: tuple = ()\nX = {C(1): 'v'}",
        "X[C(1)]",
    ),
    (
        "@dataclasses.dataclass(order=True, kw_only=True, weakref_slot=True, slots=True)\nclass C:\n    a: int\nX = [C(a=2), C(a=1)]",
        "sorted(X)",
    ),
    (
        "class C(typing.Generic[typing.TypeVar('T')]):\n    def __init__(self, v): self.v = v\nX = C[int](1)",
        "X.v, X.__orig_class__.__args__",
    ),
    ("class C(typing.Protocol):\n    def go(self): ...\nX = C", "X._is_protocol"),
    ("class C(typing.TypedDict, total=False):\n    a: int\nX = C(a=1)", "X, C.__optional_keys__"),
    (
        "class C(type):\n    def __call__(cls, *a): made = super().__call__(*a); made.tag = cls.__name__; return made\nclass F(metaclass=C): pass\nX = F()",
        "X.tag, type(F) is C",
    ),
    (
        "import abc\nclass C(abc.ABC):\n    @abc.abstractmethod\n    def go(self): ...\nclass F(C):\n    def go(self): return 1\nC.register(int)\nX = F()",
        "X.go(), issubclass(int, C)",
    ),
    (
        "class C:\n    every = weakref.WeakSet()\n    def __init__(self): C.every.add(self)\nX = C()",
        "len(C.every), X in C.every",
    ),
    (
        "class C:\n    one = None\n    def __new__(cls):\n        cls.one = cls.one or super().__new__(cls); return cls.one\nX = [C(), C()]",
        "X[0] is X[1] is C()",
    ),
    (
        "class C:\n    def __init__(self): self.me = self; self.all = [self, {'k': self}]\nX = C()",
        "X.me is X, X.all[1]['k'] is X",
    ),
    (
        "class C:\n    def __init__(self, p=None): self.parent, self.kids = p, []\nX = C(); X.kids += [C(X), C(X)]; X.kids[0].kids.append(C(X.kids[0]))",
        "X.kids[0].kids[0].parent.parent is X",
    ),
    (
        "class C:\n    def __getstate__(self): return {'v': 1}\n    def __setstate__(self, s): self.w = s['v']\nX = C(); X.v = X.w = 1",
        "X.__dict__",
    ),
    (
        "class C:\n    def __reduce__(self): return F, (self.a,), {'b': self.b}\ndef F(a): made = C(); made.a = a; return made\nX = C(); X.a = 1; X.b = [2]",
        "X.a, X.b",
    ),
    (
        "class C:\n    def __getnewargs_ex__(self): return (1,), {'k': 2}\n    def __new__(cls, *a, **k): made = super().__new__(cls); made.how = a, k; return made\nX = C()",
        "X.how",
    ),
    (
        "class C:\n    def __init__(self): self.x = 1\n    def __copy__(self): return self\n    def __deepcopy__(self, m): return self\nX = C()",
        "copy.copy(X) is X",
    ),
    (
        "class C:\n    @property\n    def a(self): return self._a\n    @a.setter\n    def a(self, v): self._a = v\n    @functools.cached_property\n    def b(self): return [self._a]\n    @classmethod\n    def make(cls): return cls\n    @staticmethod\n    def two(): return 2\nX = C(); X.a = 1; X.b",
        "X.a, X.b, X.make() is C, X.two()",
    ),
    (
        "class C:\n    def __set_name__(self, o, n): self.n = n\n    def __get__(self, o, t=None): return self.n\nclass F:\n    field = C()\nX = F()",
        "X.field",
    ),
    (
        "class C:\n    def __class_getitem__(cls, k): return k\n    def __init_subclass__(cls, **k): cls.k = k\nclass F(C, a=1): pass\nX = F()",
        "F.k, C[5]",
    ),
    (
        "class C:\n    class In:\n        class Deep: v = 1\nX = C.In.Deep()",
        "X.v, type(X).__qualname__",
    ),
    (
        "def F():\n    class C:\n        def get(self): return n\n    n = [5]\n    return C\nX = F()()",
        "X.get()",
    ),
    (
        "class C: v = 1\nX = [C()]\nclass C: v = 2\nX.append(C())",
        "[e.v for e in X], type(X[1]) is C",
    ),
    (
        "class C:\n    def __eq__(self, o): raise RuntimeError\n    __hash__ = None\nX = [C()]",
        "len(X)",
    ),
    (
        "class C:\n    def __bool__(self): raise RuntimeError\n    def __len__(self): return -1\nX = C()",
        "type(X).__name__",
    ),
    ("class C:\n    def __repr__(self): raise RuntimeError\nX = C(); X.v = 1", "X.v"),
    ("class C:\n    def __del__(self): C.log.append(1)\n    log = []\nX = C()", "type(X) is C"),
    ("X = type('C', (), {'v': [1]})()", "X.v"),
    ("X = types.new_class('C', (list,))([1])", "list(X)"),
    (
        "class C(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\nclass F(metaclass=C): v = 3\nX = F()",
        "X.v",
    ),
]

FUNCTIONS = [
    ("def F(a, b=[1], *c, d=2, **e): return a, b, c, d, e\nX = F", "X(0), X(0, 1, 2, d=3, z=4)"),
    (
        "def F():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n    return up, lambda: n\nX = F()",
        "X[0](), X[1]()",
    ),
    ("def F(n): return 1 if n < 2 else n * F(n - 1)\nX = F", "X(6)"),
    (
        "def F(f): return functools.wraps(f)(lambda *a: ['w', f(*a)])\n@F\ndef C(v): 'doc'; return v\nX = C",
        "X(1), X.__doc__, X.__wrapped__(2)",
    ),
    ("def F(): return F.n\nF.n = [1]; X = F", "X()"),
    ("def F():\n    for i in range(3): yield i\nX = F", "list(X())"),
    ("async def F(v): return v + 1\nX = F", "await X(1)"),
    ("async def F(n):\n    for i in range(n): yield i\nX = F", "[i async for i in X(3)]"),
    ("def F(a: 'int', b: list[str] = ()) -> None: pass\nX = F", "X.__annotations__"),
    ("@functools.lru_cache(maxsize=2)\ndef F(v): return [v]\nX = F", "X(1), X.cache_parameters()"),
    (
        "@functools.singledispatch\ndef F(v): return 'any'\n@F.register\ndef _(v: int): return 'int'\nX = F",
        "X(1), X('')",
    ),
    ("@contextlib.contextmanager\ndef F(v): yield [v]\nX = F", "[v for v in [X(1).__enter__()]]"),
    ("def F(self): return self.v\nX = types.MethodType(F, types.SimpleNamespace(v=3))", "X()"),
    ("def F(a, b, c=0): return a, b, c\nX = functools.partial(F, 1, c=2)", "X(5), X.func is F"),
    ("X = [lambda n=n: n for n in range(3)]", "[f() for f in X]"),
    ("X = {'f': lambda v: X['k'] + v, 'k': 1}", "X['f'](1)"),
    (
        "def F():\n    def use(): return late\n    return use\n    late = 1\nX = F()",
        "X.__closure__[0] == types.CellType()",
    ),
    (
        "space = {'n': 1}\nexec('def f(): return n', space); X = space['f']",
        "X(), X.__globals__['n']",
    ),
    ("def F[T](v: T) -> T: return v\nX = F", "X(1), X.__type_params__[0].__name__"),
    ("type C[T] = dict[str, T]\nX = C", "X[int].__args__"),
    ("def F(): return __class__\nX = F.__code__", "X.co_name, X.co_freevars"),
    ("try: 1 / 0\nexcept ZeroDivisionError as e: X = e", "repr(X)"),
    (
        "try:\n    try: 1 / 0\n    except ZeroDivisionError as e: raise KeyError('k') from e\nexcept KeyError as e: X = e",
        "repr(X.__cause__)",
    ),
    ("X = ValueError('n'); X.add_note('hint'); X.own = [1]", "X.__notes__, X.own"),
    (
        "X = types.ModuleType('kind_module'); X.v = [1]; exec('def g(): return v', vars(X))",
        "X.g(), X.v",
    ),
]

SHARING = [
    ("inner = [1]; X = [inner, inner, {'k': inner}]; del inner", "X[0] is X[1] is X[2]['k']"),
    ("X = []; X.append(X)", "X[0] is X"),
    ("X = {}; X['me'] = X", "X['me'] is X"),
    ("X = ([],); X[0].append(X)", "X[0][0] is X"),
    ("X = None\nfor _ in range(3000): X = [X]", "len(repr(type(X)))"),
    ("X = 'l' * 5; X = {X: X, 'm': [X, X]}", "X"),
    ("X = np.arange(10.); X = {'a': X, 'v': X[2:5]}", "np.shares_memory(X['a'], X['v'])"),
    (
        "X = np.arange(1000.); X = [X, np.lib.stride_tricks.sliding_window_view(X, 100)]",
        "np.shares_memory(*X), X[1].shape, X[1].flags.writeable",
    ),
    (
        "X = np.arange(100.); X = [X, np.lib.stride_tricks.as_strided(X, (5, 5), (8, 8))]",
        "np.shares_memory(*X), X[1][4, 4]",
    ),
    ("X = np.arange(90_000.); X.flags.writeable = False", "X.flags.writeable, X.sum()"),
    ("X = np.array([1, None], dtype=object); X.flags.writeable = False", "X.flags.writeable, X[0]"),
    (
        "X = bytearray(100); X = [X, np.frombuffer(X, 'u1')]; X[0][3] = 7",
        "X[1][3], np.shares_memory(X[0], X[1])",
    ),
    ("X = array.array('d', [1, 2]); X = [X, np.frombuffer(X)]; X[0][1] = 7", "float(X[1][1])"),
    ("X = pd.DataFrame({'a': [1.0, 2.0]}); X = [X, X['a']]", "list(X[1])"),
    (
        "class C: pass\nX = C(); X.r = weakref.ref(X); X.p = weakref.proxy(X)",
        "X.r() is X, type(X.p).__name__",
    ),
    (
        "class C: pass\nX = [C()]; X.append(weakref.WeakValueDictionary(k=X[0]))",
        "X[1]['k'] is X[0]",
    ),
    ("class C: pass\nX = [C()]; X.append(weakref.WeakKeyDictionary({X[0]: 1}))", "X[1][X[0]]"),
    (
        "class C:\n    def m(self): return 5\nX = [C()]; X.append(weakref.WeakMethod(X[0].m))",
        "X[1]()()",
    ),
    ("X = float('nan'); X = [X, X]", "X"),
    ("X = {(0,): 1, (0.0,): 2, (False,): 3}", "X"),
    ("X = {1: 'a'}; X[True] = 'b'", "X"),
    ("X = [0, 0.0, -0.0, False]", "X"),
]

PROCESSES = [
    ("def F():\n    return C\nC = [1]; X = F; C2_ = 1", "X()"),
    (
        "def F(n):\n    class C:\n        def me(self): return C\n        def next(self): return F(n - 1)\n    return C\nX = F(2)()",
        "X.me() is type(X), X.next().__name__",
    ),
    (
        "def F():\n    @dataclasses.dataclass\n    class C:\n        a: int\n        b: 'C' = None\n    return C\nX = F()(1)",
        "X.a, type(X)(2, X).b is X",
    ),
    (
        "def F():\n    class C(enum.Enum):\n        A = 1\n        def low(self): return self.name.lower()\n    return C\nX = F()",
        "X.A.low(), X(1) is X.A",
    ),
    (
        "def F():\n    class C(typing.NamedTuple):\n        a: int = 1\n    return C()\nX = F()",
        "X, type(X).__qualname__",
    ),
    (
        "def F():\n    T = typing.TypeVar('T')\n    class C(typing.Generic[T]):\n        def __init__(self, v: T): self.v = v\n    return C\nX = F()[int](3)",
        "X.v, type(X).__parameters__[0].__name__",
    ),
    (
        "def F():\n    def a(n): return [] if n == 0 else [n, *b(n - 1)]\n    def b(n): return a(n)\n    return a, b\nX = F()",
        "X[0](3), X[1](2), X[0].__closure__[0].cell_contents is X[1]",
    ),
    (
        "def F(x, *, y=[0]):\n    y[0] += x\n    return y[0]\nX = [F, F.__kwdefaults__['y']]",
        "X[0](2), X[1]",
    ),
    ("import sys\ndef F(): return sys.modules['os'].sep, os.path.join('a', 'b')\nX = F", "X()"),
    (
        "def F():\n    import collections.abc\n    return collections.abc.Sized\nX = F",
        "X().__name__",
    ),
    ("def F(): return F_glob\nF_glob = 3\nX = F", "X()"),
    ("class C:\n    def m(self): return 5\nX = C().m", "X(), type(X.__self__).__name__"),
    (
        "class C:\n    @classmethod\n    def c(cls): return cls.__name__\n    @staticmethod\n    def s(): return 1\nX = [C.c, C.s, C.__dict__['c'], C.__dict__['s']]",
        "X[0]().startswith('C'), X[1](), type(X[2]).__name__",
    ),
    (
        "class C:\n    def __init_subclass__(cls): cls.made = C.made = [*getattr(C, 'made', []), 1]\nclass F(C): pass\nX = F",
        "X.made",
    ),
    (
        "class C(type):\n    def __new__(m, n, b, d, **k): made = super().__new__(m, n, b, d); made.k = k; return made\n    def __init__(c, *a, **k): pass\nclass F(metaclass=C, z=1): pass\nX = F",
        "X.k",
    ),
    ("class C:\n    __slots__ = {'a': 'doc of a'}\nX = C(); X.a = 3", "X.a, C.a.__doc__"),
    (
        "class C:\n    'says'\n    __match_args__ = ('a',)\n    def __init__(self): self.a = 1\nX = C()",
        "C.__doc__, C.__match_args__",
    ),
    ("class C:\n    a: int\n    b: 'list[C]' = None\nX = C", "X.__annotations__['a']"),
    (
        "X = types.ModuleType('kind.sub'); exec('class K:\\n    v = 1\\nk = K()', vars(X))",
        "X.k.v, X.__name__",
    ),
    (
        "X = [logging.getLogger('kind.a.b'), logging.getLogger()]",
        "X[0].name, X[1] is logging.getLogger()",
    ),
    ("X = operator.itemgetter(slice(1, 3)), operator.attrgetter('a', 'b.c')", "X[0]('abcd')"),
    (
        "X = itertools.count(5, 2), itertools.chain([1], [2]), itertools.cycle('ab')",
        "next(X[0]), list(X[1]), next(X[2])",
    ),
    (
        "X = (NotImplemented, ..., None, type(None), type(...), type(NotImplemented))",
        "X[3:], X[0] is NotImplemented",
    ),
    (
        "X = [str.join, 'x'.join, dict.fromkeys, {}.get, int.from_bytes, (1).bit_length]",
        "X[1]('ab'), X[2]('a'), X[4](b'a', 'big'), X[5]()",
    ),
    (
        "X = [property(operator.attrgetter('v')), functools.partial(operator.add, 1)]",
        "X[1](2), type(X[0]).__name__",
    ),
    (
        "class C(collections.abc.Mapping):\n    def __getitem__(self, k): return k * 2\n    def __iter__(self): return iter('a')\n    def __len__(self): return 1\nX = C()",
        "dict(X), isinstance(X, collections.abc.Mapping)",
    ),
    (
        "class C: pass\ncollections.abc.Sized.register(C)\nX = C()",
        "isinstance(X, collections.abc.Sized)",
    ),
    (
        "def F(f, n=3):\n    def inner(*a): inner.calls += 1; return f(*a)\n    inner.calls = 0\n    return inner\n@F\ndef C(v): return v\nC(1); X = C",
        "X.calls, X(5), X.calls",
    ),
]
"""Objects that people pass between processes: made in functions, in modules of code, by
decorators."""

CHANGING = [
    (
        "class C:\n    def __init__(self): self.a, self.conn = 1, [1, 2]\n    def __getstate__(self): return self.__dict__ | {'conn': None}\nX = C()",
        "X.a, X.conn",
    ),
    (
        "class C:\n    def __init__(self): self.v = [1]\n    def __reduce__(self): return C, ()\nX = C(); X.v = [5]",
        "X.v",
    ),
    (
        "class C:\n    def __new__(cls, v=1): made = super().__new__(cls); made.v = [v]; return made\n    def __getnewargs__(self): return (1,)\n    def __getstate__(self): return None\nX = C(8)",
        "X.v",
    ),
    (
        "@dataclasses.dataclass\nclass C:\n    a: int\n    b: list\n    def __getstate__(self): return {'a': self.a, 'b': []}\nX = C(1, [2])",
        "X.a, X.b",
    ),
    ("class C(Exception):\n    def __reduce__(self): return C, (1,)\nX = C(5)", "X.args"),
]
"""Classes whose pickling changes an attribute."""

_GROUPS = (PROCESSES, FAILING, ANSWERING, CLASSES, FUNCTIONS, SHARING, CHANGING)
STATEMENTS = [each for group in _GROUPS for each in group]
