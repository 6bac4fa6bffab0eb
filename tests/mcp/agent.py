"""An agent in the place of Claude Code: starts the command in its configuration, and works with
what that offers.

`agent.py CONFIGURATION` prints what the agent has found as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import Implementation

WORK = "import os, polars; print(os.environ['STRIPE_KEY'], os.getcwd(), sorted(os.listdir()))"


def text(result: Any) -> str:
    return "\n".join(part.text for part in result.content if part.type == "text")


async def work(entry: dict[str, Any]) -> dict[str, Any]:
    started = StdioServerParameters(
        command=entry["command"], args=entry["args"], env=entry.get("env")
    )
    agent = Implementation(name="claude-code", version="2.1")
    async with Client(stdio_client(started), client_info=agent) as client:
        begin = time.monotonic()
        listed = (await client.list_tools()).tools
        listed_in = time.monotonic() - begin
        worked = await client.call_tool("os__execute_python_code", {"code": WORK})
        noted = await client.call_tool("notes__read", {})
        return {
            "tools": [tool.name for tool in listed],
            "listed_in_seconds": listed_in,
            "worked": text(worked),
            "noted": text(noted),
        }


def main() -> None:
    servers = json.loads(Path(sys.argv[1]).read_text())["mcpServers"]
    (entry,) = servers.values()
    print(json.dumps(anyio.run(work, entry)))


main()
