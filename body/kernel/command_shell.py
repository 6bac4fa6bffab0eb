"""The session's shell, `runtime.shell`. The companion runs the commands, so they share working
directory and environment with `osctl shell` and `POST /shell`."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .companion import Companion, require_success, send_request

_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class Result:
    """The result of a command. `returncode` is -1 after a timeout and 128+n after signal n; `cwd`
    is the working directory of the next command."""

    stdout: str
    stderr: str
    returncode: int
    cwd: str


class CommandShell:
    """Runs commands in bash. Changes by `cd`, `export`, functions and aliases persist between
    commands.

    The working directory and the environment are not those of the Python process.
    """

    def __repr__(self) -> str:
        return f"<shell in {self.cwd}>"

    @property
    def cwd(self) -> str:
        return self.run("true").cwd

    @property
    def environment(self) -> dict[str, str]:
        """Returns a copy of the environment."""
        entries = self.run("env -0").stdout.split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)

    def cd(self, path: str | os.PathLike[str]) -> None:
        """Changes the working directory of later commands; a relative path starts at the current
        one.

        # Errors
        NotADirectoryError or FileNotFoundError; the working directory is unchanged.
        """
        status, answer = _send_session_request("POST", "/shell/cd", path=os.fspath(path))
        if status == 400:
            is_file = "Not a directory" in answer["error"]["message"]
            raise (NotADirectoryError if is_file else FileNotFoundError)(answer["error"]["message"])
        require_success(status, answer)

    def env(self, key: str, value: str | None) -> None:
        """Sets an environment variable; None unsets it.

        # Errors
        ValueError when the name or the value is not valid.
        """
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not the name of an environment variable")
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise ValueError(f"the value of {key} must be a string without NUL, or None")
        require_success(*_send_session_request("POST", "/shell/env", key=key, value=value))

    def run(
        self,
        command: str,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
    ) -> Result:
        """Runs a command to its end; after `timeout` seconds, ends the command and its child
        processes.

        Background processes of the command keep running: `GET /jobs` lists them. An interrupt of
        the cell interrupts the command.
        """
        if "\0" in command:
            raise ValueError("a command cannot contain NUL")
        stdin_bytes = stdin.encode() if isinstance(stdin, str) else stdin
        id = uuid.uuid4().hex
        request: dict[str, Any] = {"command": command, "id": id}
        if timeout is not None:
            request["timeout"] = timeout
        if stdin_bytes is not None:
            request["stdin_open"] = True
        try:
            outputs: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
            for event in _stream_events(request, stdin_bytes):
                event_type = event["type"]
                if event_type in outputs:
                    outputs[event_type].append(_decode_bytes(event))
                elif event_type == "done":
                    return _read_result(event["reply"], **outputs)
        except BaseException:
            # The original exception propagates, even when this request fails.
            with suppress(OSError, ValueError, http.client.HTTPException):
                _send_session_request("DELETE", f"/shell/{id}")
            raise
        raise RuntimeError("the event stream of the command ended without a result")


def _read_result(reply: dict[str, Any], stdout: list[bytes], stderr: list[bytes]) -> Result:
    if reply["returncode"] is None:
        raise RuntimeError(reply["error"]["message"])
    texts = (b"".join(pieces).decode(errors="replace") for pieces in (stdout, stderr))
    return Result(*texts, reply["returncode"], reply["cwd"])


def _decode_bytes(event: dict[str, Any]) -> bytes:
    exact = event.get("base64")
    return base64.b64decode(exact) if exact else event["text"].encode()


def _send_session_request(method: str, path: str, /, **body: Any) -> tuple[int, dict[str, Any]]:
    return send_request(method, path, _with_session(body) if method == "POST" else None)


def _with_session(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "session": os.environ.get("OSCTL_SESSION", "default")}


def _stream_events(request: dict[str, Any], stdin: bytes | None) -> Iterator[dict[str, Any]]:
    companion = Companion()
    try:
        companion.send_json("POST", "/shell", _with_session(request), Accept="application/x-ndjson")
        answer = companion.getresponse()
        if answer.status != 200:
            require_success(answer.status, json.loads(answer.read()))
        if stdin is not None:
            # In a thread: a command may block on its output before it reads more input.
            threading.Thread(target=_feed_stdin, args=(request["id"], stdin), daemon=True).start()
        for line in answer:
            yield json.loads(line)
    finally:
        companion.close()


def _feed_stdin(id: str, stdin: bytes) -> None:
    companion = Companion()
    # A command that has ended or closed its stdin reads no more input.
    with suppress(OSError, http.client.HTTPException):
        companion.request("POST", f"/shell/{id}/stdin", stdin)
        companion.getresponse().read()
    companion.close()
