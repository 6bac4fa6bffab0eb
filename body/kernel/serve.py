"""The request loop of the kernel."""

from __future__ import annotations

from typing import Any

from .cell import CellRunner
from .encode import text_of
from .fork_guard import ForkGuard
from .frame import Frame, Malformed
from .loop import Loop
from .queries import Queries
from .user_environment import UserEnvironment
from .validation import Refused, read_flag, read_text_values, read_texts, require_text
from .wire import Wire


def serve_requests(
    wire: Wire, cells: CellRunner, queries: Queries, loop: Loop, fork_guard: ForkGuard
) -> None:
    """Serves one request after another; returns when the listening socket is closed."""
    environment = UserEnvironment()
    while True:
        id: Any = None
        try:
            try:
                request = wire.receive_frame(loop.run_until_readable)
            except OSError:
                return
            if fork_guard.is_child():
                fork_guard.end_child(None)
            id = request.get("id")
            variables = read_text_values(request, "environment")
            if variables is not None:
                environment.replace_variables(variables)
            _dispatch_request(request, cells, queries)
        except (Malformed, Refused) as error:
            shown = id if isinstance(id, str) else None
            refusal = {"type": type(error).__name__, "message": str(error)}
            wire.send_frame({"type": "refused", "id": shown, "error": refusal})
        except Exception as error:  # each request needs an answer
            failed = {"type": type(error).__name__, "message": text_of(error)}
            wire.send_frame({"type": "refused", "id": id, "error": failed})


def _dispatch_request(request: Frame, cells: CellRunner, queries: Queries) -> None:
    kind = require_text(request, "type")
    id = require_text(request, "id")
    if kind == "adopt":
        queries.adopt_session(
            id, require_text(request, "session"), plain=read_flag(request, "plain", False)
        )
    elif kind == "execute":
        silent = read_flag(request, "silent", False)
        store_history = read_flag(request, "store_history", True) and not silent
        cells.execute_cell(
            id,
            require_text(request, "code"),
            silent=silent,
            store_history=store_history,
            argv=read_texts(request, "argv"),
        )
    elif kind == "probe":  # is answered in every state of the user's code
        queries.answer_probe(id)
    elif kind in ("release", "let_go"):  # the former word, which companions send to every kernel
        queries.release_connection(id)
    else:
        queries.answer_query(kind, id, request)
