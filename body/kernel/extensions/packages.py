"""Lists the importable distributions: those of the overlay, which take precedence, and the kernel's
own.

`arguments`: null, or `{"name": "part of a name"}`.
"""

from __future__ import annotations

import os
from importlib.metadata import distributions
from typing import Any


def run(arguments: Any, _shell: Any) -> list[dict[str, str]]:
    part = (arguments or {}).get("name", "").lower()
    overlay = os.environ.get("VIRTUAL_ENV")
    found: dict[str, dict[str, str]] = {}
    for each in distributions():  # in the order of sys.path: the first match is imported
        name = each.metadata["Name"]
        if not name or part not in name.lower() or name.lower() in found:
            continue
        inside = overlay and str(each.locate_file("")).startswith(overlay + os.sep)
        where = "overlay" if inside else "environment"
        found[name.lower()] = {"name": name, "version": each.version, "where": where}
    return [found[name] for name in sorted(found)]
