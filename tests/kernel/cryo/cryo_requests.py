"""Requests of the tests of cryo to a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from client import Frame, Kernel


def request(kernel: Kernel, kind: str, **fields: Any) -> Frame:
    """Returns the reply; skips progress frames."""
    kernel.send({"type": kind, "id": kind, **fields})
    while (frame := kernel.frame())["type"] != "reply":
        assert frame["type"] in ("progress", "display", "error"), frame
    return frame


def store_reply(kernel: Kernel, folder: Path, **fields: Any) -> Frame:
    words = {"name": folder.parent.name, "generation": int(folder.name)}
    words |= {"reason": "requested", "session": "default"} | fields
    return request(kernel, "cryo_store", folder=str(folder), **words)


def store(kernel: Kernel, folder: Path, **fields: Any) -> list[dict[str, Any]]:
    reply = store_reply(kernel, folder, **fields)
    assert reply["error"] is None, reply["error"]
    return reply["value"]["receipt"]


def reload_reply(kernel: Kernel, folder: Path) -> Frame:
    return request(kernel, "cryo_reload", folder=str(folder))


def reload(kernel: Kernel, folder: Path) -> list[dict[str, Any]]:
    reply = reload_reply(kernel, folder)
    assert reply["error"] is None, reply["error"]
    return reply["value"]["receipt"]


def ask(kernel: Kernel, probe: str) -> str | None:
    run = kernel.run(probe)
    assert run.status == "completed", run.traceback
    return run.result
