"""Submodules that an `import a.b` of the session has loaded: an import of `a` alone loads none.

Python does not distinguish them from submodules that a package loads itself. The list has those
whose names occur in cells and stored functions; a reload skips modules that are already loaded.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_before: set[str] = set()
"""Modules that an earlier process has loaded: its cells are not known here."""


def find_used(packages: Iterable[str], names: Iterable[str], cells: Any) -> list[str]:
    """Returns the submodules of stored packages whose names occur in code or in cells."""
    known = set(packages)
    names_in_code = set(names)
    for text in cells if isinstance(cells, list) else ():
        names_in_code.update(re.findall(r"\w+", text) if isinstance(text, str) else ())
    return sorted(
        name
        for name in list(sys.modules)
        if isinstance(name, str) and (name in _before or _is_used(name, known, names_in_code))
    )


def _is_used(name: str, packages: set[str], names_in_code: set[str]) -> bool:
    """Whether a package above is stored, and code has the names that lead from it."""
    above, _, last = name.rpartition(".")
    while above and last in names_in_code:
        if above in packages:
            return True
        above, _, last = above.rpartition(".")
    return False


def load_submodules(names: Iterable[str]) -> None:
    """Imports the modules where possible; code that needs a missing one fails when it runs."""
    _before.update(names)
    for name in names:
        if name not in sys.modules:
            with suppress(Exception, SystemExit):
                importlib.import_module(name)
