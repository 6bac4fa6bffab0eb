"""Times calls of the filesystem server by several ways: inside the container, or on the host.

On the host, the argument is a JSON object: the `port` of the hub, and the `folder` with supergateway,
its server and the file that it reads. Reads lines from stdin, and ends with them. The first is the
token; every other is `NAME COUNT`, and is answered with one line of JSON: the seconds that each of
COUNT calls took, or, for a crowd, how many calls a second 64 clients got answered. All HTTP clients
are the same raw sockets, so that the times differ only by the server.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time

SERVER = ["/opt/osctl/servers/filesystem/node_modules/.bin/mcp-server-filesystem", "/root"]
HUB, PROXY, GATEWAY = 8765, 8766, 8767
HUB_PATH, PEER_PATH = "/servers/filesystem/mcp", "/mcp"
CROWD = 64
INFO = {"name": "bench", "version": "1"}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": INFO}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
FILE = "/root/bench.txt"


def read_call(file: str) -> dict:
    return request(1, "tools/call", {"name": "read_text_file", "arguments": {"path": file}})


def request(number: int, method: str, params: object) -> dict:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


class Stdio:
    """The server, without anything in between."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(SERVER, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._ask(request(0, "initialize", HELLO))
        self._send(READY)

    def call(self) -> None:
        assert b"some text" in self._ask(read_call(FILE))

    def _send(self, message: dict) -> None:
        self._child.stdin.write(json.dumps(message).encode() + b"\n")
        self._child.stdin.flush()

    def _ask(self, message: dict) -> bytes:
        self._send(message)
        return self._child.stdout.readline()


class Http:
    """A session of Streamable HTTP on one connection."""

    def __init__(self, port: int, path: str, token: str, file: str = FILE) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._port, self._path, self._token, self._session = port, path, token, ""
        head = self._exchange(request(0, "initialize", HELLO))
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "mcp-session-id":
                self._session = value
        self._exchange(READY)
        self._call = self._written(read_call(file))

    def call(self) -> None:
        self.begin()
        while not self.take():
            pass

    def begin(self) -> None:
        self.socket.sendall(self._call)

    def take(self) -> bool:
        """Whether what was read is the whole answer."""
        self._unread += self.socket.recv(65536)
        if not self._is_whole():
            return False
        assert b"some text" in self._unread, self._unread
        self._unread = b""
        return True

    def _is_whole(self) -> bool:
        head, found, body = self._unread.partition(b"\r\n\r\n")
        if not found:
            return False
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            return body.endswith(b"0\r\n\r\n")
        length = lower.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return len(body) >= int(length or 0)

    def _written(self, message: dict) -> bytes:
        body = json.dumps(message)
        lines = [
            f"POST {self._path} HTTP/1.1",
            f"Host: 127.0.0.1:{self._port}",
            f"Authorization: Bearer {self._token}",
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            f"Content-Length: {len(body)}",
        ]
        if self._session:
            lines.append(f"Mcp-Session-Id: {self._session}")
        return "\r\n".join([*lines, "", body]).encode()

    def _exchange(self, message: dict) -> bytes:
        self.socket.sendall(self._written(message))
        while not self._is_whole():
            piece = self.socket.recv(65536)
            assert piece, self._unread
            self._unread += piece
        head, self._unread = self._unread.partition(b"\r\n\r\n")[0], b""
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")), head
        return head


def crowd(port: int, path: str, token: str, count: int) -> float:
    """Calls a second of 64 clients, of which each asks again when it was answered."""
    clients = [Http(port, path, token) for _ in range(CROWD)]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        left, done = count, 0
        begin = time.perf_counter()
        for client in clients:
            client.begin()
            left -= 1
        while done < count:
            for key, _ in selector.select():
                if key.data.take():
                    done += 1
                    if left > 0:
                        key.data.begin()
                        left -= 1
        took = time.perf_counter() - begin
    for client in clients:
        client.socket.close()
    return count / took


def timed(call: object, count: int) -> list[float]:
    samples = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return samples


def start_peer(command: list[str], port: int) -> subprocess.Popen:
    quiet = subprocess.DEVNULL
    peer = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return peer
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"{command[0]} does not listen")


def start_gateway(folder: str) -> subprocess.Popen:
    programs = f"{folder}/node_modules/.bin"
    server = f"{programs}/mcp-server-filesystem {folder}"
    command = [f"{programs}/supergateway", "--stdio", server, "--port", str(GATEWAY)]
    return start_peer([*command, "--outputTransport", "streamableHttp", "--stateful"], GATEWAY)


def main() -> None:
    token = sys.stdin.readline().strip()
    crowds = {}
    if len(sys.argv) > 1:
        host = json.loads(sys.argv[1])
        file = f"{host['folder']}/bench.txt"
        peer = start_gateway(host["folder"])
        ways = {
            "hub": Http(host["port"], HUB_PATH, token),
            "gateway": Http(GATEWAY, PEER_PATH, token, file),
        }
    else:
        file = FILE
        proxy = ["/tmp/peers/bin/mcp-proxy", "--port", str(PROXY), "--", *SERVER]
        peer = start_peer(proxy, PROXY)
        hub, other = (HUB, HUB_PATH, token), (PROXY, PEER_PATH, token)
        ways = {"stdio": Stdio(), "hub": Http(*hub), "proxy": Http(*other)}
        crowds = {"hub-crowd": hub, "proxy-crowd": other}
    with open(file, "w") as content:
        content.write("some text")
    for line in sys.stdin:
        name, count = line.split()
        if name in crowds:
            told = [crowd(*crowds[name], int(count))]
        else:
            told = timed(ways[name].call, int(count))
        print(json.dumps(told), flush=True)
    peer.terminate()


main()
