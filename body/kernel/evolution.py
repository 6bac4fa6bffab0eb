"""`runtime.evolve`: code in the current body requests a new body."""

from __future__ import annotations

from dataclasses import dataclass

from .companion import require_success, send_request


@dataclass(frozen=True)
class Evolution:
    """The state of an evolve run.

    `status` is the current stage (`building`, `testing`, `quiescing`, `swapping`, `verifying`) or
    the outcome: `succeeded`, `rolled_back`, `failed`. `why` is the reason of a run that did not
    succeed.
    """

    run: str
    status: str
    reason: str | None
    why: str | None

    @property
    def is_on(self) -> bool:
        return self.status not in ("succeeded", "rolled_back", "failed")


def start_evolve(reason: str | None, force: bool) -> str:
    """Starts an evolve run and returns its name; the run continues in the background.

    # Errors
    RuntimeError without a keeper, or during another run.
    """
    answer = require_success(*send_request("POST", "/evolve", {"reason": reason, "force": force}))
    return answer["run"]


def read_evolve_status(run: str | None) -> Evolution | None:
    """Returns the state of that run, or of the latest run; None without a run.

    # Errors
    RuntimeError without a keeper, or when the run does not exist.
    """
    if run is not None:
        answer = require_success(*send_request("GET", f"/evolve/runs/{run}"))
        return Evolution(answer["run"], answer["status"], answer["reason"], answer["why"])
    answer = require_success(*send_request("GET", "/evolve/status"))
    if answer["latest_run"] is None:
        return None
    return Evolution(answer["latest_run"], answer["latest_status"], answer["reason"], answer["why"])
