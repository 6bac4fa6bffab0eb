"""Operations that this body offers beyond the kernel's own: each module here is one.

To add an operation `greet`, write `greet.py` beside this file:

```python
def run(arguments, shell):
    return {"hello": arguments["name"], "session_has": len(shell.user_ns)}
```

`run` gets the caller's JSON value and the kernel's shell (`shell.user_ns` is the session's
namespace), and returns anything that can be said in JSON; `async def run` works too. It runs in the
session's process, one call at a time, and what it prints is shown. Raise an exception to refuse:
the caller gets its type, message and traceback. The file is read anew when it has changed, so a
new version needs no restart; what must last between calls belongs into the session's namespace,
not into the module. Names are of the form `[a-z][a-z0-9_]*`.
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

FOLDER = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class InvalidName(Exception):
    """Not the name of an operation, whatever there is."""


class UnknownExtension(Exception):
    """There is no operation of that name."""


class Extensions:
    """Loads operations when they are called, and again when their files have changed."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._loaded: dict[str, tuple[tuple[int, int, int], ModuleType]] = {}

    def call(self, name: str, arguments: Any) -> Any:
        """What the operation returns.

        # Errors
        `InvalidName`, `UnknownExtension`, and whatever the operation raises.
        """
        if not _NAME.fullmatch(name):
            raise InvalidName(f"`{name}` is not of the form {_NAME.pattern}")
        run = getattr(self._load(name), "run", None)
        if run is None:
            raise UnknownExtension(f"`{name}.py` defines no `run(arguments, shell)`")
        value = run(arguments, self._shell)
        return self._shell.wait_for(value) if inspect.isawaitable(value) else value

    def _load(self, name: str) -> ModuleType:
        path = FOLDER / f"{name}.py"
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise UnknownExtension(f"there is no extension `{name}`") from None
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        loaded = self._loaded.get(name)
        if loaded is None or loaded[0] != version:
            loaded = self._loaded[name] = (version, _import(name, path))
        return loaded[1]


def _import(name: str, path: Path) -> ModuleType:
    """Without the cached bytecode: that tells versions of the same second and size not apart."""
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
