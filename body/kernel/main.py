"""Assembles the parts in the order of their dependencies.

The parts that are equal in every kernel are prepared first, once for all kernels of a template; the
parts of one process (pipes, signals, sockets, the session's name) are made after the fork.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import BODY_VERSION, PROTOCOL, packages
from .cell import CellRunner
from .debugger import install_debugger
from .fork_guard import ForkGuard
from .interrupt import Interrupts
from .loop import Loop
from .ordering import OutputOrder
from .parent import depend_on_parent
from .pipes import Pipe, move_fd_high
from .printing import install_print
from .queries import Queries
from .refusals import refuse_input
from .runtime import Runtime
from .serve import serve_requests
from .shell import Shell
from .shutdown import install_sigterm_handler, shut_down
from .streams import Streams
from .template import KernelSpec, Template
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
    fd = move_fd_high(args.fd)
    if args.fd == 0:  # it arrives as standard input, where code must find nothing
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.set_inheritable(0, True)
    if not args.template:
        return _serve_session(KernelSpec(args.session, plain=False, listener=fd), _prepare_shell())
    gc.disable()  # until the fork: a collection would split pages that kernels share
    shell = _prepare_shell()
    spec = Template(fd).serve_forks()
    return 0 if spec is None else _serve_session(spec, shell)


def _prepare_shell() -> Shell:
    sys.argv = [""]
    sys.path.insert(0, "")
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    refuse_input()
    install_print()
    shell = Shell.create_shell()
    install_debugger(shell)
    return shell


def _serve_session(spec: KernelSpec, shell: Shell) -> int:
    fd = move_fd_high(os.dup(2))
    try:
        parts = _assemble_kernel(spec, shell)
    except BaseException:  # without a reader of the pipes yet: report to the companion's log
        traceback.print_exc(file=os.fdopen(fd, "w"))
        return 1
    os.close(fd)
    _enter_start_folder(shell)
    serve_requests(*parts)
    shut_down()
    return 0


def _enter_start_folder(shell: Shell) -> None:
    """Enters the project, after all imports: a module of the project must not replace one that the
    kernel needs."""
    folder = os.environ.pop("OSCTL_START_FOLDER", "")
    with suppress(OSError):  # without the folder, the kernel stays in that of the companion
        os.chdir(folder)
        shell.history_manager.dir_hist[:] = [Path.cwd()]


def _assemble_kernel(
    spec: KernelSpec, shell: Shell
) -> tuple[Wire, CellRunner, Queries, Loop, ForkGuard]:
    interrupts = Interrupts()
    interrupts.install_handler()
    pipes = (Pipe.create_pipe(1), Pipe.create_pipe(2))
    ordering = OutputOrder(pipes)
    streams = Streams(pipes, ordering)
    faulthandler.enable(pipes[1].write)
    os.environ["OSCTL_SESSION"] = spec.session
    shell.interrupts = interrupts
    loop = shell.loop = Loop(interrupts)

    def build_hello() -> dict[str, Any]:
        frame = {"type": "hello", "protocol": PROTOCOL, "body_version": BODY_VERSION}
        frame |= {"pid": os.getpid(), "python": platform.python_version()}
        return frame | shell.count_state()

    wire = Wire(spec.listener, ordering, interrupts, build_hello, (pipes[0].read, pipes[1].read))
    fork_guard = ForkGuard(wire, pipes, loop)
    user_code = UserCode(interrupts, streams, fork_guard)
    cells = CellRunner(shell, wire, user_code)
    queries = Queries(shell, wire, user_code)
    if not spec.plain:
        packages.activate_overlay(os.environ.get("OSCTL_PACKAGES"))
    shell.add_runtime(Runtime())  # its shell has the current environment
    install_sigterm_handler()
    return wire, cells, queries, loop, fork_guard
