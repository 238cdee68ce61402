"""The widget that passes messages between a view's frame and the kernel, with `js/notebook/bridge.js`."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from bert_probe.views import built


class Bridge(anywidget.AnyWidget):
    """A widget model without a visible view. Frames also work without it.

    Attributes:
        key: Key of the frames that the widget communicates with.
        view: The last view that a frame reported.
        wish: The view that the kernel requests.
    """

    _esm = built.script("bridge")
    key = traitlets.Unicode().tag(sync=True)
    view: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    wish: traitlets.Dict[str, Any] = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)
