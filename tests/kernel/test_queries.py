"""Requests with one reply, which change nothing that the user sees."""

import os
import shutil

import pytest

import client
from client import Run


def rows(kernel):
    return {row.pop("name"): row for row in kernel.value("variables")}


def test_every_reply_has_the_counts(kernel):
    kernel.run("x = 1")
    for kind, fields in (
        ("probe", {}),
        ("variables", {}),
        ("complete", {"code": "x"}),
        ("inspect", {"code": "x"}),
        ("is_complete", {"code": "x"}),
        ("history", {}),
        ("reset", {}),
    ):
        reply = kernel.request(kind, **fields)
        assert reply["error"] is None and reply["execution_count"] == 1
        assert reply["globals_count"] == (kind != "reset")


def test_an_idle_fork_becomes_a_session(kernel):
    assert kernel.value("adopt", session="mine", plain=True)["pid"]
    assert kernel.run("import os; os.environ['OSCTL_SESSION']").result == "'mine'"


def test_queries_leave_cells_unchanged(kernel):
    kernel.run("6 * 7")
    kernel.value("complete", code="pri")
    kernel.value("inspect", code="print")
    kernel.value("variables")
    assert kernel.run("_, In[1], len(Out)").result == "(42, '6 * 7', 1)"


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"type": "complete", "code": 5}, "`code`"),
        ({"type": "complete", "code": "x", "cursor": -1}, "`cursor`"),
        ({"type": "variables", "limit": "all"}, "`limit`"),
        ({"type": "execute", "code": "1", "silent": 1}, "`silent`"),
        ({"type": "call"}, "`name`"),
    ],
)
def test_a_malformed_question_is_refused(kernel, frame, message):
    answer = kernel.ask({"id": "q", **frame})
    assert (answer["type"], answer["id"]) == ("refused", "q")
    assert message in answer["error"]["message"]


def test_a_silent_cell_leaves_no_trace(kernel):
    kernel.run("x = 1; x")
    run = kernel.run("x += 1; print(x)\nx", silent=True)
    assert (run.status, run.stdout, run.result) == ("completed", "2\n", None)
    assert run.done["execution_count"] == 1
    assert kernel.run("1/0", silent=True).error["type"] == "ZeroDivisionError"
    run = kernel.run("x, _, len(In), list(Out)")
    assert (run.result, run.done["execution_count"]) == ("(2, 1, 3, [1])", 2)


def test_a_cell_outside_of_the_history_has_a_result(kernel):
    kernel.run("'first'")
    assert kernel.run("40 + 2", store_history=False).result == "42"
    assert kernel.run("_, _i, In[-1]").result == "('first', \"'first'\", '_, _i, In[-1]')"


# Variables.


def test_variables_are_listed_by_name(kernel):
    kernel.run("b = 'text'\na = 1\nclass C: pass\nc = C()\nimport os\nb")
    found = kernel.value("variables")
    assert [row["name"] for row in found] == ["C", "a", "b", "c", "os"]
    assert found[1] == {"name": "a", "type": "int", "size": 28, "preview": "1"}
    assert found[2]["preview"] == "'text'"
    assert [row["type"] for row in found] == ["type", "int", "str", "__main__.C", "module"]
    assert [row["name"] for row in kernel.value("variables", limit=2)] == ["C", "a"]


def test_arrays_and_frames_are_listed_with_shape_and_memory(kernel):
    kernel.run(
        "import numpy as np, pandas as pd\na = np.zeros((1000, 1000))\ns = np.arange(3)\n"
        "f = pd.DataFrame({'x': range(1000)})\nn = np.float64(1.5)"
    )
    found = rows(kernel)
    assert found["a"] == {
        "type": "numpy.ndarray",
        "size": 8_000_000,
        "preview": "<ndarray 1000 × 1000 of float64>",
    }
    assert found["s"]["preview"] == "array([0, 1, 2])"
    assert found["f"]["size"] >= 8000 and found["f"]["preview"] == "<DataFrame 1000 × 1>"
    assert found["n"]["preview"] == "np.float64(1.5)"


def test_huge_and_odd_values_are_shown_shortly(kernel):
    kernel.run(
        "import collections, dataclasses, unittest.mock\n"
        "big = list(range(3_000_000)); nested = [big, {'k': big}]; s = set(big); d = dict.fromkeys(big)\n"
        "text = 'x' * 10**7; number = 10 ** 100_000; loop = []; loop.append(loop)\n"
        "queue = collections.deque(big); counter = collections.Counter(big)\n"
        "@dataclasses.dataclass\nclass Data:\n    items: list\n    name: str = 'n'\ndata = Data(big)\n"
        "class Bad:\n    def __repr__(self): 1/0\n    __sizeof__ = __repr__\nbad = Bad()\n"
        "class Lines:\n    def __repr__(self): return 'a\\n  b'\nlines = Lines()\n"
        "class Exits:\n    def __repr__(self): raise SystemExit\nexits = Exits()\n"
        "Point = collections.namedtuple('Point', 'x y'); point = Point(1, 2)\nempty = set(); one = (1,)\n"
        "mock = unittest.mock.MagicMock()\n"
    )
    import time

    begun = time.monotonic()
    found = rows(kernel)
    assert time.monotonic() - begun < 1
    assert all(len(row["preview"]) <= 120 and "\n" not in row["preview"] for row in found.values())
    shown = {name: row["preview"] for name, row in found.items()}
    assert shown["big"].startswith("[0, 1, 2, ") and "…] 3000000 items" in shown["big"]
    assert shown["nested"].startswith("[[0, 1") and shown["d"].startswith("{0: None, ")
    assert shown["s"].startswith("{0, 1, ") and shown["text"].startswith("'xxx")
    assert shown["number"].startswith("<int of 3321") and shown["loop"] == "[[[[[…]]]]]"
    assert shown["queue"].startswith("deque([0, 1") and shown["counter"].startswith("Counter({0: 1")
    assert shown["data"].startswith("Data(items=[0, 1")
    assert (
        shown["bad"] == "<Bad whose repr raises ZeroDivisionError>" and found["bad"]["size"] is None
    )
    assert shown["lines"] == "a b" and "SystemExit" in shown["exits"]
    assert (
        shown["point"] == "Point((1, 2))" and shown["empty"] == "set()" and shown["one"] == "(1,)"
    )
    assert shown["mock"].startswith("<MagicMock")


def test_a_repr_without_end_can_be_interrupted(kernel):
    kernel.run(
        "class Slow:\n    def __repr__(self):\n        print('begun')\n        while True: pass\nx = Slow()"
    )
    kernel.send({"type": "variables", "id": "v"})
    kernel.wait_for("begun")
    kernel.interrupt()
    reply = kernel.frame()
    assert reply["error"]["type"] == "KeyboardInterrupt" and reply["value"] is None
    assert kernel.run("1+1").result == "2"


# Completion and help.


def test_live_objects_are_completed(kernel):
    kernel.run("import os\nwords = ['a']\ntable = {'alpha': 1}")
    found = kernel.value("complete", code="os.path.joi")
    assert (found["matches"], found["cursor_start"], found["cursor_end"]) == (["join"], 8, 11)
    found = kernel.value("complete", code="é = words.app + 1", cursor=13)
    assert (found["matches"], found["cursor_start"], found["cursor_end"]) == (["append"], 10, 13)
    assert "words" in kernel.value("complete", code="wor")["matches"]
    assert "alpha" in str(kernel.value("complete", code="table['al")["matches"])
    assert "%timeit" in kernel.value("complete", code="%time")["matches"]
    assert kernel.value("complete", code="")["cursor_end"] == 0
    assert kernel.value("complete", code="x", cursor=99)["cursor_end"] == 1
    assert {"text": "join", "type": "attribute", "signature": ""} in (
        kernel.value("complete", code="os.path.joi")["types"]
    )


def test_code_that_has_not_run_is_completed_by_reading_it(kernel):
    pytest.importorskip("jedi")
    found = kernel.value("complete", code="import json\njson.loa")
    assert found["matches"] == ["load", "loads"] and found["types"][0]["type"] == "function"
    assert found["types"][0]["signature"].startswith("(fp")
    assert kernel.value("complete", code="no_such_name_at_a")["matches"] == []


def test_help_is_text_without_colours(kernel):
    kernel.run("def f(a, b=2):\n    'Adds.'\n    return a + b")
    found = kernel.value("inspect", code="f(1, ", cursor=5)
    text = found["data"]["text/plain"]
    assert found["found"] and "Adds." in text and "f(a, b=2)" in text and "\x1b" not in text
    assert "return a + b" in kernel.value("inspect", code="f", detail=1)["data"]["text/plain"]
    assert kernel.value("inspect", code="nothing_here") == {"found": False, "data": {}}
    assert kernel.value("inspect", code="") == {"found": False, "data": {}}


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("x = 1", {"status": "complete"}),
        ("for i in y:", {"status": "incomplete", "indent": "    "}),
        ("x = (", {"status": "incomplete", "indent": ""}),
        ("x = )", {"status": "invalid"}),
        ("%time", {"status": "complete"}),
    ],
)
def test_incomplete_cells_are_recognised(kernel, code, answer):
    assert kernel.value("is_complete", code=code) == answer


def test_the_history_is_the_last_cells(kernel):
    for code in ("a = 1", "b = 2", "c = 3"):
        kernel.run(code)
    assert kernel.value("history") == [[1, "a = 1"], [2, "b = 2"], [3, "c = 3"]]
    assert kernel.value("history", n=1) == [[3, "c = 3"]]
    kernel.value("reset")
    kernel.run("d = 4")
    assert kernel.value("history") == [[4, "d = 4"]]


# Extensions.


@pytest.fixture
def body(tmp_path, monkeypatch):
    """A copy of the kernel, so that tests can add extensions to it."""
    shutil.copytree(client.KERNEL, tmp_path / "kernel")
    monkeypatch.setattr(client, "COMMAND", [*client.COMMAND[:-1], str(tmp_path / "kernel")])
    return tmp_path / "kernel" / "extensions"


def test_an_extension_is_called_and_reloaded_after_a_change(start, body):
    path = body / "greet.py"
    path.write_text(
        "def run(arguments, shell):\n    print('said')\n    return [arguments, shell.user_ns['x']]"
    )
    kernel = start()
    kernel.run("x = 5")
    assert kernel.value("call", name="greet", arguments={"a": None}) == [{"a": None}, 5]
    before = os.stat(path)
    path.write_text(path.read_text().replace("arguments, shell.user", "'newagain', shell.user"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert kernel.value("call", name="greet") == ["newagain", 5]
    assert kernel.run("x").result == "5"


def test_extensions_may_wait_and_fail_and_be_interrupted(start, body):
    (body / "waits.py").write_text(
        "import asyncio\nasync def run(arguments, shell):\n    await asyncio.sleep(0)\n    return {1, 2} and float('nan')"
    )
    (body / "fails.py").write_text("def run(arguments, shell):\n    raise LookupError('not there')")
    (body / "broken.py").write_text("def run(:")
    (body / "empty.py").write_text("")
    (body / "hangs.py").write_text(
        "import asyncio\nasync def run(arguments, shell):\n    print('begun')\n    await asyncio.sleep(100)"
    )
    kernel = start()
    assert kernel.value("call", name="waits") is None
    error = kernel.request("call", name="fails")["error"]
    assert (error["type"], error["message"]) == ("LookupError", "not there")
    assert "fails.py" in "".join(error["traceback"]) and "__init__.py" not in "".join(
        error["traceback"]
    )
    assert kernel.request("call", name="broken")["error"]["type"] == "SyntaxError"
    assert kernel.request("call", name="empty")["error"]["type"] == "UnknownExtension"
    kernel.send({"type": "call", "id": "c", "name": "hangs"})
    kernel.wait_for("begun")
    (reply,) = kernel.interrupted(Run()).of("reply")
    assert reply["error"]["type"] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nothing", "UnknownExtension"),
        ("../wire", "InvalidName"),
        ("__init__", "InvalidName"),
        ("Upper", "InvalidName"),
        ("", "InvalidName"),
        ("a\n", "InvalidName"),
    ],
)
def test_unknown_extension_names_are_reported(kernel, name, kind):
    assert kernel.request("call", name=name)["error"]["type"] == kind


def test_packages_are_listed(start, tmp_path):
    kernel = start(env={"OSCTL_PACKAGES": str(tmp_path)})
    (found,) = kernel.value("call", name="packages", arguments={"name": "traitlets"})
    assert found["name"] == "traitlets" and found["where"] == "environment" and found["version"]
    site = kernel.run("print(__import__('sys').path[1])").stdout.strip()
    os.makedirs(f"{site}/traitlets-99.dist-info")
    with open(f"{site}/traitlets-99.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\nName: traitlets\nVersion: 99\n")
    (found,) = kernel.value("call", name="packages", arguments={"name": "traitlets"})
    assert (found["version"], found["where"]) == ("99", "overlay")
