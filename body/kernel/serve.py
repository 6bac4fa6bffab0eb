"""One request after another, for as long as somebody can connect."""

from __future__ import annotations

import os
from typing import Any

from .cell import Cells
from .encode import text_of
from .fork import Family
from .frame import Malformed
from .loop import Loop
from .shell import Shell
from .wire import Wire


class Refused(Exception):
    """A request that is not understood; says what is wrong with it."""


def serve(wire: Wire, cells: Cells, shell: Shell, loop: Loop, family: Family) -> None:
    """Returns when the listening socket is gone."""
    while True:
        id: Any = None
        try:
            try:
                request = wire.receive(loop.idle)
            except OSError:
                return
            if family.is_child():
                family.end_child(None)
            id = request.get("id")
            _answer(request, wire, cells, shell)
        except (Malformed, Refused) as error:
            shown = id if isinstance(id, str) else None
            refusal = {"type": type(error).__name__, "message": str(error)}
            wire.send({"type": "refused", "id": shown, "error": refusal})
        except Exception as error:  # a request must not go without an answer
            failed = {"type": type(error).__name__, "message": text_of(error)}
            wire.send({"type": "refused", "id": id, "error": failed})


def state(shell: Shell) -> dict[str, int]:
    return {
        "execution_count": shell.execution_count - 1,
        "globals_count": shell.globals_count(),
    }


def _answer(request: dict[str, Any], wire: Wire, cells: Cells, shell: Shell) -> None:
    id = _text(request, "id")
    match _text(request, "type"):
        case "execute":
            cells.execute(id, _text(request, "code"))
        case "reset":
            shell.clear()
            wire.send({"type": "reply", "id": id, **state(shell)})
        case "probe":
            wire.send({"type": "reply", "id": id, "pid": os.getpid(), **state(shell)})
        case other:
            raise Refused(f"unknown type `{other}`")


def _text(request: dict[str, Any], field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str):
        raise Refused(f"`{field}` must be a string")
    return value
