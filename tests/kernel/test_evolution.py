"""`runtime.evolve`, with a scripted companion."""

import json
import socket
import threading

import pytest

REFUSAL = {"status": "failed", "error": {"type": "evolving", "message": "the run `a` is on"}}


class Companion:
    """Answers each request with its next answer, and records the requests."""

    def __init__(self, folder, answers):
        self.asked = []
        self._answers = list(answers)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / "companion.sock"))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        for status, body in self._answers:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rwb") as stream:
                line = stream.readline().decode().split()[:2]
                headers = {}
                while (header := stream.readline().decode().strip()) != "":
                    name, _, value = header.partition(": ")
                    headers[name.lower()] = value
                text = stream.read(int(headers.get("content-length", 0)))
                self.asked.append((*line, json.loads(text) if text else None))
                told = json.dumps(body).encode()
                head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(told)}\r\n\r\n"
                stream.write(head.encode() + told)


@pytest.fixture
def meet(start, tmp_path):
    def make(*answers, variable="OSCTL_RUN_FOLDER"):
        companion = Companion(tmp_path, answers)
        return companion, start(env={variable: str(tmp_path)})

    return make


def test_evolving_returns_at_once_with_the_name_of_the_run(meet):
    companion, kernel = meet((200, {"status": "started", "run": "20261120-193600"}))
    assert kernel.run("runtime.evolve('more')").result == "'20261120-193600'"
    assert companion.asked == [("POST", "/evolve", {"reason": "more", "force": False})]


def test_the_result_of_an_evolve_is_readable(meet):
    status = {"latest_run": "a", "latest_status": "succeeded", "reason": "more", "why": None}
    record = {"run": "b", "status": "rolled_back", "reason": None, "why": "it hangs"}
    none = {**status, "latest_run": None, "latest_status": None}
    companion, kernel = meet((200, status), (200, record), (200, none))
    run = kernel.run("e = runtime.evolution(); (e.run, e.status, e.reason, e.is_on)")
    assert run.result == "('a', 'succeeded', 'more', False)"
    assert kernel.run("runtime.evolution('b').why").result == "'it hangs'"
    assert kernel.run("runtime.evolution() is None").result == "True"
    assert [path for _, path, _ in companion.asked][1] == "/evolve/runs/b"


@pytest.mark.parametrize("variable", ["OSCTL_RUN_FOLDER", "OSCTL_RUN"])  # today's and the former
def test_a_refusal_is_raised(meet, variable):
    _, kernel = meet((409, REFUSAL), variable=variable)
    run = kernel.run("runtime.evolve()")
    assert (run.error["type"], run.error["message"]) == ("RuntimeError", "the run `a` is on")
