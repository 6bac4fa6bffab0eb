"""The built-in server with MCP's Python client: every transport, and the bridge over a restart."""

from __future__ import annotations

import json
import os
import subprocess

import anyio
import pytest
from mcp import MCPError

from conftest import Connect, text

FIGURE = """
import base64
from IPython.display import Image, display
print("first", flush=True)
import os, time
while not os.path.exists({gate!r}):
    time.sleep(0.01)
print("last")
display(Image(base64.b64decode({pixel!r})))
"""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


def test_code_reports_its_output_while_it_runs_and_returns_a_figure(
    connect: Connect, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        gate = f"/tmp/gate-{request.node.callspec.id}"
        messages = []
        first = anyio.Event()

        async def progress(_done: float, _total: float | None, message: str | None) -> None:
            messages.append(message)
            first.set()

        async with connect("os") as client:
            await client.call_tool("run_shell", {"command": f"rm -f {gate}"})

            async def open_gate() -> None:
                with anyio.fail_after(60):
                    await first.wait()
                await client.call_tool("write_file", {"path": gate, "content": ""})

            async with anyio.create_task_group() as group:
                group.start_soon(open_gate)
                code = FIGURE.format(gate=gate, pixel=PIXEL)
                session = request.node.callspec.id
                arguments = {"code": code, "session": session}
                result = await client.call_tool(
                    "execute_python_code", arguments, progress_callback=progress
                )
            assert not result.is_error, text(result)
            assert messages[0] == "first\n"
            assert text(result).startswith("first\nlast")
            assert [part.data for part in result.content if part.type == "image"] == [PIXEL]
            assert result.structured_content is None

    anyio.run(scenario)


def test_a_call_that_is_cancelled_interrupts_the_code(
    connect: Connect, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        session = f"cancelled-{request.node.callspec.id}"
        begun = anyio.Event()

        async def progress(*_: object) -> None:
            begun.set()

        async with connect("os") as client:
            code = "kept = 5\nprint('begun', flush=True)\nimport time\nwhile True: time.sleep(0.01)"
            async with anyio.create_task_group() as group:

                async def call() -> None:
                    arguments = {"code": code, "session": session}
                    ended = await client.call_tool(
                        "execute_python_code", arguments, progress_callback=progress
                    )
                    raise AssertionError(f"the cancelled call ended: {ended}")

                group.start_soon(call)
                with anyio.fail_after(60):
                    await begun.wait()
                group.cancel_scope.cancel()
            # The call waits until the cancelled code has ended.
            with anyio.fail_after(60):
                after = await client.call_tool(
                    "execute_python_code", {"code": "kept", "session": session}
                )
            assert text(after) == "5"

    anyio.run(scenario)


def osctl(*words: str) -> None:
    command = [*json.loads(os.environ["OSCTL"]), *words]
    env = os.environ | json.loads(os.environ["OSCTL_ENV"])
    subprocess.run(command, env=env, check=True, capture_output=True)


def test_the_bridge_outlives_a_restart(bridge: Connect, request: pytest.FixtureRequest) -> None:
    async def scenario() -> None:
        name = f"restart-{request.node.callspec.id}"
        async with bridge("os") as client:
            code = {"code": "kept = 9", "session": "default"}
            assert not (await client.call_tool("execute_python_code", code)).is_error
            tools = [tool.name for tool in (await client.list_tools()).tools]
            ended = {}
            begun = anyio.Event()

            async def progress(*_: object) -> None:
                begun.set()

            async def endless() -> None:
                arguments = {"command": "echo begun; sleep 600", "session": name}
                try:
                    ended["result"] = await client.call_tool(
                        "run_shell", arguments, progress_callback=progress
                    )
                except MCPError as error:
                    ended["error"] = error

            async with anyio.create_task_group() as group:
                group.start_soon(endless)
                with anyio.fail_after(60):
                    await begun.wait()
                await anyio.to_thread.run_sync(osctl, "restart")
            # The running call gets an answer, and nothing hangs.
            assert "error" in ended or ended["result"].is_error, ended
            assert [tool.name for tool in (await client.list_tools()).tools] == tools
            after = await client.call_tool("execute_python_code", {"code": "kept"})
            assert text(after).splitlines()[0] == "9"

    anyio.run(scenario)


def test_all_servers_are_reached_through_one_bridge(bridge: Connect) -> None:
    async def scenario() -> None:
        async with bridge(None) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"os__run_shell", "os__edit_file"} <= names
            assert "filesystem__read_text_file" not in names
            ran = await client.call_tool("os__run_shell", {"command": "echo merged"})
            assert text(ran) == "merged"

    anyio.run(scenario)
