"""`sys.stdout` and `sys.stderr`: unbuffered text on fds 1 and 2.

Without a buffer no output is late or lost when the process dies, and a forked child cannot print
its parent's text again.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from .ordering import OutputOrder
from .pipes import Pipe

CHUNK_CHARS = 1 << 18
"""Characters encoded at a time: limits memory and delay of a long text."""


class Bytes(io.RawIOBase):
    """The stream's `.buffer`; each access makes a new one, so closing it has no effect on
    others."""

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

    def __init__(self, pipe: Pipe, ordering: OutputOrder, name: str) -> None:
        self.name = name
        self._pipe = pipe
        self._ordering = ordering
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
        """As in TextIOWrapper; the caller cannot change the buffering."""
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
        # Kept to one call: code prints line by line, with two writes each.
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        try:
            if len(text) > CHUNK_CHARS:
                return self._write_long(text)
            data = text.encode(self._encoding, self._errors)
        except (AttributeError, TypeError):
            kind = type(text).__name__
            raise TypeError(f"write() argument must be str, not {kind}") from None
        if self._ordering.last_writer is not self:
            self._ordering.switch_to_stream(self, self._fd)
        try:
            done = os.write(self._fd, data)
        except OSError:
            done = 0
        if done != len(data):
            self.write_bytes(memoryview(data)[done:])
        return len(text)

    def _write_long(self, text: str) -> int:
        # Not every encoding can be joined from parts.
        size = CHUNK_CHARS if self._encoding == "utf-8" else len(text)
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            self.write_bytes(piece.encode(self._encoding, self._errors))
        return len(text)

    def write_bytes(self, data: bytes | memoryview) -> None:
        if self._ordering.last_writer is not self:
            self._ordering.switch_to_stream(self, self._fd)
        size, done = len(data), 0
        while done < size:  # a signal interrupted the write
            done += self._write_once(memoryview(data)[done:])

    def _write_once(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:  # user code made the fd non-blocking
            os.set_blocking(self._fd, True)
        except OSError:  # user code closed it; it is restored after the cell
            return os.write(self._pipe.write, data)
        return 0


class Streams:
    """Both streams, and their repair after a cell."""

    def __init__(self, pipes: tuple[Pipe, Pipe], ordering: OutputOrder) -> None:
        self._pipes = pipes
        self._ordering = ordering
        self.create_streams()

    def create_streams(self) -> None:
        sys.stdout = sys.__stdout__ = Output(self._pipes[0], self._ordering, "<stdout>")
        sys.stderr = sys.__stderr__ = Output(self._pipes[1], self._ordering, "<stderr>")

    def restore_streams(self) -> None:
        """Restores streams that the cell has closed or deleted; a replaced stream stays."""
        for pipe in self._pipes:
            pipe.restore_target()
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
                    own = Output(pipe, self._ordering, f"<{name}>")
                    setattr(sys, f"__{name}__", own)
                setattr(sys, name, own)
