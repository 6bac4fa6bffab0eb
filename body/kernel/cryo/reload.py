"""Brings a generation back into the namespace.

Nothing is made before the checksum of what makes it is right. When something is damaged, or an
interrupt comes in between, the namespace is as it was before. Names that the generation does not
have are left alone.
"""

from __future__ import annotations

import linecache
import warnings
from pathlib import Path
from typing import Any

from ..shell import Shell
from ..variables import type_name
from . import around, make, manifest, submodules
from .disk import Moved
from .live import MAGIC, anchors, magics, register
from .loader import Content, Loader
from .receipt import BECOMES, LOST, SAVED, Row, differs, look
from .slow import Lost
from .stream import no_collection

_MISSING = object()


def reload(shell: Shell, folder: str, moved: Moved) -> dict[str, Any]:
    """The receipt, from a look at what is there afterwards.

    # Errors
    `Damaged` or `OtherFormat`; the namespace is as before then.
    """
    words = manifest.read(Path(folder))
    origin = f"{words['name']} {words['generation']}"
    before = dict(shell.user_ns)
    make.here = make.Here(shell.user_ns, anchors(shell), origin)
    try:
        with no_collection(), warnings.catch_warnings(), Content(folder, words, moved) as content:
            warnings.simplefilter("ignore")
            around.look_there(words.get("paths", {}))
            submodules.load(words.get("submodules", ()))
            lost = _fill(shell, Loader(words, content), origin)
    except BaseException:
        _put_back(shell.user_ns, before)
        raise
    finally:
        make.here = None
    shell.execution_count = max(shell.execution_count, words["execution_count"] + 1)
    return _receipt(shell, words, lost)


def _fill(shell: Shell, loader: Loader, origin: str) -> dict[str, str]:
    """Why variables could not be made, by name. What was told as lost is read all the same: others
    may share its parts."""
    lost: dict[str, str] = {}
    for row, value in loader:
        if type(value) is Lost:
            lost[row["name"]] = value.reason(row["name"])
        elif row["verdict"] == LOST:
            continue
        elif row["name"].startswith(MAGIC):
            register(shell, row["name"], value)
        else:
            shell.user_ns[row["name"]] = value
    _remember(loader.extras().get("sources", {}), origin)
    return lost


def _remember(sources: dict[str, str], origin: str) -> None:
    """So that tracebacks and `inspect` show the lines of functions."""
    for name, text in sources.items():
        here = name if " of " in name else f"{name[:-1]} of {origin}>"
        linecache.cache[here] = (len(text), None, text.splitlines(keepends=True), here)


def _put_back(namespace: dict[str, Any], before: dict[str, Any]) -> None:
    for name in list(namespace):
        if name not in before:
            del namespace[name]
    namespace.update(before)


def _receipt(shell: Shell, words: dict[str, Any], lost: dict[str, str]) -> dict[str, Any]:
    changed = around.changed(words.get("modules", {}))
    there = shell.user_ns | magics(shell)
    rows = [_probe(there, stored, lost, changed) for stored in words["variables"]]
    return {"receipt": [row.words() for row in rows], "warnings": list(changed.values())}


def _probe(
    namespace: dict[str, Any],
    stored: dict[str, Any],
    lost: dict[str, str],
    changed: dict[str, str],
) -> Row:
    row = Row(stored["name"], stored["verdict"], stored["type"], stored["bytes"], stored["why"])
    if "piece" not in stored or row.verdict == LOST:
        row.verdict = LOST
        return row
    value = namespace.get(row.name, _MISSING)
    if row.name in lost:
        row.verdict, row.why = LOST, lost[row.name]
    elif value is _MISSING:
        row.verdict, row.why = LOST, "it is not there"
    elif type_name(type(value)) not in (row.type, BECOMES.get(row.type)):
        row.verdict, row.why = LOST, f"it came back as `{type_name(type(value))}`"
    elif (difference := differs(stored["look"], look(value))) is not None:
        row.verdict, row.why = LOST, difference
    elif stored.get("module") in changed:
        row.why = changed[stored["module"]]
    if row.verdict == LOST:
        row.bytes = 0
    assert row.verdict != SAVED or row.name in namespace
    return row
