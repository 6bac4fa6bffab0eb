"""`%debug`: the frames of the last error, one command of pdb at a time.

Code has no input here, so the magic has no prompt: each use is one command, and the position in the
frames stays until the next error. `osctl repl` shows a prompt and sends its lines this way.
"""

from __future__ import annotations

import io
import sys
from pdb import Pdb
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand

if TYPE_CHECKING:
    from .shell import Shell

_STEPS = ("c", "cont", "continue", "j", "jump", "n", "next", "r", "return", "s", "step", "unt")
_PROMPTS = ("commands", "debug", "interact", "restart", "run")
_NEED_RUNNING_CODE = frozenset((*_STEPS, *_PROMPTS, "b", "break", "tbreak", "until"))
_LEAVE = frozenset(("EOF", "exit", "q", "quit"))


def keep_error(error: BaseException) -> None:
    """Keeps the error of a cell as Python's interactive interpreter does."""
    if issubclass(type(error), UsageError):  # of a magic, for example of `%debug`
        return
    sys.last_exc = sys.last_value = error
    sys.last_type, sys.last_traceback = type(error), error.__traceback__


def _skip_kernel_frames(trace: TracebackType | None) -> TracebackType | None:
    first = trace
    while first and not first.tb_frame.f_code.co_filename.startswith("<cell "):
        first = first.tb_next
    return first or trace


class PostMortem(Pdb):
    """The frames of one error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(stdin=io.StringIO(), stdout=sys.stdout, nosigint=True, readrc=False)
        self.shown_error = error
        self.reset()
        self.setup(None, _skip_kernel_frames(error.__traceback__))

    def set_convenience_variable(self, frame: FrameType, name: str, value: Any) -> None:
        """Sets nothing: the variables would be in the user's namespace."""

    def show_position(self) -> None:
        self.stdout = sys.stdout
        self.print_stack_entry(self.stack[self.curindex])

    def run_command(self, line: str) -> bool:
        """Returns whether the command leaves the debugger."""
        self.stdout = sys.stdout
        self.cmdqueue = [line]
        while self.cmdqueue:
            line = self.precmd(self.cmdqueue.pop(0))
            name = self.parseline(line)[0]
            if name in _LEAVE:
                return True
            if name in _NEED_RUNNING_CODE:
                print(f"`{name}` needs running code, and this code has ended; `q` leaves")
            else:
                self.onecmd(line)
        return False


def install_debugger(shell: Shell) -> None:
    """Replaces IPython's `%debug`, which reads from a terminal."""
    shown: PostMortem | None = None

    @no_var_expand
    def debug(line: str) -> None:
        """Looks into the frames of the last error.

        `%debug` shows the position, `%debug COMMAND` runs a command of pdb there: `w` (all frames),
        `u`, `d`, `l`, `a`, `p EXPRESSION`, `help`; `q` forgets the position.
        """
        nonlocal shown
        error = getattr(sys, "last_exc", None)
        if error is None or error.__traceback__ is None:
            raise UsageError("there is no error to debug in this session")
        if shown is None or shown.shown_error is not error:
            shown = PostMortem(error)
        line = line.strip()
        if not line:
            shown.show_position()
        elif shown.run_command(line):
            shown = None

    shell.register_magic_function(debug, "line")
