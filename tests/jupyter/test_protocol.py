"""Jupyter's own suite of protocol tests."""

from __future__ import annotations

import jupyter_kernel_test

from conftest import osctl


class AttachedTests(jupyter_kernel_test.KernelTests):
    kernel_name = "protocol"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [
        {"text": "zi", "matches": {"zip"}},
        {"text": "seven = 7; seven.numer", "matches": {"numerator"}},
    ]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    code_generate_error = "raise ValueError('no')"
    code_execute_result = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data = [
        {
            "code": "from IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))",
            "mime": "text/html",
        },
        {"code": "display({'image/png': 'iVBORw0K'}, raw=True)", "mime": "image/png"},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    @classmethod
    def setUpClass(cls) -> None:
        osctl("jupyter", "install", "--session", cls.kernel_name, "--name", cls.kernel_name)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()
        osctl("sessions", "rm", cls.kernel_name)
