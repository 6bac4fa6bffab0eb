"""Frames: u32 big-endian length, then one UTF-8 JSON object. What both ends of a socket share."""

from __future__ import annotations

import json
import struct
from typing import Any

from .encode import encode

MAX_FRAME = 256 << 20
LENGTH = struct.Struct(">I")

Frame = dict[str, Any]


class Malformed(Exception):
    """A frame that is not a JSON object; the connection goes on."""


def pack(frame: Frame) -> bytes:
    body = encode(frame)
    if len(body) > MAX_FRAME:
        body = encode(_without_contents(frame, len(body)))
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Frame:
    """The object in a frame's body.

    # Errors
    `Malformed` when it is not one.
    """
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(frame, dict):
        raise Malformed("a frame is a JSON object")
    return frame


def take(unread: bytearray) -> bytes | None:
    """Removes one whole frame's body from the front of what was read, if it is there.

    # Errors
    `EOFError` when the frame would be above the limit: nothing after it can be read.
    """
    if len(unread) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack_from(unread)
    if size > MAX_FRAME:
        raise EOFError("frame above the limit")
    end = LENGTH.size + size
    if len(unread) < end:
        return None
    body = bytes(unread[LENGTH.size : end])
    del unread[:end]
    return body


def _without_contents(frame: Frame, size: int) -> Frame:
    notice = f"<an output of {size} bytes, more than a frame may hold>"
    told = {k: v for k, v in frame.items() if k not in ("data", "metadata", "error", "value")}
    if "data" in frame:
        return told | {"data": {"text/plain": notice}, "metadata": {}}
    error = {"type": "OverflowError", "message": notice, "traceback": []}
    return told | ({"value": None} if "value" in frame else {}) | {"error": error}
