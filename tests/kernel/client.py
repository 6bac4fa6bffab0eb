"""A minimal companion: starts the real kernel, exchanges its frames, reads its pipes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

KERNEL = Path(__file__).resolve().parents[2] / "body" / "kernel"
COMMAND = [sys.executable, str(KERNEL)]
BYTECODE = str(Path(tempfile.gettempdir()) / "kernel-bytecode")
"""A cache outside the project's sources."""
Frame = dict[str, Any]
LIMIT_S = 60
AGAIN_S = 1.0


def environment(more: dict[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONPYCACHEPREFIX": BYTECODE, **(more or {})}


class Gone(Exception):
    """The kernel has closed the connection or is dead."""


class Run:
    """The events of one execute in order: frames, and parts of the output as `stdout`/`stderr`."""

    def __init__(self) -> None:
        self.events: list[Frame] = []

    def of(self, kind: str) -> list[Frame]:
        return [event for event in self.events if event["type"] == kind]

    def raw(self, stream: str) -> bytes:
        return b"".join(event["bytes"] for event in self.of(stream))

    @property
    def stdout(self) -> str:
        return self.raw("stdout").decode()

    @property
    def stderr(self) -> str:
        return self.raw("stderr").decode()

    @property
    def result(self) -> str | None:
        results = self.of("result")
        return results[0]["data"]["text/plain"] if results else None

    @property
    def error(self) -> Frame:
        (event,) = self.of("error")
        return event["error"]

    @property
    def traceback(self) -> str:
        return "\n".join(self.error["traceback"])

    @property
    def done(self) -> Frame:
        (event,) = self.of("done")
        return event

    @property
    def status(self) -> str:
        return self.done["status"]


class Kernel:
    """One kernel process and the connection to it."""

    def __init__(self, env: dict[str, str] | None = None, cwd: str | None = None) -> None:
        with self._listen() as listener:
            fd = listener.fileno()
            self.process = subprocess.Popen(
                [*COMMAND, "--fd", str(fd), "--session", "test"],
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                env=environment(env),
                cwd=cwd or self._folder.name,
            )
        self.connect()

    def _listen(self) -> socket.socket:
        self._folder = tempfile.TemporaryDirectory()
        self.address = os.path.join(self._folder.name, "kernel.sock")
        self.number = 0
        self.conn: socket.socket | None = None
        self.pipes: dict[int, str] = {}
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen()
        return listener

    @property
    def pid(self) -> int:
        return self.process.pid

    def connect(self) -> Frame:
        self.unread = b""
        self.conn = socket.socket(socket.AF_UNIX)
        self.conn.settimeout(LIMIT_S)
        self.conn.connect(self.address)
        data, fds, _, _ = socket.recv_fds(self.conn, 1 << 16, 2)
        assert len(fds) == 2, (data, fds)
        self.pipes = dict(zip(fds, ("stdout", "stderr"), strict=True))
        for fd in fds:
            os.set_blocking(fd, False)
        self.unread = data
        self.hello = self.frame()
        return self.hello

    def disconnect(self) -> None:
        if self.conn is None:
            return
        self.conn.close()
        self.conn = None
        for fd in self.pipes:
            os.close(fd)
        self.pipes = {}

    def send_bytes(self, body: bytes) -> None:
        self.conn.sendall(struct.pack(">I", len(body)) + body)

    def send(self, frame: Frame) -> None:
        self.send_bytes(json.dumps(frame).encode())

    def _buffered(self) -> Frame | None:
        if len(self.unread) < 4:
            return None
        (size,) = struct.unpack_from(">I", self.unread)
        if len(self.unread) < 4 + size:
            return None
        body, self.unread = self.unread[4 : 4 + size], self.unread[4 + size :]
        return json.loads(body, parse_constant=_refuse_constant)

    def _receive(self) -> None:
        try:
            chunk = self.conn.recv(1 << 20)
        except ConnectionError as error:
            raise Gone from error
        if not chunk:
            raise Gone
        self.unread += chunk

    def frame(self) -> Frame:
        """Returns the next frame; does not read output."""
        while (found := self._buffered()) is None:
            self._receive()
        return found

    def ask(self, frame: Frame) -> Frame:
        self.send(frame)
        return self.frame()

    def begin(self, code: str, **options: Any) -> Run:
        self.number += 1
        self.id = f"run-{self.number}"
        self.send({"type": "execute", "id": self.id, "code": code, **options})
        return Run()

    def drain(self, run: Run, fd: int) -> None:
        while True:
            try:
                data = os.read(fd, 1 << 20)
            except BlockingIOError:
                return
            if not data:
                raise Gone
            self.note(run, {"type": self.pipes[fd], "bytes": data})

    def note(self, run: Run, event: Frame) -> None:
        last = run.events[-1] if run.events else {"type": None}
        if "bytes" in event and last["type"] == event["type"]:
            last["bytes"] += event["bytes"]
        else:
            run.events.append(event)

    def follow(self, run: Run, until: str | None = None) -> Run:
        """Reads pipes before frames, until the end or an event of that type (or that text)."""
        poll = select.poll()
        for fd in (*self.pipes, self.conn.fileno()):
            poll.register(fd, select.POLLIN)
        while True:
            while (found := self._buffered()) is not None:
                if found["type"] in ("done", "reply"):
                    for fd in self.pipes:
                        self.drain(run, fd)
                self.note(run, found)
                if found["type"] in (until, "done", "reply"):
                    return run
            ready = [fd for fd, _ in poll.poll(LIMIT_S * 1000)]
            assert ready, f"nothing came for {LIMIT_S} s after {run.events[-3:]}"
            for fd in ready:
                if fd in self.pipes:
                    self.drain(run, fd)
            printed = [event.get("bytes", b"") for event in run.events[-2:]]
            if until is not None and any(until.encode() in data for data in printed):
                return run
            if self.conn.fileno() in ready:
                self._receive()

    def run(self, code: str, **options: Any) -> Run:
        return self.follow(self.begin(code, **options))

    def wait_for(self, text: str) -> None:
        """Reads output outside of a cell until that text arrives."""
        self.follow(Run(), until=text)

    def interrupt(self) -> None:
        os.kill(self.pid, signal.SIGINT)

    def interrupted(self, run: Run, again_s: float = AGAIN_S) -> Run:
        """Interrupts repeatedly until the run has ended, like the companion: a signal just before a
        call blocks does not end that call."""
        ended = threading.Event()

        def send_interrupts() -> None:
            while True:
                self.interrupt()
                if ended.wait(again_s):
                    return

        sender = threading.Thread(target=send_interrupts)
        sender.start()
        try:
            return self.follow(run)
        finally:
            ended.set()
            sender.join()

    def request(self, kind: str, **fields: Any) -> Frame:
        """Returns the reply to a request; its output stays in the pipes."""
        reply = self.ask({"type": kind, "id": kind, **fields})
        assert (reply["type"], reply["id"]) == ("reply", kind), reply
        return reply

    def value(self, kind: str, **fields: Any) -> Any:
        reply = self.request(kind, **fields)
        assert reply["error"] is None, reply["error"]
        return reply["value"]

    def probe(self) -> Frame:
        return self.value("probe")

    def probe_until_reply(self) -> Frame:
        """Like `probe`, but skips the answers to requests of an earlier connection."""
        self.number += 1
        asked = f"probe-{self.number}"
        self.send({"type": "probe", "id": asked})
        while (found := self.follow(Run()).events[-1]).get("id") != asked:
            pass
        return found

    def close(self) -> None:
        self.disconnect()
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()


class Template:
    """A process that kernels are forked from."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        self.conn, theirs = socket.socketpair()
        self.conn.settimeout(LIMIT_S)
        self.process = subprocess.Popen(
            [*COMMAND, "--template", "--fd", "0"], stdin=theirs, env=environment(env)
        )
        theirs.close()
        self.ready = self.frame()

    def send(self, frame: Frame, fds: list[int]) -> None:
        body = json.dumps(frame).encode()
        socket.send_fds(self.conn, [struct.pack(">I", len(body)) + body], fds)

    def frame(self) -> Frame:
        (size,) = struct.unpack(">I", self.conn.recv(4, socket.MSG_WAITALL))
        return json.loads(self.conn.recv(size, socket.MSG_WAITALL))

    def fork(self, session: str = "test", plain: bool = False) -> Forked:
        return Forked(self, session, plain)

    def close(self) -> None:
        self.conn.close()
        self.process.wait(LIMIT_S)


class Forked(Kernel):
    """A kernel made by a template, under a supervisor that does nothing."""

    SUPERVISOR = ("sleep", "3600")

    def __init__(self, template: Template, session: str, plain: bool) -> None:
        self.channel, theirs = socket.socketpair()
        self.said, stderr = os.pipe()
        with self._listen() as listener, theirs:
            request = {"type": "fork", "session": session, "plain": plain}
            request["supervisor_command"] = list(self.SUPERVISOR)
            template.send(request, [listener.fileno(), theirs.fileno(), stderr])
            os.close(stderr)
            self.answer = template.frame()
        self.connect()

    @property
    def pid(self) -> int:
        return self.answer["pid"]

    def close(self) -> None:
        self.disconnect()
        with suppress(ProcessLookupError):  # it has ended, and its new parent has reaped it
            os.kill(self.answer["supervisor_pid"], signal.SIGKILL)
        self.channel.close()
        os.close(self.said)
        self._folder.cleanup()


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
