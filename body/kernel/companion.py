"""Requests to the companion over its Unix socket inside the container."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any


class Companion(http.client.HTTPConnection):
    """A connection for one request."""

    def __init__(self) -> None:
        super().__init__("localhost")

    def connect(self) -> None:
        former = os.environ.get("OSCTL_RUN")
        folder = os.environ.get("OSCTL_RUN_FOLDER") or former or "/run/osctl"
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(Path(folder) / "companion.sock"))

    def send_json(self, method: str, path: str, body: Any = None, **headers: str) -> None:
        text = None
        if body is not None:
            text = json.dumps(body)
            headers["Content-Type"] = "application/json"
        self.request(method, path, text, headers)


def send_request(method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    """Sends a request; returns the status and the body, also of a refusal."""
    companion = Companion()
    try:
        companion.send_json(method, path, body)
        answer = companion.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        companion.close()


def require_success(status: int, answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the body of a successful answer.

    # Errors
    RuntimeError with the message of the refusal.
    """
    if status != 200:
        raise RuntimeError(answer["error"]["message"])
    return answer
