"""Namespaces with a probe: the answers before the store and after the reload must be equal.
Variables not listed as lost or as recipes must be saved."""

from __future__ import annotations

from corpus_code import CLASSES, FUNCTIONS
from corpus_data import DATA, LIBRARIES, LIVE

CASES = [*FUNCTIONS, *CLASSES, *DATA, *LIBRARIES, *LIVE]
