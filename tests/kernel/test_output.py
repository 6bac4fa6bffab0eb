"""All printed output arrives, in order."""


def test_prints_of_children_and_c_code_are_output(kernel):
    run = kernel.run(
        "import subprocess, ctypes, os\n"
        "subprocess.run(['sh', '-c', 'echo child; echo child err >&2'])\n"
        "ctypes.CDLL(None).puts(b'from c')\n"
        "os.write(1, b'raw\\n');"
    )
    assert sorted(run.stdout.split("\n")) == ["", "child", "from c", "raw"]
    assert run.stderr == "child err\n"


def test_a_megabyte_from_c_under_the_gil_does_not_hang(kernel):
    run = kernel.run(
        "import ctypes\nlibc = ctypes.PyDLL(None)\ndata = b'x' * 4096\n"
        "for _ in range(1024): libc.write(1, data, len(data))"
    )
    assert len(run.raw("stdout")) == 4 << 20


def test_stderr_that_is_never_short_of_a_reader_does_not_freeze(kernel):
    for _ in range(2000):
        kernel.run("import sys; sys.stderr.write('x' * 1000);")
    assert kernel.run("1+1").result == "2"


def test_bytes_that_are_no_text_arrive_as_they_are(kernel):
    run = kernel.run(r"import sys; sys.stdout.buffer.write(b'\xff\xfe\x00\n'); print('\udcff ü')")
    assert run.raw("stdout") == b"\xff\xfe\x00\n\\udcff \xc3\xbc\n"


def test_ten_megabytes_arrive_whole(kernel):
    run = kernel.run("for i in range(125_000): print('%079d' % i)")
    lines = run.stdout.splitlines()
    assert len(lines) == 125_000 and lines[-1] == f"{124_999:079d}"
    assert len(kernel.run("print('x' * 10_000_000)").raw("stdout")) == 10_000_001


def test_long_texts_are_encoded_as_a_whole(kernel):
    assert kernel.run("print('ä€😀' * 200_000, end='')").stdout == "ä€😀" * 200_000
    run = kernel.run(
        "import sys\nsys.stdout.reconfigure(encoding='utf-16')\n"
        "n = sys.stdout.write('x' * 300_000)\nsys.stdout.reconfigure(encoding='utf-8'); n"
    )
    assert run.result == "300000" and run.raw("stdout") == ("x" * 300_000).encode("utf-16")


def test_text_without_a_newline_arrives_at_once(kernel):
    run = kernel.begin("import time\nprint('50%', end='\\r')\ntime.sleep(100)")
    kernel.follow(run, until="50%")
    assert kernel.interrupted(run).status == "interrupted"


def test_streams_and_displays_alternate_in_order(kernel):
    run = kernel.run(
        "import sys\nfrom IPython.display import display\n"
        "for i in range(500):\n"
        "    print('out', i)\n    print('err', i, file=sys.stderr)\n    display(i)\n"
    )
    seen = []
    for event in run.events[:-1]:
        text = event["bytes"].decode() if "bytes" in event else event["data"]["text/plain"]
        seen.append((event["type"], text.strip()))
    wanted = []
    for i in range(500):
        wanted += [("stdout", f"out {i}"), ("stderr", f"err {i}"), ("display", str(i))]
    assert seen == wanted


def test_closed_and_replaced_streams_are_put_back(kernel):
    kernel.run("import os, sys, io, contextlib\nos.close(1); os.close(2)")
    assert kernel.run("print('back'); print('err', file=sys.stderr)").stderr == "err\n"
    kernel.run("sys.stdout.close(); sys.stderr.close()")
    assert kernel.run("print('again')").stdout == "again\n"
    kernel.run("del sys.stdout")
    assert kernel.run("print('deleted')").stdout == "deleted\n"
    run = kernel.run(
        "with contextlib.redirect_stdout(io.StringIO()) as s: print('caught')\ns.getvalue()"
    )
    assert (run.stdout, run.result) == ("", "'caught\\n'")
    kernel.run("os.dup2(os.open('/dev/null', os.O_WRONLY), 1)")
    assert kernel.run("os.system('echo kept')").stdout == "kept\n"
    kernel.run("sys.stdout = io.TextIOWrapper(sys.stdout.buffer); sys.stdout = sys.__stdout__")
    assert kernel.run("print('wrapped')").stdout == "wrapped\n"


def test_code_that_closes_every_low_fd_keeps_its_kernel(kernel):
    run = kernel.run("import os; os.closerange(0, 1024)")
    assert run.status == "completed"
    assert kernel.run("print('alive'); 1+1").result == "2"


def test_streams_behave_as_files(kernel):
    run = kernel.run(
        "import sys; o = sys.stdout\no.reconfigure(encoding='utf-8', line_buffering=True)\n"
        "o.writelines(['a', 'b\\n'])\n(o.isatty(), o.fileno(), o.encoding, o.errors, o.writable(), o.write('xy'))"
    )
    assert run.result == "(False, 1, 'utf-8', 'backslashreplace', True, 2)"
    assert run.stdout == "ab\nxy"
    assert kernel.run("import sys; sys.stdout.write(b'bytes')").error["type"] == "TypeError"


def test_print_writes_the_same_as_pythons_own(kernel):
    code = """
import io, sys
class Odd(str):
    def __str__(self): return 'odd'
class Loud:
    def __str__(self):
        print('inner')
        return 'outer'
class Bad:
    def __str__(self): raise ValueError('bad')
calls = [
    ((), {}), (('a',), {}), ((1, 2.5, True, None, 1j, 'x'), {}), (('a', 'b'), {'sep': ''}),
    (('a',), {'end': ''}), (('a', 'b'), {'sep': None, 'end': None}), ((Odd('x'),), {}),
    (([1], {'k': 'v'}), {'flush': True}), (('x' * 300_000,), {}), (('\\udcff', 'ü'), {}),
    (('a', Loud()), {}), (('a', Bad()), {}), (('a',), {'sep': 1}), (('a',), {'end': b''}),
]
def told(say):
    out = []
    for values, how in calls:
        try:
            out.append(say(*values, **how))
        except Exception as error:
            out.append(repr(error))
    return out
errors = told(print)
print('--')
assert errors == told(print.__wrapped__), errors
"""
    run = kernel.run(code)
    assert run.status == "completed", run.error
    ours, theirs = run.stdout.split("--\n")
    assert ours == theirs and len(ours) > 300_000


def test_print_still_looks_like_pythons_own(kernel):
    run = kernel.run(
        "import pickle; (print.__module__, print.__name__, pickle.loads(pickle.dumps(print)) is print)"
    )
    assert run.result == "('builtins', 'print', True)"
    kernel.run("import sys, io; kept, sys.stdout = sys.stdout, io.StringIO(); print('held', 1)")
    assert (
        kernel.run("sys.stdout, kept = kept, sys.stdout; kept.getvalue()").result == "'held 1\\n'"
    )


def test_lines_of_threads_do_not_mix(kernel):
    run = kernel.run(
        "import sys, threading\nsys.setswitchinterval(1e-6)\n"
        "def work(n):\n    for i in range(2000): print(n, i)\n"
        "ts = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]; sys.setswitchinterval(0.005);"
    )
    assert sorted(run.stdout.splitlines()) == sorted(
        f"{n} {i}" for n in range(4) for i in range(2000)
    )


def test_threads_may_print_and_display_together(kernel):
    run = kernel.run(
        "import threading\nfrom IPython.display import display\n"
        "def work(n):\n    for i in range(50):\n        print(f'{n}-{i}\\n', end=''); display(i)\n"
        "ts = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts];"
    )
    assert run.status == "completed"
    assert len(run.stdout.splitlines()) == 400 and len(run.of("display")) == 400
