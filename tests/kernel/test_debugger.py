"""`%debug` shows the frames of the last error, one command at a time."""

DIVIDE = "def divide(by):\n    half = by / 2\n    return 1 / by"
NAMES = "sorted(name for name in globals() if 'pdb' in name or name[0] != '_')"


def test_commands_of_pdb_move_in_the_frames_of_the_last_error(kernel):
    kernel.run(DIVIDE)
    assert kernel.run("divide(0)").status == "failed"
    shown = kernel.run("%debug")
    assert shown.status == "completed", shown.events
    assert "-> return 1 / by" in shown.stdout
    assert "(0.0, 0)" in kernel.run("%debug p half, by").stdout
    assert "-> divide(0)" in kernel.run("%debug u").stdout
    # The kernel's own frames are not among them.
    assert "oldest frame" in kernel.run("%debug u").stdout.lower()
    assert "NameError" in kernel.run("%debug p half").stdout
    assert "half = 7" not in kernel.run("%debug w").stdout
    # Braces and dollars are Python here, and several commands fit into a line.
    assert "{1: 0}" in kernel.run("%debug d ;; p {1: by}").stdout
    assert kernel.run("%debug q").stdout == ""
    assert "-> return 1 / by" in kernel.run("%debug").stdout


def test_the_debugger_reads_nothing_and_leaves_no_names(kernel):
    kernel.run(DIVIDE)
    kernel.run("divide(0)")
    names = kernel.run(NAMES).result
    for command in ("next", "c", "interact", "restart", "jump 1", "debug 1", "commands"):
        run = kernel.run(f"%debug {command}")
        assert "needs running code" in run.stdout, command
    for command in (
        "def f():",
        "p (",
        "!x = [",
        "list",
        "args",
        "help",
        "display half",
        "unknown words",
    ):
        assert kernel.run(f"%debug {command}").status == "completed", command
    assert kernel.run(NAMES).result == names


def test_without_an_error_and_after_a_magics_error_there_is_nothing_to_debug(kernel):
    run = kernel.run("%debug")
    assert run.status == "failed" and "no error to debug" in run.traceback
    assert "no error to debug" in kernel.run("%debug w").traceback
    kernel.run("def f(:")
    kernel.run("raise ValueError('shown')")
    kernel.run("%no_such_magic")
    assert "raise ValueError" in kernel.run("%debug w").stdout


def test_a_new_error_replaces_the_position(kernel):
    kernel.run(DIVIDE)
    kernel.run("divide(0)")
    kernel.run("%debug u")
    kernel.run("divide('x')")
    assert "-> half = by / 2" in kernel.run("%debug w").stdout
    assert kernel.run("1 + 1").result == "2"
    assert "'x'" in kernel.run("%debug p by").stdout
