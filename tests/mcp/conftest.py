"""Clients of the hub, for each transport and revision.

`HUB` is its address, `TOKEN` its token, `PAGE` a page that is served inside, `OSCTL` the
command line of the instance as a JSON list, `OSCTL_ENV` its environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx2
import pytest
from mcp.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

TEST_TIMEOUT = 120
HEADERS = {"Authorization": f"Bearer {os.environ['TOKEN']}"}

Connect = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def streamable(server: str, mode: str, **options: object) -> AsyncIterator[Client]:
    url = f"{os.environ['HUB']}/servers/{server}/mcp"
    timeout = httpx2.Timeout(TEST_TIMEOUT)
    async with (
        httpx2.AsyncClient(headers=HEADERS, timeout=timeout) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


@asynccontextmanager
async def sse(server: str, **options: object) -> AsyncIterator[Client]:
    url = f"{os.environ['HUB']}/servers/{server}/sse"
    transport = sse_client(url, headers=HEADERS, timeout=TEST_TIMEOUT)
    async with Client(transport, mode="legacy", **options) as client:
        yield client


@asynccontextmanager
async def stdio(server: str | None, mode: str, **options: object) -> AsyncIterator[Client]:
    """A client of the bridge, which the client starts as a command."""
    command, *words = json.loads(os.environ["OSCTL"])
    selection = ["--server", server] if server else []
    started = StdioServerParameters(
        command=command,
        args=[*words, "mcp", "stdio", *selection],
        env=json.loads(os.environ["OSCTL_ENV"]),
    )
    async with Client(stdio_client(started), mode=mode, **options) as client:
        yield client


TRANSPORTS = {
    "sessions": lambda server, **options: streamable(server, "legacy", **options),
    "stateless": lambda server, **options: streamable(server, "2026-07-28", **options),
    "sse": sse,
    "stdio": lambda server, **options: stdio(server, "legacy", **options),
    "stdio-stateless": lambda server, **options: stdio(server, "auto", **options),
}


@pytest.fixture(params=TRANSPORTS)
def connect(request: pytest.FixtureRequest) -> Connect:
    """`connect(server)` is a client of one server."""
    return TRANSPORTS[request.param]


@pytest.fixture(params=["stdio", "stdio-stateless"])
def bridge(request: pytest.FixtureRequest) -> Connect:
    """`bridge(server)` is a client of one server, through the bridge."""
    return TRANSPORTS[request.param]


def text(result: object) -> str:
    """The text of a tool's result."""
    return "\n".join(part.text for part in result.content if part.type == "text")
