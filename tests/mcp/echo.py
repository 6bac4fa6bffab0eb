"""A server that gives back what it gets, byte for byte, and does as it is told in between.

A request's result is its parameters as they were written. Parsing would change them, so they are
cut out of the line: whoever tests writes `"params"` as the last key.
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
heard: list[str] = []


def say(text: str) -> None:
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


def asked(params: dict, ident: str, written: str) -> str:
    """Asks the client; what it answers is the result."""
    name = "ask-" + ident.strip('"')
    head = f'{{"jsonrpc":"2.0","id":"{name}","method":"sampling/createMessage"'
    say(f'{head},"params":{written}}}')
    while name not in answered:
        time.sleep(0.005)
    return answered.pop(name)


def progressed(params: dict, ident: str, written: str) -> str:
    token = json.dumps(params["_meta"]["progressToken"])
    for step in range(params["steps"]):
        time.sleep(params.get("pause", 0))
        note = f'{{"progressToken":{token},"progress":{step}.0,"x":[ ]}}'
        say(f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{note}}}')
    return written


def slept(params: dict, ident: str, written: str) -> str:
    time.sleep(params["seconds"])
    return written


def left_behind(params: dict, ident: str, written: str) -> str:
    return str(subprocess.Popen(["setsid", "sleep", "1000"]).pid)


def touched(params: dict, ident: str, written: str) -> str:
    say('{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"echo:a"}}')
    return written


def logged(params: dict, ident: str, written: str) -> str:
    say(f'{{"jsonrpc":"2.0","method":"notifications/message","params":{written}}}')
    return written


def rooted(params: dict, ident: str, written: str) -> str:
    """What the client has answered when it was asked for its roots."""
    while "roots" not in answered:
        time.sleep(0.005)
    return answered.pop("roots")


def told(params: dict, ident: str, written: str) -> str:
    """The notifications that have come, as they were."""
    return f"[{','.join(heard)}]"


def noisy(params: dict, ident: str, written: str) -> str:
    say("this is no message")
    print("this goes to the log", file=sys.stderr, flush=True)
    return written


STORIES = {
    "test/ask": asked,
    "test/child": left_behind,
    "test/heard": told,
    "test/log": logged,
    "test/noise": noisy,
    "test/progress": progressed,
    "test/roots": rooted,
    "test/sleep": slept,
    "test/touch": touched,
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
    if method == "tools/call" and f"test/{params.get('name')}" in STORIES:
        method = f"test/{params['name']}"
    if method in STORIES:
        result = STORIES[method](params, ident, result)
    result = FIXED.get(method, result)
    say(f'{{"jsonrpc":"2.0","id":{ident},"result":{result}}}')


def main() -> None:
    for raw in sys.stdin.buffer:
        line = raw.decode().rstrip("\n")
        message = json.loads(line)
        if "method" not in message:
            answered[message["id"]] = part(line, "result") if "result" in message else '"refused"'
        elif "id" in message:
            threading.Thread(target=answer, args=(line, message), daemon=True).start()
        else:
            heard.append(line)
            if message["method"] == "notifications/roots/list_changed":
                say('{"jsonrpc":"2.0","id":"roots","method":"roots/list"}')


main()
