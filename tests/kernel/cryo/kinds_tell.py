"""The probe of objects without their own probe: code for both kernels."""

from __future__ import annotations

TELL = r"""
import copyreg as _copyreg, ctypes as _ctypes, functools as _functools, io as _io, itertools as _itertools
import logging as _logging, queue as _queue, random as _random, re as _re, sys as _sys, types as _types, weakref as _weakref

_UNSAID = r"0x[0-9a-fA-F]+|at [0-9A-F]{9,}|id='\d+'| of \w+ \d+>"
_CACHES = {"_cache", "_cached", "_mgr", "_grouper"}  # filled by a read
_MANY = 30

def _raises(call, *args):
    try:
        call(*args)
    except Exception as error:
        return type(error).__name__

def _text(x):
    # Without addresses and counters.
    try:
        return _re.sub(_UNSAID + r"|\b\w{1,30}iterator", "", repr(x))
    except Exception as error:
        return type(error).__name__

def _tell(x, depth=3):
    # A kind, what it says of itself, and what it consists of.
    kind = type(x)
    name = "iterator" if kind.__name__.endswith("iterator") else kind.__qualname__
    if depth == 0 or x is _sys.stdout or x is _sys.stderr:
        return name
    if kind.__name__ == "ndarray":
        return kind, x.shape, x.dtype, x.flags.writeable, x.tolist()
    if kind.__module__.startswith("pandas") and hasattr(x, "equals"):
        return kind, str(x), str(getattr(x, "dtypes", None))
    found = [kind.__module__, name, sorted(map(repr, x)) if kind in (set, frozenset) else _text(x)]
    try:
        found += _contents(x, kind, depth - 1)
    except Exception as error:
        found.append(type(error).__name__)
    return found

def _each(items, depth):
    return [_tell(each, depth) for each in _itertools.islice(items, _MANY)]

def _contents(x, kind, depth):
    if issubclass(kind, (_logging.Logger, type, _types.ModuleType)):
        return []
    if kind.__name__ == "ufunc":  # found by its name; numpy keeps requested signatures
        return []
    if isinstance(x, (dict, _types.MappingProxyType)):
        return [_each(x, depth), _each(x.values(), depth)]
    if isinstance(x, (list, tuple)) or kind.__name__ == "deque":
        return [len(x), _each(x, depth), getattr(x, "maxlen", None)]
    for known, parts in _KNOWN:
        if isinstance(x, known):
            return [parts(x, depth)]
    if kind.__module__.startswith("numpy.random"):
        return [x.random(3).tolist() if hasattr(x, "random") else x.rand(3).tolist()]
    if isinstance(x, _CDATA):
        return _of_c(x, kind, depth)
    if hasattr(kind, "__next__") and not isinstance(x, _io.IOBase):
        return [_each(x, depth)]
    return _attributes(x, depth)

def _attributes(x, depth):
    state = getattr(x, "__dict__", None)
    found = dict(state) if isinstance(state, dict) else {}
    for name in _copyreg._slotnames(type(x)) or ():
        if name not in found and hasattr(x, name):
            found[name] = getattr(x, name)
    names = sorted(set(map(str, found)) - _CACHES)
    return [[(name, _tell(found.get(name), depth)) for name in names]]

def _of_c(x, kind, depth):
    if hasattr(kind, "_fields_"):
        return [[(name, _tell(getattr(x, name), depth)) for name, *_ in kind._fields_]]
    if hasattr(kind, "_length_"):
        return [list(x)]
    if hasattr(x, "contents"):
        return [_tell(x.contents, depth) if x else None]
    return [_text(getattr(x, "value", None))]

def _of_function(x, depth):
    cells = [_raises(getattr, c, "cell_contents") or _tell(c.cell_contents, depth) for c in x.__closure__ or ()]
    return [x.__code__.co_code, _each(x.__code__.co_consts, depth), _tell([x.__defaults__, x.__kwdefaults__, x.__dict__], depth), cells]

_CDATA = _ctypes.c_int.__mro__[-2]
_KNOWN = [
    (_random.Random, lambda x, depth: [x.random() for _ in range(3)]),
    ((_io.StringIO, _io.BytesIO), lambda x, depth: (x.getvalue(), x.tell())),
    (_queue.Queue, lambda x, depth: (x.maxsize, _each(x.queue, depth))),
    (_queue.SimpleQueue, lambda x, depth: [_tell(x.get(), depth) for _ in range(x.qsize())]),
    (_functools.partial, lambda x, depth: [_tell(x.func, depth), _tell(x.args, depth), _tell(x.keywords, depth)]),
    (memoryview, lambda x, depth: (x.tobytes(), x.format, x.shape, x.readonly)),
    (_weakref.ref, lambda x, depth: _tell(x(), depth)),
    ((staticmethod, classmethod), lambda x, depth: _tell(x.__func__, depth)),
    (property, lambda x, depth: _each((x.fget, x.fset, x.fdel, x.__doc__), depth)),
    (_types.MethodType, lambda x, depth: _each((x.__func__, x.__self__), depth)),
    (_types.FunctionType, _of_function),
    (_types.CellType, lambda x, depth: _tell(x.cell_contents, depth)),
    (_types.CodeType, lambda x, depth: (x.co_code, _each(x.co_consts, depth), x.co_names)),
]
"""
