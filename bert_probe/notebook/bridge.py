"""The widget that, with `js/notebook/bridge.js`, passes messages between a view's frame and the kernel."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from bert_probe.views import built


class Bridge(anywidget.AnyWidget):
    """An invisible widget that connects frames to the kernel. Frames also work without a bridge.

    Attributes:
        key: Key that the widget shares with its frames.
        view: The last view state that a frame reported.
        wish: The view state that the kernel asks the frames to display.
    """

    _esm = built.script("bridge")
    key = traitlets.Unicode().tag(sync=True)
    view: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    wish: traitlets.Dict[str, Any] = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)
