"""`runtime`: what the namespace offers beside Python itself, and keeps over a reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .command_shell import CommandShell
from .resources import Resource, invalidate_all


class Runtime:
    """`runtime.shell` runs commands in a context that lasts, `runtime.resource` keeps live objects.

    ```python
    runtime.shell.run("cd /repo && ls").stdout
    db = runtime.resource(connect).validate(is_alive).teardown(close).retry().get()
    ```
    """

    def __init__(self) -> None:
        self.shell = CommandShell()
        self._named: dict[str, Resource] = {}

    def __repr__(self) -> str:
        return "<runtime: shell.run, shell.cd, shell.env, resource>"

    def resource(self, factory: Callable[[], Any], name: str | None = None) -> Resource:
        """A live object that `factory` makes; the same name gives the same resource."""
        if not callable(factory):
            raise TypeError("a resource is made by a function, which takes no arguments")
        if name is None:
            return Resource(factory)
        known = self._named.get(name)
        if known is None:
            known = self._named[name] = Resource(factory, name)
        else:
            known.remake_with(factory)
        return known

    def reset(self) -> None:
        """Ends the live objects; the shell context stays."""
        self._named.clear()
        invalidate_all()
