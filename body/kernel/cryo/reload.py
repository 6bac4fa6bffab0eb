"""Loads a generation into the namespace.

An object is made only after its checksum is verified. After damage or an interrupt, the namespace
is restored. Names that the generation does not have are unchanged.
"""

from __future__ import annotations

import linecache
import warnings
from pathlib import Path
from typing import Any

from ..shell import Shell
from ..variables import type_name
from . import environment, make, manifest, submodules
from .anchors import MAGIC, find_anchors, find_magics, register_magic
from .disk import Moved
from .loader import Content, Loader
from .receipt import (
    ALTERED,
    BECOMES,
    LOST,
    SAVED,
    UNMADE,
    UNVERIFIED,
    Row,
    describe_change,
    read_facts,
)
from .stream import paused_collection
from .tolerant_reader import Lost
from .weakrefs import is_reference

_MISSING = object()
KEEPS_OWN = "the kernel keeps its own value of that name"


def reload_generation(shell: Shell, folder: str, moved: Moved) -> dict[str, Any]:
    """Loads the generation and returns the receipt, read from the namespace afterwards.

    # Errors
    `Damaged` or `OtherFormat`; the namespace is unchanged.
    """
    entries = manifest.read_manifest(Path(folder))
    origin = f"{entries['name']} {entries['generation']}"
    before = dict(shell.user_ns)
    make.current_reload = make.ReloadContext(shell.user_ns, find_anchors(shell), origin)
    try:
        with (
            paused_collection(),
            warnings.catch_warnings(),
            Content(folder, entries, moved) as content,
        ):
            warnings.simplefilter("ignore")
            environment.extend_import_path(entries.get("paths", {}))
            submodules.load_submodules(entries.get("submodules", ()))
            lost = _fill_namespace(shell, Loader(entries, content), origin)
    except BaseException:
        _restore_namespace(shell.user_ns, before)
        raise
    finally:
        make.current_reload = None
    shell.execution_count = max(shell.execution_count, entries["execution_count"] + 1)
    return _build_receipt(shell, entries, lost)


def _fill_namespace(shell: Shell, loader: Loader, origin: str) -> dict[str, str]:
    """Returns, by name, why variables were not assigned. Variables stored as lost are read too:
    others may share their parts, and this process may make what the check could not make."""
    lost: dict[str, str] = {}
    for row, value in loader:
        if type(value) is Lost:
            lost[row["name"]] = value.explain_loss(row["name"])
        elif row["verdict"] == LOST and is_reference(value):  # nothing holds its target
            lost[row["name"]] = row["why"]
        elif row["name"].startswith(MAGIC):
            register_magic(shell, row["name"], value)
        else:
            shell.user_ns[row["name"]] = value
    _cache_sources(loader.read_extras().get("sources", {}), origin)
    return lost


def _cache_sources(sources: dict[str, str], origin: str) -> None:
    """Makes the lines of functions available to tracebacks and `inspect`."""
    for name, text in sources.items():
        here = name if " of " in name else f"{name[:-1]} of {origin}>"
        linecache.cache[here] = (len(text), None, text.splitlines(keepends=True), here)


def _restore_namespace(namespace: dict[str, Any], before: dict[str, Any]) -> None:
    for name in list(namespace):
        if name not in before:
            del namespace[name]
    namespace.update(before)


def _build_receipt(shell: Shell, entries: dict[str, Any], lost: dict[str, str]) -> dict[str, Any]:
    changed = environment.changed_modules(entries.get("modules", {}))
    there = shell.user_ns | find_magics(shell)
    rows = [_check_variable(there, stored, lost, changed) for stored in entries["variables"]]
    return {"receipt": [row.to_dict() for row in rows], "warnings": list(changed.values())}


def _check_variable(
    namespace: dict[str, Any],
    stored: dict[str, Any],
    lost: dict[str, str],
    changed: dict[str, str],
) -> Row:
    row = Row(stored["name"], stored["verdict"], stored["type"], stored["bytes"], stored["why"])
    if "piece" not in stored:
        row.verdict, row.why = LOST, _add_own_value(row, namespace)
        return row
    value = namespace.get(row.name, _MISSING)
    if row.name in lost:
        row.verdict, row.why = LOST, lost[row.name]
    elif value is _MISSING:
        row.verdict, row.why = LOST, "it is missing"
    elif row.verdict == LOST:
        row.verdict, row.why = UNVERIFIED, f"{UNMADE}: {row.why}"
    elif type_name(type(value)) not in (row.type, BECOMES.get(row.type)):
        row.verdict, row.why = ALTERED, f"it came back as `{type_name(type(value))}`"
    elif (difference := describe_change(stored["look"], read_facts(value))) is not None:
        row.verdict, row.why = ALTERED, difference
    elif stored.get("module") in changed:
        row.why = changed[stored["module"]]
    if row.verdict == LOST:
        row.bytes = 0
        row.why = _add_own_value(row, namespace)
    assert row.verdict != SAVED or row.name in namespace
    return row


def _add_own_value(row: Row, namespace: dict[str, Any]) -> str | None:
    """Returns why a variable is lost, and says when the kernel's own value stays: a reload assigns
    no variable that is lost in the generation."""
    if row.name not in namespace:
        return row.why
    return KEEPS_OWN if row.why is None else f"{row.why}; {KEEPS_OWN}"


# A kernel that an older body has started, and that CRIU has restored here, imports this name.
reload = reload_generation
