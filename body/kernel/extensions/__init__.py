"""Operations of this body in addition to the kernel's own: each module here is one operation.

To add an operation `greet`, write `greet.py` beside this file:

```python
def run(arguments, shell):
    return {"hello": arguments["name"], "session_has": len(shell.user_ns)}
```

`run` gets the caller's JSON value and the kernel's shell (`shell.user_ns` is the session's
namespace) and returns a JSON value; `async def run` works too. It runs in the session's process,
one call at a time, and its output is shown. Raise an exception to refuse: the caller gets its type,
message and traceback. The kernel reloads the file after a change, so a new version needs no
restart; state that must last between calls belongs in the session's namespace, not in the module.
Names have the form `[a-z][a-z0-9_]*`.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..shell import Shell

EXTENSIONS_FOLDER = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class InvalidName(Exception):
    """The name is not a valid operation name."""


class UnknownExtension(Exception):
    """The operation does not exist."""


class Extensions:
    """Loads operations on call, and again after their files have changed."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._loaded: dict[str, tuple[tuple[int, int, int], ModuleType]] = {}

    def call_extension(self, name: str, arguments: Any) -> Any:
        """Calls the operation and returns its value.

        # Errors
        `InvalidName`, `UnknownExtension`, and any exception of the operation.
        """
        if not _NAME.fullmatch(name):
            raise InvalidName(f"`{name}` does not match {_NAME.pattern}")
        run = getattr(self._load_module(name), "run", None)
        if run is None:
            raise UnknownExtension(f"`{name}.py` defines no `run(arguments, shell)`")
        value = run(arguments, self._shell)
        return self._shell.wait_for(value) if inspect.isawaitable(value) else value

    def _load_module(self, name: str) -> ModuleType:
        path = EXTENSIONS_FOLDER / f"{name}.py"
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise UnknownExtension(f"unknown extension `{name}`") from None
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        loaded = self._loaded.get(name)
        if loaded is None or loaded[0] != version:
            loaded = self._loaded[name] = (version, _import_file(name, path))
        return loaded[1]


def _import_file(name: str, path: Path) -> ModuleType:
    """Imports a file without cached bytecode, which cannot tell versions of equal second and size
    apart."""
    full = f"{__name__}.{name}"
    spec = spec_from_file_location(full, path)
    assert spec is not None
    module = module_from_spec(spec)
    code = compile(path.read_bytes(), str(path), "exec")
    linecache.checkcache(str(path))
    before = sys.modules.get(full)
    sys.modules[full] = module
    try:
        exec(code, module.__dict__)
    except BaseException:
        sys.modules.pop(full, None)
        if before is not None:
            sys.modules[full] = before
        raise
    return module
