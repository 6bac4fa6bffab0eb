"""Kinds of objects of libraries that people install; like `kinds_code`."""

from __future__ import annotations

IMPORTS = """
import altair, attr, attrs, bs4, jinja2, markupsafe, msgspec, narwhals, networkx, nbformat, PIL.Image
import plotly.graph_objects as go, pydantic, pyrsistent, rpds, sortedcontainers, sqlalchemy
import sqlalchemy.orm, sympy, xarray
import matplotlib.pyplot as plt, matplotlib.cm, matplotlib.colors
import dask.array, dask.bag, dask.delayed, duckdb, lightgbm, openai, openai.types.chat, shapely, shapely.prepared
import dateutil.tz, dateutil.relativedelta, packaging.version, pyparsing, referencing, traitlets
from IPython.display import HTML, Markdown
"""

LIBRARIES = [
    ("X = jinja2.Template('<h1>{{t}}</h1>')", "X.render(t=1)"),
    ("X = jinja2.Environment().from_string('{{a}}')", "X.render(a=1)"),
    ("X = jinja2.Environment()", "X.block_start_string"),
    ("X = markupsafe.Markup('<b>')", "X"),
    (
        "@attr.define\nclass C:\n    a: int\n    b: list = attr.field(factory=list)\nX = C(1)",
        "X, attr.asdict(X)",
    ),
    ("@attrs.frozen\nclass C:\n    a: int\nX = {C(1): 2}", "X[C(1)]"),
    (
        "@attr.s(auto_attribs=True, slots=False, cache_hash=True, frozen=True)\nclass C:\n    a: str\nX = C('x'); hash(X)",
        "X, X == C('x')",
    ),
    (
        "@attr.define\nclass C:\n    a: int\n    def up(self): return __class__\nclass F(C): pass\nX = F(2)",
        "X.a, X.up() is C",
    ),
    (
        "class C(msgspec.Struct):\n    a: int\n    b: list = []\nX = C(1)",
        "X.a, msgspec.json.encode(X)",
    ),
    ("X = msgspec.json.Encoder()", "X.encode([1])"),
    (
        "class C(pydantic.BaseModel):\n    a: int\n    b: list[str] = []\nX = C(a=1, b=['x'])",
        "X.model_dump(), C(a='2').a",
    ),
    (
        "class C(pydantic.BaseModel):\n    a: int\n    _p: int = pydantic.PrivateAttr(3)\n    @pydantic.field_validator('a')\n    def check(cls, v): return v * 2\nX = C(a=1)",
        "X.a, X._p, C(a=2).a",
    ),
    ("@pydantic.dataclasses.dataclass\nclass C:\n    a: int\nX = C('5')", "X.a"),
    ("X = pydantic.TypeAdapter(list[int])", "X.validate_python(['1'])"),
    ("X = pydantic.SecretStr('s')", "X.get_secret_value()"),
    (
        "C = sqlalchemy.orm.declarative_base()\nclass F(C):\n    __tablename__ = 'kinds'\n    id = sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)\nX = F(id=1)",
        "X.id",
    ),
    (
        "X = sqlalchemy.MetaData(); sqlalchemy.Table('t', X, sqlalchemy.Column('a', sqlalchemy.Integer))",
        "list(X.tables)",
    ),
    ("X = sqlalchemy.select(sqlalchemy.literal(1))", "str(X)"),
    ("X = sqlalchemy.create_engine('sqlite://')", "str(X.url)"),
    ("X = networkx.path_graph(5); X.nodes[1]['w'] = [2]", "sorted(X.edges), X.nodes[1]"),
    ("X = networkx.DiGraph([(1, 2), (2, 3)]); X.edges", "list(X.succ[1])"),
    ("X = sympy.Symbol('x', positive=True)**2 + 1", "X, X.diff()"),
    ("X = sympy.Function('g')(sympy.Symbol('t'))", "str(X)"),
    ("X = sympy.Matrix([[1, 2], [3, 4]])", "X.det()"),
    (
        "X = xarray.DataArray(np.ones((2, 3)), dims=('a', 'b'), attrs={'u': 'm'})",
        "X.sum().item(), X.attrs",
    ),
    ("X = xarray.Dataset({'v': ('t', [1, 2])}, coords={'t': [5, 6]})", "X['v'].values.tolist()"),
    ("X = bs4.BeautifulSoup('<a><b>t</b></a>', 'html.parser')", "X.b.text, str(X)"),
    ("X = bs4.BeautifulSoup('<a><b>t</b></a>', 'html.parser').b", "X.text"),
    ("X = sortedcontainers.SortedDict(b=1, a=2)", "list(X)"),
    ("X = sortedcontainers.SortedList([3, 1], key=lambda v: -v)", "list(X)"),
    ("X = sortedcontainers.SortedSet([3, 1])", "list(X)"),
    ("X = pyrsistent.pmap({'a': 1})", "X"),
    ("X = pyrsistent.pvector([1, [2]])", "X"),
    ("X = pyrsistent.s(1, 2)", "X"),
    ("X = rpds.HashTrieMap({'a': 1})", "X['a']"),
    ("X = PIL.Image.new('RGB', (4, 3), (1, 2, 3))", "X.size, X.getpixel((0, 0))"),
    ("X = go.Figure(go.Scatter(y=[1, 2]))", "X.data[0].y"),
    ("X = altair.Chart(pd.DataFrame({'a': [1]})).mark_bar().encode(x='a')", "X.mark"),
    ("X = narwhals.from_native(pd.DataFrame({'a': [1]}))", "X.shape"),
    ("X = nbformat.v4.new_notebook()", "X.nbformat"),
    (
        "X, _ = plt.subplots(); X.axes[0].plot([1, 2]); plt.close(X)",
        "X.axes[0].lines[0].get_ydata().tolist()",
    ),
    ("X = plt.get_cmap('viridis')", "X.name, X(0.5)"),
    ("X = matplotlib.colors.Normalize(0, 2)", "float(X(1))"),
    ("X = HTML('<b>')", "X.data"),
    ("X = Markdown('# t')", "X.data"),
    ("X = dateutil.tz.gettz('Europe/Berlin')", "type(X).__name__"),
    ("X = dateutil.relativedelta.relativedelta(months=1)", "X"),
    ("X = packaging.version.Version('1.2')", "X"),
    ("X = pyparsing.Word('ab')", "X.parse_string('ab').as_list()"),
    ("class C(traitlets.HasTraits):\n    a = traitlets.Int(3)\nX = C(a=4)", "X.a"),
    ("X = unittest.mock.MagicMock(return_value=3)", "X()"),
    ("X = configparser.ConfigParser(); X.read_string('[s]\\na = 1')", "X['s']['a']"),
    (
        "X = lightgbm.train({'verbose': -1, 'min_data_in_leaf': 1, 'num_threads': 1}, lightgbm.Dataset(np.arange(20.).reshape(10, 2), np.arange(10.)), 2)",
        "X.num_trees(), X.predict([[1., 2.]], num_threads=1).tolist()",
    ),
    ("X = lightgbm.Dataset(np.ones((4, 2)), [1, 2, 3, 4])", "X.data.shape, list(X.label)"),
    ("X = lightgbm.early_stopping(3)", "X.stopping_rounds"),
    ("X = dask.delayed(sum)([1, 2])", "X.compute(scheduler='synchronous')"),
    (
        "@dask.delayed\ndef F(a): return a + 1\nX = F(F(1))",
        "X.compute(scheduler='synchronous')",
    ),
    ("X = dask.array.ones((4, 4), chunks=2).sum()", "float(X.compute(scheduler='synchronous'))"),
    (
        "X = dask.bag.from_sequence([1, 2, 3], npartitions=2).map(lambda v: v * 2)",
        "X.compute(scheduler='synchronous')",
    ),
    ("X = shapely.Point(1, 2)", "X.wkt, X == shapely.Point(1, 2)"),
    ("X = shapely.Polygon([(0, 0), (1, 0), (0, 1)]).buffer(1)", "X.area, X.wkt"),
    ("X = shapely.set_srid(shapely.LineString([(0, 0), (1, 1)]), 4326)", "shapely.get_srid(X)"),
    ("X = np.array([shapely.Point(1, 2), shapely.MultiPoint([(0, 0)])])", "[str(v) for v in X]"),
    (
        "X = shapely.STRtree([shapely.Point(1, 2), shapely.Point(3, 4)])",
        "X.query(shapely.Point(3, 4)).tolist()",
    ),
    ("X = shapely.prepared.prep(shapely.Point(1, 2))", "X.contains(shapely.Point(1, 2))"),
    ("X = duckdb.connect()", "X.sql('select 42').fetchall()"),
    ("X = duckdb.connect().sql('select 42 as a')", "X.columns"),
    ("X = duckdb.connect().sql('select 42 as a').df()", "X['a'].tolist()"),
    ("X = duckdb.CatalogException('none')", "X.args"),
    ("X = openai.OpenAI(api_key='none')", "X.api_key, str(X.base_url)"),
    ("X = openai.AsyncOpenAI(api_key='none')", "X.api_key, str(X.base_url)"),
    ("X = {'chat': openai.OpenAI(api_key='none').chat}", "type(X['chat']).__name__"),
    (
        "X = openai.types.chat.ChatCompletionMessage(role='assistant', content='t')",
        "X.model_dump()",
    ),
    ("X = openai.Timeout(3.0)", "X.read"),
    ("X = openai.OpenAIError('none')", "X.args"),
]
