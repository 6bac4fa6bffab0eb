"""browser-use as an MCP server, in the browser that people and tools share.

The companion runs that browser at a stable address and starts it for the first tool that needs it.
Without a desktop or a window, browser-use runs its own browser.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
from typing import Any

from browser_use.mcp.server import BrowserUseServer, main
from browser_use.utils import is_new_tab_page

COMPANION = "/run/osctl/companion.sock"

# Tools that need no browser.
BROWSERLESS_TOOLS = {"browser_list_sessions", "browser_close_session", "browser_close_all"}

# Seconds to close a lost connection, and for an answer of the companion.
CONNECTION_TIMEOUT = 15

# Seconds for a connection to find a page.
FOCUS_TIMEOUT = 5


class Companion(http.client.HTTPConnection):
    """A connection to the companion over its private socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(COMPANION)


def find_shared_browser() -> str | None:
    """Returns the address of the browser, or None without a desktop."""
    companion = Companion("localhost", timeout=CONNECTION_TIMEOUT)
    try:
        companion.request("GET", "/display/browser")
        answer = companion.getresponse()
        return json.load(answer).get("cdp_url") if answer.status == http.client.OK else None
    except (OSError, ValueError):
        return None
    finally:
        companion.close()


class SharedBrowser(BrowserUseServer):
    """Connects when a tool needs the browser, and again after it was closed or has crashed."""

    def __init__(self, address: str) -> None:
        super().__init__()
        # A browser in the user's configuration takes precedence.
        self.config["browser_profile"].setdefault("cdp_url", address)
        self.config["browser_profile"]["keep_alive"] = True
        self.connecting = asyncio.Lock()

    async def _execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:
        if tool_name.startswith("browser_") and tool_name not in BROWSERLESS_TOOLS:
            async with self.connecting:
                is_new = await self.ensure_connected()
            if tool_name == "browser_navigate" and is_new and await self.shows_page():
                # The open page belongs to another user of the browser.
                arguments = {**arguments, "new_tab": True}
        result = await super()._execute_tool(tool_name, arguments)
        if tool_name == "browser_navigate" and self.browser_session is not None:
            await self.show_page()
        return result

    async def show_page(self) -> None:
        """Brings the page to the front: after a crash, another page may be there."""
        page = await self.browser_session.get_or_create_cdp_session(focus=False)
        await page.cdp_client.send.Target.activateTarget(params={"targetId": page.target_id})

    async def ensure_connected(self) -> bool:
        """Connects if necessary; returns whether the connection is new."""
        if self.browser_session is not None:
            if await self.is_usable():
                return False
            try:
                async with asyncio.timeout(CONNECTION_TIMEOUT):
                    await self._close_all_sessions()
            except TimeoutError:
                self.active_sessions.clear()
            self.browser_session = self.tools = None
        await self._init_browser_session()
        return True

    async def is_usable(self) -> bool:
        """Whether the session is connected to a page: a reconnect after a crash may find none."""
        session = self.browser_session
        if not session.is_cdp_connected or session.session_manager is None:
            return False
        return await session.session_manager.ensure_valid_focus(timeout=FOCUS_TIMEOUT)

    async def shows_page(self) -> bool:
        return not is_new_tab_page(await self.browser_session.get_current_page_url())


async def serve_shared(address: str) -> None:
    await SharedBrowser(address).run()


def is_window_wanted() -> bool:
    """Reads browser-use's own variable: whether it shows a window."""
    headless = os.environ.get("BROWSER_USE_HEADLESS", "").lower()
    return headless not in {"true", "t", "yes", "y", "on", "1"}


if __name__ == "__main__":
    address = find_shared_browser() if is_window_wanted() else None
    if address is None:
        os.environ["BROWSER_USE_HEADLESS"] = "true"
    asyncio.run(main() if address is None else serve_shared(address))
