"""Calls that a kernel cannot serve: input from a person, and leaving the process."""

from __future__ import annotations

import builtins
import getpass
from typing import Any, NoReturn

from IPython.core.autocall import ExitAutocall


def _refuse_input(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(
        "input() is not available here: pass the value in the code instead, "
        "or through an environment variable"
    )


def refuse_input() -> None:
    """Makes `input()` and `getpass()` raise an error instead of reading the end of a file."""
    builtins.input = _refuse_input
    getpass.getpass = _refuse_input


class Exit(ExitAutocall):
    """`exit`, `exit()`, `quit(3)`: ends the run, not the kernel."""

    rewrite = False

    def __call__(self, code: Any = None, *_: Any, **__: Any) -> NoReturn:
        raise SystemExit(code)

    def __repr__(self) -> str:
        return "exit() ends this run; the kernel and its state stay"
