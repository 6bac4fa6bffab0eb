"""The user's variables, as a table: asked of untrusted objects, in bounded time."""

from __future__ import annotations

import sys
from typing import Any

from .preview import preview
from .shell import Shell


def variables(shell: Shell, limit: int) -> list[dict[str, Any]]:
    """`name`, `type`, `size` in bytes and `preview`, by name; at most `limit`."""
    namespace = shell.user_ns
    rows = []
    for name in sorted(shell.user_names(), key=str)[:limit]:
        value = namespace[name]
        row = {"name": str(name), "type": type_name(type(value)), "size": _size(value)}
        rows.append(row | {"preview": preview(value)})
    return rows


def type_name(kind: type) -> str:
    """With the module's name, except for builtins."""
    module = type.__getattribute__(kind, "__module__")
    name = type.__getattribute__(kind, "__qualname__")
    return name if module == "builtins" or not isinstance(module, str) else f"{module}.{name}"


def _size(value: Any) -> int | None:
    """What arrays and frames hold, and of other objects what is their own."""
    for measure in (_held, sys.getsizeof):
        try:
            size = measure(value)
        except KeyboardInterrupt:
            raise
        except BaseException:
            continue
        if size is not None:
            return size
    return None


def _held(value: Any) -> int | None:
    kind = type(value)  # instances may claim to have any attribute
    if callable(getattr(kind, "memory_usage", None)):
        used = value.memory_usage()
        return int(used.sum() if hasattr(used, "sum") else used)
    if callable(getattr(kind, "estimated_size", None)):
        return int(value.estimated_size())
    if hasattr(kind, "nbytes") and hasattr(kind, "shape"):
        return int(value.nbytes)
    return None
