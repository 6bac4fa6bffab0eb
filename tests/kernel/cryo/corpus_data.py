"""Namespaces of data, of library objects, and of live objects."""

from __future__ import annotations

from case import case

DATA = [
    case(
        "simple values",
        "i = 10**50; f = 0.1; c = 1j; b = True; n = None; s = 'ä€😀'; y = b'\\0x'; e = ...; ni = NotImplemented; ba = bytearray(b'q'); r = range(1, 9, 2); sl = slice(1, None, 2)",
        "i, f, c, b, n, s, y, e, ni, ba, list(r), sl",
    ),
    case(
        "containers",
        "l = [1, [2, (3, {4: {5, 6}})]]; fs = frozenset([1, (2,)]); d = {(1, 2): 'a', None: 'b'}",
        "l, fs, d",
    ),
    case(
        "the collections",
        "from collections import *\ndd = defaultdict(list, a=[1]); dq = deque([1, 2], maxlen=2); od = OrderedDict(b=1, a=2); c = Counter('aab'); cm = ChainMap({'x': 1}, od); ud = UserDict(k=1)",
        "dd['new'].append(1); dq.append(3); dd, dq, dq.maxlen, list(od), c.most_common(1), cm['b'], ud",
    ),
    case(
        "aliases",
        "a = [1]; b = a; c = {'in': a}; d = (a, a)",
        "a.append(2); a is b, b is c['in'], d[0] is d[1] is a, c",
    ),
    case(
        "aliases through many variables",
        "shared = {'n': 0}\nclass User:\n    def __init__(self): self.s = shared\nus = [User() for _ in range(3)]; one = us[0]",
        "shared['n'] = 5; [u.s['n'] for u in us], one is us[0], one.s is shared",
    ),
    case(
        "names of what stores",
        "k = 1; v = [2]; f = lambda: k + v[0]; state = {'s': 1}; dill = 'x'; pickle = 3; cryo = 4; store = 5; shell = 6; make = 7; name = 8; value = 9",
        "k, v, f(), state, dill, pickle, cryo, store, shell, make, name, value",
    ),
    case(
        "weird and Unicode names",
        "größe = 1; 変数 = [2]; _private = 3; __dunder__ = 4; ñ = größe; globals()['not a name'] = 5; globals()['']= 6; l1 = 7",
        "größe, 変数, _private, __dunder__, globals()['not a name'], globals()[''], l1",
    ),
    case(
        "names that are ours, taken by the user",
        "exit = 5; quit = [exit]; open = 'mine'; get_ipython = 'g'",
        "exit, quit, open, get_ipython",
    ),
    case(
        "a name that is no text",
        "globals()[7] = 'x'; globals()['\\ud800'] = 1; fine = 1",
        "fine",
        lost="7 '\\ud800'",
    ),
    case(
        "times, numbers, paths, ids",
        "import datetime as dt, decimal, fractions, pathlib, uuid, ipaddress, zoneinfo\nd = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc); td = dt.timedelta(1.5); de = decimal.Decimal('0.10'); fr = fractions.Fraction(1, 3); p = pathlib.Path('/a') / 'b'; u = uuid.UUID(int=5); ip = ipaddress.ip_network('10.0.0.0/8')",
        "d, td, de, fr, p, u, ip",
        recipe="dt decimal fractions pathlib uuid ipaddress zoneinfo",
    ),
    case(
        "compiled regexes",
        "import re\nr = re.compile(r'(?P<n>\\d+)', re.I); both = [r, r]",
        "r.sub('x', 'a1b22'), r.flags, both[0] is r, r.match('7')['n']",
        recipe="re",
    ),
    case("a match", "import re\nm = re.match('a', 'ab'); ok = 1", "ok", lost="m", recipe="re"),
    case(
        "random state",
        "import random\nrng = random.Random(4); rng.random()",
        "rng.random(), rng.choice('abcdef')",
        recipe="random",
    ),
    case(
        "in-memory files",
        "import io\nt = io.StringIO('abc'); t.read(1); b = io.BytesIO(b'xyz'); b.seek(2)",
        "t.read(), b.read()",
        recipe="io",
    ),
    case(
        "iterators",
        "li = iter([1, 2, 3]); next(li); z = zip('ab', [1, 2]); next(z); m = map(str, [1, 2]); e = enumerate('xy'); di = iter({'a': 1}); rv = reversed([1, 2])",
        "list(li), list(z), list(m), list(e), list(di), list(rv)",
    ),
    case(
        "views of dicts and read-only mappings",
        "import types\nd = {'a': 1}; ks, vs, its = d.keys(), d.values(), d.items(); ro = types.MappingProxyType(d)",
        "d['b'] = 2; list(ks), list(vs), list(its), dict(ro)",
        recipe="types",
    ),
    case(
        "weak references",
        "import weakref\nclass A: pass\na = A(); w = weakref.ref(a); gone = weakref.ref(A()); wk = weakref.WeakKeyDictionary({a: 1}); wv = weakref.WeakValueDictionary({'k': a}); ws = weakref.WeakSet([a]); px = weakref.proxy(a); a.v = 3",
        "w() is a, gone(), wk[a], wv['k'] is a, a in ws, px.v",
        recipe="weakref",
    ),
    case(
        "a weak reference alone",
        "import weakref\nclass A: pass\na = A(); w = weakref.ref(a); n = 1",
        "w() is a; del a; w() is None",
        recipe="weakref",
    ),
    case("memory views", "ba = bytearray(b'abc'); mv = memoryview(ba); ok = 1", "mv[0] = 120; ba"),
    case(
        "a memory view of a part",
        "ba = bytearray(b'abc'); mv = memoryview(ba)[1:]; ok = 1",
        "ok, ba",
        lost="mv",
    ),
    case(
        "types as values",
        "ts = [int, type(None), type(...), list[int], dict[str, int | None]]; import types; ft = types.FunctionType; gt = types.GeneratorType",
        "ts, ft, gt",
        recipe="types",
    ),
    case(
        "structs and codecs",
        "import struct, operator\ns = struct.Struct('<HI'); g = operator.attrgetter('real'); mc = operator.methodcaller('upper')",
        "s.pack(1, 2), g(3), mc('a')",
        recipe="struct operator",
    ),
    case(
        "a linked list, 200,000 deep",
        "class Node:\n    def __init__(self, v, n): self.v, self.next = v, n\nhead = None\nfor i in range(200_000): head = Node(i, head)\nlast = head",
        "n, c = head, 0\nwhile n is not None: c += n.v; n = n.next\nc, last is head",
    ),
    case(
        "a list linked both ways, and nested lists",
        "class Node: __slots__ = ('p', 'n')\nfirst = at = Node(); at.p = None\nfor i in range(50_000): at.n = Node(); at.n.p = at; at = at.n\nat.n = None; last = at\nnest = []\nfor i in range(100_000): nest = [nest, i]\ntup = ()\nfor i in range(20_000): tup = (tup, {i})\nafter = [first]",
        "n, c = last, 0\nwhile n.p is not None: n = n.p; c += 1\nd, x = 0, nest\nwhile x: x = x[0]; d += 1\ny = 0\nwhile tup: tup = tup[0]; y += 1\nc, n is first, d, y, after[0] is first",
    ),
    case(
        "many small objects",
        "class P:\n    def __init__(self, i): self.i = i\nps = [P(i) for i in range(50_000)]; ds = [{'i': i, 's': str(i)} for i in range(50_000)]",
        "sum(p.i for p in ps), ds[-1], len(ds)",
    ),
    case(
        "a million small objects",
        "ds = [{'id': i} for i in range(1_000_000)]",
        "len(ds), ds[-1], sum(d['id'] for d in ds)",
    ),
    case(
        "large texts and bytes",
        "big = 'ä' * 3_000_000; raw = bytes(range(256)) * 20_000; arr = bytearray(raw); import array; a = array.array('d', range(100_000))",
        "len(big), big[-1], raw == bytes(arr), a[-1]",
        recipe="array",
    ),
    case(
        "a thousand variables",
        "for i in range(1000): globals()[f'v{i}'] = [i]\nsame = v7",
        "sum(globals()[f'v{i}'][0] for i in range(1000)), same is v7",
    ),
    case(
        "the namespace as a variable",
        "g = globals(); x = 1; holder = {'g': g}",
        "x = 9; g['x'], holder['g'] is globals(), g is globals()",
        recipe="g",
    ),
    case(
        "output streams and environment",
        "import sys, os\nout = sys.stdout; hold = [sys.stderr]; env = os.environ",
        "out is sys.stdout, hold[0] is sys.stderr, env is os.environ",
        recipe="sys os out env",
    ),
    case(
        "objects without a class of ours",
        "import types, argparse\nns = types.SimpleNamespace(a=1); ns.me = ns; ar = argparse.Namespace(x=2); parser = argparse.ArgumentParser(prog='p'); _ = parser.add_argument('--n', type=int)",
        "ns.me is ns, ar.x, parser.parse_args(['--n', '3']).n",
        recipe="types argparse",
    ),
]

LIBRARIES = [
    case(
        "numpy arrays",
        "import numpy as np\na = np.arange(12.).reshape(3, 4); b = a; f = np.asfortranarray(a); o = np.array([{'x': 1}, a], dtype=object); s = np.array(['ab', 'c']); z = np.array(5); e = np.empty((0, 3)); c = a[:, ::2]; d = np.array(['2026-01-01'], 'M8[D]'); st = np.array([(1, 2.)], dtype=[('i', 'i4'), ('f', 'f8')]); ro = np.arange(3); ro.flags.writeable = False",
        "a += 1; b is a, a, f.flags.f_contiguous, o[0], s, z, e.shape, c.shape, d, st['f'], ro.flags.writeable, a.flags.owndata",
        recipe="np",
    ),
    case(
        "large numpy arrays",
        "import numpy as np\na = np.arange(300_000, dtype='i8'); l = [a, np.ones((300, 300)), a]; f = np.asfortranarray(np.random.default_rng(1).random((200, 200)))",
        "a[5] = -1; l[0][5], l[2] is a, l[1].sum(), f.sum(), f.flags.f_contiguous, a.resize(10, refcheck=False)",
        recipe="np",
    ),
    case(
        "views of the same memory",
        "import numpy as np\na = np.arange(12).reshape(3, 4); row = a[1]; rev = a[::-1]; base = np.zeros(5); tail = base[2:]; holder = [base[:2]]",
        "a[1, 0] = 99; base[:] = 7; row, rev[1, 0], tail, holder[0]",
        recipe="np",
    ),
    case(
        "other things of numpy",
        "import numpy as np\nm = np.ma.array([1, 2], mask=[0, 1]); g = np.random.default_rng(3); g.random(); v = np.vectorize(lambda x: x + 1); p = np.polynomial.Polynomial([1, 2]); x = np.float32(1.5); dt = np.dtype('i4'); u = np.add",
        "m.sum(), g.random(), v([1, 2]), p(2), x, dt, u(1, 2)",
        recipe="np",
    ),
    case(
        "pandas",
        "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2, None], 'b': list('xyz'), 't': pd.date_range('2026', periods=3), 'c': pd.Categorical(['p', 'q', 'p'])}).set_index('b'); same = df; s = df['a']; mi = pd.MultiIndex.from_product([[1, 2], ['a']]); by = {'df': df}",
        "df['n'] = 1; same is df, by['df'] is df, df.dtypes.to_dict(), df.sum(numeric_only=True).to_dict(), s.name, list(mi), df.loc['y', 'a']",
        recipe="pd",
    ),
    case(
        "a large data frame",
        "import pandas as pd, numpy as np\ndf = pd.DataFrame(np.arange(400_000.).reshape(-1, 4), columns=list('abcd')); df['k'] = df.a.astype('i8') % 7",
        "df.loc[0, 'a'] = 5; df.groupby('k').b.sum().to_dict(), df.shape",
        recipe="pd np",
    ),
    case(
        "matplotlib figures",
        "import matplotlib.figure as mf\nfig = mf.Figure(); ax = fig.subplots(); line, = ax.plot([1, 2], [3, 4], label='l'); ax.set_title('T')",
        "ax.set_xlabel('x'); fig.axes[0] is ax, ax.get_title(), line.get_ydata().tolist(), line.axes is ax, ax.get_xlabel()",
        recipe="mf",
    ),
]

LIVE = [
    case(
        "modules",
        "import math, os.path as p, xml.etree.ElementTree as ET, json as j",
        "math.pi, p.join('a', 'b'), ET.fromstring('<a/>').tag, j.dumps(1)",
        recipe="math p ET j",
    ),
    case(
        "a module made by code",
        "import sys, types\nm = types.ModuleType('made_here'); sys.modules['made_here'] = m; exec('v = 1\\ndef get(): return v\\nclass K: pass', m.__dict__); k = m.K()",
        "m.v = 5; m.get(), type(k) is m.K, sys.modules['made_here'] is m",
        recipe="sys types",
    ),
    case(
        "a generator beside others",
        "g = (i for i in range(3)); next(g); class_ = type('A', (), {'n': 1}); inst = class_(); f = lambda: inst.n",
        "f(), inst.n, class_.n",
        lost="g",
    ),
    case(
        "sockets and others that live",
        "import socket, sqlite3, threading\ns = socket.socket(); db = sqlite3.connect(':memory:'); inside = {'deep': [1, {'s': s}]}\nclass A:\n    def __init__(self): self.db = db\na = A(); f = lambda: 5; ok = [1]",
        "f(), ok",
        lost="s db inside a",
        recipe="socket sqlite3 threading",
    ),
    case(
        "locks",
        "import threading, queue\nl = threading.Lock(); r = threading.RLock(); c = threading.Condition(); e = threading.Event(); e.set(); sem = threading.Semaphore(2); q = queue.Queue(); q.put(1)\nclass Safe:\n    def __init__(self): self.lock, self.n = threading.Lock(), 0\n    def bump(self):\n        with self.lock: self.n += 1\ns = Safe()",
        "s.bump(); l.locked(), r.acquire(False), e.is_set(), sem.acquire(), q.get(), s.n, c.acquire(False)",
        recipe="threading queue",
    ),
    case(
        "threads and executors",
        "import threading, concurrent.futures as cf\nstop = threading.Event(); t = threading.Thread(target=stop.wait, daemon=True); t.start(); pool = cf.ThreadPoolExecutor(1); f = lambda: 1\nwhile not stop._cond._waiters: pass",
        "stop.set(); f()",
        lost="t pool",
        altered="stop",
        recipe="threading cf",
    ),
    case(
        "loggers",
        "import logging\nlog = logging.getLogger('app.part'); log.setLevel(logging.DEBUG); log.propagate = False\nclass Keep(logging.Handler):\n    def __init__(self): super().__init__(); self.seen = []\n    def emit(self, r): self.seen.append(r.getMessage())\nkeep = Keep(); log.addHandler(keep)",
        "log.debug('x %s', 1); keep.seen, log.level, log is logging.getLogger('app.part'), log.handlers == [keep]",
        recipe="logging",
    ),
    case(
        "coroutines, tasks, loops",
        "import asyncio\nasync def f(): return 1\nco = f(); n = [1]",
        "await f(), n",
        lost="co",
        recipe="asyncio",
    ),
    case(
        "tracebacks and frames",
        "import sys\ntry: 1 / 0\nexcept ZeroDivisionError as e: tb = e.__traceback__; kept = e\nfr = sys._getframe(); ok = 1",
        "ok, repr(kept)",
        lost="tb fr",
        recipe="sys",
    ),
    case(
        "open files, when they are asked for",
        "import tempfile, os\npath = tempfile.mktemp(); w = open(path, 'w+'); _ = w.write('hello\\nworld\\n'); w.flush(); r = open(path); _ = r.read(3); b = open(path, 'rb'); _ = b.seek(4); both = [r]",
        "w.write('!'), w.flush(), r.read(), b.read(), both[0] is r",
        recipe="tempfile os w r b",
        files=True,
    ),
    case(
        "open files, when they are not",
        "import tempfile\nf = tempfile.TemporaryFile(); n = 1",
        "n",
        lost="f",
        recipe="tempfile",
    ),
    case(
        "child processes",
        "import subprocess, sys\np = subprocess.Popen(['sleep', '60']); done = subprocess.run(['true'])",
        "done.returncode",
        lost="p",
        recipe="subprocess sys",
    ),
    case(
        "resources",
        "made = []\ndef connect(): made.append(1); return {'n': len(made)}\nres = runtime.resource(connect).validate(lambda c: True); import sqlite3\nconn = runtime.resource(lambda: sqlite3.connect(':memory:'), 'db').get()",
        "res.get()['n'] >= 1, conn.execute('select 7').fetchone()",
        recipe="res conn sqlite3",
    ),
    case(
        "one that can't be, among many of its kind",
        "class A:\n    def __init__(self, v): self.v = v\nall_ = [A(i) for i in range(5)]; bad = A((i for i in [1])); gen = A((i for i in [])); shared = {'k': all_}; worse = [shared, gen]; last = all_[-1]",
        "all_[4] is last, shared['k'] is all_, last.v",
        lost="bad gen worse",
    ),
    case(
        "one that raises when it is stored",
        "class Bad:\n    def __reduce__(self): raise RuntimeError('never')\nclass Exits:\n    def __getstate__(self): raise SystemExit(3)\na = [1]; bad = [a, Bad()]; ex = Exits(); b = a",
        "a is b, a",
        lost="bad ex",
    ),
    case(
        "one that raises when it is made",
        "class Bad:\n    def __init__(self): self.v = 1\n    def __setstate__(self, s): raise RuntimeError('never')\nfirst = [1]; also = [first]; n = 1; bad = Bad()",
        "also[0] is first, n",
        unmade="bad",
    ),
]
