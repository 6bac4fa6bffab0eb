"""Each namespace is stored, reloaded in a fresh process, and probed."""

from __future__ import annotations

from pathlib import Path

import pytest

from case import Case
from client import Template
from corners import CORNERS
from corpus import CASES
from cryo_requests import ask, reload, store

EVERY = [*CASES, *CORNERS]


def test_the_corpus_is_large() -> None:
    assert len(CASES) >= 80
    assert len({case.title for case in EVERY}) == len(EVERY)


@pytest.mark.parametrize("case", EVERY, ids=[case.title for case in EVERY])
def test_a_namespace_comes_back(case: Case, fork_pool: Template, tmp_path: Path) -> None:
    before = fork_pool.fork()
    try:
        run = before.run(case.code)
        assert run.status == "completed", run.traceback
        receipt = {
            row["name"]: row for row in store(before, tmp_path / "s" / "1", files=case.files)
        }
        expected = ask(before, case.probe)
    finally:
        before.close()
    told = {
        verdict: {name for name, row in receipt.items() if row["verdict"] == verdict}
        for verdict in ("saved", "recipe", "altered", "unverified", "lost")
    }
    lost = {*case.lost, *case.unmade}
    assert told["lost"] == lost, {n: receipt[n]["why"] for n in told["lost"]}
    assert told["altered"] == set(case.altered), receipt
    assert not told["unverified"], receipt
    assert told["recipe"] == set(case.recipe)
    assert all(receipt[name]["why"] for name in told["lost"] | told["recipe"])
    after = fork_pool.fork()
    try:
        back = {row["name"]: row for row in reload(after, tmp_path / "s" / "1")}
        same = {name: row["verdict"] for name, row in back.items()}
        expect = {name: row["verdict"] for name, row in receipt.items()}
        assert same == expect, back
        assert ask(after, case.probe) == expected
    finally:
        after.close()
