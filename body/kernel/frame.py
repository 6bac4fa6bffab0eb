"""Frames: a u32 big-endian length, then one UTF-8 JSON object. Both ends of a socket use this
format."""

from __future__ import annotations

import json
import struct
from typing import Any

from .encode import encode_json

MAX_FRAME_BYTES = 256 << 20
LENGTH = struct.Struct(">I")

Frame = dict[str, Any]


class Malformed(Exception):
    """A frame is not a JSON object; the connection stays open."""


def pack_frame(frame: Frame) -> bytes:
    body = encode_json(frame)
    if len(body) > MAX_FRAME_BYTES:
        body = encode_json(_without_contents(frame, len(body)))
    return LENGTH.pack(len(body)) + body


def unpack_frame(body: bytes) -> Frame:
    """Returns the object in a frame's body.

    # Errors
    `Malformed` when the body is not a JSON object.
    """
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(frame, dict):
        raise Malformed("a frame is a JSON object")
    return frame


def take_body(unread: bytearray) -> bytes | None:
    """Removes one complete frame body from the front of the unread bytes; None when it is
    incomplete.

    # Errors
    `EOFError` when the frame exceeds the limit: nothing after it can be read.
    """
    if len(unread) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack_from(unread)
    if size > MAX_FRAME_BYTES:
        raise EOFError("frame above the limit")
    end = LENGTH.size + size
    if len(unread) < end:
        return None
    body = bytes(unread[LENGTH.size : end])
    del unread[:end]
    return body


def _without_contents(frame: Frame, size: int) -> Frame:
    notice = f"<an output of {size} bytes, above the frame limit>"
    kept = {k: v for k, v in frame.items() if k not in ("data", "metadata", "error", "value")}
    if "data" in frame:
        return kept | {"data": {"text/plain": notice}, "metadata": {}}
    error = {"type": "OverflowError", "message": notice, "traceback": []}
    return kept | ({"value": None} if "value" in frame else {}) | {"error": error}
