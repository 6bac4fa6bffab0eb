"""Records the samples of the current format: `python tests/kernel/cryo/record.py`, with the image's
Python. Recorded samples never change; a later format gets its own folder."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from client import Template
from cryo_requests import store

FORMAT = 2
CODE = """
import enum, numpy as np
numbers = {'one': 1, 'half': 0.5, 'big': 10**40, 'complex': 1j}
text = 'größe'
alias = numbers
ring = [text]; ring.append(ring)
array = np.arange(9000, dtype='f8')
row = array[3:5]
matrix = np.asfortranarray(np.eye(3))
generator = (n for n in ring)
def scaled(n): return n * numbers['one']
def counter():
    n = 0
    def up():
        nonlocal n
        n += 1
        return n
    return up
up = counter()
class Point:
    __slots__ = ('x',)
    def __init__(self, x): self.x = x
class Color(enum.Enum):
    RED = 1
point, red = Point(4), {'color': Color.RED}
"""


def main() -> None:
    folder = Path(__file__).resolve().parent / "samples" / str(FORMAT)
    shutil.rmtree(folder, ignore_errors=True)
    os.chdir("/")
    template = Template()
    for number, compress in ((1, False), (2, True)):
        kernel = template.fork()
        run = kernel.run(CODE)
        assert run.status == "completed", run.traceback
        store(kernel, folder / str(number), compress=compress)
        kernel.close()
    template.close()


if __name__ == "__main__":
    main()
