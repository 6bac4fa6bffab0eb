"""A shell context that lasts from command to command: `runtime.shell`.

Each command has a bash of its own, which leaves its working directory and environment behind in a
file in memory. Not in a pipe: what runs on in the background would hold that open.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .capture import capture

_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OWN = ("_", "SHLVL", "PWD")
"""What each bash sets for itself."""

# The command comes in a file, because an argument may not be longer than 128 KiB. It may end by
# `exit`, or set a trap of its own, and neither may cost us the state.
_SCRIPT = r"""
__osctl_leave() {{
    [[ -z ${{__osctl_left-}} ]] || return 0
    __osctl_left=1
    builtin printf '%s\0' "$PWD" && builtin command -p env -0
}} >&{state}
trap '{{ set +x; __osctl_leave; }} 2>/dev/null' EXIT
IFS= builtin read -r -d '' -u {command} __osctl_command
exec {command}<&-
eval "$__osctl_command"
{{ __osctl_code=$?; set +x; __osctl_leave; }} 2>/dev/null
exit "$__osctl_code"
"""


@dataclass(frozen=True)
class Result:
    """What became of a command. `returncode` is -1 when it ran into its timeout, and else minus
    the signal that ended it; `cwd` is where the next command starts."""

    stdout: str
    stderr: str
    returncode: int
    cwd: str


class CommandShell:
    """Runs commands in bash; `cd` and `export` in one are there in the next.

    The working directory and the environment are not those of the Python process.
    """

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        try:
            self._cwd = os.getcwd()
        except OSError:  # it was removed
            self._cwd = "/"

    def __repr__(self) -> str:
        return f"<shell in {self._cwd}>"

    @property
    def cwd(self) -> str:
        return self._cwd

    @property
    def environment(self) -> dict[str, str]:
        """A copy."""
        return dict(self._environment)

    def cd(self, path: str | os.PathLike[str]) -> None:
        """Where commands start from now on; relative to where they do so far.

        # Errors
        FileNotFoundError or NotADirectoryError, and then nothing has changed.
        """
        target = os.path.normpath(os.path.join(self._cwd, os.path.expanduser(os.fspath(path))))
        os.close(os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        self._cwd = target

    def env(self, key: str, value: str | None) -> None:
        """Sets a variable of the environment; None unsets it.

        # Errors
        ValueError when no variable can have that name or value.
        """
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not the name of an environment variable")
        if value is None:
            self._environment.pop(key, None)
            return
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"the value of {key} must be a string without NUL, or None")
        self._environment[key] = value

    def run(
        self, command: str, timeout: float | None = None, stdin: str | bytes | None = None
    ) -> Result:
        """Runs a command to its end, or kills it with its process group after `timeout` seconds.

        What it leaves in the background runs on, and its output is no longer read.

        # Errors
        FileNotFoundError or NotADirectoryError when the working directory is gone: `cd` elsewhere.
        """
        if "\0" in command:
            raise ValueError("a command cannot contain NUL")
        given = stdin.encode() if isinstance(stdin, str) else stdin or b""
        with _memory(os.fsencode(command)) as source, _memory(given) as input, _memory() as state:
            child = subprocess.Popen(
                ["bash", "-c", _SCRIPT.format(state=state, command=source)],
                stdin=input,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._cwd,
                env={**self._environment, "PWD": self._cwd},
                pass_fds=[source, state],
                process_group=0,
            )
            try:
                in_time, stdout, stderr = capture(child, timeout)
            except BaseException:
                _kill(child)
                raise
            if in_time:
                returncode = child.wait()
                self._take_over(os.pread(state, os.fstat(state).st_size, 0))
            else:
                _kill(child)
                returncode = -1
        return Result(_text(stdout), _text(stderr), returncode, self._cwd)

    def _take_over(self, left: bytes) -> None:
        """Where the command was, and its exported variables, if it came to telling them."""
        cwd, *entries = os.fsdecode(left).split("\0")
        if not entries or not os.path.isdir(cwd):
            return
        environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        for key in _OWN:
            environment.pop(key, None)
            if key in self._environment:
                environment[key] = self._environment[key]
        self._cwd, self._environment = cwd, environment


@contextmanager
def _memory(content: bytes = b"") -> Iterator[int]:
    """A file in memory, at its beginning."""
    fd = os.memfd_create("osctl")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _kill(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)  # its pid is not free before `wait`
    except ProcessLookupError:
        pass
    child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
