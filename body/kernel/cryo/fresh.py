"""A process that has no more than a fresh kernel would, made of a copy of one that runs.

Modules of the user's are imported again where a stream asks for them, and those that code made are
gone. Installed ones stay, as few can be imported twice into a process: what code has set in them
is still there, and this process can't find it missing.
"""

from __future__ import annotations

import copyreg
import sys
import types
from typing import Any

from .. import resources
from ..shell import Shell
from . import make
from .around import attribute, is_environment
from .live import anchors


def users_modules() -> list[str]:
    """The names of those that a fresh kernel has not, and would not import as they are."""
    return [name for name, module in list(sys.modules.items()) if _is_users(module)]


def hide_modules(names: list[str]) -> dict[str, types.ModuleType]:
    """All that were there, by name."""
    loaded = dict(sys.modules)
    for name in names:
        sys.modules.pop(name, None)
    copyreg._inverted_registry.clear()  # type: ignore[attr-defined]
    copyreg._extension_cache.clear()  # type: ignore[attr-defined]
    return loaded


def namespace(shell: Shell, origin: str) -> make.Here:
    """An empty one, which is `__main__` from now on."""
    main = types.ModuleType("__main__")
    main.__dict__.update(shell.user_ns_hidden)
    sys.modules["__main__"] = main
    found = anchors(shell) | {"namespace": main.__dict__, "main": main}
    here = make.Here(main.__dict__, found, origin)
    live = {_recipe(each): each._object for each in resources._live}
    here.live_of = lambda resource: live.get(_recipe(resource))  # no second connection
    return here


def _recipe(resource: resources.Resource) -> Any:
    factory = resource._recipe["factory"]
    return resource._recipe["name"], getattr(factory, "__qualname__", None)


def _is_users(module: Any) -> bool:
    """Of files that people edit, or made by code; of none in C, as that stays in the process."""
    path, spec = (attribute(module, name) for name in ("__file__", "__spec__"))
    if isinstance(path, str):
        return path.endswith((".py", ".pyc")) and not is_environment(path)
    return getattr(spec, "loader", None) is None
