"""A page of its own inside a notebook's page, or inside any other."""

from __future__ import annotations

import html
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_probe.views.page import Page

if TYPE_CHECKING:
    from bert_probe.notebook.bridge import Bridge

# Scripts of its own and files to be saved; no forms, no other windows, and an origin of its own, so that
# nothing in it reaches the notebook, whose server runs code.
_SANDBOX = "allow-scripts allow-downloads"


@dataclass(frozen=True)
class Frame:
    """A view as HTML that needs nothing else: no network, no kernel, no package.

    A notebook shows it as the output of a cell and saves it there. It is HTML, and no widget, because a
    widget's picture is gone when the notebook is opened without a kernel.

    Attributes:
        page: the web page.
        height: of the frame, in CSS pixels.
    """

    page: Page
    height: int

    def _repr_html_(self) -> str:
        page = self.page
        if not page.key:  # of a bridge that somebody else holds
            bridge = bridged(lambda _view: None)
            page = page if bridge is None else replace(page, key=bridge.key)
        # Between double quotes only these two would end the attribute, or be read as something else.
        written = page.html(framed=True).replace("&", "&amp;").replace('"', "&quot;")
        return (
            f'<iframe title="{html.escape(self.page.title)}" sandbox="{_SANDBOX}" srcdoc="{written}" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )

    def save(self, path: str | Path, overwrite: bool = True) -> Path:
        """Write it to a file: .html, .svg or .png; see `Page.save`.

        Raises:
            ExportError: another ending, a place that cannot be written, or, not to be overwritten, taken.
        """
        return self.page.save(path, overwrite)


def bridged(told: Callable[[Any], None]) -> Bridge | None:
    """A bridge to the frames of a view, which `told` hears of, in a notebook's kernel that has anywidget."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    try:
        from bert_probe.notebook.bridge import Bridge
    except ImportError:
        return None
    bridge = Bridge(key=uuid.uuid4().hex)
    bridge.observe(lambda change: told(change["new"]), "view")
    return bridge
