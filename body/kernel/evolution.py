"""A new body, asked for by the code that lives in the present one: `runtime.evolve`."""

from __future__ import annotations

from dataclasses import dataclass

from .companion import ask, expect


@dataclass(frozen=True)
class Evolution:
    """How a run of evolving stands.

    `status` is the stage it is in (`building`, `testing`, `freezing`, `swapping`, `verifying`), or
    how it ended: `succeeded`, `rolled_back`, `failed`. `why` then says why not.
    """

    run: str
    status: str
    reason: str | None
    why: str | None

    @property
    def is_on(self) -> bool:
        return self.status not in ("succeeded", "rolled_back", "failed")


def begin(reason: str | None, force: bool) -> str:
    """The name of the run, which goes on by itself.

    # Errors
    RuntimeError where there is no keeper, or another run is on.
    """
    told = expect(*ask("POST", "/evolve", {"reason": reason, "force": force}))
    return told["run"]


def look(run: str | None) -> Evolution | None:
    """How that run stands, or the latest; None when there was none.

    # Errors
    RuntimeError where there is no keeper, or no such run.
    """
    if run is not None:
        told = expect(*ask("GET", f"/evolve/runs/{run}"))
        return Evolution(told["run"], told["status"], told["reason"], told["why"])
    told = expect(*ask("GET", "/evolve/status"))
    if told["latest_run"] is None:
        return None
    return Evolution(told["latest_run"], told["latest_status"], told["reason"], told["why"])
