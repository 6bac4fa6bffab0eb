"""Random bytes sent to the kernel; the message of a failure has the seed of its mix."""

import json
import os
import random
import struct

from client import Gone

MIXES = 300
GROWTH_KIB = 64 << 10


def mix(chance: random.Random) -> bytes:
    """Returns a few frames, most of them damaged."""
    sent = b""
    for _ in range(chance.randrange(1, 5)):
        request = {"type": chance.choice(["probe", "execute", "complete", "adopt", "call", "?"])}
        for field in ("id", "code", "cursor", "session", "plain", "name", "arguments"):
            if chance.random() < 0.5:
                request[field] = chance.choice(["x", "1", 7, -1, None, [], {}, True, "\ud800"])
        body = bytearray(json.dumps(request).encode())
        for _ in range(chance.randrange(4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        size = len(body) if chance.random() < 0.8 else chance.randrange(1 << 32)
        sent += struct.pack(">I", size) + body
    return sent[: chance.randrange(1, len(sent) + 1)]


def resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_the_kernel_answers_or_disconnects_on_any_input_and_continues(kernel):
    seed = int(os.environ.get("OSCTL_FUZZ_SEED", random.randrange(1 << 32)))
    chance = random.Random(seed)
    kernel.run("x = 41")
    before = resident_kib(kernel.pid)
    for number in range(MIXES):
        told = f"OSCTL_FUZZ_SEED={seed}, mix {number}"
        kernel.conn.sendall(mix(chance))
        kernel.disconnect()
        try:
            kernel.connect()
        except Gone as gone:
            raise AssertionError(told) from gone
        if number % 50 == 0:
            kernel.probe_until_reply()
            assert kernel.run("x").result == "41", told
    kernel.probe_until_reply()
    assert kernel.run("x + 1").result == "42", f"OSCTL_FUZZ_SEED={seed}"
    assert resident_kib(kernel.pid) < before + GROWTH_KIB, f"OSCTL_FUZZ_SEED={seed}"
