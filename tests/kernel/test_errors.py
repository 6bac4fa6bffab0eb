"""Failures are reported in plain text, with the user's lines."""

import pytest


def test_a_traceback_shows_the_cells_own_lines_and_no_others(kernel):
    kernel.run("def inner(n):\n    return 1 / n")
    run = kernel.run("inner(2)\ninner(0)")
    assert run.status == "failed" and run.error["type"] == "ZeroDivisionError"
    assert "inner(0)" in run.traceback and "return 1 / n" in run.traceback
    assert "body/kernel" not in run.traceback and "IPython" not in run.traceback
    assert "\x1b" not in run.traceback
    assert run.error["traceback"][-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("code", ["def f(:", "return 5", "x = = 2", "if True:\nx", "'open"])
def test_syntax_errors_show_the_line_and_no_frames(kernel, code):
    run = kernel.run(code)
    assert run.error["type"] in ("SyntaxError", "IndentationError")
    assert "<cell 1>" in run.traceback
    assert "codeop" not in run.traceback and "compilerop" not in run.traceback


def test_a_traceback_of_a_program_names_its_file(kernel):
    run = kernel.run("def inner(n):\n    return 1 / n\ninner(0)", argv=["/repo/a.py"])
    assert 'File "/repo/a.py", line 3' in run.traceback and "<cell" not in run.traceback
    assert "    inner(0)" in run.traceback
    assert 'File "/repo/b.py", line 1' in kernel.run("x = = 2", argv=["/repo/b.py"]).traceback
    nested = kernel.run("get_ipython().run_cell('\\n1/0')", argv=["/repo/c.py"]).traceback
    assert 'File "<cell ' in nested and 'c.py", line 2' not in nested
    run = kernel.run("inner(0)")
    assert 'File "<cell ' in run.traceback and 'File "/repo/a.py", line 2' in run.traceback


@pytest.mark.parametrize("code", ["x = (", "f(1,", "d = {'a': 1,"])
def test_code_that_could_continue_is_a_syntax_error(kernel, code):
    run = kernel.run(code)
    assert run.error["type"] == "SyntaxError"
    assert run.error["traceback"][-1].startswith("SyntaxError: ")
    assert "_Incomplete" not in run.traceback


def test_chained_and_grouped_exceptions_are_complete(kernel):
    run = kernel.run("try:\n    1/0\nexcept Exception as e:\n    raise ValueError('second') from e")
    assert "ZeroDivisionError" in run.traceback and "direct cause" in run.traceback
    run = kernel.run("raise ExceptionGroup('many', [ValueError(1), TypeError(2)])")
    assert "ValueError: 1" in run.traceback and "TypeError: 2" in run.traceback


WEIRD = {
    "str raises": "class E(Exception):\n    def __str__(self): raise ValueError('no')\nraise E",
    "repr exits": "class E(Exception):\n    def __repr__(self): raise SystemExit\n    __str__ = __repr__\nraise E",
    "str is no text": "class E(Exception):\n    def __str__(self): return 5\nraise E",
    "recursion": "def f(): return f()\nf()",
    "mutual recursion": "def f(): return g()\ndef g(): return f()\nf()",
    "cause is itself": "e = ValueError('loop')\ne.__cause__ = e\nraise e",
    "long chain": "e = None\nfor i in range(300):\n    n = ValueError(i); n.__context__ = e; e = n\nraise e",
    "surrogates": "raise ValueError('\\udcff and \\ud800')",
    "huge message": "raise ValueError('x' * 10_000_000)",
    "name is odd": "raise type('Ä\\n\"', (Exception,), {})('x')",
    "base exception": "raise BaseException('base')",
    "generator exit": "raise GeneratorExit",
    "own interrupt": "raise KeyboardInterrupt",
    "no filename": "exec(compile('1/0', '', 'exec'))",
    "syntax error of nothing": "raise SyntaxError",
    "syntax error with odd fields": "e = SyntaxError('m'); e.lineno = 'x'; e.text = 5; raise e",
    "metaclass": "class M(type):\n    def __getattribute__(c, n):\n        raise RuntimeError('meta')\nclass E(Exception, metaclass=M): pass\nraise E",
    "class attribute": "class E(Exception):\n    @property\n    def __class__(self): raise ValueError\nraise E",
    "notes": "e = ValueError('x'); e.__notes__ = 5; raise e",
    "memory": "raise MemoryError",
}


@pytest.mark.parametrize("code", WEIRD.values(), ids=WEIRD.keys())
def test_weird_exceptions_still_give_one_error_and_a_done(kernel, code):
    run = kernel.run(code)
    assert run.status == "failed"
    assert isinstance(run.error["type"], str) and run.error["traceback"]
    assert sum(map(len, run.error["traceback"])) < 1 << 20
    assert kernel.run("1+1").result == "2"


def test_values_whose_repr_fails_do_not_harm(kernel):
    kernel.run("class R:\n    def __repr__(self): raise ValueError('repr')")
    assert kernel.run("R()").done
    assert kernel.run("1+1").result == "2"


def test_deep_recursion_in_data_does_not_kill_the_kernel(kernel):
    kernel.run("x = []\nfor _ in range(100000): x = [x]")
    assert kernel.run("x").done
    assert kernel.run("1+1").result == "2"
