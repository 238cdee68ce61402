"""What takes messages between a view's frame and the kernel; its other half is `js/notebook/bridge.js`."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from bert_probe.views import built


class Bridge(anywidget.AnyWidget):
    """A model without a view: its picture is the frame, which is there without it.

    Attributes:
        key: names the frames that it listens to.
        view: what a frame last said that it shows.
        wish: what the frames are to show.
    """

    _esm = built.script("bridge")
    key = traitlets.Unicode().tag(sync=True)
    view: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    wish: traitlets.Dict[str, Any] = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)
