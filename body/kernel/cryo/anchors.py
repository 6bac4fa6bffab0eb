"""The objects that every kernel has: stored by name, never by content.

They take the first places of a stream's memo, so that a variable which leads to the namespace, or
to an output stream, refers to them.
"""

from __future__ import annotations

import builtins
import os
import sys
from typing import Any

from ..shell import Shell


def find_anchors(shell: Shell) -> dict[str, Any]:
    """Returns the anchors by their names in a stored stream."""
    found = {
        "namespace": shell.user_ns,
        "main": shell.user_module,
        "shell": shell,
        "runtime": shell.runtime,
        "In": shell.user_ns_hidden.get("In"),
        "Out": shell.user_ns_hidden.get("Out"),
        "builtins": builtins.__dict__,
        "modules": sys.modules,
        "environ": os.environ,
    }
    # The kernel's own streams: user code may have replaced the current ones.
    found |= {name: getattr(sys, f"__{name}__") for name in ("stdin", "stdout", "stderr")}
    return {name: value for name, value in found.items() if value is not None}


MAGIC = "%"
"""The prefix of a magic's name, doubled for a cell magic."""


def find_magics(shell: Shell) -> dict[str, Any]:
    """Returns the magics that the user has registered, by name."""
    return {
        MAGIC * (1 + (kind == "cell")) + name: function
        for kind, known in shell.magics_manager.magics.items()
        for name, function in known.items()
        if getattr(function, "__module__", None) == "__main__"
    }


def register_magic(shell: Shell, name: str, function: Any) -> None:
    kind = "cell" if name.startswith(2 * MAGIC) else "line"
    shell.register_magic_function(function, kind, name.lstrip(MAGIC))


ANCHOR_NAMES = {
    "namespace": "the namespace itself",
    "main": "the namespace's own module",
    "shell": "the kernel's own shell",
    "runtime": "the kernel's own `runtime`",
    "In": "the kernel's own inputs",
    "Out": "the kernel's own outputs",
    "builtins": "Python's builtins",
    "modules": "the kernel's own modules",
    "environ": "the kernel's own environment",
    "stdin": "the kernel's own stdin",
    "stdout": "the kernel's own stdout",
    "stderr": "the kernel's own stderr",
}
