"""`runtime`: what the namespace offers beside Python itself, and keeps over a reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import evolution
from .command_shell import CommandShell
from .evolution import Evolution
from .resources import Resource, invalidate_all


class Runtime:
    """`runtime.shell` runs commands in a context that lasts, `runtime.resource` keeps live objects,
    `runtime.evolve` asks for a new body.

    ```python
    runtime.shell.run("cd /repo && ls").stdout
    db = runtime.resource(connect).validate(is_alive).teardown(close).retry().get()
    runtime.evolve("I need ffmpeg")
    ```
    """

    def __init__(self) -> None:
        self.shell = CommandShell()
        self._named: dict[str, Resource] = {}

    def __repr__(self) -> str:
        return "<runtime: shell.run, shell.cd, shell.env, resource, evolve, evolution>"

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

    def evolve(self, reason: str | None = None, force: bool = False) -> str:
        """Rebuilds the image from `/repo/body` and replaces the container by it; variables,
        sessions and the shell's context go on in the new one.

        Returns at once with the name of the run. The code that runs now must end for it to go on:
        a cell that waits for its own evolve keeps it from happening, unless `force` interrupts it.
        What became of it, `runtime.evolution()` tells afterwards.

        # Errors
        RuntimeError where there is no keeper, or another run is on.
        """
        return evolution.begin(reason, force)

    def evolution(self, run: str | None = None) -> Evolution | None:
        """How that run stands, or the latest one; None when there was none."""
        return evolution.look(run)

    def reset(self) -> None:
        """Ends the live objects; the shell context stays."""
        self._named.clear()
        invalidate_all()
