"""Long lists of plain rows: shared objects stay shared, and a store takes little memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from cryo_requests import ask, reload, store

ROWS = "import random\nrows = [{'id': n, 'who': f'user {n}', 'role': roles[n % 2]} for n in range(60_000)]\n"
MEASURE = "def held(what): return [int(l.split()[1]) for l in open('/proc/self/status') if l.startswith(what)][0]"


def test_rows_come_back_with_their_shared_objects(fork, tmp_path: Path) -> None:
    code = "roles = ['ad' + 'min' * int('1'), 'guest']\n" + ROWS + "same = rows; box = [rows]"
    kernel = fork(
        code + "\nfrom osctl_kernel.cryo import rows as how; plain = how.shared_texts(rows)"
    )
    assert ask(kernel, "len(plain)") == "5"
    store(kernel, tmp_path / "s" / "1")
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    probe = "rows is same, box[0] is rows, len(rows), rows[7], len({id(r['role']) for r in rows}), len({id(k) for r in rows for k in r}), roles[0] is rows[0]['role']"
    row = "{'id': 7, 'who': 'user 7', 'role': 'guest'}"
    assert ask(kernel, probe) == f"(True, True, 60000, {row}, 2, 3, True)"


@pytest.mark.parametrize(
    ("change", "probe"),
    [
        ("one = rows[5]", "one is rows[5]"),
        ("rows.append(rows[0])", "rows[-1] is rows[0]"),
        ("rows[9]['self'] = rows", "rows[9]['self'] is rows"),
        ("rows[9]['deep'] = [1]; deep = rows[9]['deep']", "rows[9]['deep'] is deep"),
        ("rows[9][('a', 1)] = 2", "rows[9][('a', 1)]"),
        ("rows[9]['i' + 'd' * int('1')] = 3; rows[9]['x' * 2000] = 4", "len(rows[9])"),
        ("class D(dict): pass\nrows[9] = D(a=1)", "type(rows[9]) is D, rows[9]"),
        ("rows = [(n, str(n)) for n in range(60_000)]; one = rows[3]", "one is rows[3], rows[-1]"),
        ("rows = [[n, None, 1.5] for n in range(60_000)]", "rows[-1]"),
        (
            "rows = [() for n in range(60_000)]; more = [[] for n in range(60_000)]",
            "rows[0], more[1] is not more[2]",
        ),
        ("import weakref\nclass A: pass\na = A(); rows.append(weakref.ref(a))", "rows[-1]() is a"),
    ],
)
def test_rows_with_other_references_are_in_the_memo(
    fork, tmp_path: Path, change: str, probe: str
) -> None:
    kernel = fork(f"roles = ['a', 'b']\n{ROWS}{change}\nafter = [1]; again = after")
    expected = ask(kernel, f"{probe}, after is again")
    store(kernel, tmp_path / "s" / "1")
    kernel = fork()
    reload(kernel, tmp_path / "s" / "1")
    assert ask(kernel, f"{probe}, after is again") == expected


def test_a_million_rows_take_little_more_memory_while_they_are_stored(fork, tmp_path: Path) -> None:
    kernel = fork(MEASURE)
    bare = int(ask(kernel, "held('VmRSS')") or 0)
    assert kernel.run("many = [{'id': n} for n in range(1_000_000)]").status == "completed"
    for number in range(3):  # leftovers of the first must not add to the cost of later ones
        ask(kernel, "open('/proc/self/clear_refs', 'w').write('5')")
        store(kernel, tmp_path / "s" / str(number))
        peak, data = (int(ask(kernel, f"held('{what}')") or 0) for what in ("VmHWM", "VmRSS"))
        assert (peak - bare) / (data - bare) < 1.2


def test_objects_that_have_to_be_remembered_take_no_more_each_time(fork, tmp_path: Path) -> None:
    kernel = fork(MEASURE)
    bare = int(ask(kernel, "held('VmRSS')") or 0)
    code = "many = [{'id': n} for n in range(1_000_000)]; last = many[-1]"
    assert kernel.run(code).status == "completed"
    for number in range(3):
        ask(kernel, "open('/proc/self/clear_refs', 'w').write('5')")
        store(kernel, tmp_path / "s" / str(number))
        peak, data = (int(ask(kernel, f"held('{what}')") or 0) for what in ("VmHWM", "VmRSS"))
        assert (peak - bare) / (data - bare) < 1.27
