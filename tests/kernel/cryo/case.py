"""A namespace with a probe of its behaviour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Case:
    title: str
    code: str
    probe: str
    """An expression whose value, as text, must be the same after a reload; it may change the
    namespace."""
    lost: tuple[str, ...] = ()
    recipe: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    unmade: tuple[str, ...] = ()
    """Variables that are stored but cannot be made again."""
    files: bool = False


def case(
    title: str,
    code: str,
    probe: str,
    *,
    lost: str = "",
    recipe: str = "",
    altered: str = "",
    unmade: str = "",
    **more: bool,
) -> Case:
    names = (tuple(each.split()) for each in (lost, recipe, altered, unmade))
    return Case(title, code, probe, *names, **more)
