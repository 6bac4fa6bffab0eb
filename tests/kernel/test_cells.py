"""The results of a cell."""

import json

import pytest


def test_the_value_of_the_last_expression_is_the_result(kernel):
    run = kernel.run("x = 20\nx + 1\nx * 2")
    assert (run.status, run.result) == ("completed", "40")
    assert [event["type"] for event in run.events] == ["result", "done"]


def test_a_semicolon_silences_the_result(kernel):
    assert kernel.run("1 + 1;").result is None
    assert kernel.run("';'").result == "';'"


def test_results_are_kept_under_their_numbers_and_bounded(kernel):
    kernel.run("6 * 7")
    assert kernel.run("_1, _, Out[1], In[1]").result == "(42, 42, 42, '6 * 7')"
    for _ in range(450):
        kernel.run("1+1")
    assert (
        kernel.run("len(Out) <= 200, '_1' in globals(), In[1]").result == "(True, False, '6 * 7')"
    )


def test_a_nested_cell_does_not_take_the_result(kernel):
    run = kernel.run("get_ipython().run_cell('1+1')\n'mine'")
    assert run.result == "'mine'"
    assert run.of("display")[0]["data"] == {"text/plain": "2"}


def test_functions_see_globals_assigned_later(kernel):
    kernel.run("x = 1\ndef get(): return x")
    kernel.run("x = 2")
    assert kernel.run("get()").result == "2"


def test_the_namespace_is_a_module_called_main(kernel):
    kernel.run("class A: pass\nimport sys, pickle")
    assert kernel.run("A.__module__, __name__, sys.modules['__main__'].A is A").result == (
        "('__main__', '__main__', True)"
    )
    assert kernel.run("type(pickle.loads(pickle.dumps(A()))) is A").result == "True"


def test_a_kernel_module_of_the_users_is_not_shadowed(start, tmp_path):
    for name in ("kernel", "shell", "wire", "cell"):
        (tmp_path / f"{name}.py").write_text(f"who = 'the user, {name}'")
    kernel = start(cwd=str(tmp_path))
    run = kernel.run("import kernel, shell, wire, cell\nkernel.who, shell.who, wire.who, cell.who")
    assert run.result.count("the user") == 4
    assert (
        kernel.run("[p for p in __import__('sys').path if p.endswith('body/kernel')]").result
        == "[]"
    )


def test_globals_count_counts_user_names(kernel):
    assert kernel.hello["globals_count"] == 0
    assert kernel.run("1").done["globals_count"] == 0
    assert kernel.run("a = 1\n_b = 2\nimport os").done["globals_count"] == 3
    assert kernel.run("del a\n!true").done["globals_count"] == 2


def test_reset_clears_the_names_and_keeps_the_place(kernel, tmp_path):
    kernel.run(f"import os; os.chdir({str(tmp_path)!r}); os.environ['KEPT'] = '1'; x = 1; x")
    reply = kernel.ask({"type": "reset", "id": "r"})
    assert (reply["type"], reply["id"], reply["error"]) == ("reply", "r", None)
    assert (reply["execution_count"], reply["globals_count"]) == (1, 0)
    assert kernel.run("x").error["type"] == "NameError"
    run = kernel.run("import os; (os.getcwd(), os.environ['KEPT'], __name__, __spec__, len(Out))")
    assert eval(run.result) == (str(tmp_path), "1", "__main__", None, 0)
    assert run.done["execution_count"] == 3
    assert kernel.run("In[3][:9], In[1]").result == "('import os', '')"


def test_a_kernel_starts_in_the_project_and_does_not_import_its_modules_before(start, tmp_path):
    (tmp_path / "asyncio.py").write_text("raise SystemExit")
    kernel = start(env={"OSCTL_START_FOLDER": str(tmp_path)})
    run = kernel.run(
        "import os; (os.getcwd(), [str(d) for d in _dh], os.environ.get('OSCTL_START_FOLDER'))"
    )
    assert eval(run.result) == (str(tmp_path), [str(tmp_path)], None)
    missing = start(env={"OSCTL_START_FOLDER": str(tmp_path / "missing")})
    assert missing.run("import os; os.path.isdir(os.getcwd())").result == "True"


def test_reset_works_where_the_working_directory_is_gone(kernel):
    kernel.run("import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)")
    assert kernel.ask({"type": "reset", "id": "r"})["type"] == "reply"
    assert kernel.run("!echo still here").stdout == "still here\n"


def test_magics_and_commands_work(kernel):
    run = kernel.run("!echo to out; echo to err >&2; exit 4")
    assert (run.stdout, run.stderr) == ("to out\n", "to err\n")
    assert kernel.run("_exit_code").result == "4"
    assert kernel.run("x = !echo captured\nx[0]").result == "'captured'"
    assert kernel.run("%%bash\necho from bash").stdout == "from bash\n"
    assert "loop" in kernel.run("%timeit -n1 -r1 pass").stdout
    assert kernel.run("name = 'x'\n!echo {name}$name").stdout == "xx\n"
    assert kernel.run("%nope").error["type"] == "UsageError"
    assert kernel.run("%cd /\n%pwd").result == "'/'"


def test_a_failing_script_run_by_a_magic_fails_the_cell(kernel, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('begun')\n1/0\n")
    run = kernel.run(f"%run {script}")
    assert (run.stdout, run.status) == ("begun\n", "failed")
    assert "script.py" in run.traceback


@pytest.mark.parametrize("code", ["exit()", "quit()", "exit", "import sys; sys.exit()", "exit(0)"])
def test_exit_ends_the_run_and_not_the_kernel(kernel, code):
    kernel.run("x = 5")
    run = kernel.run(f"print('before')\n{code}\nprint('after')" if "()" in code else code)
    assert run.status == "completed" and not run.of("error")
    assert "after" not in run.stdout
    assert kernel.run("x").result == "5"


@pytest.mark.parametrize(
    ("code", "message"), [("exit(3)", "3"), ("import sys; sys.exit('no')", "no")]
)
def test_exit_with_a_code_is_a_failure(kernel, code, message):
    run = kernel.run(code)
    assert (run.status, run.error["type"], run.error["message"]) == (
        "failed",
        "SystemExit",
        message,
    )


@pytest.mark.parametrize("code", ["input('name? ')", "import getpass; getpass.getpass()"])
def test_input_fails_clearly(kernel, code):
    run = kernel.run(code)
    assert (
        run.error["type"] == "RuntimeError" and "input() is not available" in run.error["message"]
    )


def test_plain_python_with_a_meaning_in_ipython_keeps_that_meaning(kernel):
    assert kernel.run("ls -d /").stdout.strip() in ("/", "//")
    assert kernel.run("ls, l = 5, 3\nls -l").result == "2"
    assert kernel.run("ls -l").result == "2"
    assert kernel.run("In [1]: 1 + 1").result == "2"
    assert kernel.run(">>> 2 + 2").result == "4"
    assert kernel.run("    3 + 3").result == "6"


def test_empty_and_odd_cells_complete(kernel):
    for code in (
        "",
        "\n\n",
        "# only a comment",
        "\r\nx = 1\r\n",
        "pass",
        "x = 1\\\n + 1",
        "if 1:\n  7",
    ):
        assert kernel.run(code).status == "completed", code
    assert kernel.run("'\ud800'").status in ("completed", "failed")
    assert kernel.run("a = '\0'").status in ("completed", "failed")


def test_nothing_is_written_to_the_home_folder(start, tmp_path):
    kernel = start(env={"HOME": str(tmp_path), "IPYTHONDIR": ""})
    kernel.run("1+1")
    kernel.run("%history")
    kernel.run("1/0")
    assert list(tmp_path.iterdir()) == []
    assert (
        json.loads(
            kernel.run("import sys, json; print(json.dumps('sqlite3' in sys.modules))").stdout
        )
        is False
    )


def test_twenty_thousand_cells_do_not_grow_the_kernel(kernel):
    def grown() -> tuple[int, int]:
        with open(f"/proc/{kernel.pid}/statm") as statm:
            resident = int(statm.read().split()[1]) * 4096
        return resident, int(kernel.run("sys.getallocatedblocks()").result)

    kernel.run("import sys")
    for _ in range(5000):
        kernel.run("1+1")
    grown()  # its own memory, the first time
    resident, blocks = grown()
    for _ in range(20000):
        kernel.run("1+1")
    resident_now, blocks_now = grown()
    assert blocks_now - blocks < 200
    assert resident_now - resident < 4 << 20  # arenas of a MiB are allocated and freed as a whole


def test_a_program_has_its_arguments_while_it_runs(kernel):
    shown = "import sys; sys.argv, globals().get('__file__')"
    before = kernel.run(shown).result
    run = kernel.run(shown, argv=["/repo/a.py", "-x", "ü"])
    assert run.result == "(['/repo/a.py', '-x', 'ü'], '/repo/a.py')"
    assert kernel.run(shown, argv=["-", "1"]).result == "(['-', '1'], None)"
    assert kernel.run("1/0", argv=["a.py"]).status == "failed"
    assert kernel.run(shown).result == before
    refused = kernel.follow(kernel.begin("x", argv=[1]), until="refused")
    assert "list of strings" in refused.events[-1]["error"]["message"]


def test_code_that_ends_itself_names_its_exit_code(kernel):
    for code, error in [("3", "3"), ("'no file'", "no file")]:
        (event,) = kernel.run(f"import sys; sys.exit({code})").of("error")
        assert (event["error"]["type"], event["error"]["message"]) == ("SystemExit", error)
    assert kernel.run("import sys; sys.exit(0)").status == "completed"
