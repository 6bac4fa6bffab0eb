"""All kinds of objects of the tests, each under its own name in one namespace."""

from __future__ import annotations

import re
from dataclasses import dataclass

import kinds_code
import kinds_content
import kinds_data
import kinds_dynamic
import kinds_libraries


@dataclass
class Kind:
    variable: str
    code: str
    probe: str


def kinds() -> list[Kind]:
    """`_tell` describes the value of an expression."""
    plain = [(f"X = {each}", "_tell(X)") for each in kinds_data.EXPRESSIONS]
    found = [*plain, *kinds_code.STATEMENTS, *kinds_libraries.LIBRARIES]
    found += [*kinds_dynamic.DYNAMIC, *kinds_content.CONTENT]
    return [_named(number, *each) for number, each in enumerate(found)]


def _named(number: int, code: str, probe: str) -> Kind:
    names = {"X": f"k{number}", "C": f"C{number}", "F": f"F{number}"}
    code, probe = (_renamed(names, text) for text in (code, probe))
    return Kind(names["X"], code, probe)


def _renamed(names: dict[str, str], text: str) -> str:
    text = re.sub(r"\b([XCF])\b(?!['=])", lambda found: names[found[1]], text)
    return text.replace("_C__", f"_{names['C']}__")


IMPORTS = kinds_data.IMPORTS + kinds_libraries.IMPORTS + kinds_dynamic.IMPORTS
