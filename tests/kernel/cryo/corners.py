"""More of the corpus: namespaces that once came back changed without a report."""

from __future__ import annotations

from case import case

CLASSES = [
    case(
        "a class with instances that are hashed in it",
        "class P:\n    every = set()\n    def __init__(self, x): self.x = x; P.every.add(self)\n    def __eq__(self, o): return self.x == o.x\n    def __hash__(self): return hash(self.x)\nP.by = {P(1): 'one'}; k = list(P.by)[0]; p = P(2)",
        "P.by.get(P(1)), P.by.get(k), P(2) in P.every, p in P.every",
    ),
    case(
        "a class with instances that tell their state",
        "class P:\n    def __init__(self, x): self.x = x; self.cache = {}\n    def __getstate__(self): return {'x': self.x}\n    def __setstate__(self, s): self.x = s['x']; self.cache = {}\nP.ORIGIN = P(0); p = P(1)",
        "P.ORIGIN.cache, p.cache, P.ORIGIN.x",
    ),
    case(
        "a frozen class with slots that has instances",
        "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass P:\n    x: int = 0\nP.ORIGIN = P(0); p = P(3)",
        "P.ORIGIN, p, {P(3): 1}[p]",
    ),
    case(
        "a named tuple that has instances",
        "from collections import namedtuple\nfrom typing import NamedTuple\nP = namedtuple('P', 'x y'); P.ORIGIN = P(0, 0)\nclass Text(str):\n    def __new__(cls, t, n=1): made = super().__new__(cls, t); made.n = n; return made\n    def __getnewargs__(self): return str(self), self.n\nText.EMPTY = Text('', 5)",
        "P.ORIGIN, P.ORIGIN.x, Text.EMPTY.n, type(Text.EMPTY) is Text",
    ),
    case(
        "a singleton by its new",
        "class S:\n    _one = None\n    def __new__(cls):\n        if cls._one is None: cls._one = super().__new__(cls)\n        return cls._one\ns = S()",
        "S() is s, S._one is s",
    ),
    case(
        "subclasses that are counted",
        "class Base:\n    reg = []\n    def __init_subclass__(cls, **k): super().__init_subclass__(**k); Base.reg.append(cls.__name__)\nclass One(Base): pass\nclass Two(One): __slots__ = ('a',)\nclass L(list):\n    reg = []\n    def __init_subclass__(cls, **k): L.reg.append(cls.__name__)\nclass LA(L): pass\nclass Req:\n    def __init_subclass__(cls, *, key): cls.key = key\nclass A(Req, key=1): pass",
        "Base.reg, L.reg, A.key, One.__bases__ == (Base,), Two.__mro__[1] is One",
    ),
    case(
        "instances that claim to be of another class",
        "class Proxy:\n    def __init__(self, to): self.to = to\n    @property\n    def __class__(self): return type(self.to)\n    def __len__(self): return len(self.to)\nclass Words(Proxy):\n    def __new__(cls, *a, key=0): return super().__new__(cls)\n    def __init__(self, to, key=0): self.to = to\n    def __getnewargs_ex__(self): return ('ab',), {'key': 1}\np = Proxy([1, 2]); w = Words('abc'); box = {'p': p}",
        "isinstance(p, list), type(p) is Proxy, len(p), box['p'] is p, w.to, isinstance(w, str), type(w) is Words",
    ),
    case(
        "classes with attributes that all classes have",
        "class N:\n    __name__ = 'shown'\n    __mro__ = (1,)\n    __dict__ = property(lambda self: {'own': 1})\nn = N()\nclass A:\n    def get(self): return __class__\n    __name__ = property(get)\na = A()",
        "a.__name__ is A, type(a) is A, N.__name__, n.__name__, n.__mro__, n.__dict__, [c.__name__ for c in type.mro(N)]",
    ),
    case(
        "enumerations over other kinds",
        "import enum, dataclasses, datetime\n@dataclasses.dataclass\nclass Mix:\n    a: int\nclass E1(Mix, enum.Enum):\n    X = 1\nclass E2(datetime.date, enum.Enum):\n    D = (2026, 1, 2)\nclass E3(tuple, enum.Enum):\n    T = (1, 2)\nclass C(enum.Enum):\n    A = 1; B = 2\n    def __hash__(self): return hash(self.value)\nC.names = {C.A: 'a'}; d = E2.D",
        "E1.X.a, E2.D.year, d is E2.D, E3.T[1], C.names[C.A], C.B in C.names",
        recipe="enum dataclasses datetime",
    ),
    case(
        "properties of a kind of their own",
        "class lazy(property):\n    def __init__(self, f, note='n'): super().__init__(f); self.note = note\nclass A:\n    @lazy\n    def v(self): return [5, self.n]\n    n = 1\na = A()",
        "A.n = 2; a.v, type(vars(A)['v']) is lazy, vars(A)['v'].note",
    ),
    case(
        "new types and aliases of types",
        "import sys\nfrom typing import NewType\nUid = NewType('Uid', int)\ndef g(u: Uid): return u\nif sys.version_info >= (3, 12): exec('type X = int\\ntype Tree = int | list[Tree]\\ntype Pair[T] = tuple[T, T]\\ntype Use = dict[X, Pair[str]]', globals())\nelse: X, Tree, Pair, Use = int, int | list, tuple, dict",
        "g(4), Uid.__supertype__, g.__annotations__['u'] is Uid, repr(getattr(X, '__value__', X)), Tree is Tree.__value__.__args__[1].__args__[0] if hasattr(Tree, '__value__') else Tree, repr(getattr(Use, '__value__', Use)), repr(Pair[int])",
        recipe="sys",
    ),
    case(
        "exceptions with an init and attributes of their own",
        "class E(ImportError):\n    def __init__(self, m): super().__init__('x', name=m)\ne = E('mod')\nclass SI(StopIteration):\n    def __init__(self, a, b): super().__init__(a); self.b = b\nsi = SI(1, 2)\nclass OE(OSError):\n    def __init__(self, code): super().__init__(2, 'nope', 'fn'); self.code = code\noe = OE(4)\nxe = ExceptionGroup('g', [ValueError(1)]); xe.add_note('hi')\ntry: undefined_\nexcept NameError as n: ne = n",
        "e.name, si.value, si.b, oe.filename, oe.errno, oe.code, xe.__notes__, ne.name",
    ),
    case(
        "sentinels that tell themselves by their name",
        "class _M:\n    def __reduce__(self): return '_MISSING'\n_MISSING = _M()\ndef f(x=_MISSING): return x is _MISSING\nd = {'a': _MISSING}",
        "f(), d['a'] is _MISSING",
    ),
    case(
        "classes that answer oddly",
        "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\nclass A(metaclass=M): pass\na = A()\nclass function:\n    def __getattr__(self, n):\n        if n.startswith(('__reduce', '__getst')): raise AttributeError\n        return 5\nf = function(); f.g = (i for i in [])\nx = 1",
        "x, type(a).__name__",
        lost="f",
    ),
]

ARRAYS = [
    case(
        "an owner alone, and a view in a container",
        "import numpy as np\nbase = np.zeros(5); holder = {'v': base[:2]}; x = np.zeros((2, 2)); pair = {'a': x[0]}; other = [x[0]]; del x",
        "base[0] = 7; pair['a'][0] = 5; holder['v'][0], other[0][0]",
        recipe="np",
    ),
    case(
        "views of times, texts, objects and columns",
        "import numpy as np\ndates = np.array(['2026-01-01', '2026-01-02'], 'M8[D]'); day = dates[1:]; cols = np.asfortranarray(np.zeros((3, 3))); col = cols[:, 0]; words = np.array(['ab', 'cd']); word = words[1:]; objs = np.array([1, 'x', None], dtype=object); some = objs[::-1][:2]",
        "dates[1] = '2000-01-01'; cols[0, 0] = 7; words[1] = 'zz'; objs[1] = 5; objs[2] = 'last'; day, col, word, some",
        recipe="np",
    ),
    case(
        "arrays of kinds of their own, and what shares their memory",
        "import numpy as np\nm = np.ma.array([1, 2, 3], mask=[0, 0, 1], fill_value=7); d = m.data; r = np.rec.array([(1, 2.)], dtype=[('a', 'i4'), ('b', 'f8')]); ra = r.a; mt = np.matrix([[1, 2]]); a0 = np.asarray(mt)\nclass Sub(np.ndarray): pass\ns = np.arange(3).view(Sub); s.unit = 'm'; plain = s.view(np.ndarray)",
        "d[0] = 9; ra[0] = 5; mt[0, 0] = 7; s[1] = 8; m, m.fill_value, r.a[0], type(r), a0[0, 0], type(mt), type(s) is Sub, s.unit, plain[1], m.sum()",
        recipe="np",
    ),
    case(
        "arrays over bytes",
        "import numpy as np, array\nraw = bytearray(200_000); v = np.frombuffer(raw, dtype='u1'); part = {'p': np.frombuffer(raw, 'i4', 100, 8)}; t = array.array('d', [1.5]) * 20_000; u = array.array('i', [1, 2]); e = array.array('b'); both = [t]",
        "raw[8] = 7; int(v[8]), int(part['p'][0]), both[0] is t, t[-1], t.typecode, u, len(e)",
        recipe="np array",
    ),
    case(
        "data frames over an array",
        "import pandas as pd, numpy as np\nvals = np.arange(6.).reshape(3, 2); df = pd.DataFrame(vals, copy=False)",
        "vals[0, 0] = 99.; float(df.iloc[0, 0])",
        recipe="pd np",
    ),
    case(
        "arrays that lie scattered in memory",
        "import numpy as np\nwide = np.arange(3_000_000.).reshape(1000, 3000); thin = {'t': wide[:, ::10]}; cube = {'c': np.arange(24_000_000, dtype='i2').reshape(300, 200, 400)[:, ::8, 1::3]}; del wide; ro = np.arange(2_000_000.)[::8]; ro.flags.writeable = False; big = ro",
        "thin['t'].shape, thin['t'][5, 7], thin['t'].sum(), int(cube['c'].astype('i8').sum()), cube['c'][9, 3, 4], ro[9], ro.flags.writeable, big is ro",
        recipe="np",
    ),
    case(
        "the memory of a file, when it is asked for",
        "import numpy as np, tempfile\npath = tempfile.mktemp(); m = np.memmap(path, 'i4', 'w+', 8, (3, 4)); m[:] = 1; row = m[1]; plain = np.asarray(m)[2]; ro = np.memmap(path, 'i4', 'r', 8, (12,))",
        "m[1, 0] = 9; m[2, 1] = 8; m.flush(); np.fromfile(path, 'i4')[[2, 6, 11]], row, plain, type(row), type(plain), ro[4], ro.flags.writeable",
        recipe="np tempfile m row ro",
        files=True,
    ),
    case(
        "the memory of a file, when it is not",
        "import numpy as np, tempfile\nm = np.memmap(tempfile.mktemp(), 'i4', 'w+', shape=(4,)); plain = np.asarray(m); n = 1",
        "n",
        lost="m plain",
        recipe="np tempfile",
    ),
]

OTHERS = [
    case(
        "modules among those that are loaded which fail to answer, or are none",
        "import sys, types\nclass Faulty(types.ModuleType):\n    def __getattr__(self, n): raise Exception(n)\nsys.modules['faulty'] = Faulty('faulty'); sys.modules['no_module'] = object()\nclass A:\n    __module__ = 'missing'\n    def get(self): return 'works'\nclass B(A): __module__ = None\na, b = A(), B()\ndef f(): return A().get()\ndef g(): return 1\nf.__module__, g.__module__ = 'missing', None",
        "a.get(), b.get(), type(a) is A, A.__module__, B.__module__, f(), f.__module__, g(), g.__module__",
        recipe="sys types",
    ),
    case(
        "weak references that call back",
        "import weakref\nclass A:\n    def m(self): return 1\nlog = []\na = A(); w = weakref.ref(a, lambda r: log.append('gone')); fin = weakref.finalize(a, log.append, 'final'); dead = weakref.finalize(A(), int); wm = weakref.WeakMethod(a.m); nobody = weakref.WeakMethod(A().m)",
        "alive = fin.alive, dead.alive, wm()(), nobody(), w() is a; del a; alive, sorted(log), w()",
        recipe="weakref",
    ),
    case(
        "weak containers of kinds of their own",
        "import weakref\nclass A: pass\nclass W(weakref.WeakValueDictionary):\n    def __init__(self, note): super().__init__(); self.note = note\n    def __setitem__(self, k, v): raise RuntimeError('never again')\nclass S(weakref.WeakSet): pass\na = A(); w = W('n'); weakref.WeakValueDictionary.__setitem__(w, 'k', a); s = S([a])",
        "w['k'] is a, w.note, a in s, len(s), type(s) is S",
        recipe="weakref",
    ),
    case(
        "a weak reference whose object is lost",
        "import weakref\nclass A: pass\nhold = [A(), (i for i in [])]; kept = A(); w = weakref.ref(hold[0]); ok = weakref.ref(kept); wd = weakref.WeakValueDictionary(a=hold[0], b=kept)",
        "ok() is kept, wd['b'] is kept",
        lost="hold w",
        altered="wd",
        recipe="weakref",
    ),
    case(
        "loggers with filters, and the root",
        "import logging\nroot = logging.getLogger(); root.setLevel(10); log = logging.getLogger('q'); log.setLevel(10)\nclass F(logging.Filter):\n    def filter(self, r): return 'secret' not in r.getMessage()\nclass H(logging.Handler):\n    def __init__(self): super().__init__(); self.seen = []\n    def emit(self, r): self.seen.append(r.getMessage())\nh = H(); top = H(); log.addFilter(F()); log.addHandler(h); root.addHandler(top)",
        "log.debug('a secret'); log.debug('fine'); len(log.filters), h.seen, top.seen, root.level, root is logging.getLogger()",
        recipe="logging",
    ),
    case(
        "futures",
        "import concurrent.futures as cf\nopen_ = cf.Future(); done = cf.Future(); done.set_result(5)",
        "done.result()",
        lost="open_",
        recipe="cf",
    ),
    case(
        "views and iterators of ordered dicts",
        "from collections import OrderedDict, deque\no = OrderedDict(a=1); ks, vs, its = o.keys(), o.values(), o.items(); it = iter(OrderedDict(a=1, b=2)); next(it); rv = reversed({'a': 1, 'b': 2}); ri = reversed(OrderedDict(z=1)); dq = iter(deque([1]))",
        "o['b'] = 2; list(ks), list(vs), list(its), list(it), list(rv), list(ri), list(dq)",
    ),
    case(
        "one resource among others of its kind",
        "res = runtime.resource(lambda: (lambda: 5), 'fn'); live = res.get()\ndef f(): return 1\nclass A:\n    def m(self): return 2\na = A(); import math, json\nmod = runtime.resource(lambda: math, 'm').get()",
        "f(), a.m(), live(), json.dumps(1), mod.pi",
        recipe="res live math json mod",
    ),
    case(
        "names of the shell's own, taken by the user",
        "In = 5; Out = [1]; x = 1",
        "In, Out, x",
    ),
    case(
        "an output stream that was replaced",
        "import io, sys\nbuf = io.StringIO(); _ = buf.write('data'); own = sys.stdout; sys.stdout = buf; held = [own]",
        "sys.stdout = sys.__stdout__; buf.getvalue(), held[0] is own is sys.stdout",
        recipe="io sys own",
    ),
    case(
        "open files with newlines of their own",
        "import tempfile\npath = tempfile.mktemp(); _ = open(path, 'wb').write(b'a\\r\\nb\\r\\nc'); keep = open(path, newline=''); _ = keep.readline(); plain = open(path); _ = plain.readline(); crlf = open(tempfile.mktemp(), 'w+', newline='\\r\\n'); lf = open(path, newline='\\n')",
        "crlf.write('x\\n'), crlf.flush(), open(crlf.name, 'rb').read(), keep.read(), plain.read(), lf.read(), lf.name == path",
        recipe="tempfile keep plain crlf lf",
        files=True,
    ),
    case(
        "an open file in the middle of a loop over its lines",
        "import tempfile\npath = tempfile.mktemp(); _ = open(path, 'w').write('a\\nb\\n'); f = open(path)\nfor line in f: break",
        "line",
        lost="f",
        recipe="tempfile",
        files=True,
    ),
    case(
        "an open file whose folder was left",
        "import os, tempfile\na = tempfile.mkdtemp(); b = tempfile.mkdtemp()\nopen(a + '/f.txt', 'w').write('RIGHT'); open(b + '/f.txt', 'w').write('WRONG')\nos.chdir(a); fh = open('f.txt'); os.chdir(b); n = 1",
        "n",
        lost="fh",
        recipe="os tempfile",
        files=True,
    ),
]

BASED = [
    case(
        "dicts with methods of their own",
        "class D(dict):\n    def items(self): return [(k, v * 2) for k, v in super().items()]\nclass E(dict):\n    def __setitem__(self, k, v): super().__setitem__(k, v + 1)\nclass F(dict):\n    def __setitem__(self, k, v): raise TypeError('frozen')\nclass G(dict):\n    def __new__(cls, must, **kw): return super().__new__(cls)\n    def __init__(self, must, **kw): super().__init__(**kw); self.must = must\n"
        "d = D(a=1); e = E(a=1); e['b'] = 1; e.me = e; f = F(a=1); g = G(3, a=1); hold = [d, e, {'f': f}]",
        "dict.__repr__(d), e, e.me is e, f, g, g.must, hold[2]['f'] is f, hold[0] is d",
    ),
    case(
        "dicts of the collections, with methods of their own",
        "from collections import *\nclass O(OrderedDict):\n    def __setitem__(self, k, v): super().__setitem__(k, v + 1)\no = O(); o['b'] = 1; o['a'] = 1; o.move_to_end('b'); o.t = 1\n"
        "class C(Counter):\n    def __init__(self, *a): super().__init__(*a); self['n'] += 1; self.t = 1\nc = C('a'); c['n'] = 5; c.t = 7\n"
        "class DD(defaultdict):\n    def __setitem__(self, k, v): super().__setitem__(k, v + 1)\ndd = DD(int); dd['a'] = 1; dd.t = 1\nclass Plain(defaultdict): pass\np = Plain(list, a=[1]); p.t = p",
        "list(o.items()), o.t, c, c.t, dd, dd.t, p['new'], p.t is p",
    ),
    case(
        "lists and deques with methods of their own",
        "from collections import deque\nclass I(list):\n    def __iter__(self): return (x * 2 for x in list.__iter__(self))\nclass E(list):\n    def extend(self, xs): super().extend([x + 1 for x in xs])\n    def append(self, x): super().append(x + 1)\nclass Q(deque):\n    def append(self, x): super().append(x * 2)\n    def extend(self, xs): super().extend(x * 2 for x in xs)\n"
        "i = I([1, 2]); e = E([1]); list.append(e, e); q = Q([1, 2, 3], 2); q.t = 1",
        "i[0], i[1], e[0], e[1] is e, q, q.maxlen, q.t",
    ),
    case(
        "sets with methods of their own",
        "class S(set):\n    def __init__(self, xs=()): super().__init__(x + 1 for x in xs)\nclass F(frozenset):\n    def __new__(cls, *xs): return super().__new__(cls, xs)\ns = S([1]); s.t = s; f = F(1, 2); f.t = 2",
        "sorted(s), s.t is s, sorted(f), f.t",
    ),
    case(
        "values with a `__new__` of their own",
        "class T(tuple):\n    def __new__(cls, *a): return super().__new__(cls, a)\nclass I(int):\n    def __new__(cls, v): return super().__new__(cls, v + 1)\nclass S(str):\n    def __new__(cls, v): return super().__new__(cls, v + '!')\nclass F(float):\n    def __new__(cls, a, b): return super().__new__(cls, a / b)\n"
        "back = []; t = T(1, back); back.append(t); i = I(1); i.t = 1; s = S('a'); f = F(1, 2); two = {i: s}",
        "t[0], len(t), back[0] is t, t[1] is back, i + 0, i.t, s + '', f + 0, two[2]",
    ),
    case(
        "slots behind a `__setattr__`",
        "class P:\n    __slots__ = ('x', '__y')\n    def __init__(self, x): object.__setattr__(self, 'x', x); object.__setattr__(self, '_P__y', self)\n    def __setattr__(self, k, v): raise AttributeError('immutable')\n    def y(self): return self.__y\n"
        "class Q:\n    __slots__ = ('x', '__dict__')\n    def __setattr__(self, k, v): object.__setattr__(self, k, v * 2)\np = P(1); q = Q(); q.x = 1; q.more = 2\nclass L(list):\n    __slots__ = ('x',)\n    def __setattr__(self, k, v): object.__setattr__(self, k, v * 2)\nl = L([5]); l.x = 1; empty = L()",
        "p.x, p.y() is p, q.x, q.more, l, l.x, empty, hasattr(empty, 'x')",
    ),
    case(
        "what says itself how it is pickled",
        "class D(dict):\n    def __setitem__(self, k, v): super().__setitem__(k, v + 1)\n    def __reduce__(self): return D.of, (sorted(dict.items(self)),)\n    @classmethod\n    def of(cls, pairs): made = cls(); dict.update(made, pairs); made.told = True; return made\nd = D(a=1)\n"
        "class P:\n    __slots__ = ('x',)\n    def __setattr__(self, k, v): raise AttributeError('immutable')\n    def __getstate__(self): return 5\n    def __setstate__(self, s): object.__setattr__(self, 'x', s)\np = P(); p.__setstate__(5)",
        "d, p.x",
    ),
]

CORNERS = [*CLASSES, *ARRAYS, *OTHERS, *BASED]
