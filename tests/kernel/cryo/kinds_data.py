"""Kinds of objects, each an expression; the probe is the output of `tell`."""

from __future__ import annotations

IMPORTS = """
import array, ast, calendar, collections, collections.abc, colorsys, concurrent.futures, configparser
import contextlib, copy, csv, ctypes, dataclasses, datetime, decimal, difflib, email.message, enum
import fractions, functools, graphlib, hashlib, heapq, http.cookies, inspect, io, ipaddress, itertools
import json, logging, math, numbers, operator, os, pathlib, pprint, queue, random, re, selectors
import shlex, socket, sqlite3, statistics, string, struct, subprocess, tempfile, textwrap, threading
import time, tokenize, traceback, types, typing, unittest.mock, urllib.parse, urllib.request, uuid
import weakref, xml.etree.ElementTree as ET, zoneinfo
import numpy as np, pandas as pd
"""

NUMBERS = """
0
-1
2**100
-(10**50)
True
1.5
-0.0
float("nan")
float("-inf")
1e308
3 + 4j
complex(0.0, -0.0)
decimal.Decimal("1.10")
decimal.Decimal("sNaN")
decimal.Context(prec=5)
fractions.Fraction(3, 7)
statistics.NormalDist(1, 2)
random.Random(7)
range(3, 30, 4)
slice(1, None, 2)
"""

TEXTS = """
""
"grüße 🎈"
"\\ud800"
"a" * 100_000
b"\\x00\\xff"
bytes(100_000)
bytearray(b"abc")
bytearray(200_000)
string.Template("$a $b")
textwrap.TextWrapper(width=20)
re.compile("a+", re.I)
re.compile(b"[ab]")
io.StringIO("abc")
io.BytesIO(b"abc")
memoryview(b"whole")
memoryview(bytearray(b"whole"))
shlex.shlex("a b")
difflib.SequenceMatcher(None, "abc", "abd")
urllib.parse.urlparse("https://a.b/c?d=e#f")
urllib.request.Request("https://a.b", headers={"k": "v"})
http.cookies.SimpleCookie("a=b; c=d")
ast.parse("x = [1, f(2)]")
ET.fromstring("<a k='v'><b>t</b></a>")
struct.Struct(">ih")
uuid.UUID(int=5)
json.JSONEncoder(indent=2)
json.JSONDecoder()
tokenize.TokenInfo(1, "x", (1, 0), (1, 1), "x")
csv.excel
"""

CONTAINERS = """
[]
[1, [2, [3, [4]]]]
[None] * 1000
(1,)
()
((), [()], {})
{1: "a", "b": 2, (1, 2): [3]}
{True: 1, 0.5: 2, None: 3, b"k": 4}
set()
{1, "a", (2, 3), frozenset({4})}
{float("inf"), -0.0}
frozenset("abc")
frozenset({frozenset(), frozenset({1})})
collections.OrderedDict(b=1, a=2)
collections.Counter("hello")
collections.defaultdict(list, a=[1])
collections.deque([1, 2], maxlen=3)
collections.deque()
collections.ChainMap({"a": 1}, {"b": 2})
collections.UserDict(a=1)
collections.UserList([1, 2])
collections.UserString("text")
types.MappingProxyType({"a": [1]})
types.SimpleNamespace(a=1, b=[2])
dict.fromkeys("abc", [])
{"k": 1}.keys()
{"k": 1}.values()
{"k": 1}.items()
array.array("d", [1.5, 2.5])
array.array("u", "text")
array.array("b")
array.array("q", range(20_000))
queue.Queue(3)
queue.SimpleQueue()
queue.PriorityQueue()
heapq.nsmallest(2, [3, 1, 2])
configparser.ConfigParser({"a": "1"})
graphlib.TopologicalSorter({"a": {"b"}})
[[n, str(n), n / 2] for n in range(5000)]
[{"id": n, "v": [n]} for n in range(2000)]
"""

TIMES = """
datetime.date(2026, 1, 2)
datetime.time(1, 2, 3, 4)
datetime.time(1, 2, tzinfo=datetime.timezone.utc)
datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
datetime.datetime(2026, 10, 25, 2, 30, fold=1)
datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC"))
datetime.timedelta(days=-1, microseconds=5)
datetime.timezone(datetime.timedelta(hours=5.5), "IST")
zoneinfo.ZoneInfo("Europe/Berlin")
time.gmtime(0)
calendar.TextCalendar(6)
"""

SYSTEM = """
pathlib.Path("/a/b.c")
pathlib.PurePosixPath("a/b")
pathlib.PureWindowsPath("c:/x")
ipaddress.ip_address("10.0.0.1")
ipaddress.ip_network("10.0.0.0/8")
ipaddress.ip_interface("::1/64")
os.stat("/")
os.environ
subprocess.CompletedProcess(["a"], 0, b"o", b"e")
subprocess.CalledProcessError(3, "cmd")
threading.Lock()
threading.RLock()
threading.Event()
threading.Condition()
threading.Semaphore(2)
threading.Barrier(2)
threading.local()
socket.AF_INET
selectors.EVENT_READ
logging.getLogger("kinds.one")
logging.Formatter("%(message)s")
logging.NullHandler()
logging.StreamHandler()
logging.LogRecord("n", 10, "p", 1, "m %s", (1,), None)
email.message.EmailMessage()
contextlib.ExitStack()
contextlib.nullcontext(5)
contextlib.suppress(ValueError)
unittest.mock.sentinel.KIND
unittest.mock.Mock(return_value=3)
unittest.mock.MagicMock()
unittest.mock.call(1, a=2)
pprint.PrettyPrinter(width=30)
tempfile.SpooledTemporaryFile
inspect.signature(textwrap.dedent)
inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY, default=1)
traceback.FrameSummary("f", 1, "n", lookup_line=False, line="l")
concurrent.futures.Future
"""

CODE = """
len
print
str.upper
"text".upper
[].append
list.append
int.__add__
(5).__add__
object
type
type(None)
int | None
list[int]
dict[str, list[int]]
tuple[int, ...]
typing.Optional[int]
typing.Callable[[int], str]
typing.Literal["a", 1]
typing.Annotated[int, "m"]
typing.TypeVar("T_kinds", bound=int)
typing.NamedTuple("N_kinds", [("a", int)])(5)
collections.namedtuple("P_kinds", "x y")(1, 2)
collections.abc.Mapping
types.GenericAlias(list, (int,))
types.MethodType(len, [1, 2])
math
os.path
json.dumps
Ellipsis
NotImplemented
operator.add
operator.itemgetter(1, 2)
operator.attrgetter("a.b")
operator.methodcaller("upper")
functools.partial(int, base=2)
functools.partial(print, "a", sep="-")
functools.reduce
functools.cmp_to_key(lambda a, b: a - b)
functools.lru_cache(maxsize=3)(lambda v: v + 1)
functools.partialmethod(len)
functools.singledispatch(lambda v: v)
property(lambda self: 1)
staticmethod(len)
classmethod(lambda cls: cls)
lambda v: v * 2
(lambda: (yield 1))
compile("1 + 1", "<k>", "eval")
ValueError("a", 1)
KeyError("k")
OSError(2, "gone", "file")
UnicodeDecodeError("utf8", b"a", 0, 1, "bad")
StopIteration(5)
ExceptionGroup("g", [ValueError(1), TypeError(2)])
SystemExit(3)
iter([1, 2, 3])
iter((1, 2))
iter("ab")
iter({"a": 1})
iter({1, 2})
iter(range(5))
reversed([1, 2])
zip([1], "a")
map(str, [1, 2])
filter(None, [0, 1])
enumerate("ab", 3)
(n for n in range(3))
dataclasses.field(default=1)
dataclasses.MISSING
enum.auto()
numbers.Integral
"""

ARRAYS = """
np.arange(5)
np.arange(200_000.0)
np.zeros((0, 3))
np.array(5.5)
np.array([1, None, "x", [2]], dtype=object)
np.array(["ab", "c"])
np.array([b"ab", b"c"])
np.array(["2026-01-01"], "M8[D]")
np.array([1, 2], "m8[s]")
np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])
np.array([1, 2], dtype=">i4")
np.array([True, False])
np.array([1 + 2j, float("nan")])
np.array(["x", "yy"], dtype=np.dtypes.StringDType())
np.asfortranarray(np.arange(6).reshape(2, 3))
np.arange(100).reshape(10, 10)[::2, ::3]
np.arange(10)[::-1]
np.arange(12).reshape(3, 4).T
np.broadcast_to(np.arange(3), (4, 3))
np.frombuffer(b"abcdefgh", "u1")
np.ma.array([1, 2, 3], mask=[0, 1, 0])
np.matrix([[1, 2], [3, 4]])
np.rec.array([(1, "a")], dtype=[("x", "i8"), ("y", "U3")])
np.float64(1.5)
np.float32("nan")
np.int8(-3)
np.bool_(True)
np.str_("text")
np.bytes_(b"raw")
np.datetime64("2026-01-02", "D")
np.timedelta64(5, "h")
np.complex128(1 + 2j)
np.void(b"abc")
np.dtype("f8")
np.dtype([("a", "i4"), ("b", "U5")])
np.float64
np.add
np.vectorize(len)
np.poly1d([1, 2, 3])
np.random.default_rng(5)
np.random.RandomState(5)
np.errstate(all="ignore")
np.s_[1:3, ...]
np.nditer
pd.Series([1, 2, 3], name="s")
pd.Series(["a", None])
pd.Series(pd.Categorical(["a", "b", "a"]))
pd.Series([1, None], dtype="Int64")
pd.DataFrame({"a": [1, 2], "b": ["x", None]}, index=["p", "q"])
pd.DataFrame({"t": pd.date_range("2026-01-01", periods=3, tz="UTC")})
pd.DataFrame(np.ones((300, 40)))
pd.DataFrame({("a", 1): [1], ("b", 2): [2]})
pd.DataFrame({"a": [1, 1, 2]}).groupby("a")
pd.Index([1, 2], name="i")
pd.RangeIndex(5)
pd.MultiIndex.from_product([[1, 2], ["a", "b"]])
pd.IntervalIndex.from_breaks([0, 1, 2])
pd.Timestamp("2026-01-02", tz="Europe/Berlin")
pd.Timedelta("1h")
pd.Period("2026-01", "M")
pd.Interval(0, 1)
pd.NaT
pd.NA
pd.DateOffset(months=1)
pd.CategoricalDtype(["a", "b"])
pd.arrays.SparseArray([0, 0, 1])
"""

C_TYPES = """
ctypes.c_int(5)
ctypes.c_double(1.5)
ctypes.c_char_p(b"x")
(ctypes.c_int * 3)(1, 2, 3)
ctypes.c_int * 4
ctypes.POINTER(ctypes.c_int)
ctypes.pointer(ctypes.c_int(3))
ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
ctypes.CDLL(None)
ctypes.create_string_buffer(b"abc")
ctypes.c_void_p
"""

GONE = """
open("/dev/null")
socket.socket()
sqlite3.connect(":memory:")
hashlib.sha256(b"a")
threading.Thread(target=len)
threading.Timer(1, len)
concurrent.futures.ThreadPoolExecutor(1)
subprocess.Popen(["true"])
inspect.currentframe()
(lambda: (yield))()
weakref.ref(set())
memoryview(b"abcdef")[1:3]
re.match("a", "a")
contextlib.closing(open("/dev/null"))
"""

_GROUPS = (NUMBERS, TEXTS, CONTAINERS, TIMES, SYSTEM, CODE, ARRAYS, C_TYPES, GONE)
EXPRESSIONS = [line for group in _GROUPS for line in group.strip().splitlines()]
