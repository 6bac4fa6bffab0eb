"""MIME bundles arrive complete and are always valid JSON."""

import base64

import pytest


def test_displays_carry_their_ids_and_updates(kernel):
    run = kernel.run(
        "from IPython.display import display, clear_output, HTML\n"
        "h = display(HTML('<b>1</b>'), display_id='spot')\nh.update(HTML('<b>2</b>'))\nclear_output(wait=True)"
    )
    first, second = run.of("display")
    assert first["display_id"] == second["display_id"] == "spot"
    assert "update" not in first and second["update"] is True
    assert second["data"]["text/html"] == "<b>2</b>"
    assert run.of("clear")[0]["wait"] is True


def test_bytes_become_base64_and_json_stays_json(kernel):
    run = kernel.run(
        "from IPython.display import display\n"
        "display({'image/png': b'\\x89PNG', 'application/json': {'a': [1, {'b': None}]}}, raw=True)"
    )
    (event,) = run.of("display")
    assert base64.b64decode(event["data"]["image/png"]) == b"\x89PNG"
    assert event["data"]["application/json"] == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    "value",
    [
        "float('nan')",
        "{1: float('inf')}",
        "{(1, 2): {3}}",
        "object()",
        "'\\ud800'",
        "[(x := []), x.append(x)]",
        "b'\\xff'",
    ],
)
def test_values_unsupported_by_json_become_text(kernel, value):
    run = kernel.run(
        f"from IPython.display import display\ndisplay({{'application/json': {value}}}, raw=True)"
    )
    assert run.status == "completed" and len(run.of("display")) == 1


def test_rich_values_have_all_their_forms(kernel):
    kernel.run(
        "class H:\n    def _repr_html_(self): return '<i>h</i>'\n    def __repr__(self): return 'plain'"
    )
    (event,) = kernel.run("H()").of("result")
    assert event["data"] == {"text/plain": "plain", "text/html": "<i>h</i>"}


def test_formats_registered_for_builtin_values_are_used(kernel):
    kernel.run(
        "get_ipython().display_formatter.formatters['text/html'].for_type(int, lambda n: f'<b>{n}</b>')"
    )
    assert kernel.run("7").of("result")[0]["data"]["text/html"] == "<b>7</b>"


def test_figures_show_without_asking_and_matplotlib_is_not_imported_before(kernel):
    assert kernel.run("'matplotlib' in __import__('sys').modules").result == "False"
    pytest.importorskip("matplotlib")
    run = kernel.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('drawn')")
    (event,) = run.of("display")
    assert base64.b64decode(event["data"]["image/png"]).startswith(b"\x89PNG")


def test_tables_are_html_and_text(kernel):
    pytest.importorskip("pandas")
    (event,) = kernel.run("import pandas as pd\npd.DataFrame({'a': [1]})").of("result")
    assert {"text/plain", "text/html"} <= event["data"].keys()
