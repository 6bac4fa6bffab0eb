"""Kernels that are forked from one prepared process."""

import os
import signal
import socket
import time

import pytest

from client import LIMIT_S

FORK = {"type": "fork", "session": "s", "plain": False, "supervisor_command": ["sleep", "3600"]}


@pytest.fixture
def fork(template):
    made, forked = template(), []

    def make(**settings):
        forked.append(made.fork(**settings))
        return forked[-1]

    make.template = made
    yield make
    for each in forked:
        each.close()


def status(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def test_the_template_reports_that_it_is_ready(template):
    ready = template().ready
    assert ready["type"] == "ready" and ready["protocol"] >= 1 and ready["python"].startswith("3.")


def test_a_forked_kernel_is_a_kernel_of_its_own(fork):
    one, two = fork(session="one"), fork(session="two")
    assert one.answer["type"] == "forked" and one.answer["session"] == "one"
    assert one.hello["pid"] == one.pid != two.pid
    assert one.run("import os; x = 1; os.environ['OSCTL_SESSION'], os.getpid()").result == (
        f"('one', {one.pid})"
    )
    assert two.run("'x' in globals(), __import__('os').environ['OSCTL_SESSION']").result == (
        "(False, 'two')"
    )
    assert two.run("print('a'); import sys; print('b', file=sys.stderr)").stdout == "a\n"
    assert two.run("In[1][:3], sys.argv, __import__('threading').active_count()").result == (
        "(\"'x'\", [''], 1)"
    )
    assert two.run("1/0").error["type"] == "ZeroDivisionError"


def test_randomness_is_not_shared(fork):
    code = "import random, uuid, tempfile; random.random(), uuid.uuid4(), tempfile.mktemp()"
    numbers = [fork().run(code).result for _ in range(3)]
    assert len(set(numbers)) == 3
    assert len({number.rsplit("/", 1)[1] for number in numbers}) == 3


def test_a_fork_is_a_supervisor_and_a_kernel(fork):
    kernel = fork()
    supervisor = kernel.answer["supervisor_pid"]
    assert status(kernel.pid)["PPid"] == str(supervisor)
    assert status(supervisor)["PPid"] != str(fork.template.process.pid)
    with open(f"/proc/{supervisor}/cmdline") as file:
        assert file.read().split("\0")[:-1] == ["sleep", "3600", str(kernel.pid)]
    assert os.getpgid(kernel.pid) == kernel.pid != os.getpgid(supervisor)
    with open(f"/proc/{kernel.pid}/oom_score_adj") as file:
        assert file.read() == "100\n"
    folder = f"/proc/{supervisor}/fd"
    end = time.monotonic() + LIMIT_S
    while (held := sorted(os.listdir(folder))) != ["0", "1", "2"]:  # it loads its libraries
        assert time.monotonic() < end, held
        time.sleep(0.01)
    files = {number: os.readlink(f"{folder}/{number}") for number in held}
    assert files["0"].startswith("socket:") and files["1"] == "/dev/null"
    assert files["2"].startswith("pipe:")


def test_a_kernel_holds_no_socket_of_the_template_or_supervisor(fork):
    kernel = fork()
    folder = f"/proc/{kernel.pid}/fd"
    held = [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
    assert len([name for name in held if name.startswith("socket:")]) == 2  # listener, connection
    assert os.readlink(f"{folder}/0") == "/dev/null"


def test_orphans_of_the_kernel_become_children_of_the_supervisor(fork):
    kernel = fork()
    run = kernel.run("!sh -c 'sleep 100 >/dev/null 2>&1 & echo $!'")
    assert status(int(run.stdout))["PPid"] == str(kernel.answer["supervisor_pid"])
    os.kill(int(run.stdout), signal.SIGKILL)


def test_a_kernel_ends_with_its_supervisor_and_not_with_the_template(fork):
    kernel, other = fork(), fork()
    fork.template.close()
    assert fork.template.process.returncode == 0
    assert kernel.run("1+1").result == "2"
    watch = os.pidfd_open(kernel.pid)
    os.kill(kernel.answer["supervisor_pid"], signal.SIGKILL)
    import select

    assert select.select([watch], [], [], 30)[0]
    os.close(watch)
    assert other.run("1+1").result == "2"


def test_interrupts_reach_kernels_but_not_the_template(fork):
    kernel = fork()
    os.kill(fork.template.process.pid, signal.SIGINT)
    run = kernel.follow(kernel.begin("import time; print('begun'); time.sleep(100)"), until="begun")
    assert kernel.interrupted(run).status == "interrupted"
    assert fork().run("1+1").result == "2"
    with open(f"/proc/{kernel.answer['supervisor_pid']}/status") as file:
        ignored = next(line for line in file if line.startswith("SigIgn"))
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGINT - 1)) == 0


def test_awaits_and_children_work_in_a_forked_kernel(fork):
    kernel = fork()
    assert kernel.run("import asyncio; await asyncio.sleep(0, 5)").result == "5"
    run = kernel.run(
        "import multiprocessing, math\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool: r = pool.map(math.sqrt, [4])\nr"
    )
    assert run.result == "[2.0]", run.events


@pytest.mark.parametrize("plain", [False, True])
def test_the_overlay_belongs_to_the_kernel(template, tmp_path, plain):
    made = template(env={"OSCTL_PACKAGES": str(tmp_path / "overlay")})
    assert not (tmp_path / "overlay").exists()
    kernel = made.fork(plain=plain)
    used = kernel.run("import sys; sys.executable").result
    assert used.startswith(f"'{tmp_path}") is not plain
    assert (tmp_path / "overlay").exists() is not plain
    kernel.close()


def test_a_failed_fork_is_reported_and_the_template_continues(fork):
    template = fork.template
    for request, fds, message in (
        (FORK, 0, "3 fds"),
        (FORK, 2, "3 fds"),
        ({"type": "dance"}, 3, "a request is a fork"),
        ({**FORK, "supervisor_command": []}, 3, "a request is a fork"),
        ({**FORK, "supervisor_command": ["/no/such/supervisor"]}, 3, "FileNotFoundError"),
    ):
        ends = [socket.socketpair() for _ in range(fds)]
        template.send(request, [end.fileno() for end, _ in ends])
        answer = template.frame()
        assert answer["type"] == "failed" and message in answer["error"]["message"], answer
        for end, other in ends:
            end.close()
            assert other.recv(1) == b""  # the template holds no copy
            other.close()
    assert fork().run("1+1").result == "2"


def test_the_template_leaves_no_zombie_and_no_fd(fork):
    folder = f"/proc/{fork.template.process.pid}/fd"
    fork()
    before = sorted(os.listdir(folder))
    for _ in range(5):
        fork()
    assert sorted(os.listdir(folder)) == before
    pid = fork.template.process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        assert file.read() == ""


def test_an_idle_forked_kernel_is_small(fork):
    kernel = fork()
    kernel.run("1+1")
    with open(f"/proc/{kernel.pid}/smaps_rollup") as file:
        private = sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
    assert private < 12 << 10, f"{private} KiB"
