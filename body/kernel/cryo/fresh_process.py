"""A copy of a running process that is made as empty as a fresh kernel.

User modules are imported again when a stream needs them, and modules made by code are dropped.
Installed modules stay, because few can be imported twice into a process: attributes that code has
set in them are still present, so this process cannot detect that they are missing.
"""

from __future__ import annotations

import copyreg
import sys
import types
from typing import Any

from .. import resources
from ..shell import Shell
from . import make
from .anchors import find_anchors
from .environment import is_environment, read_attribute


def users_modules() -> list[str]:
    """Returns the names of modules that a fresh kernel does not have or would import
    differently."""
    return [name for name, module in list(sys.modules.items()) if is_users(module)]


def hide_modules(names: list[str]) -> dict[str, types.ModuleType]:
    """Removes those modules from `sys.modules`; returns all modules that were loaded, by name."""
    loaded = dict(sys.modules)
    for name in names:
        sys.modules.pop(name, None)
    copyreg._inverted_registry.clear()  # type: ignore[attr-defined]
    copyreg._extension_cache.clear()  # type: ignore[attr-defined]
    return loaded


def create_namespace(shell: Shell, origin: str) -> make.ReloadContext:
    """Creates an empty namespace, which becomes `__main__`."""
    main = types.ModuleType("__main__")
    main.__dict__.update(shell.user_ns_hidden)
    sys.modules["__main__"] = main
    found = find_anchors(shell) | {"namespace": main.__dict__, "main": main}
    here = make.ReloadContext(main.__dict__, found, origin)
    live = {_recipe_key(each): each._object for each in resources._live}
    here.live_of = lambda resource: live.get(_recipe_key(resource))  # no second connection
    return here


def _recipe_key(resource: resources.Resource) -> Any:
    factory = resource._recipe["factory"]
    return resource._recipe["name"], getattr(factory, "__qualname__", None)


def is_users(module: Any) -> bool:
    """Whether a module comes from an editable file or was made by code; modules in C stay."""
    path, spec = (read_attribute(module, name) for name in ("__file__", "__spec__"))
    if isinstance(path, str):
        return path.endswith((".py", ".pyc")) and not is_environment(path)
    return getattr(spec, "loader", None) is None
