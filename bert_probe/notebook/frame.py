"""Frames that display views in a notebook, and their connection to the kernel."""

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

# Omit allow-same-origin: it would let frames access the notebook server, which can run code.
_SANDBOX = "allow-scripts allow-downloads"


@dataclass(frozen=True)
class Frame:
    """A view as self-contained HTML, which a notebook displays as the output of a cell and saves.

    HTML is used instead of a widget, because widgets disappear when a notebook is opened without a kernel.

    Attributes:
        page: The web page.
        height: Height of the frame in CSS pixels.
    """

    page: Page
    height: int

    def _repr_html_(self) -> str:
        page = self.page
        if not page.key:  # a page with a key already has a bridge
            bridge = create_bridge(lambda _view: None)
            page = page if bridge is None else replace(page, key=bridge.key)
        # Only & and " need escaping in a double-quoted attribute.
        escaped = page.html(framed=True).replace("&", "&amp;").replace('"', "&quot;")
        return (
            f'<iframe title="{html.escape(self.page.title)}" sandbox="{_SANDBOX}" srcdoc="{escaped}" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )

    def save(self, path: str | Path, overwrite: bool = True) -> Path:
        """Write the view to a file (.html, .svg or .png); see `Page.save`.

        Raises:
            ExportError: The extension is unknown, or the file cannot be written or exists already.
        """
        return self.page.save(path, overwrite)


def create_bridge(on_view: Callable[[Any], None]) -> Bridge | None:
    """Return a bridge that calls `on_view` with each reported view, or None if no kernel is running."""
    try:
        from IPython.core.getipython import get_ipython

        if getattr(get_ipython(), "kernel", None) is None:
            return None
        from bert_probe.notebook.bridge import Bridge
    except ImportError:
        return None
    bridge = Bridge(key=uuid.uuid4().hex)
    bridge.observe(lambda change: on_view(change["new"]), "view")
    return bridge
