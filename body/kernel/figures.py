"""Matplotlib's open figures, which its inline backend shows at the end of a cell."""

from __future__ import annotations

import sys
from typing import Any

_NOTEBOOK_BACKENDS = ("ipympl", "widget")
"""Interactive backends that matplotlib knows only after the package `ipympl` is installed."""


def needs_event_loop(gui: str | None) -> bool:
    """Whether the backend is interactive: this kernel has no GUI event loop and no comms."""
    if gui in (None, "auto"):
        return False
    if gui in _NOTEBOOK_BACKENDS:
        return True
    from matplotlib.backends import backend_registry

    try:
        _, framework = backend_registry.resolve_gui_or_backend("macosx" if gui == "osx" else gui)
    except RuntimeError:  # an unknown name, which `%matplotlib` reports
        return False
    return framework is not None


def mark_figure_shown(value: Any) -> None:
    """Keeps a figure that is a cell's value from being shown again as an open figure."""
    backend = sys.modules.get("matplotlib_inline.backend_inline")
    figure = sys.modules.get("matplotlib.figure")
    if backend is None or figure is None or not isinstance(value, figure.Figure):
        return
    if backend.InlineBackend.instance().close_figures:
        backend.Gcf.destroy_fig(value)
    elif value in backend.show._to_draw:
        backend.show._to_draw.remove(value)
