"""Kinds of objects whose content or progress no attribute shows; like `kinds_code`."""

from __future__ import annotations

RANDOM = [
    ("X = random.Random(7); X.random()", "[X.random() for _ in range(3)], X.getrandbits(80)"),
    ("X = random.Random(7); X.gauss(0, 1)", "X.gauss(0, 1), X.gauss(0, 1)"),
    ("X = np.random.default_rng(5); X.random(3)", "X.random(3).tolist(), X.integers(0, 9, 3)"),
    ("X = np.random.RandomState(5); X.normal()", "X.normal(size=3).tolist()"),
    ("X = np.random.PCG64(3); X.random_raw()", "X.random_raw(3).tolist()"),
    ("X = np.random.SeedSequence(3); X.spawn(1)", "X.spawn(1)[0].generate_state(2).tolist()"),
]

STREAMS = [
    ("X = io.StringIO('ab\\ncd\\n'); X.readline()", "X.tell(), X.read(), X.getvalue()"),
    ("X = io.StringIO(); X.write('abcdef'); X.seek(2)", "X.write('__'), X.getvalue(), X.tell()"),
    ("X = io.StringIO('a\\r\\nb', newline=None)", "X.readlines(), X.getvalue()"),
    ("X = io.StringIO('gone'); X.close()", "X.closed, _raises(X.getvalue)"),
    ("X = io.BytesIO(b'abcdef'); X.seek(4)", "X.tell(), X.read(), X.getvalue()"),
    ("X = io.BytesIO(b'ab'); X.seek(5); X.own = [1]", "X.write(b'c'), X.getvalue(), X.own"),
    (
        "class C(io.BytesIO): pass\nX = C(b'abc'); X.read(1); X.own = 2",
        "X.read(), X.own, type(X) is C",
    ),
    ("X = io.TextIOWrapper(io.BytesIO(b'a\\nb'))", "X.read()"),
    ("X = io.BufferedReader(io.BytesIO(b'abc'))", "X.read()"),
]

QUEUES = [
    (
        "X = queue.Queue(3); X.put('a'); X.put([1])",
        "X.maxsize, X.qsize(), X.get(), X.get(), X.empty(), X.unfinished_tasks",
    ),
    ("X = queue.LifoQueue(); X.put(1); X.put(2)", "X.get(), X.get(), X.qsize()"),
    ("X = queue.PriorityQueue(); [X.put(n) for n in (3, 1, 2)]", "[X.get() for _ in range(3)]"),
    ("X = queue.SimpleQueue(); X.put('a')", "X.get()"),
    ("X = threading.Event(); X.set()", "X.is_set(), X.wait(0)"),
    (
        "X = threading.Semaphore(2); X.acquire()",
        "X.acquire(blocking=False), X.acquire(blocking=False)",
    ),
    ("X = threading.Condition()", "X.acquire(), X.release()"),
    ("X = collections.deque('abc', 5); X.rotate(1)", "list(X), X.maxlen"),
    (
        "X = collections.ChainMap({'a': 1}, {'a': 2, 'b': [3]})",
        "X['a'], X.parents['a'], len(X.maps)",
    ),
    ("X = decimal.Context(prec=3); X.divide(1, 3)", "X.flags[decimal.Inexact], X.divide(2, 3)"),
]

ITERATORS = [
    *(
        (f"X = {each}; next(X)", "list(X)")
        for each in (
            "iter([1, [2], 3])",
            "iter((1, 2, 3))",
            "iter('abc')",
            "iter('gr\\u00fc\\U0001f388')",
            "iter(b'abc')",
            "iter(bytearray(b'abc'))",
            "iter(range(9))",
            "iter(range(10**30, 10**30 + 3))",
            "iter({'a': 1, 'b': 2})",
            "iter({'a': 1, 'b': 2}.items())",
            "iter({'a': 1, 'b': 2}.values())",
            "reversed({'a': 1, 'b': 2})",
            "iter(collections.OrderedDict(b=1, a=2))",
            "iter(collections.deque([1, 2, 3]))",
            "iter(array.array('d', [1, 2, 3]))",
            "iter(np.arange(3.0))",
            "iter(memoryview(b'abc'))",
            "reversed([1, 2, 3])",
            "reversed((1, 2, 3))",
            "zip([1, 2], 'ab')",
            "map(str, [1, 2])",
            "filter(None, [1, 0, 2])",
            "enumerate('abc', 3)",
            "itertools.chain([1, 2], 'ab')",
            "itertools.islice(range(9), 2, 7, 2)",
            "itertools.accumulate([1, 2, 3], operator.mul)",
            "itertools.product('ab', [1, 2])",
            "itertools.permutations('abc', 2)",
            "itertools.combinations('abc', 2)",
            "itertools.starmap(pow, [(2, 3), (3, 2)])",
            "itertools.takewhile(bool, [1, 2, 0, 3])",
            "itertools.zip_longest('ab', 'c')",
            "itertools.pairwise('abcd')",
            "itertools.batched('abcde', 2)",
            "itertools.repeat('r', 3)",
            "iter([2, 1, 0].pop, 2)",
            "re.finditer('a', 'aaa')",
            "csv.reader(['a,b', 'c,d'])",
            "graphlib.TopologicalSorter({'a': {'b'}}).static_order()",
        )
    ),
    ("X = iter({1, 2, 3}); next(X)", "len(list(X))"),
    ("X = itertools.cycle('abc'); next(X)", "[next(X) for _ in range(5)]"),
    ("X = itertools.groupby('aab'); next(X)", "[(k, list(g)) for k, g in X]"),
    ("X = itertools.tee([1, 2, 3]); next(X[0])", "list(X[0]), list(X[1])"),
    ("X = iter([1, 2, 3]); X = [X, X, zip(X, X)]", "X[0] is X[1], next(X[0]), list(X[2])"),
    ("X = [5]; X = [X, iter(X)]", "X[0].append(6), list(X[1])"),
    (
        "class C:\n    def __init__(self): self.n = 3\n    def __iter__(self): return self\n    def __next__(self):\n        if not self.n: raise StopIteration\n        self.n -= 1; return self.n\nX = C(); next(X)",
        "list(X)",
    ),
]

C_VALUES = [
    ("X = (ctypes.c_int * 3)(1, 2, 3)", "list(X), len(X)"),
    ("X = ((ctypes.c_int * 2) * 2)((1, 2), (3, 4))", "[list(row) for row in X]"),
    ("X = ctypes.create_string_buffer(b'abc', 6)", "X.value, X.raw, len(X)"),
    ("X = ctypes.create_unicode_buffer('abc')", "X.value, len(X)"),
    (
        "X = [ctypes.c_int(5), ctypes.c_double(1.5), ctypes.c_char(b'x'), ctypes.c_bool(True)]",
        "[v.value for v in X]",
    ),
    (
        "class C(ctypes.Structure):\n    _fields_ = [('a', ctypes.c_int), ('b', ctypes.c_double)]\nX = C(1, 2.5)",
        "X.a, X.b",
    ),
    (
        "class C(ctypes.Union):\n    _fields_ = [('a', ctypes.c_int), ('b', ctypes.c_char * 4)]\nX = C(); X.a = 65",
        "X.b",
    ),
    ("X = ctypes.pointer(ctypes.c_int(3))", "X.contents.value"),
    ("X = ctypes.py_object([1])", "X.value"),
]

_GROUPS = (RANDOM, STREAMS, QUEUES, ITERATORS, C_VALUES)
CONTENT = [each for group in _GROUPS for each in group]
