"""Output of libraries: figures, tables, formulas, and their own bundles."""

import base64

import pytest

PNG = b"\x89PNG\r\n"


def images(run):
    bundles = [event["data"] for event in run.events if event["type"] in ("display", "result")]
    return [base64.b64decode(data["image/png"]) for data in bundles if "image/png" in data]


@pytest.fixture
def plots(kernel):
    pytest.importorskip("matplotlib")
    assert kernel.run("import matplotlib.pyplot as plt").status == "completed"
    return kernel


@pytest.mark.parametrize(
    "code",
    [
        "plt.plot([1, 2])",
        "fig, ax = plt.subplots()\nax.plot([1, 2]);",
        "fig, ax = plt.subplots()\nax.plot([1, 2])\nfig",
        "plt.plot([1, 2])\nplt.show()",
        "plt.plot([1, 2])\nx = 5",
        "plt.plot([1, 2])\nplt.gcf()",
    ],
)
def test_a_figure_is_shown_once_without_asking(plots, code):
    run = plots.run(code)
    (image,) = images(run)
    assert image.startswith(PNG) and run.status == "completed"
    assert not images(plots.run("1 + 1"))  # and is closed


def test_each_of_two_figures_is_shown(plots):
    assert len(images(plots.run("plt.figure(); plt.plot([1]); plt.figure(); plt.plot([2])"))) == 2


def test_a_figure_of_an_earlier_cell_can_be_shown_again(plots):
    plots.run("fig, ax = plt.subplots()")
    assert len(images(plots.run("fig"))) == 1
    assert len(images(plots.run("display(fig)"))) == 1


def test_a_figure_of_a_failing_cell_is_shown(plots):
    run = plots.run("plt.plot([1, 2])\n1/0")
    assert len(images(run)) == 1 and run.error["type"] == "ZeroDivisionError"


def test_the_first_cell_may_import_and_plot(kernel):
    pytest.importorskip("matplotlib")
    assert len(images(kernel.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])"))) == 1


@pytest.mark.parametrize(
    "magic",
    [
        "%matplotlib inline",
        "%matplotlib",
        "%matplotlib auto",
        "%pylab inline",
        "%pylab",
        "%gui",
        "%gui inline",
        "%matplotlib inline\n%config InlineBackend.figure_format = 'retina'",
        "%config InlineBackend.figure_format = 'retina'",
        "from matplotlib_inline.backend_inline import set_matplotlib_formats\n"
        "set_matplotlib_formats('png', 'retina')",
    ],
)
def test_magics_of_matplotlib_do_not_end_the_cell_and_figures_stay_inline(kernel, magic):
    pytest.importorskip("matplotlib")
    run = kernel.run(f"{magic}\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])")
    assert run.status == "completed" and run.stderr == ""
    (image,) = images(run)
    assert image.startswith(PNG)
    assert len(images(kernel.run("plt.plot([3, 4])"))) == 1


@pytest.mark.parametrize("gui", ["widget", "ipympl", "notebook", "nbagg", "qt", "tk", "osx"])
def test_an_interactive_backend_is_replaced_by_inline_with_a_warning(kernel, gui):
    pytest.importorskip("matplotlib")
    run = kernel.run(f"%matplotlib {gui}\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])")
    assert run.status == "completed" and len(images(run)) == 1
    assert f"`{gui}`" in run.stderr and "%matplotlib inline" in run.stderr
    # The refused backend is not remembered.
    again = kernel.run("%matplotlib inline\nplt.plot([1, 2])")
    assert len(images(again)) == 1 and again.stderr == "" and again.stdout == ""


def test_a_gui_event_loop_is_refused_with_a_warning(kernel):
    run = kernel.run("%gui qt\nx = 1")
    assert run.status == "completed" and "`%gui qt` has no effect" in run.stderr
    assert kernel.run("%gui asyncio").stderr == ""


def test_svg_figures_are_configured_by_the_magic(plots):
    run = plots.run("%config InlineBackend.figure_formats = ['svg']\nplt.plot([1, 2])")
    (event,) = run.of("display")
    assert event["data"]["image/svg+xml"].startswith("<?xml") and not images(run)


def test_a_backend_that_writes_files_is_selected_and_an_unknown_one_is_an_error(plots):
    run = plots.run("%matplotlib agg\nplt.plot([1, 2]);")
    assert run.status == "completed" and not images(run)
    assert len(images(plots.run("plt.close()\n%matplotlib inline\nplt.plot([1, 2]);"))) == 1
    assert plots.run("%matplotlib nonsense").error["type"] == "RuntimeError"


def test_figures_are_shown_in_a_forked_kernel(template):
    pytest.importorskip("matplotlib")
    kernel = template().fork()
    assert kernel.run("'matplotlib' in __import__('sys').modules").result == "False"
    assert len(images(kernel.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])"))) == 1
    kernel.close()


def test_tables_have_both_forms(kernel):
    kernel.run("import pandas as pd; t = pd.DataFrame({'a': [1, 2]})")
    (event,) = kernel.run("t").of("result")
    assert "<table" in event["data"]["text/html"] and event["data"]["text/plain"].split()[0] == "a"
    (event,) = kernel.run("display(t)").of("display")
    assert {"text/html", "text/plain"} == event["data"].keys()
    (event,) = kernel.run("t['a']").of("result")
    assert event["data"].keys() == {"text/plain"}


@pytest.mark.parametrize(
    ("code", "mime", "value"),
    [
        ("SVG(data='<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>')", "image/svg+xml", "<svg"),
        ("Latex('$x^2$')", "text/latex", "$x^2$"),
        ("Math('x^2')", "text/latex", "x^2"),
        ("Markdown('# head')", "text/markdown", "# head"),
        ("Javascript('1')", "application/javascript", "1"),
        ("HTML('<b>h</b>')", "text/html", "<b>h</b>"),
    ],
)
def test_texts_have_their_types(kernel, code, mime, value):
    kernel.run("from IPython.display import *")
    (event,) = kernel.run(code).of("result")
    assert value in event["data"][mime]


def test_json_is_an_object_and_an_image_base64(kernel):
    kernel.run("from IPython.display import JSON, Image")
    (event,) = kernel.run("JSON({'a': [1, None]}, expanded=True)").of("result")
    assert event["data"]["application/json"] == {"a": [1, None]}
    assert event["metadata"]["application/json"]["expanded"] is True
    (event,) = kernel.run(
        "Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + b'0' * 32, format='png', width=5)"
    ).of("result")
    assert base64.b64decode(event["data"]["image/png"]).startswith(PNG)
    assert event["metadata"]["image/png"] == {"width": 5}


def test_a_bundle_of_ones_own_passes_untouched(kernel):
    kernel.run(
        "class Chart:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'application/vnd.vegalite.v5+json': {'mark': 'bar', 'data': [1, {'x': None}]},\n"
        "                'application/vnd.plotly.v1+json': {'data': []}, 'image/png': b'\\x89PNG', 'text/plain': '<Chart>'}, "
        "{'application/vnd.vegalite.v5+json': {'embed': True}}"
    )
    expected = {
        "application/vnd.vegalite.v5+json": {"mark": "bar", "data": [1, {"x": None}]},
        "application/vnd.plotly.v1+json": {"data": []},
        "image/png": base64.b64encode(b"\x89PNG").decode(),
        "text/plain": "<Chart>",
    }
    for code, kind in (("Chart()", "result"), ("display(Chart())", "display")):
        (event,) = kernel.run(code).of(kind)
        assert event["data"] == expected
        assert event["metadata"] == {"application/vnd.vegalite.v5+json": {"embed": True}}


def test_charts_of_altair_and_plotly_pass_untouched(kernel):
    kernel.run(
        "import altair, plotly.graph_objects as go\naltair.renderers.enable('mimetype')\n"
        "chart = altair.Chart(altair.Data(values=[{'a': 1, 'b': None}])).mark_bar().encode(x='a:Q')\n"
        "figure = go.Figure(go.Bar(y=[1, 2]))\n"
        "figure.layout.title.text = 'two'"
    )
    (event,) = kernel.run("chart").of("result")
    (vega,) = (kind for kind in event["data"] if kind.startswith("application/vnd.vegalite"))
    said = event["data"][vega]
    assert said["mark"] == {"type": "bar"} and said["encoding"]["x"]["field"] == "a"
    assert [{"a": 1, "b": None}] in [*said.get("datasets", {}).values(), said["data"].get("values")]
    (event,) = kernel.run("figure.show(renderer='plotly_mimetype')").of("display")
    plotly = event["data"]["application/vnd.plotly.v1+json"]
    assert plotly["data"][0]["type"] == "bar" and plotly["layout"]["title"] == {"text": "two"}


def test_a_display_is_updated_from_a_later_cell(kernel):
    (first,) = kernel.run("h = display('one', display_id=True)").of("display")
    (second,) = kernel.run("h.update('two')").of("display")
    assert first["display_id"] == second["display_id"] and second["update"] is True
    assert second["data"]["text/plain"] == "'two'"
