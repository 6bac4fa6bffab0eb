"""Measures a store: `python tests/kernel/cryo/measure.py [NAME …]`, with the image's Python.

For each namespace, of five stores: the median and minimum time in ms, and the MiB by which the peak
memory exceeds the kernel's memory.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from client import Kernel, Template
from cryo_requests import ask, store

NAMESPACES = {
    "array": "import numpy as np\na = np.random.default_rng(1).random(1 << 27)  # 1 GiB",
    "dicts": "many = [{'id': n, 'name': f'row {n}', 'score': n / 3} for n in range(1_000_000)]",
    "instances": "class P:\n    def __init__(self, n): self.n, self.tag = n, [n]\nmany = [P(n) for n in range(200_000)]",
    "small": (
        "import json, math, collections, dataclasses, datetime\n"
        "for n in range(30): globals()[f'v{n}'] = [n, f'text {n}', {'k': n / 3}]\n"
        "def f(x): return v1, x\n"
        "def g(): return f(1)\n"
        "@dataclasses.dataclass\nclass P:\n    x: int\n    tags: list\n"
        "class A:\n    def go(self): return f(self.p)\n"
        "a = A(); a.p = P(1, ['t']); points = [P(n, []) for n in range(100)]\n"
        "when = datetime.datetime(2026, 1, 2); counts = collections.Counter('hello'); pi = math.pi\n"
        "name, number, flag, nothing, raw = 'osctl', 42, True, None, b'raw'\n"
        "config = {'lr': 0.1, 'layers': [1, 2, 3], 'on': True}; log = ['line'] * 100"
    ),
    "frames": "import numpy as np, pandas as pd\ndf = pd.DataFrame({'a': range(100_000), 'b': ['x', 'y'] * 50_000}); w = np.ones((300, 300)); v = w[0]",
}
ROUNDS = 5
PEAK = "print(int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) >> 10)"


def main() -> None:
    template = Template()
    for name in sys.argv[1:] or NAMESPACES:
        kernel = template.fork()
        run = kernel.run(NAMESPACES[name])
        assert run.status == "completed", run.traceback
        print(name, *measured(kernel), flush=True)
        kernel.close()
    template.close()


def measured(kernel: Kernel) -> list[str]:
    ask(kernel, "open('/proc/self/clear_refs', 'w').write('5') and None")
    before, times, verdicts = peak(kernel), [], set()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for number in range(ROUNDS):
            begin = time.monotonic()
            rows = store(kernel, Path(folder) / "s" / str(number))
            times.append((time.monotonic() - begin) * 1e3)
            verdicts |= {row["verdict"] for row in rows}
    middle, least = statistics.median(times), min(times)
    more = peak(kernel) - before
    return [f"{middle:.0f} ms", f"least {least:.0f} ms", f"{more} MiB more", ",".join(verdicts)]


def peak(kernel: Kernel) -> int:
    return int(kernel.run(PEAK).stdout)


if __name__ == "__main__":
    main()
