"""One request after another, for as long as somebody can connect."""

from __future__ import annotations

from typing import Any

from .cell import Cells
from .encode import text_of
from .fields import Refused, flag, text
from .fork import Family
from .frame import Frame, Malformed
from .loop import Loop
from .questions import Questions
from .wire import Wire


def serve(wire: Wire, cells: Cells, questions: Questions, loop: Loop, family: Family) -> None:
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
            _answer(request, cells, questions)
        except (Malformed, Refused) as error:
            shown = id if isinstance(id, str) else None
            refusal = {"type": type(error).__name__, "message": str(error)}
            wire.send({"type": "refused", "id": shown, "error": refusal})
        except Exception as error:  # a request must not go without an answer
            failed = {"type": type(error).__name__, "message": text_of(error)}
            wire.send({"type": "refused", "id": id, "error": failed})


def _answer(request: Frame, cells: Cells, questions: Questions) -> None:
    kind = text(request, "type")
    id = text(request, "id")
    if kind == "adopt":
        questions.adopt(id, text(request, "session"), plain=flag(request, "plain", False))
    elif kind == "execute":
        silent = flag(request, "silent", False)
        store_history = flag(request, "store_history", True) and not silent
        cells.execute(id, text(request, "code"), silent=silent, store_history=store_history)
    elif kind == "probe":  # is answered whatever state the user's code has left
        questions.probe(id)
    elif kind == "let_go":
        questions.let_go(id)
    else:
        questions.answer(kind, id, request)
