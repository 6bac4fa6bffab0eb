"""The session's shell: `runtime.shell`. The companion runs the commands, so their folder and
environment are those that `osctl shell` and `POST /shell` have, too."""

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

from .companion import Companion, ask, expect

_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class Result:
    """What became of a command. `returncode` is -1 when it ran into its timeout, and 128+n when
    signal n ended it; `cwd` is where the next command starts."""

    stdout: str
    stderr: str
    returncode: int
    cwd: str


class CommandShell:
    """Runs commands in bash; what `cd`, `export`, functions and aliases change in one is there in
    the next.

    The working directory and the environment are not those of the Python process.
    """

    def __repr__(self) -> str:
        return f"<shell in {self.cwd}>"

    @property
    def cwd(self) -> str:
        return self.run("true").cwd

    @property
    def environment(self) -> dict[str, str]:
        """A copy."""
        entries = self.run("env -0").stdout.split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)

    def cd(self, path: str | os.PathLike[str]) -> None:
        """Where commands start from now on; relative to where they do so far.

        # Errors
        NotADirectoryError or FileNotFoundError, and then nothing has changed.
        """
        status, told = _ask("POST", "/shell/cd", path=os.fspath(path))
        if status == 400:
            is_file = "Not a directory" in told["error"]["message"]
            raise (NotADirectoryError if is_file else FileNotFoundError)(told["error"]["message"])
        expect(status, told)

    def env(self, key: str, value: str | None) -> None:
        """Sets a variable of the environment; None unsets it.

        # Errors
        ValueError when no variable can have that name or value.
        """
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not the name of an environment variable")
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise ValueError(f"the value of {key} must be a string without NUL, or None")
        expect(*_ask("POST", "/shell/env", key=key, value=value))

    def run(
        self,
        command: str,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
    ) -> Result:
        """Runs a command to its end, or ends it with all that it started after `timeout` seconds.

        What it leaves in the background runs on: `GET /jobs` lists it. An interrupt of the cell
        interrupts the command.
        """
        if "\0" in command:
            raise ValueError("a command cannot contain NUL")
        given = stdin.encode() if isinstance(stdin, str) else stdin
        id = uuid.uuid4().hex
        asked: dict[str, Any] = {"command": command, "id": id}
        if timeout is not None:
            asked["timeout"] = timeout
        if given is not None:
            asked["stdin_open"] = True
        try:
            written: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
            for event in _events(asked, given):
                kind = event["type"]
                if kind in written:
                    written[kind].append(_bytes(event))
                elif kind == "done":
                    return _result(event["reply"], **written)
        except BaseException:
            # What is raised is told, whatever comes of this.
            with suppress(OSError, ValueError, http.client.HTTPException):
                _ask("DELETE", f"/shell/{id}")
            raise
        raise RuntimeError("the command's events ended without an end")


def _result(reply: dict[str, Any], stdout: list[bytes], stderr: list[bytes]) -> Result:
    if reply["returncode"] is None:
        raise RuntimeError(reply["error"]["message"])
    texts = (b"".join(pieces).decode(errors="replace") for pieces in (stdout, stderr))
    return Result(*texts, reply["returncode"], reply["cwd"])


def _bytes(event: dict[str, Any]) -> bytes:
    exact = event.get("base64")
    return base64.b64decode(exact) if exact else event["text"].encode()


def _ask(method: str, path: str, /, **body: Any) -> tuple[int, dict[str, Any]]:
    return ask(method, path, _of_session(body) if method == "POST" else None)


def _of_session(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "session": os.environ.get("OSCTL_SESSION", "default")}


def _events(asked: dict[str, Any], stdin: bytes | None) -> Iterator[dict[str, Any]]:
    companion = Companion()
    try:
        companion.send_json("POST", "/shell", _of_session(asked), Accept="application/x-ndjson")
        answer = companion.getresponse()
        if answer.status != 200:
            expect(answer.status, json.loads(answer.read()))
        if stdin is not None:
            # Beside the output, which the command may not get rid of before it reads on.
            threading.Thread(target=_feed, args=(asked["id"], stdin), daemon=True).start()
        for line in answer:
            yield json.loads(line)
    finally:
        companion.close()


def _feed(id: str, stdin: bytes) -> None:
    companion = Companion()
    # A command that has ended, or has closed its stdin, needs no more.
    with suppress(OSError, http.client.HTTPException):
        companion.request("POST", f"/shell/{id}/stdin", stdin)
        companion.getresponse().read()
    companion.close()
