"""The real servers do real work for MCP's Python client."""

from __future__ import annotations

import json
import os

import anyio

from conftest import Connect, text


def test_the_filesystem_is_written_and_read_below_its_root(connect: Connect) -> None:
    async def scenario() -> None:
        async with connect("filesystem") as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert {"read_text_file", "write_file"} <= tools
            path = "/root/host/from-python.txt"
            wrote = await client.call_tool("write_file", {"path": path, "content": "eins\nzwei ö"})
            assert not wrote.is_error
            read = await client.call_tool("read_text_file", {"path": path})
            assert text(read) == "eins\nzwei ö"
            outside = await client.call_tool("read_text_file", {"path": "/etc/passwd"})
            assert outside.is_error
            assert "Access denied" in text(outside)

    anyio.run(scenario)


def test_the_linux_server_lists_the_processes_of_the_container(connect: Connect) -> None:
    async def scenario() -> None:
        async with connect("linux") as client:
            assert len((await client.list_tools()).tools) > 10
            processes = await client.call_tool("list_processes", {})
            assert not processes.is_error
            assert "companion" in processes.model_dump_json()

    anyio.run(scenario)


def test_a_page_is_opened_clicked_and_read(connect: Connect) -> None:
    async def scenario() -> None:
        async with connect("browser-use") as client:
            opened = await client.call_tool("browser_navigate", {"url": os.environ["PAGE"]})
            assert not opened.is_error, text(opened)
            button = None
            with anyio.fail_after(60):
                while button is None:
                    state = json.loads(text(await client.call_tool("browser_get_state", {})))
                    found = state["interactive_elements"]
                    button = next((e for e in found if "press" in json.dumps(e)), None)
            clicked = await client.call_tool("browser_click", {"index": button["index"]})
            assert not clicked.is_error, text(clicked)
            with anyio.fail_after(60):
                while "it was pressed" not in text(await client.call_tool("browser_get_html", {})):
                    await anyio.sleep(0.1)

    anyio.run(scenario)


def test_many_clients_of_a_server_get_their_own_answers(connect: Connect) -> None:
    async def one(number: int) -> None:
        async with connect("filesystem") as client:
            path = f"/root/host/many-{number}.txt"
            await client.call_tool("write_file", {"path": path, "content": str(number)})
            for _ in range(5):
                assert text(await client.call_tool("read_text_file", {"path": path})) == str(number)

    async def scenario() -> None:
        async with anyio.create_task_group() as group:
            for number in range(16):
                group.start_soon(one, number)

    anyio.run(scenario)
