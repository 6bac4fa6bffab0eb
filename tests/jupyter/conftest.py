"""Notebooks on sessions of an instance, opened as Jupyter does.

`OSCTL` is the command with its instance, as a JSON list; `JUPYTER_DATA_DIR` an empty folder.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import pytest
from jupyter_client.manager import KernelManager, start_new_kernel

TEST_TIMEOUT = 60


def osctl(*args: str) -> str:
    """Runs `osctl`, which must succeed, and returns what it prints."""
    command = [*json.loads(os.environ["OSCTL"]), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    return done.stdout


class Notebook:
    """A Jupyter client with its own kernel."""

    def __init__(self, session: str, *options: str) -> None:
        self.session = session
        osctl("jupyter", "install", "--session", session, "--name", session, *options)
        self.manager: KernelManager
        self.manager, self.client = start_new_kernel(kernel_name=session)

    def agent(self, code: str) -> str:
        """Runs code of the agent in the same session."""
        return osctl("exec", "--session", self.session, code)

    def ask(self, code: str, **options: Any) -> str:
        return self.client.execute(code, **options)

    def reply(self, request: str) -> dict[str, Any]:
        """The reply to a request on the shell channel."""
        while True:
            message = self.client.get_shell_msg(timeout=TEST_TIMEOUT)
            if message["parent_header"]["msg_id"] == request:
                return message["content"]

    def until(self, fits: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """The messages on iopub up to the first that fits."""
        messages = []
        while True:
            messages.append(self.client.get_iopub_msg(timeout=TEST_TIMEOUT))
            if fits(messages[-1]):
                return messages

    def run(self, code: str, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Runs a cell: the reply, and its messages on iopub."""
        request = self.ask(code, **options)
        reply = self.reply(request)
        messages = [m for m in self.until(lambda m: is_idle(m, request)) if of(m, request)]
        return reply, messages

    def silence(self) -> bool:
        try:
            self.client.get_iopub_msg(timeout=0.2)
        except Empty:
            return True
        return False

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()


def of(message: dict[str, Any], request: str) -> bool:
    return message["parent_header"].get("msg_id") == request


def is_idle(message: dict[str, Any], request: str) -> bool:
    return of(message, request) and message["content"].get("execution_state") == "idle"


def says(message: dict[str, Any], text: str) -> bool:
    return message["msg_type"] == "stream" and text in message["content"]["text"]


def texts(messages: list[dict[str, Any]], name: str) -> str:
    streams = [m["content"] for m in messages if m["msg_type"] == "stream"]
    return "".join(each["text"] for each in streams if each["name"] == name)


@pytest.fixture
def notebook(request: pytest.FixtureRequest) -> Iterator[Notebook]:
    name = request.node.name.removeprefix("test_").replace("_", "-")
    session = f"{os.getpid()}-{name}"[:64]
    made = Notebook(session)
    yield made
    made.close()
    osctl("sessions", "rm", session)
