"""The tolerant reader: Python's own unpickler, which continues after a failure with `Lost` objects.

An object that contains a lost object is lost too, and names it. Parts and wholes are recorded
during the read: in a cycle, an object may be used before one of its parts is lost.
"""

from __future__ import annotations

import errno
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..encode import text_of
from ..variables import type_name
from . import make
from .disk import LIMIT_ERRORS, Damaged
from .receipt import summarize_error

_ATOMS = frozenset({str, bytes, int, float, complex, bool, type(None)})
_BASE = pickle._Unpickler
FATAL = (KeyboardInterrupt, Damaged)
"""The exceptions that end the loading instead of one variable."""
_PROCESS_ERRORS = (*LIMIT_ERRORS, errno.EAGAIN)
_FORK = re.compile(r"\bfork(s|ed|ing|-safe)?\b", re.IGNORECASE)
"""Matches the errors of libraries that refuse a forked process, such as CUDA."""


class Lost:
    """An object that could not be made, or that contains such an object."""

    __slots__ = ("first", "is_at_fault", "is_process_limit", "variable", "what", "why")

    def __init__(
        self, what: str, why: str, variable: str, *, is_process_limit: bool = False
    ) -> None:
        self.what, self.why, self.variable = what, why, variable
        self.is_at_fault = True
        self.is_process_limit = is_process_limit
        """Whether another process may make the object: the process of the check reached a limit, or
        the object refuses forked processes."""
        self.first: Any = None
        """The first item of a lost tuple: an object, when the tuple is the object and its state."""

    def for_holder(self, first: Any = None) -> Lost:
        made = Lost(self.what, self.why, self.variable, is_process_limit=self.is_process_limit)
        made.is_at_fault, made.first = False, first
        return made

    def explain_loss(self, variable: str) -> str:
        """Returns why a variable is lost."""
        if self.is_at_fault and self.variable == variable:
            return self.why
        of = "" if self.variable == variable else f" of `{self.variable}`"
        return f"it needs `{self.what}`{of}, which can't be made: {self.why}"


class TolerantReader(_BASE):
    """Reads one variable, to the end of its piece."""

    dispatch: ClassVar[dict[int, Any]] = dict(_BASE.dispatch)

    def __init__(self, file: Any, buffers: list[Any], memo: dict[int, Any]) -> None:
        super().__init__(file, buffers=None)
        self.memo = memo
        self._given = buffers
        self.made: list[tuple[Any, Any]] = []
        """Pairs of a part and the object that contains it."""
        self._lost: dict[int, Lost] = {}
        """Losses of objects that were already made, by id; `made` keeps the objects."""
        self._called: Any = None
        """The arguments of a call whose result has no memo number."""

    def read_variable(self, name: str, place: int, buffer: int) -> Any:
        """Returns the object or `Lost`; lost objects in the memo become `Lost` too."""
        self._name, self._place, self._used = name, place, buffer
        for number in range(place, len(self.memo)):
            del self.memo[number]
        self.load()  # the mark
        value = self.load()
        self._spread_losses()
        for number in range(place, self._place):
            self.memo[number] = self._lost.get(id(self.memo[number]), self.memo[number])
        return self._lost.get(id(value), value)

    def _spread_losses(self) -> None:
        """Marks objects that contain lost objects as lost."""
        wholes: dict[int, list[Any]] = {}
        for part, whole in self.made:
            wholes.setdefault(id(part), []).append(whole)
        pending = list(self._lost)
        while pending:
            part_id = pending.pop()
            for whole in wholes.get(part_id, ()):
                if id(whole) not in self._lost:
                    self._lost[id(whole)] = self._lost[part_id].for_holder()
                    pending.append(id(whole))

    # Steps that may fail.

    def _try_step(self, what: Any, step: Callable[..., Any], *args: Any) -> Any:
        try:
            return step(*args)
        except FATAL:
            raise
        except BaseException as error:
            return Lost(
                what if type(what) is str else _name_of_call(*what),
                _failure_reason(error),
                self._name,
                is_process_limit=_is_process_limit(error),
            )

    def _first_lost(self, parts: Sequence[Any]) -> Lost | None:
        known = (each if type(each) is Lost else self._lost.get(id(each)) for each in parts)
        return next(filter(None, known), None)

    def _note_parts(self, whole: Any, parts: Sequence[Any]) -> None:
        if type(whole) not in _ATOMS:
            self.made += [(part, whole) for part in parts if type(part) not in _ATOMS]

    def _push_made(self, parts: tuple[Any, ...], step: Callable[..., Any], *args: Any) -> Any:
        """Pushes the result of a step; `parts` begin with the function and its arguments."""
        lost = self._first_lost(parts)
        made = self._try_step(parts, step, *args) if lost is None else lost.for_holder(lost.first)
        self._note_parts(made, parts)
        self.append(made)
        return made

    def _change_top(self, parts: Sequence[Any], step: Callable[[Any], Any]) -> None:
        """Adds parts to the object on top of the stack; the object is lost when this fails."""
        target = self.stack[-1]
        if type(target) is Lost:
            return
        self._note_parts(target, parts)
        lost = self._first_lost(parts)
        if lost is None:
            failed = self._try_step(type_name(type(target)), step, target)
            if type(failed) is Lost:
                self._mark_lost(target, failed)
        else:
            self._mark_lost(target, lost.for_holder())

    def _mark_lost(self, target: Any, lost: Lost) -> None:
        self.made.append((lost, target))
        self._lost.setdefault(id(target), lost)

    # Opcodes.

    def load_stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.append(self._try_step(f"{module}.{name}", self.find_class, module, name))

    def get_extension(self, code: int) -> None:
        size = len(self.stack)
        found = self._try_step(f"extension {code} of `copyreg`", super().get_extension, code)
        if type(found) is Lost:
            self.stack[size:] = [found]

    def load_reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        made = self._push_made((function, args), _call_function, function, args)
        if type(made) is Lost and type(args) is tuple and len(args) == 2:
            made.first = args[0]
        self._called = args

    def load_newobj(self) -> None:
        args, kind = self.stack.pop(), self.stack.pop()
        self._push_made((kind, args), _new_instance, kind, args)

    def load_newobj_ex(self) -> None:
        words, args, kind = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self._push_made((kind, args, words), _new_instance, kind, args, words)

    def load_pop(self) -> None:
        """A call without a used result sets the state of its first argument."""
        if not self.stack:
            self.pop_mark()
            return
        gone, args, self._called = self.stack.pop(), self._called, None
        if type(gone) is Lost:
            if gone.first is not None and type(gone.first) is not Lost:
                self._mark_lost(gone.first, gone)
        elif type(args) is tuple and len(args) == 2:
            self._note_parts(args[0], args[1:])

    def load_build(self) -> None:
        state = self.stack.pop()

        def build_state(_: Any) -> None:
            self.append(state)
            _BASE.load_build(self)

        self._change_top((state,), build_state)

    def load_append(self) -> None:
        part = self.stack.pop()
        self._change_top((part,), lambda target: target.append(part))

    def load_appends(self) -> None:
        parts = self.pop_mark()
        self._change_top(parts, lambda target: _add_parts(target, "extend", "append", parts))

    def load_additems(self) -> None:
        parts = self.pop_mark()
        update = "update" if isinstance(self.stack[-1], set) else ""
        self._change_top(parts, lambda target: _add_parts(target, update, "add", parts))

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._change_top((key, value), lambda target: target.__setitem__(key, value))

    def load_setitems(self) -> None:
        parts = self.pop_mark()
        self._change_top(parts, lambda target: _set_items(target, parts))

    def _push_tuple(self, parts: list[Any], kind: type = tuple) -> None:
        lost = self._first_lost(parts)
        if lost is not None:
            self._note_parts(lost, parts)
            self.append(lost.for_holder(parts[0] if len(parts) == 2 else None))
            return
        made = self._try_step(kind.__name__, kind, parts)
        self._note_parts(made, parts)
        self.append(made)

    def load_tuple(self) -> None:
        self._push_tuple(self.pop_mark())

    def load_frozenset(self) -> None:
        self._push_tuple(self.pop_mark(), frozenset)

    def _load_short_tuple(self, size: int) -> None:
        parts = self.stack[-size:]
        del self.stack[-size:]
        self._push_tuple(parts)

    def load_memoize(self) -> None:
        self._called = None
        self.memo[self._place] = self.stack[-1]
        self._place += 1

    def load_next_buffer(self) -> None:
        self.append(self._given[self._used].get_content())
        self._used += 1

    def load_readonly_buffer(self) -> None:
        """A buffer that an array reads into its own memory needs no read-only view."""
        if not hasattr(self.stack[-1], "read_into"):
            _BASE.load_readonly_buffer(self)

    dispatch |= {
        pickle.STACK_GLOBAL[0]: load_stack_global,
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.POP[0]: load_pop,
        pickle.BUILD[0]: load_build,
        pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends,
        pickle.ADDITEMS[0]: load_additems,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.TUPLE[0]: load_tuple,
        pickle.TUPLE1[0]: lambda self: self._load_short_tuple(1),
        pickle.TUPLE2[0]: lambda self: self._load_short_tuple(2),
        pickle.TUPLE3[0]: lambda self: self._load_short_tuple(3),
        pickle.FROZENSET[0]: load_frozenset,
        pickle.MEMOIZE[0]: load_memoize,
        pickle.NEXT_BUFFER[0]: load_next_buffer,
        pickle.READONLY_BUFFER[0]: load_readonly_buffer,
    }


def _call_function(function: Any, args: Any) -> Any:
    return function(*args)


def _new_instance(kind: Any, args: Any, words: Any = None) -> Any:
    return kind.__new__(kind, *args, **(words or {}))


def _add_parts(target: Any, many: str, one: str, parts: list[Any]) -> None:
    """Adds parts as pickle does: some types have a method for all parts."""
    at_once = getattr(target, many, None) if many else None
    if at_once is not None:
        at_once(parts)
        return
    for part in parts:
        getattr(target, one)(part)


def _set_items(target: Any, parts: list[Any]) -> None:
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        target[key] = value


def _name_of_call(function: Any, args: Any, *_: Any) -> str:
    """Returns the name of the object that a call was to make."""
    if function in (make.class_, make.function):
        return str(args[1 if function is make.class_ else 2])
    kinds = [each for each in (function, *args[:1]) if isinstance(each, type)]
    return type_name(kinds[0]) if kinds else getattr(function, "__qualname__", "object")


def _failure_reason(error: BaseException) -> str:
    if isinstance(error, make.NotMade):
        return text_of(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"it needs the module `{error.name}`, which can't be imported"
    return summarize_error(error)


def _is_process_limit(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _PROCESS_ERRORS:
        return True
    return isinstance(error, MemoryError) or _FORK.search(text_of(error)) is not None
