"""Matplotlib's open figures, which its inline backend shows at the end of a cell."""

from __future__ import annotations

import sys
from typing import Any


def has_been_shown(value: Any) -> None:
    """A figure that is a cell's value is shown as that, and not once more as an open figure."""
    backend = sys.modules.get("matplotlib_inline.backend_inline")
    figure = sys.modules.get("matplotlib.figure")
    if backend is None or figure is None or not isinstance(value, figure.Figure):
        return
    if backend.InlineBackend.instance().close_figures:
        backend.Gcf.destroy_fig(value)
    elif value in backend.show._to_draw:
        backend.show._to_draw.remove(value)
