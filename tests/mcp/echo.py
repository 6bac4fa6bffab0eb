"""A server that returns each request's parameters, byte for byte, and has more methods for tests.

Parsing would change the parameters, so they are cut out of the line: a test writes `"params"` as
the last key.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True},
        "logging": {},
    },
    "serverInfo": {"name": "echo", "version": "1"},
    "instructions": "It echoes.",
}
TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object"}, "n": 1.0},
    {
        "name": "other",
        "inputSchema": {
            "type": "object",
            "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        },
    },
]

lock = threading.Lock()
answered: dict[str, str] = {}
notifications: list[str] = []


def send(text: str) -> None:
    with lock:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def part(line: str, key: str) -> str:
    """The raw value of the last key of the line's object."""
    return line[line.index(f'"{key}":') + len(key) + 3 : line.rindex("}")]


def raw_id(line: str) -> str:
    """The raw id, which is followed by another key."""
    rest = line[line.index('"id":') + 5 :]
    return rest[: rest.index(',"')]


def ask_client(params: dict, ident: str, written: str) -> str:
    """Asks the client; its answer is the result."""
    name = "ask-" + ident.strip('"')
    head = f'{{"jsonrpc":"2.0","id":"{name}","method":"sampling/createMessage"'
    send(f'{head},"params":{written}}}')
    while name not in answered:
        time.sleep(0.005)
    return answered.pop(name)


def report_progress(params: dict, ident: str, written: str) -> str:
    token = json.dumps(params["_meta"]["progressToken"])
    for step in range(params["steps"]):
        time.sleep(params.get("pause", 0))
        note = f'{{"progressToken":{token},"progress":{step}.0,"x":[ ]}}'
        send(f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{note}}}')
    return written


def sleep(params: dict, ident: str, written: str) -> str:
    time.sleep(params["seconds"])
    return written


def start_child(params: dict, ident: str, written: str) -> str:
    return str(subprocess.Popen(["setsid", "sleep", "1000"]).pid)


def report_update(params: dict, ident: str, written: str) -> str:
    send('{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"echo:a"}}')
    return written


def log_message(params: dict, ident: str, written: str) -> str:
    send(f'{{"jsonrpc":"2.0","method":"notifications/message","params":{written}}}')
    return written


def client_roots(params: dict, ident: str, written: str) -> str:
    """The client's answer to the request for its roots."""
    while "roots" not in answered:
        time.sleep(0.005)
    return answered.pop("roots")


def list_notifications(params: dict, ident: str, written: str) -> str:
    """The received notifications, unchanged."""
    return f"[{','.join(notifications)}]"


def write_noise(params: dict, ident: str, written: str) -> str:
    send("this is no message")
    print("this goes to the log", file=sys.stderr, flush=True)
    return written


HANDLERS = {
    "test/ask": ask_client,
    "test/child": start_child,
    "test/heard": list_notifications,
    "test/log": log_message,
    "test/noise": write_noise,
    "test/progress": report_progress,
    "test/roots": client_roots,
    "test/sleep": sleep,
    "test/touch": report_update,
}
FIXED = {
    "initialize": json.dumps(HELLO),
    "tools/list": json.dumps({"tools": TOOLS}),
    "resources/list": json.dumps({"resources": [{"uri": "echo:a", "name": "a"}]}),
    "resources/templates/list": json.dumps({"resourceTemplates": []}),
    "test/pid": str(os.getpid()),
}


def answer(line: str, message: dict) -> None:
    ident = raw_id(line)
    method = message["method"]
    if method == "test/silence":
        return
    params = message.get("params") or {}
    result = part(line, "params") if "params" in message else "null"
    if method == "tools/call" and f"test/{params.get('name')}" in HANDLERS:
        method = f"test/{params['name']}"
    if method in HANDLERS:
        result = HANDLERS[method](params, ident, result)
    result = FIXED.get(method, result)
    send(f'{{"jsonrpc":"2.0","id":{ident},"result":{result}}}')


def main() -> None:
    for raw in sys.stdin.buffer:
        line = raw.decode().rstrip("\n")
        message = json.loads(line)
        if "method" not in message:
            answered[message["id"]] = part(line, "result") if "result" in message else '"refused"'
        elif "id" in message:
            threading.Thread(target=answer, args=(line, message), daemon=True).start()
        else:
            notifications.append(line)
            if message["method"] == "notifications/roots/list_changed":
                send('{"jsonrpc":"2.0","id":"roots","method":"roots/list"}')


main()
