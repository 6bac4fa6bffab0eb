"""Compares two binaries of osctl: python3 benches/versions.py OLD NEW [--requests 100000].

Brings up an instance of each, in a home folder of its own, and sends both the same mixed requests in
turns. Prints the latencies by kind, the memory of both companions before and after, and the time of
an evolve, then removes both instances.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TURN = 50
"""Requests of one version before the other takes its turn."""
IDLE_S = 25
"""Time without requests before a measurement of idle memory."""
EVOLVE = "an evolve after a changed line (median / slowest)"
MEMORY_OF_COMPANION = "cat /proc/[0-9]*/status | grep -A30 '^Name:.osctl$' | grep VmRSS"


class Version:
    def __init__(self, name: str, binary: Path) -> None:
        self.name = name
        self._binary = binary
        # On disk: the folders of an instance are mounted.
        self._home = tempfile.TemporaryDirectory(prefix=f"osctl-{name}-", dir="/var/tmp")
        self._project = Path(self._home.name, "project")
        self._project.mkdir()
        self._instance = f"versions-{name}"
        self._counter = itertools.count()
        self.times: dict[str, list[float]] = {}
        self.memory: list[int] = []
        self.is_up = False

    def execute(self, *words: str) -> subprocess.CompletedProcess[str]:
        words = (str(self._binary), "--instance", self._instance, *words)
        env = {k: v for k, v in os.environ.items() if not k.startswith("OSCTL_")}
        env |= {"HOME": self._home.name, "XDG_CACHE_HOME": str(Path.home() / ".cache")}
        return subprocess.run(words, env=env, cwd=self._project, capture_output=True, text=True)

    def command(self, *words: str) -> str:
        ran = self.execute(*words)
        if ran.returncode != 0:
            sys.exit(f"{' '.join(words)}: {ran.stderr}")
        return ran.stdout

    def up(self) -> None:
        # The first versions always wrote all files.
        self.command("init", *(["--full"] if "--full" in self.command("init", "--help") else []))
        self.is_up = True
        self.command("up", "--yes", "--auto-ports")
        state = Path(self._home.name, ".local/state/osctl", self._instance)
        token = (state / "token").read_text().strip()
        self._headers = {"Authorization": f"Bearer {token}"}
        ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", self.command("status"))]
        self._api, self._hub = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=120) for port in ports[:2]
        )
        opening = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "versions", "version": "1"},
        }
        reply, session = self._rpc({"id": 0, "method": "initialize", "params": opening})
        assert "result" in reply, reply
        self._headers |= {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-06-18"}
        self._rpc({"method": "notifications/initialized"})

    def ask(self, method: str, path: str, body: Any = None) -> bytes:
        text = json.dumps(body).encode() if isinstance(body, dict) else body
        self._api.request(method, path, text, self._headers)
        reply = self._api.getresponse()
        content = reply.read()
        if reply.status >= 300:
            sys.exit(f"{self.name}: {method} {path}: {reply.status} {content[:500]!r}")
        return content

    def _rpc(self, message: dict[str, Any]) -> tuple[dict[str, Any], str]:
        accepted = {"Accept": "application/json, text/event-stream"}
        accepted |= {"Content-Type": "application/json", **self._headers}
        body = json.dumps({"jsonrpc": "2.0", **message})
        self._hub.request("POST", "/servers/os/mcp", body, accepted)
        reply = self._hub.getresponse()
        content = reply.read().decode()
        if reply.status >= 300:
            sys.exit(f"{self.name}: {message['method']}: {reply.status} {content[:500]}")
        if "text/event-stream" in (reply.headers["Content-Type"] or ""):
            content = [line[6:] for line in content.splitlines() if line.startswith("data: {")][-1]
        return json.loads(content or "{}"), reply.headers["Mcp-Session-Id"] or ""

    def _run(self, code: str, expected: str, key: str = "result", **fields: Any) -> None:
        reply = json.loads(self.ask("POST", "/exec", {"code": code, **fields}))
        assert reply[key] == expected, reply

    def value(self) -> None:
        self._run("1+1", "2")

    def value_unrecorded(self) -> None:
        self._run("1+1", "2", durable=False)

    def prints(self) -> None:
        self._run("for n in range(20): print('x' * 99)", ("x" * 99 + "\n") * 20, "stdout")

    def function(self) -> None:
        number = next(self._counter)
        self._run(f"def f(x):\n    return x + {number}\nf(1)", str(number + 1))

    def failure(self) -> None:
        self._run("1/0", "failed", "status")

    def shell(self) -> None:
        reply = json.loads(self.ask("POST", "/shell", {"command": "echo $((6*7))"}))
        assert reply["stdout"] == "42\n", reply

    def file(self) -> None:
        content = os.urandom(4096)
        self.ask("PUT", "/files/tmp/versions", content)
        assert self.ask("GET", "/files/tmp/versions") == content

    def status(self) -> None:
        self.ask("GET", "/status")

    def tool(self) -> None:
        call = {"name": "run_shell", "arguments": {"command": "echo tool"}}
        reply, _ = self._rpc({"id": next(self._counter), "method": "tools/call", "params": call})
        assert "tool" in json.dumps(reply["result"]), reply

    def tools(self) -> None:
        reply, _ = self._rpc({"id": next(self._counter), "method": "tools/list", "params": {}})
        assert len(reply["result"]["tools"]) > 5, reply

    def measure_memory(self) -> None:
        self._api.close()  # the companion closes an idle connection, too
        self._hub.close()
        lines = json.loads(self.ask("POST", "/shell", {"command": MEMORY_OF_COMPANION}))["stdout"]
        self.memory.append(max(int(line.split()[1]) for line in lines.splitlines()))

    def time_evolve(self) -> None:
        with Path(self._project, "body/kernel/__init__.py").open("a") as file:
            file.write("\n# changed\n")
        self.take(EVOLVE, lambda: self.command("evolve"))

    def take(self, kind: str, act: Callable[[], Any]) -> None:
        began = time.perf_counter()
        act()
        self.times.setdefault(kind, []).append(time.perf_counter() - began)


KINDS: dict[str, tuple[int, str]] = {
    "value": (3, "`POST /exec` of `1+1`"),
    "value_unrecorded": (2, "the same with `durable: false`"),
    "prints": (2, "20 lines of output"),
    "function": (2, "a function defined and called"),
    "failure": (1, "a failed run with its traceback"),
    "shell": (1, "`POST /shell`"),
    "file": (2, "a file of 4 KiB written and read"),
    "status": (1, "`GET /status`"),
    "tool": (1, "a call of the tool `run_shell`"),
    "tools": (1, "`tools/list`"),
}
"""The share of each kind in sixteen requests, and its name."""


def requests(count: int) -> Iterator[str]:
    kinds = [kind for kind, (share, _) in KINDS.items() for _ in range(share)]
    return itertools.islice(itertools.cycle(kinds), count)


def compare(old: Version, new: Version, count: int) -> None:
    versions = [old, new]
    for version in versions:
        version.up()
        for kind in requests(len(KINDS) * 10):
            getattr(version, kind)()
    time.sleep(IDLE_S)
    for version in versions:
        version.measure_memory()
    remaining = requests(count)
    while turn := list(itertools.islice(remaining, TURN)):
        for version in versions:
            for kind in turn:
                version.take(kind, getattr(version, kind))
        versions.reverse()  # neither is always the first
    time.sleep(IDLE_S)
    for version in versions:
        version.measure_memory()
    for version in [*versions] * 3:
        version.time_evolve()


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.1f} s"


def print_table(old: Version, new: Version) -> None:
    print("| | old p50 / p99 | new p50 / p99 | ratio of p50 / p99 |\n|---|---|---|---|")
    for kind in [*KINDS, EVOLVE]:
        cells = []
        quantiles = []
        for version in (old, new):
            times = sorted(version.times[kind])
            pair = statistics.median(times), times[int(len(times) * 0.99)]
            quantiles.append(pair)
            cells.append(" / ".join(map(milliseconds, pair)))
        ratios = " / ".join(f"{b / a:.2f}" for a, b in zip(*quantiles, strict=True))
        name = KINDS[kind][1] if kind in KINDS else kind
        print(f"| {name}, {len(old.times[kind]):,} each | {cells[0]} | {cells[1]} | {ratios} |")
    memory = [" / ".join(f"{kib / 1024:.1f}" for kib in v.memory) for v in (old, new)]
    print(f"| the companion's memory before / after, MiB | {memory[0]} | {memory[1]} | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--requests", type=int, default=100_000)
    args = parser.parse_args()
    old, new = Version("old", args.old.resolve()), Version("new", args.new.resolve())
    try:
        compare(old, new, args.requests)
    finally:
        for version in (old, new):
            if version.is_up:
                version.execute("down", "--purge", "--yes")
    print_table(old, new)


if __name__ == "__main__":
    main()
