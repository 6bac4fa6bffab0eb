"""The globals of functions that are a copy of a module's namespace.

Code that compiles methods may copy the namespace of the class into their globals. Such a copy holds
everything that was there at that moment. A function takes along only the names that its code uses,
so that it does not depend on the others; functions that share a copy keep sharing it.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Iterator
from typing import Any

_MARK = "__spec__"
"""A name that each module has: a dict for `exec` has none."""
_READERS = frozenset(("globals", "locals", "vars", "eval", "exec"))
"""With these, code reads names that it does not contain."""
_NAME = re.compile(r"[^\W\d]\w*")


class CopiedScope:
    """Stands for a copy; its functions add their names to it."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def __reduce__(self) -> Any:
        return dict, ((("__name__", self.names["__name__"]), (_MARK, None)),)


def is_copy(names: dict[str, Any], loaded: dict[str, types.ModuleType]) -> bool:
    """Whether a dict, which is no module's own, is a copy of the namespace of a module."""
    name = names.get("__name__")
    return isinstance(name, str) and _MARK in names and name in loaded


def used_names(function: types.FunctionType) -> dict[str, Any]:
    """Returns the globals that the function uses: in its code, and as text in its annotations."""
    names = function.__globals__
    used = set(_list_globals(function.__code__))
    if used & _READERS:
        return dict(names)
    for hint in function.__annotations__.values():
        if isinstance(hint, str):
            used.update(_NAME.findall(hint))
    return {name: names[name] for name in sorted(used) if name in names}


def _list_globals(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if "GLOBAL" in step.opname or step.opname == "LOAD_NAME":
            yield step.argval
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _list_globals(part)
