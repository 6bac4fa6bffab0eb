"""Submodules that an `import a.b` of the session has loaded: an import of `a` alone loads none.

Nothing tells those from the ones that a package loads itself. So it is those whose names are in the
code of cells and of stored functions; what is there already is not imported again.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_before: set[str] = set()
"""What an earlier process has loaded: its cells are not known here."""


def used(packages: Iterable[str], names: Iterable[str], cells: Any) -> list[str]:
    """Of packages that something holds, by the names in code and in the text of cells."""
    known = set(packages)
    words = set(names)
    for text in cells if isinstance(cells, list) else ():
        words.update(re.findall(r"\w+", text) if isinstance(text, str) else ())
    return sorted(
        name
        for name in list(sys.modules)
        if isinstance(name, str) and (name in _before or _is_used(name, known, words))
    )


def _is_used(name: str, packages: set[str], words: set[str]) -> bool:
    """Whether a package above is held, and code has the names that lead from there."""
    above, _, last = name.rpartition(".")
    while above and last in words:
        if above in packages:
            return True
        above, _, last = above.rpartition(".")
    return False


def load(names: Iterable[str]) -> None:
    """Those that can be imported; code that needs another says so when it runs."""
    _before.update(names)
    for name in names:
        if name not in sys.modules:
            with suppress(Exception, SystemExit):
                importlib.import_module(name)
