"""The table of the user's variables, read from untrusted objects in bounded time."""

from __future__ import annotations

import sys
from typing import Any

from .preview import preview_object
from .shell import Shell


def list_variables(shell: Shell, limit: int) -> list[dict[str, Any]]:
    """Returns `name`, `type`, `size` in bytes and `preview`, by name; at most `limit` rows."""
    namespace = shell.user_ns
    rows = []
    for name in sorted(shell.user_names(), key=str)[:limit]:
        value = namespace[name]
        row = {"name": str(name), "type": type_name(type(value)), "size": _measure_size(value)}
        rows.append(row | {"preview": preview_object(value)})
    return rows


def type_name(kind: type) -> str:
    """Returns the name of a type, with its module except for builtins."""
    module = type.__getattribute__(kind, "__module__")
    name = type.__getattribute__(kind, "__qualname__")
    return name if module == "builtins" or not isinstance(module, str) else f"{module}.{name}"


def _measure_size(value: Any) -> int | None:
    """Returns the content bytes of arrays and frames, and the own size of other objects."""
    for measure in (_content_bytes, sys.getsizeof):
        try:
            size = measure(value)
        except KeyboardInterrupt:
            raise
        except BaseException:
            continue
        if size is not None:
            return size
    return None


def _content_bytes(value: Any) -> int | None:
    kind = type(value)  # instances may claim to have any attribute
    if callable(getattr(kind, "memory_usage", None)):
        used = value.memory_usage()
        return int(used.sum() if hasattr(used, "sum") else used)
    if callable(getattr(kind, "estimated_size", None)):
        return int(value.estimated_size())
    if hasattr(kind, "nbytes") and hasattr(kind, "shape"):
        return int(value.nbytes)
    return None
