"""The model view in a page."""

from collections.abc import Callable, Mapping, Sequence

import streamlit as st
from numpy.typing import ArrayLike

from bert_probe.analyses.thumbnails import Thumbnails
from bert_probe.views.model_view import SHARES, Head, opened, payload
from bert_probe.views.scale import Scale
from bert_probe.web.components.mounting import mounted


def model_view(
    thumbs: Thumbnails,
    labels: Sequence[Sequence[str]],
    measures: Mapping[str, ArrayLike],
    *,
    key: str,
    caption: str,
    source: str = "",
    value_name: str = "attention weight",
    scale: Scale = SHARES,
    on_open: Callable[[Head], None] | None = None,
) -> Head | None:
    """Draw every head and return the one that was just clicked; a click is told once.

    See `views.model_view.payload`. `on_open` is told of a click before the script runs again, and so may
    still set other widgets. Raises ValueError if the shapes do not fit together, or for a diverging scale.
    """
    shape = (thumbs.layers, thumbs.heads)
    said = {"caption": caption, "source": source, "value_name": value_name}
    data = payload(thumbs, labels, measures, key=key, scale=scale, **said)

    def tell() -> None:
        head = opened(st.session_state.get(key), shape)
        if head is not None and on_open is not None:
            on_open(head)

    # Streamlit lists a trigger in the result only if it has a callback.
    return opened(_component(key=key, data=data, on_opened_change=tell), shape)


_component = mounted("model_view", '<section class="matrix model-view"></section>')
