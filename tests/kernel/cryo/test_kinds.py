"""Every kind of object in one namespace: variables reported as saved come back equal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from client import Kernel
from cryo_requests import ask, reload, store
from kinds import IMPORTS, Kind, kinds
from kinds_dynamic import DYNAMIC
from kinds_tell import TELL

ANSWERS = """
def _answers(path):
    import asyncio, inspect, json
    found = {{}}
    for name, probe in json.loads({probes!r}):
        if name.partition('[')[0] not in globals(): continue
        try:
            code = compile(probe, '<probe>', 'eval', flags=__import__('ast').PyCF_ALLOW_TOP_LEVEL_AWAIT)
            value = eval(code, globals())
            found[name] = repr(asyncio.run(value) if inspect.iscoroutine(value) else value)
        except BaseException as error:
            found[name] = '!' + type(error).__name__
    open(path, 'w', errors='surrogatepass').write(json.dumps(found))
"""


def answers(kernel: Kernel, probes: list[tuple[str, str]], path: Path) -> dict[str, str]:
    run = kernel.run(TELL + ANSWERS.format(probes=json.dumps(probes)) + f"_answers({str(path)!r})")
    assert run.status == "completed", run.traceback
    return json.loads(path.read_text(errors="surrogatepass"))


def judge(
    fork: Callable[..., Kernel], before: Kernel, probes: list[tuple[str, str]], folder: Path
) -> dict[str, list[str]]:
    """Returns names by the reported verdict and the true outcome."""
    told = {row["name"]: row for row in store(before, folder / "s" / "1")}
    expected = answers(before, probes, folder / "before")
    failed = {name: answer for name, answer in expected.items() if answer[0] == "!"}
    assert not failed, failed  # which would prove nothing
    after = fork("import asyncio, json")
    reload(after, folder / "s" / "1")
    found = answers(after, probes, folder / "after")
    verdicts: dict[str, list[str]] = {}
    for name, answer in expected.items():
        truth = "gone" if name not in found else "same" if found[name] == answer else "different"
        row = told[name]
        verdicts.setdefault(f"{row['verdict']} and {truth}", []).append(name)
        if truth != "same" or row["verdict"] not in ("saved", "recipe"):
            print(name, row["verdict"], truth, row["type"], row["why"])
            if truth == "different":
                print("    ", answer[:200], "|", found[name][:200])
    print({verdict: len(names) for verdict, names in sorted(verdicts.items())})
    return verdicts


LIES = [f"{told} and {truth}" for told in ("saved", "recipe") for truth in ("gone", "different")]
LIES += ["altered and gone", "unverified and gone", "lost and same", "lost and different"]


def check(verdicts: dict[str, list[str]], least: int) -> None:
    counts = Counter({verdict: len(names) for verdict, names in verdicts.items()})
    for lie in LIES:
        assert not verdicts.get(lie), (lie, verdicts[lie])
    assert counts["altered and same"] < 7, verdicts  # false alarms
    assert counts["saved and same"] + counts["recipe and same"] >= least, counts


def make(kernel: Kernel, some: list[Kind]) -> None:
    assert kernel.run(IMPORTS).status == "completed"
    for kind in some:
        run = kernel.run(kind.code)
        assert run.status == "completed", (kind, run.traceback)


KINDS = 723


def test_saved_variables_come_back_equal(fork, tmp_path: Path) -> None:
    some, kernel = kinds(), fork()
    assert len(some) == KINDS
    assert len(DYNAMIC) > 84  # this number of cloudpickle's tests make an object and load it
    make(kernel, some)
    verdicts = judge(fork, kernel, [(each.variable, each.probe) for each in some], tmp_path)
    check(verdicts, 630)


DILL = """
import warnings; warnings.simplefilter('ignore')
import dill._objects as _objects
_all = {**_objects.succeeds, **_objects.failures, **_objects.registered}
for _name, _value in _all.items(): globals()[f'd_{_name}'] = _value
del _name, _value, _all, _objects
"""

DILLS = 229
"""Of the 233 names in dill's source. dill counts 251, because its 21 `registered` are in `succeeds`
too, and one is in `failures` and `succeeds`. It does not make four here: `PackerType` (its module
left Python 3.13), `CFunctionType` (only up to Python 3.11), `QuitterType` and `ExitType` (not in
IPython)."""


def test_kinds_of_dill_are_reported_correctly(fork, tmp_path: Path) -> None:
    kernel = fork(DILL)
    names = eval(ask(kernel, "[n for n in globals() if n.startswith('d_')]") or "[]")
    assert len(names) == DILLS, sorted(names)
    verdicts = judge(fork, kernel, [(name, f"_tell({name})") for name in names], tmp_path)
    check(verdicts, 165)
