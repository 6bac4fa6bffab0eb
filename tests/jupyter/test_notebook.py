"""A notebook and an agent in one session."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from typing import Any

from jupyter_client.manager import start_new_kernel

from conftest import TEST_TIMEOUT, Notebook, is_idle, of, osctl, says, texts


def test_a_notebook_and_an_agent_see_the_same_variables(notebook: Notebook) -> None:
    notebook.agent("theirs = [1, 2]")
    reply, messages = notebook.run("ours = sum(theirs); ours")
    assert reply["status"] == "ok"
    (result,) = [m["content"] for m in messages if m["msg_type"] == "execute_result"]
    assert result["data"]["text/plain"] == "3"
    assert result["execution_count"] == reply["execution_count"]
    assert notebook.agent("print(ours)") == "3\n"


FORMATTERS = """
formatters = get_ipython().display_formatter.formatters
script = "fetch('/api/terminals', {method: 'POST'})"
html = f"<table class='dataframe'><tr><td onclick=\\"{script}\\">1</td></tr></table><script>{script}</script>"
formatters['application/javascript'].for_type(int, lambda value: script)
formatters['text/html'].for_type(int, lambda value: html)
formatters['text/markdown'].for_type(int, lambda value: html)
formatters['text/latex'].for_type(int, lambda value: f"$\\\\href{{javascript:{script}}}{{x}}$")
formatters['image/svg+xml'].for_type(int, lambda value: f"<svg onload=\\"{script}\\"><rect/></svg>")
"""


def shown(notebook: Notebook) -> list[dict[str, Any]]:
    """Outputs of every type, as the client receives them."""
    code = "handle = display(1, display_id=True)\nhandle.update(2)\n3"
    reply, messages = notebook.run(code, user_expressions={"four": "4"})
    outputs = ("execute_result", "display_data", "update_display_data")
    bundles = [m["content"] for m in messages if m["msg_type"] in outputs]
    assert len(bundles) == len(outputs)
    return [*bundles, reply["user_expressions"]["four"]]


def test_scripts_that_the_agent_registers_do_not_reach_the_client(notebook: Notebook) -> None:
    notebook.agent(FORMATTERS)
    for bundle in shown(notebook):
        data = bundle["data"]
        assert {"text/plain", "text/html", "text/latex", "image/svg+xml"} == data.keys()
        assert '<table class="dataframe">' in data["text/html"]
        said = json.dumps(bundle)
        for word in ("api/terminals", "script>", "onclick", "onload"):
            assert word not in said.replace(json.dumps(data["text/latex"]), ""), bundle
        assert "\\\\href" not in json.dumps(data["text/latex"])


def test_a_user_can_allow_scripts_of_the_agent() -> None:
    session = f"{os.getpid()}-trusted"
    notebook = Notebook(session, "--trust-html")
    try:
        notebook.agent(FORMATTERS)
        for bundle in shown(notebook):
            assert "api/terminals" in bundle["data"]["application/javascript"]
    finally:
        notebook.close()
        osctl("sessions", "rm", session)


def test_cells_are_counted_with_those_of_the_agent(notebook: Notebook) -> None:
    notebook.agent("1")
    reply, messages = notebook.run("2")
    (entered,) = [m["content"] for m in messages if m["msg_type"] == "execute_input"]
    assert entered == {"code": "2", "execution_count": 2}
    assert reply["execution_count"] == 2


def test_output_comes_while_the_cell_runs(notebook: Notebook) -> None:
    code = "import sys, time\nprint('on its way', flush=True)\ntime.sleep(600)"
    request = notebook.ask(code)
    notebook.until(lambda m: says(m, "on its way"))
    notebook.manager.interrupt_kernel()
    assert notebook.reply(request)["ename"] == "KeyboardInterrupt"


def test_an_interrupt_ends_the_cell_and_keeps_the_state(notebook: Notebook) -> None:
    request = notebook.ask("kept = 1\nprint('begun', flush=True)\nwhile True: pass")
    notebook.until(lambda m: says(m, "begun"))
    notebook.manager.interrupt_kernel()
    reply = notebook.reply(request)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert "variables are kept" in reply["traceback"][-1]
    messages = notebook.until(lambda m: is_idle(m, request))
    assert [m["msg_type"] for m in messages].count("error") == 1
    assert notebook.run("kept += 1")[0]["status"] == "ok"
    assert notebook.agent("print(kept)") == "2\n"


def test_requests_are_answered_while_a_cell_runs(notebook: Notebook) -> None:
    cell = notebook.ask("print('begun', flush=True)\nimport time; time.sleep(600)")
    notebook.until(lambda m: says(m, "begun"))
    info = notebook.client.kernel_info()
    assert notebook.reply(info)["status"] == "ok"
    completion = notebook.client.complete("zi")
    assert notebook.reply(completion)["status"] == "ok"
    # The last message that the client receives is that the cell is running.
    notebook.until(lambda m: is_idle(m, completion))
    (last,) = notebook.until(lambda m: True)
    assert of(last, cell)
    assert last["content"] == {"execution_state": "busy"}
    notebook.manager.interrupt_kernel()
    notebook.reply(cell)


def test_a_failure_aborts_waiting_cells(notebook: Notebook) -> None:
    first = notebook.ask("import time; time.sleep(0.5); 1/0")
    second = notebook.ask("never = 1")
    assert notebook.reply(first)["ename"] == "ZeroDivisionError"
    assert notebook.reply(second)["status"] == "aborted"
    first = notebook.ask("time.sleep(0.5); 1/0", stop_on_error=False)
    second = notebook.ask("'never' in globals()")
    assert notebook.reply(first)["status"] == "error"
    assert notebook.reply(second)["status"] == "ok"


def test_a_cell_waits_for_a_run_of_the_agent(notebook: Notebook) -> None:
    code = "import time\nwhile 'go' not in globals(): time.sleep(0.01)"
    begun = osctl("exec", "--session", notebook.session, "--detach", code).strip()
    request = notebook.ask("seen = 1")
    notebook.until(lambda m: m["msg_type"] == "execute_input")
    assert notebook.silence()
    osctl("interrupt", begun)
    assert notebook.reply(request)["status"] == "ok"


def test_silent_requests_and_user_expressions_work(notebook: Notebook) -> None:
    reply, messages = notebook.run("x = 'ü'; x", silent=True)
    assert reply["status"] == "ok"
    assert {m["msg_type"] for m in messages} == {"status"}
    asked = {"good": "x * 2", "bad": "1/0"}
    reply, _ = notebook.run("", user_expressions=asked)
    values = reply["user_expressions"]
    assert values["good"]["data"]["text/plain"] == "'üü'"
    assert values["bad"]["ename"] == "ZeroDivisionError"


def test_a_display_is_updated(notebook: Notebook) -> None:
    _, messages = notebook.run("shown = display('one', display_id='d'); shown.update('two')")
    shown = [(m["msg_type"], m["content"]) for m in messages if "display_data" in m["msg_type"]]
    assert [kind for kind, _ in shown] == ["display_data", "update_display_data"]
    assert [content["transient"] for _, content in shown] == [{"display_id": "d"}] * 2


def test_input_raises_and_does_not_hang(notebook: Notebook) -> None:
    reply, _ = notebook.run("input('?')", allow_stdin=True)
    assert reply["status"] == "error"
    assert reply["evalue"]


def test_a_lost_state_is_reported_once(notebook: Notebook) -> None:
    notebook.run("x = 1")
    reply, _ = notebook.run("import os; os.kill(os.getpid(), 9)")
    assert reply["ename"] == "KernelDied"
    _, messages = notebook.run("1", silent=True)
    assert texts(messages, "stderr") == ""
    _, messages = notebook.run("1")
    assert "variables were lost" in texts(messages, "stderr")
    _, messages = notebook.run("1")
    assert texts(messages, "stderr") == ""


def test_the_session_outlives_its_notebook(notebook: Notebook) -> None:
    notebook.run("x = 1")
    notebook.ask("print('begun', flush=True)\nwhile True: pass")
    notebook.until(lambda m: says(m, "begun"))
    notebook.manager.shutdown_kernel()
    assert not notebook.manager.is_alive()
    # The cell of the closed notebook is interrupted.
    assert notebook.agent("print(x)") == "1\n"
    notebook.manager, notebook.client = start_new_kernel(kernel_name=notebook.session)
    _, messages = notebook.run("print(x)")
    assert texts(messages, "stdout") == "1\n"


def test_a_restart_empties_the_namespace(notebook: Notebook) -> None:
    notebook.run("x = 1")
    notebook.manager.restart_kernel()
    notebook.client.wait_for_ready(timeout=TEST_TIMEOUT)
    assert notebook.agent("print('x' in globals())") == "False\n"
    reply, messages = notebook.run("x")
    assert reply["ename"] == "NameError"
    assert texts(messages, "stderr") == ""


def test_without_an_instance_cells_fail_with_a_hint() -> None:
    command = json.loads(os.environ["OSCTL"])
    command[command.index("--instance") + 1] = "never-up"
    subprocess.run([*command, "jupyter", "install", "--name", "never"], check=True)
    manager, client = start_new_kernel(kernel_name="never")
    for _ in range(2):
        client.execute("1")
        reply = client.get_shell_msg(timeout=TEST_TIMEOUT)["content"]
        while reply["status"] == "ok":  # the reply to `kernel_info`
            reply = client.get_shell_msg(timeout=TEST_TIMEOUT)["content"]
        assert reply["ename"] == "not_running"
        assert "osctl --instance never-up up" in reply["traceback"][-1]
    client.stop_channels()
    manager.shutdown_kernel()


def test_a_kernel_does_not_outlive_its_jupyter() -> None:
    osctl("jupyter", "install", "--name", "orphan")
    code = (
        "import os\nfrom jupyter_client.manager import start_new_kernel\n"
        "manager, client = start_new_kernel(kernel_name='orphan')\n"
        "print(manager.provisioner.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    with suppress(ProcessLookupError):  # the kernel has ended and was reaped
        assert select.select([os.pidfd_open(int(done.stdout))], [], [], TEST_TIMEOUT)[0]
