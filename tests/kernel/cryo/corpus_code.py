"""Namespaces of functions and classes."""

from __future__ import annotations

from case import case

FUNCTIONS = [
    case("a function", "def double(x): return 2 * x", "double(21)"),
    case("a function sees a global set later", "x = 1\ndef get(): return x", "x = 2; get()"),
    case(
        "a function sets a global",
        "n = 0\ndef bump():\n    global n\n    n += 1",
        "bump(); bump(); n",
    ),
    case(
        "nested functions",
        "def outer(a):\n    def inner(b):\n        def deep(c): return a, b, c\n        return deep\n    return inner\nmade = outer(1)(2)",
        "made(3)",
    ),
    case("a recursive function", "def fact(n): return 1 if n < 2 else n * fact(n - 1)", "fact(20)"),
    case(
        "a name for print",
        "from functools import partial\nsay, box = print, {'say': print, 'part': partial(print, end='')}",
        "say is print, box['say'] is print, box['part'].func is print",
    ),
    case(
        "two that call each other",
        "def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)",
        "even(10), odd(7)",
    ),
    case(
        "a recursive closure",
        "def make():\n    def down(n): return [] if n == 0 else [n, *down(n - 1)]\n    return down\ndown = make()",
        "down(3)",
    ),
    case(
        "closures that share a cell",
        "def pair():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n    def get(): return n\n    return up, get\nup, get = pair()",
        "up(); up(); get()",
    ),
    case(
        "closures that share a cell, in different places",
        "def pair():\n    n = []\n    return {'add': lambda x: n.append(x)}, lambda: n\nbox, show = pair()",
        "box['add'](1); box['add'](2); show()",
    ),
    case(
        "an empty cell",
        "def make():\n    def use(): return late\n    return use\n    late = 1\nuse = make()",
        "try: use()\nexcept NameError as e: said = type(e).__name__\nsaid",
    ),
    case(
        "default arguments",
        "def f(a, b=[1], *, c={'k': 2}, **rest): b.append(a); return a, b, c, rest",
        "f(0), f(1, z=3)",
    ),
    case(
        "a default that is shared",
        "items = []\ndef add(x, to=items): to.append(x)",
        "add(1); items",
    ),
    case(
        "annotations and doc",
        "def f(a: int, b: 'str' = '') -> list[int]:\n    'Says.'\n    return [a]",
        "f.__annotations__, f.__doc__, f.__qualname__, f.__module__",
    ),
    case(
        "attributes of functions",
        "def f(): return f.n\nf.n = 3\nf.itself = f",
        "f(), f.itself is f",
    ),
    case(
        "a decorated function",
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def w(*a): return f(f(*a))\n    return w\n@twice\ndef inc(x): return x + 1",
        "inc(1), inc.__name__, inc.__wrapped__(1)",
        recipe="functools",
    ),
    case(
        "a decorator with state",
        "class Count:\n    def __init__(self, f): self.f, self.n = f, 0\n    def __call__(self, *a): self.n += 1; return self.f(*a)\n@Count\ndef g(x): return -x",
        "g(1), g(2), g.n",
    ),
    case(
        "lambdas", "square = lambda x: x * x\nbig = lambda *a, k=1: (a, k)", "square(3), big(1, 2)"
    ),
    case(
        "lambdas in dicts",
        "ops = {'+': lambda a, b: a + b, '-': lambda a, b: a - b}\nalias = ops['+']",
        "ops['+'](1, 2), ops['-'](1, 2), alias is ops['+']",
    ),
    case("lambdas in a loop", "fs = [lambda n=n: n for n in range(4)]", "[f() for f in fs]"),
    case(
        "generator functions",
        "def count(n):\n    for i in range(n): got = yield i",
        "list(count(4))",
    ),
    case(
        "async functions",
        "async def later(x): return x + 1\nasync def all_of(*xs): return [await later(x) for x in xs]",
        "await all_of(1, 2)",
    ),
    case(
        "async generators and contexts",
        "import contextlib\nasync def ticks(n):\n    for i in range(n): yield i\n@contextlib.asynccontextmanager\nasync def scope(log):\n    log.append('in'); yield 5; log.append('out')",
        "log = []\nasync with scope(log) as v: got = [i async for i in ticks(3)]\nlog, v, got",
        recipe="contextlib",
    ),
    case(
        "context managers",
        "from contextlib import contextmanager\nlog = []\n@contextmanager\ndef scope(): log.append('in'); yield 1; log.append('out')",
        "with scope() as v: pass\nlog, v",
    ),
    case(
        "a cached function",
        "import functools\ncalls = []\n@functools.lru_cache(maxsize=7, typed=True)\ndef slow(x): calls.append(x); return x * 2\nplain = functools.cache(lambda x: x)",
        "calls.clear(); slow(2), slow(2), calls, slow.cache_parameters()['maxsize'], plain(4)",
        recipe="functools",
    ),
    case(
        "single dispatch",
        "import functools\n@functools.singledispatch\ndef kind(x): return 'other'\n@kind.register\ndef _(x: int): return 'int'\n@kind.register(list)\ndef _(x): return 'list'",
        "kind(1), kind([]), kind('')",
        recipe="functools",
    ),
    case(
        "partial functions",
        "import functools\ndef add(a, b, c=0): return a, b, c\nadd1 = functools.partial(add, 1, c=3)",
        "add1(2), add1.func is add",
        recipe="functools",
    ),
    case(
        "methods and builtins as values",
        "class A:\n    def __init__(self): self.v = []\n    def put(self, x): self.v.append(x); return self.v\na = A(); put = a.put; size = len; join = '-'.join; add = a.v.append",
        "put(1), add(2), a.v, size('abc'), join('ab')",
    ),
    case(
        "a function over globals of its own",
        "space = {'n': 5}\nexec('def read(): return n\\ndef write(v):\\n    global n\\n    n = v', space)\nread, write = space['read'], space['write']",
        "write(9); read(), space['n']",
    ),
    case(
        "a function of a library, and one made by it",
        "import operator, json\nget = operator.itemgetter(1)\ndumps = json.dumps\nenc = json.JSONEncoder(indent=1)",
        "get('ab'), dumps([1]), enc.encode([1])",
        recipe="operator json",
    ),
    case(
        "a function with type parameters",
        "import sys\nif sys.version_info >= (3, 12): exec('def first[T](xs: list[T]) -> T: return xs[0]', globals())\nelse:\n    def first(xs): return xs[0]",
        "first([4])",
        recipe="sys",
    ),
    case(
        "the source of functions",
        "import inspect\ndef told(a):\n    # with a comment\n    return a + 1",
        "inspect.getsource(told)",
        recipe="inspect",
    ),
    case(
        "the lines of a traceback",
        "import traceback\ndef fails():\n    raise ValueError('here')",
        "try: fails()\nexcept ValueError as e: lines = traceback.format_exc()\n\"raise ValueError('here')\" in lines",
        recipe="traceback",
    ),
]

CLASSES = [
    case(
        "a class and its instance",
        "class A:\n    n = 1\n    def __init__(self, x): self.x = x\n    def both(self): return self.n, self.x\na = A(2)",
        "A.n = 5; a.both(), type(a) is A, isinstance(a, A)",
    ),
    case(
        "methods see globals set later",
        "x = 1\nclass A:\n    def get(self): return x\na = A()",
        "x = 7; a.get()",
    ),
    case(
        "inheritance and super",
        "class A:\n    def hi(self): return ['A']\nclass B(A):\n    def hi(self): return ['B', *super().hi()]\nclass C(B):\n    def hi(self): return ['C', *super().hi()]\nc = C()",
        "c.hi(), [k.__name__ for k in C.__mro__], B in C.__bases__",
    ),
    case(
        "a diamond",
        "class A:\n    def go(self): return 'A'\nclass B(A):\n    def go(self): return 'B' + super().go()\nclass C(A):\n    def go(self): return 'C' + super().go()\nclass D(B, C):\n    def go(self): return 'D' + super().go()",
        "D().go()",
    ),
    case(
        "a metaclass",
        "class Meta(type):\n    def __new__(m, name, bases, ns, extra=0):\n        made = super().__new__(m, name, bases, ns); made.log = [*getattr(made, 'log', []), name]; return made\n    def __len__(cls): return 3\n    @property\n    def shout(cls): return cls.__name__.upper()\nclass A(metaclass=Meta, extra=1): pass\nclass B(A): pass",
        "len(A), B.shout, A.log, B.log, type(B) is Meta",
    ),
    case(
        "subclasses that are registered",
        "class Base:\n    known = {}\n    def __init_subclass__(cls, /, key, **k): super().__init_subclass__(**k); Base.known[key] = cls\nclass One(Base, key=1): pass\nclass Two(One, key=2): pass",
        "{k: v.__name__ for k, v in Base.known.items()}, Base.known[1] is One, Two.__bases__ == (One,)",
    ),
    case(
        "slots",
        "class P:\n    __slots__ = ('x', '__y')\n    def __init__(self): self.x, self.__y = 1, 2\n    def sum(self): return self.x + self.__y\nclass Q(P):\n    __slots__ = ('z',)\np = P(); q = Q(); q.z = 3",
        "try: p.w = 1\nexcept AttributeError: refused = True\np.sum(), q.sum(), q.z, refused, hasattr(p, '__dict__')",
    ),
    case(
        "dataclasses",
        "from dataclasses import dataclass, field, fields, asdict, replace, KW_ONLY\n@dataclass(order=True)\nclass P:\n    x: int\n    y: list = field(default_factory=list, repr=False)\n    _: KW_ONLY\n    z: int = 3\np = P(1, [2])",
        "p, fields(P)[1].name, asdict(p), replace(p, x=5), P(1) < P(2), p == P(1, [2]), P(4).y",
    ),
    case(
        "frozen dataclasses with slots",
        "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass P:\n    x: int = 1\np = P(); d = {p: 'v'}",
        "try: p.x = 2\nexcept Exception as e: said = type(e).__name__\np, d[P(1)], said, hash(p) == hash(P(1))",
    ),
    case(
        "enumerations",
        "import enum\nclass C(enum.Enum):\n    RED = 1\n    BLUE = 'b'\n    AZURE = 'b'\n    def low(self): return self.name.lower()\nred = C.RED; by = {C.RED: 1}",
        "red is C.RED, C('b') is C.BLUE, C.AZURE is C.BLUE, by[C.RED], list(C), red.low(), C['RED'] is red",
        recipe="enum",
    ),
    case(
        "flags and enumerations of numbers and texts",
        "import enum\nclass P(enum.Flag):\n    R = enum.auto(); W = enum.auto(); X = enum.auto()\nclass N(enum.IntEnum):\n    A = 1; B = 2\nclass S(str, enum.Enum):\n    ONE = 'one'\nclass F(enum.IntFlag):\n    A = 1; B = 2\nrw = P.R | P.W",
        "rw, rw in P, P.R in rw, N.B + 1, N(2) is N.B, S.ONE.upper(), S('one') is S.ONE, F.A | F.B, ~P.R, P(5)",
        recipe="enum",
    ),
    case(
        "an enumeration with its own new",
        "import enum\nclass Planet(enum.Enum):\n    EARTH = (5.9, 6.3)\n    MARS = (6.4, 3.3)\n    def __init__(self, mass, radius): self.mass, self.radius = mass, radius\n    @property\n    def both(self): return self.mass + self.radius\nm = Planet.MARS",
        "m.both, m is Planet.MARS, Planet((5.9, 6.3)), [p.name for p in Planet]",
        recipe="enum",
    ),
    case(
        "named tuples",
        "from collections import namedtuple\nfrom typing import NamedTuple\nP = namedtuple('P', 'x y', defaults=[5])\nclass Q(NamedTuple):\n    a: int\n    b: str = 'b'\n    def both(self): return self.a, self.b\np, q = P(1), Q(2)",
        "p, p.y, p._replace(x=9), q, q.both(), P._fields, Q(1)._asdict()",
    ),
    case(
        "typed dicts, protocols, generics",
        "from typing import TypedDict, Protocol, Generic, TypeVar, runtime_checkable\nT = TypeVar('T')\nclass M(TypedDict, total=False):\n    a: int\n@runtime_checkable\nclass Quacks(Protocol):\n    def quack(self) -> str: ...\nclass Duck:\n    def quack(self): return 'q'\nclass Box(Generic[T]):\n    def __init__(self, v: T): self.v = v\nb = Box[int](3)\nm: M = {'a': 1}",
        "isinstance(Duck(), Quacks), isinstance(1, Quacks), b.v, Box[str], M.__annotations__, Box.__parameters__[0] is T",
    ),
    case(
        "properties, class and static methods",
        "class A:\n    def __init__(self): self._v = 1\n    @property\n    def v(self): 'doc'; return self._v\n    @v.setter\n    def v(self, x): self._v = x\n    @classmethod\n    def make(cls): return cls()\n    @staticmethod\n    def two(): return 2\na = A()",
        "a.v = 5; a.v, A.make().v, A.two(), A.v.__doc__",
    ),
    case(
        "cached properties and descriptors",
        "import functools\nclass Upper:\n    def __set_name__(self, owner, name): self.name = '_' + name\n    def __get__(self, o, t=None): return getattr(o, self.name, 'none').upper() if o else self\n    def __set__(self, o, v): setattr(o, self.name, v)\nclass A:\n    word = Upper()\n    @functools.cached_property\n    def n(self): return [1]\na = A(); a.word = 'x'; first = a.n",
        "a.word, a.n is first, A.word.name",
        recipe="functools",
    ),
    case(
        "abstract classes",
        "import abc\nclass Shape(abc.ABC):\n    @abc.abstractmethod\n    def area(self): ...\nclass Sq(Shape):\n    def area(self): return 4\nclass Other: pass\nShape.register(Other)",
        "try: Shape()\nexcept TypeError as e: said = 'abstract' in str(e)\nsaid, Sq().area(), issubclass(Other, Shape), isinstance(Sq(), Shape)",
        recipe="abc",
    ),
    case(
        "subclasses of builtins",
        "class L(list):\n    tag = 't'\nclass D(dict):\n    def __missing__(self, k): return k * 2\nclass S(str): pass\nclass I(int):\n    def __add__(self, o): return I(int(self) + o + 1)\nl = L([1]); l.x = 2; d = D(a=1); s = S('s'); s.x = 1; i = I(3)",
        "l, l.x, type(l) is L, d['zz'], d['a'], s.x, i + 1",
    ),
    case(
        "special methods",
        "class V:\n    def __init__(self, *a): self.a = a\n    def __getattr__(self, n):\n        if n.startswith('_'): raise AttributeError(n)\n        return 'dyn ' + n\n    def __eq__(self, o): return self.a == o.a\n    def __hash__(self): return hash(self.a)\n    def __getitem__(self, i): return self.a[i]\n    def __call__(self): return 'called'\n    def __bool__(self): raise RuntimeError('no')\nv = V(1, 2); m = {v: 'x'}",
        "v.some, m[V(1, 2)], v[1], v()",
    ),
    case(
        "getstate, setstate, reduce",
        "class A:\n    def __init__(self, x): self.x, self.tmp = x, x + 10\n    def __getstate__(self): return {'x': self.x}\n    def __setstate__(self, s): self.__dict__.update(s); self.tmp = helper(s)\ndef helper(s): return s['x'] + base\nbase = 10\nclass B:\n    def __init__(self, x): self.x = x\n    def __reduce__(self): return B, (self.x,)\na = A(1); b = B([1]); b2 = b",
        "a.x, a.tmp, b.x, b2 is b",
    ),
    case(
        "classes inside of classes and functions",
        "class Outer:\n    class In:\n        v = 1\ndef make(n):\n    class Local:\n        def get(self): return n\n    return Local\nL = make(4); l = L(); i = Outer.In()",
        "l.get(), type(l) is L, i.v, type(i) is Outer.In, L.__qualname__",
    ),
    case(
        "a class that was defined again",
        "class A:\n    v = 1\nold = A()\nclass A:\n    v = 2\nnew = A()",
        "old.v, new.v, type(new) is A, type(old) is A",
    ),
    case(
        "a class changed later",
        "class A: pass\na = A()\nA.late = lambda self: 'late'\nA.n = [1]",
        "a.late(), A.n",
    ),
    case(
        "exceptions",
        "class E(Exception):\n    def __init__(self, a, b): super().__init__(a); self.b = b\ne = E(1, 2)\ntry:\n    try: {}['k']\n    except KeyError as k: raise ValueError('v') from k\nexcept ValueError as v: kept = v\ng = ExceptionGroup('g', [ValueError(1), E(3, 4)])\no = OSError(2, 'no', 'f'); u = UnicodeDecodeError('utf8', b'x', 0, 1, 'r')",
        "e.args, e.b, repr(kept), repr(kept.__cause__), g.exceptions[1].b, o.filename, u.reason",
    ),
    case(
        "instances with cycles",
        "class N: pass\na, b = N(), N()\na.other, b.other, a.me = b, a, a\nring = [a]; ring.append(ring); d = {}; d['d'] = d; t = ([],); t[0].append(t)",
        "a.other is b, b.other is a, a.me is a, ring[1] is ring, d['d'] is d, t[0][0] is t",
    ),
    case(
        "an object that holds its class and functions",
        "class A:\n    def __init__(self): self.cls, self.f, self.g = A, helper, lambda: helper() + 1\ndef helper(): return n\nn = 1\na = A()",
        "n = 4; a.cls is A, a.f(), a.g()",
    ),
    case(
        "singletons and sentinels",
        "class Nothing:\n    pass\nNOTHING = Nothing()\ndef f(x=NOTHING): return x is NOTHING\nd = {NOTHING: 1}",
        "f(), d[NOTHING], f(1)",
    ),
]
