"""One template for all kernels of these tests: a fresh process takes milliseconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from client import Kernel, Template


@pytest.fixture
def fork(fork_pool: Template) -> Iterator[Callable[..., Kernel]]:
    """Makes kernels and runs code in each."""
    made: list[Kernel] = []

    def fork(code: str = "") -> Kernel:
        made.append(fork_pool.fork())
        run = made[-1].run(code)
        assert run.status == "completed", run.traceback
        return made[-1]

    yield fork
    for kernel in made:
        kernel.close()
