"""Code that runs as a program, with arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NO_FILES = ("-", "-c")
"""Names of programs that are no files, as in `sys.argv` of Python."""


@contextmanager
def run_as_program(argv: list[str], namespace: dict[str, Any]) -> Iterator[str | None]:
    """Sets `sys.argv` and `__file__` while the code runs; does nothing without arguments.

    Yields the path of the program; none for `-` and `-c`.
    """
    if not argv:
        yield None
        return
    former_argv, former_file = sys.argv, namespace.get("__file__")
    sys.argv = list(argv)
    file = None if argv[0] in _NO_FILES else argv[0]
    if file is not None:
        namespace["__file__"] = file
    try:
        yield file
    finally:
        sys.argv = former_argv
        if former_file is None:
            namespace.pop("__file__", None)
        else:
            namespace["__file__"] = former_file
