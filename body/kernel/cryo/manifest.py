"""What a generation holds, as one JSON document that is sealed by its own SHA-256.

Its last member is the seal of all the text before it. Format 1 is the first, and whatever is
written later has to go on reading it; format 2 adds the verdicts `altered` and `unverified`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .disk import Damaged

FORMAT = 2
_SEAL = ',"seal":"'


class OtherFormat(Exception):
    """Written by a later version, which this one does not understand."""


def text(words: dict[str, Any]) -> str:
    body = json.dumps(words, separators=(",", ":"))[:-1]
    return f'{body}{_SEAL}{_seal(body)}"}}\n'


def read(folder: Path) -> dict[str, Any]:
    """The manifest of that generation.

    # Errors
    `Damaged`, or `OtherFormat`.
    """
    try:
        whole = (folder / "manifest.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Damaged("it has no manifest") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(f"its manifest can't be read: {error}") from None
    body, found, seal = whole.rpartition(_SEAL)
    if not found or seal != f'{_seal(body)}"}}\n':
        raise Damaged("its manifest is not what was written")
    words = json.loads(body + "}")
    version = words.get("format")
    if not isinstance(version, int) or version < 1:
        raise Damaged("its manifest names no format")
    if version > FORMAT:
        message = f"it has format {version}, and this kernel reads formats up to {FORMAT}"
        raise OtherFormat(message)
    return words


def _seal(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
