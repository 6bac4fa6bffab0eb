"""One kernel per test, forked from a template; `start` and `template` make more, with their own
environments and processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from client import Kernel, Template


@pytest.fixture
def start() -> Iterator[Callable[..., Kernel]]:
    made: list[Kernel] = []

    def make(**settings: object) -> Kernel:
        made.append(Kernel(**settings))
        return made[-1]

    yield make
    for kernel in made:
        kernel.close()


@pytest.fixture(scope="session")
def fork_pool() -> Iterator[Template]:
    made = Template()
    yield made
    made.close()


@pytest.fixture
def kernel(fork_pool: Template) -> Iterator[Kernel]:
    forked = fork_pool.fork()
    yield forked
    forked.close()


@pytest.fixture
def template() -> Iterator[Callable[..., Template]]:
    made: list[Template] = []

    def make(**settings: object) -> Template:
        made.append(Template(**settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
