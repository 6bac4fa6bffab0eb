"""browser-use as an MCP server, in the one browser that people and tools share.

The companion runs that browser and reaches it at an address that stays, so it is started by the
first tool that needs it. Without a desktop, or where no window is wanted, browser-use runs one of
its own.
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

# What works without a browser.
UNBOUND = {"browser_list_sessions", "browser_close_session", "browser_close_all"}

# Seconds in which a connection that is lost must be given up.
PATIENCE = 15

# Seconds in which a connection must have found a page.
FOCUS = 5


class Companion(http.client.HTTPConnection):
    """The companion, by its private socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(COMPANION)


def shared_browser() -> str | None:
    """Where the browser is reached; nothing where there is no desktop to show it on."""
    companion = Companion("localhost", timeout=PATIENCE)
    try:
        companion.request("GET", "/display/browser")
        answer = companion.getresponse()
        return json.load(answer).get("cdp_url") if answer.status == http.client.OK else None
    except (OSError, ValueError):
        return None
    finally:
        companion.close()


class SharedBrowser(BrowserUseServer):
    """Connects when a tool needs the browser, and anew when that was closed or has crashed."""

    def __init__(self, address: str) -> None:
        super().__init__()
        # A browser that the user has configured comes first.
        self.config["browser_profile"].setdefault("cdp_url", address)
        self.config["browser_profile"]["keep_alive"] = True
        self.connecting = asyncio.Lock()

    async def _execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:
        if tool_name.startswith("browser_") and tool_name not in UNBOUND:
            async with self.connecting:
                is_new = await self.connect()
            if tool_name == "browser_navigate" and is_new and await self.shows_a_page():
                # Somebody else's page stays.
                arguments = {**arguments, "new_tab": True}
        said = await super()._execute_tool(tool_name, arguments)
        if tool_name == "browser_navigate" and self.browser_session is not None:
            await self.show()
        return said

    async def show(self) -> None:
        """Brings the page to the front: a crash may put another one there."""
        page = await self.browser_session.get_or_create_cdp_session(focus=False)
        await page.cdp_client.send.Target.activateTarget(params={"targetId": page.target_id})

    async def connect(self) -> bool:
        """Whether it was not connected."""
        if self.browser_session is not None:
            if await self.is_usable():
                return False
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._close_all_sessions()
            except TimeoutError:
                self.active_sessions.clear()
            self.browser_session = self.tools = None
        await self._init_browser_session()
        return True

    async def is_usable(self) -> bool:
        """Connected, and at a page: after a crash it connects by itself, and may find none."""
        session = self.browser_session
        if not session.is_cdp_connected or session.session_manager is None:
            return False
        return await session.session_manager.ensure_valid_focus(timeout=FOCUS)

    async def shows_a_page(self) -> bool:
        return not is_new_tab_page(await self.browser_session.get_current_page_url())


async def serve(address: str) -> None:
    await SharedBrowser(address).run()


def is_seen() -> bool:
    """Whether a window is wanted, in browser-use's own words."""
    headless = os.environ.get("BROWSER_USE_HEADLESS", "").lower()
    return headless not in {"true", "t", "yes", "y", "on", "1"}


if __name__ == "__main__":
    address = shared_browser() if is_seen() else None
    if address is None:
        os.environ["BROWSER_USE_HEADLESS"] = "true"
    asyncio.run(main() if address is None else serve(address))
