"""All kinds of objects that the tests know, each under a name of its own in one namespace."""

from __future__ import annotations

import re
from dataclasses import dataclass

import kinds_code
import kinds_data
import kinds_libraries

TELL = r"""
import re as _re
_UNSAID = r"0x[0-9a-fA-F]+|at [0-9A-F]{9,}|id='\d+'| of \w+ \d+>"
def _tell(x):
    # A kind and what it says of itself, without addresses and counters.
    kind = type(x)
    if kind.__name__ == "ndarray":
        return kind, x.shape, x.dtype, x.flags.writeable, x.tolist()
    if kind.__module__.startswith("pandas") and hasattr(x, "equals"):
        return kind, str(x), str(getattr(x, "dtypes", None))
    name = "iterator" if kind.__name__.endswith("iterator") else kind.__qualname__
    text = _re.sub(_UNSAID + r"|\b\w{1,30}iterator", "", repr(x))
    found = [kind.__module__, name, text]
    if isinstance(x, (set, frozenset)):
        found[2] = sorted(map(repr, x))
    state = getattr(x, "__dict__", None)
    if isinstance(state, dict) and not isinstance(x, (type, type(_re))):
        found.append(sorted(set(map(str, state)) - {"_cache"}))
    return found
"""


@dataclass
class Kind:
    variable: str
    code: str
    probe: str


def kinds() -> list[Kind]:
    """An expression is asked what `_tell` says of it."""
    plain = [(f"X = {each}", "_tell(X)") for each in kinds_data.EXPRESSIONS]
    found = [*plain, *kinds_code.STATEMENTS, *kinds_libraries.LIBRARIES]
    return [_named(number, *each) for number, each in enumerate(found)]


def _named(number: int, code: str, probe: str) -> Kind:
    names = {"X": f"k{number}", "C": f"C{number}", "F": f"F{number}"}
    code, probe = (_renamed(names, text) for text in (code, probe))
    return Kind(names["X"], code, probe)


def _renamed(names: dict[str, str], text: str) -> str:
    text = re.sub(r"\b([XCF])\b(?!['=])", lambda found: names[found[1]], text)
    return text.replace("_C__", f"_{names['C']}__")


IMPORTS = kinds_data.IMPORTS + kinds_libraries.IMPORTS
