"""`runtime`: the kernel's object in the user's namespace; a reset keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import evolution
from .command_shell import CommandShell
from .evolution import Evolution
from .resources import Resource, invalidate_all


class Runtime:
    """`runtime.shell` runs commands in a persistent context, `runtime.resource` keeps live objects,
    `runtime.evolve` requests a new body.

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
        """Returns a live object made by `factory`; the same name gives the same resource."""
        if not callable(factory):
            raise TypeError("`factory` must be a function without arguments")
        if name is None:
            return Resource(factory)
        known = self._named.get(name)
        if known is None:
            known = self._named[name] = Resource(factory, name)
        else:
            known.remake_with(factory)
        return known

    def evolve(self, reason: str | None = None, force: bool = False) -> str:
        """Rebuilds the image from `/repo/body` and replaces the container; variables, sessions and
        the shell's context continue in the new container.

        Returns immediately with the name of the run. The evolve waits for the running code to end:
        a cell that waits for its own evolve blocks it, unless `force` interrupts the cell. Call
        `runtime.evolution()` afterwards to read the outcome.

        # Errors
        RuntimeError without a keeper, or during another run.
        """
        return evolution.start_evolve(reason, force)

    def evolution(self, run: str | None = None) -> Evolution | None:
        """Returns the state of that run, or of the latest run; None without a run."""
        return evolution.read_evolve_status(run)

    def reset(self) -> None:
        """Ends the live objects; the shell context stays."""
        self._named.clear()
        invalidate_all()
