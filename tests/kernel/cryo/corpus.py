"""Namespaces, each with a question to its behaviour: the answer of the one that was stored must be
the answer of the one that came back. What is not named as lost or as a recipe must be saved."""

from __future__ import annotations

from corpus_code import CLASSES, FUNCTIONS
from corpus_data import DATA, LIBRARIES, LIVE

CASES = [*FUNCTIONS, *CLASSES, *DATA, *LIBRARIES, *LIVE]
