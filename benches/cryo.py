"""Runs inside the container and stores the same objects by cryo, by dill, by pickle, and raw.

`cryo.py NAME ROUNDS`, the token on stdin: one line of JSON with the seconds of each contestant, in
rounds in which all take turns, everything on the disk (fsync) and nothing of it left behind.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from typing import Any

FOLDER = "/data/bench"
OBJECTS = {
    "array": "import numpy as np\nbig = np.random.default_rng(1).integers(0, 255, 1 << 30, 'u1')",
    "dicts": "many = [{'id': n} for n in range(1_000_000)]",
}
BYTES = {"array": 1 << 30, "dicts": 0}
PEER = r"""
import dill, gc, os, pickle, sys, time
def synced(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
def store(how, path):
    begin = time.perf_counter()
    if how == "dill":
        dill.dump_module(path)
    elif how == "pickle":
        with open(path, "wb") as file:
            pickle.dump({name: globals()[name] for name in ("big", "many") if name in globals()}, file, 5)
    else:
        view, fd = memoryview(big), os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        while view:
            view = view[os.write(fd, view[: 8 << 20]) :]
        os.close(fd)
    synced(path)
    took = time.perf_counter() - begin
    os.unlink(path)
    return took
for line in sys.stdin:
    print(store(line.strip(), sys.argv[1]), flush=True)
"""


class Osctl:
    def __init__(self, token: str) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", 8080, timeout=600)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        text = None if body is None else json.dumps(body).encode()
        self._http.request(method, path, text, self._headers)
        answer = self._http.getresponse()
        reply = json.loads(answer.read())
        assert answer.status == 200, reply
        return reply

    def execute(self, code: str) -> str:
        reply = self.ask("POST", "/exec", {"code": code, "session": "cryo"})
        assert reply["status"] == "completed", reply
        return str(reply["result"])

    def timed(self, path: str, wish: dict[str, Any]) -> float:
        begin = time.perf_counter()
        self.ask("POST", path, wish)
        return time.perf_counter() - begin

    def store(self) -> float:
        took = self.timed("/cryo/store", {"name": "bench", "session": "cryo"})
        self.ask("DELETE", "/cryo/bench")
        return took

    def peak(self, work: str) -> int:
        """Bytes that the kernel held at most while it stored or reloaded, above what it has now."""
        self.execute("open('/proc/self/clear_refs', 'w').write('5')")
        self.ask("POST", f"/cryo/{work}", {"name": "bench", "session": "cryo"})
        return int(self.memory("VmHWM"))

    def memory(self, what: str) -> int:
        code = f"[int(l.split()[1]) << 10 for l in open('/proc/self/status') if l.startswith('{what}')][0]"
        return int(self.execute(code))


def main() -> None:
    name, rounds = sys.argv[1], int(sys.argv[2])
    osctl = Osctl(sys.stdin.readline().strip())
    os.makedirs(FOLDER, exist_ok=True)
    osctl.ask("POST", "/sessions", {"name": "cryo"})
    bare = osctl.memory("VmRSS")
    osctl.execute(OBJECTS[name])
    command = [os.environ["OSCTL_PYTHON"], "-c", OBJECTS[name] + PEER, f"{FOLDER}/peer"]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert peer.stdin is not None and peer.stdout is not None

    def other(how: str) -> float:
        peer.stdin.write(how + "\n")
        peer.stdin.flush()
        return float(peer.stdout.readline())

    whose = ["osctl", "dill", "pickle", *(["raw"] if BYTES[name] else [])]
    took: dict[str, list[float]] = {who: [] for who in whose}
    for number in range(rounds + 1):
        for who in whose if number % 2 else reversed(whose):
            seconds = osctl.store() if who == "osctl" else other(who)
            if number:  # the first round warms up
                took[who].append(seconds)
    peer.stdin.close()
    peer.wait()
    data = osctl.memory("VmRSS") - bare
    stored = (osctl.peak("store") - bare) / data
    begin = time.perf_counter()
    osctl.ask("POST", "/restart", {"session": "cryo"})
    again = osctl.timed("/cryo/reload", {"name": "bench", "session": "cryo"})
    assert time.perf_counter() - begin >= again
    osctl.ask("POST", "/restart", {"session": "cryo"})
    reloaded = (osctl.peak("reload") - bare) / data
    osctl.ask("DELETE", "/cryo/bench")
    osctl.ask("DELETE", "/sessions/cryo")
    print(json.dumps({"took": took, "stored": stored, "reloaded": reloaded, "reload": again}))


if __name__ == "__main__":
    main()
