"""The manifest of a generation: one JSON document, sealed by its own SHA-256.

Its last member is the seal of all the text before it. Format 1 is the first format and stays
readable; format 2 adds the verdicts `altered` and `unverified`.
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
    """A later version has written the manifest, in a format that this version cannot read."""


def seal_manifest(entries: dict[str, Any]) -> str:
    body = json.dumps(entries, separators=(",", ":"))[:-1]
    return f'{body}{_SEAL}{_hash_body(body)}"}}\n'


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a generation.

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
    if not found or seal != f'{_hash_body(body)}"}}\n':
        raise Damaged("its manifest was changed or cut")
    entries = json.loads(body + "}")
    version = entries.get("format")
    if not isinstance(version, int) or version < 1:
        raise Damaged("its manifest has no format number")
    if version > FORMAT:
        message = f"it has format {version}, and this kernel reads formats up to {FORMAT}"
        raise OtherFormat(message)
    return entries


def _hash_body(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
