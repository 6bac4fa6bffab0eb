"""`sys.stdout` and `sys.stderr`: text straight to fds 1 and 2, nothing held back.

There is no buffer, so nothing is late, nothing is lost when the process dies, and a forked child
cannot print its parent's text again.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from .pipes import Pipe
from .turns import Turns

PIECE = 1 << 18
"""Characters encoded at once: what is larger neither doubles in memory nor waits for its end."""


class Bytes(io.RawIOBase):
    """The stream's `.buffer`; each access makes one, so closing it harms nobody."""

    mode = "wb"

    def __init__(self, text: Output) -> None:
        self._text = text
        self.name = text.name

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._text.fileno()

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        with memoryview(data) as view:
            self._text.write_bytes(view.cast("B") if view.nbytes else b"")
            return view.nbytes


class Output(io.TextIOBase):
    """A text stream over one of the pipes."""

    mode = "w"
    line_buffering = True
    write_through = True

    def __init__(self, pipe: Pipe, turns: Turns, name: str) -> None:
        self.name = name
        self._pipe = pipe
        self._turns = turns
        self._fd = pipe.target
        self._encoding = "utf-8"
        self._errors = "backslashreplace"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        return self._errors

    @property
    def buffer(self) -> Bytes:
        return Bytes(self)

    def reconfigure(
        self, *, encoding: str | None = None, errors: str | None = None, **_: Any
    ) -> None:
        """As TextIOWrapper's; how lines are buffered is not the caller's to change."""
        "".encode(encoding or self._encoding)
        self._encoding = encoding or self._encoding
        self._errors = errors or self._errors

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        # One call deep: code prints line by line, and each line is two of these.
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        try:
            if len(text) > PIECE:
                return self._write_long(text)
            data = text.encode(self._encoding, self._errors)
        except (AttributeError, TypeError):
            kind = type(text).__name__
            raise TypeError(f"write() argument must be str, not {kind}") from None
        if self._turns.last is not self:
            self._turns.to_stream(self, self._fd)
        try:
            done = os.write(self._fd, data)
        except OSError:
            done = 0
        if done != len(data):
            self.write_bytes(memoryview(data)[done:])
        return len(text)

    def _write_long(self, text: str) -> int:
        # Not every encoding can be joined from pieces.
        size = PIECE if self._encoding == "utf-8" else len(text)
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            self.write_bytes(piece.encode(self._encoding, self._errors))
        return len(text)

    def write_bytes(self, data: bytes | memoryview) -> None:
        if self._turns.last is not self:
            self._turns.to_stream(self, self._fd)
        size, done = len(data), 0
        while done < size:  # a signal came in between
            done += self._write(memoryview(data)[done:])

    def _write(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:  # user code made the fd non-blocking
            os.set_blocking(self._fd, True)
        except OSError:  # user code closed it; it is put back after the cell
            return os.write(self._pipe.write, data)
        return 0


class Streams:
    """The pair, and their repair after a cell."""

    def __init__(self, pipes: tuple[Pipe, Pipe], turns: Turns) -> None:
        self._pipes = pipes
        self._turns = turns
        self.renew()

    def renew(self) -> None:
        sys.stdout = sys.__stdout__ = Output(self._pipes[0], self._turns, "<stdout>")
        sys.stderr = sys.__stderr__ = Output(self._pipes[1], self._turns, "<stderr>")

    def restore(self) -> None:
        """Puts back what the cell has closed or deleted; what it replaced stays replaced."""
        for pipe in self._pipes:
            pipe.restore()
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name, None)
            if type(stream) is Output and not stream.closed:
                continue
            try:
                dead = stream is None or stream.closed
            except Exception:
                dead = not hasattr(stream, "write")
            if dead:
                own = getattr(sys, f"__{name}__")
                if own.closed:
                    pipe = self._pipes[name == "stderr"]
                    own = Output(pipe, self._turns, f"<{name}>")
                    setattr(sys, f"__{name}__", own)
                setattr(sys, name, own)
