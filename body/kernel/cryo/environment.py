"""The dependencies of a store outside its content: versions, packages, the sources of modules."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import sys
import sysconfig
import types
from importlib import metadata
from pathlib import Path
from typing import Any

_ENVIRONMENT = tuple(
    {
        os.path.realpath(sysconfig.get_path(name)) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)


def read_attribute(module: Any, name: str) -> Any:
    """Reads an attribute of an entry of `sys.modules`, which may be any object and may raise."""
    try:
        return getattr(module, name, None)
    except Exception:
        return None


def library_versions(modules: set[str]) -> dict[str, str]:
    """Returns the versions of the libraries whose objects are stored by name."""
    found = {}
    for name in sorted({name.split(".")[0] for name in modules}):
        version = read_attribute(sys.modules.get(name), "__version__")
        if isinstance(version, str):
            found[name] = version
    return found


def installed_packages() -> dict[str, str]:
    """Returns the packages that the user has installed at run time."""
    overlay = os.environ.get("VIRTUAL_ENV")
    if not overlay or not os.environ.get("OSCTL_PACKAGES"):
        return {}
    found = {}
    for folder in Path(overlay).glob("lib/python*/site-packages"):
        for each in metadata.distributions(path=[str(folder)]):
            name = each.metadata["Name"]
            if name:
                found[name] = each.version
    return dict(sorted(found.items()))


def module_sources(modules: set[str]) -> dict[str, dict[str, str]]:
    """Returns the editable files of those modules, with their checksums."""
    found = {}
    for name in sorted(modules):
        path = read_attribute(sys.modules.get(name), "__file__")
        if not isinstance(path, str) or is_environment(path):
            continue
        stale = path.endswith(".py") and _is_stale(sys.modules[name], path)
        digest = "" if stale else _hash_file(path)
        if digest is not None:
            found[name] = {"path": os.path.abspath(path), "sha256": digest}
    return found


def changed_modules(stored: dict[str, dict[str, str]]) -> dict[str, str]:
    """Returns, by module name, why the code of a module differs from the stored code."""
    found = {}
    for name, each in stored.items():
        digest = _hash_file(each["path"])
        if digest is None:
            found[name] = f"`{each['path']}` no longer exists"
        elif digest != each["sha256"]:
            since = "stored" if each["sha256"] else "imported"
            found[name] = f"`{each['path']}` has changed since it was {since}"
    return found


def import_paths() -> dict[str, Any]:
    """Returns the import paths in addition to those of every kernel, and the working directory."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = ""
    added = [entry for entry in sys.path if isinstance(entry, str) and not _is_own_path(entry)]
    return {"path": added, "folder": folder}


def _is_own_path(entry: str) -> bool:
    """Whether every kernel has this entry."""
    place = os.path.realpath(entry) + os.sep if entry else ""
    return place.startswith(_ENVIRONMENT) or place.endswith((".zip/", "-packages/"))


def extend_import_path(stored: dict[str, Any]) -> None:
    """Appends the stored import paths to the current ones."""
    for entry in stored.get("path", []):
        where = entry or stored.get("folder", "")
        if where and where not in sys.path and (os.path.isdir(where) or os.path.isfile(where)):
            sys.path.append(where)
    importlib.invalidate_caches()


def is_environment(path: str | None) -> bool:
    """Whether a file is not editable: of the standard library, an installed package or the
    kernel."""
    return path is None or not os.path.isabs(path) or _is_environment(os.path.dirname(path))


@functools.cache
def _is_environment(folder: str) -> bool:
    real = os.path.realpath(folder) + os.sep
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    return real.startswith(_ENVIRONMENT) or real.startswith(ours) or "site-packages" in real


def is_installed(name: Any) -> bool:
    """Whether a module belongs to an installed library, not to the user or the standard library."""
    path = read_attribute(sys.modules.get(str(name)), "__file__")
    return isinstance(path, str) and "-packages" + os.sep in path


def _is_stale(module: types.ModuleType, path: str) -> bool:
    """Whether the module has functions that differ from those of the file."""
    try:
        pending = [compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)]
    except (OSError, ValueError, SyntaxError):
        return True
    present = set()
    while pending:
        code = pending.pop()
        present.add(code)
        pending += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    spaces = [vars(module)]
    spaces += [vars(each) for each in spaces[0].values() if type.__instancecheck__(type, each)]
    functions = (
        getattr(each, "__func__", each) for space in spaces for each in list(space.values())
    )
    return any(
        each.__code__.co_filename == path and each.__code__ not in present
        for each in functions
        if type(each) is types.FunctionType
    )


def _hash_file(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
