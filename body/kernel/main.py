"""Puts the parts together, in the order in which they depend on each other.

What is the same in every kernel is prepared first, and once for all kernels of a template; what
belongs to one process (pipes, signals, sockets, the session's name) is made after the fork.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from . import BODY_VERSION, PROTOCOL, packages
from .cell import Cells
from .ending import end, end_at_sigterm
from .fork import Family
from .interrupt import Interrupts
from .loop import Loop
from .parent import depend_on_parent
from .pipes import Pipe, keep
from .printing import print_lines
from .questions import Questions
from .refusals import refuse_input
from .runtime import Runtime
from .serve import serve
from .shell import Shell
from .streams import Streams
from .template import Order, Template
from .turns import Turns
from .user_code import UserCode
from .wire import Wire


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="kernel", description="osctl's Python kernel")
    parser.add_argument("--fd", type=int, required=True, help="a Unix socket")
    parser.add_argument("--session", default="default", help="the session's name")
    parser.add_argument(
        "--template",
        action="store_true",
        help="fork kernels on request: the socket is connected, not listening",
    )
    args = parser.parse_args(argv)

    depend_on_parent()
    given = keep(args.fd)
    if args.fd == 0:  # it travels as standard input, where code shall find nothing
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.set_inheritable(0, True)
    if not args.template:
        return _serve(Order(args.session, plain=False, listener=given), _prepare())
    gc.disable()  # until the fork: a collection leaves holes in pages that are to be shared
    shell = _prepare()
    order = Template(given).serve()
    return 0 if order is None else _serve(order, shell)


def _prepare() -> Shell:
    sys.argv = [""]
    sys.path.insert(0, "")
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    refuse_input()
    print_lines()
    return Shell.start()


def _serve(order: Order, shell: Shell) -> int:
    given = keep(os.dup(2))
    try:
        parts = _assemble(order, shell)
    except BaseException:  # nobody reads the pipes yet: the companion's log must get this
        traceback.print_exc(file=os.fdopen(given, "w"))
        return 1
    os.close(given)
    serve(*parts)
    end()
    return 0


def _assemble(order: Order, shell: Shell) -> tuple[Wire, Cells, Questions, Loop, Family]:
    interrupts = Interrupts()
    interrupts.install()
    pipes = (Pipe.make(1), Pipe.make(2))
    turns = Turns(pipes)
    streams = Streams(pipes, turns)
    faulthandler.enable(pipes[1].write)
    os.environ["OSCTL_SESSION"] = order.session
    shell.interrupts = interrupts
    loop = shell.loop = Loop(interrupts)

    def hello() -> dict[str, Any]:
        words = {"type": "hello", "protocol": PROTOCOL, "body_version": BODY_VERSION}
        words |= {"pid": os.getpid(), "python": platform.python_version()}
        return words | shell.counts()

    wire = Wire(order.listener, turns, interrupts, hello, (pipes[0].read, pipes[1].read))
    family = Family(wire, pipes, loop)
    user_code = UserCode(interrupts, streams, family)
    cells = Cells(shell, wire, user_code)
    questions = Questions(shell, wire, user_code)
    if not order.plain:
        packages.activate(os.environ.get("OSCTL_PACKAGES"))
    shell.offer(Runtime())  # whose shell has the environment as it is now
    end_at_sigterm()
    return wire, cells, questions, loop, family
