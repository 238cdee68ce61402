"""The model view in a page."""

from collections.abc import Callable

import streamlit as st

from bert_probe.ui.components.mounting import mounted
from bert_probe.views.model_view import HeadThumbnail, opened


def model_view(
    data: bytes, shape: tuple[int, int], *, key: str, on_open: Callable[[HeadThumbnail], None] | None = None
) -> HeadThumbnail | None:
    """Draw a `payload` of so many layers and heads, and return the head that was just clicked, told once.

    `on_open` is told of a click before the script runs again, and so may still set other widgets.
    """

    def tell() -> None:
        head = opened(st.session_state.get(key), shape)
        if head is not None and on_open is not None:
            on_open(head)

    # Streamlit lists a trigger in the result only if it has a callback.
    return opened(_component(key=key, data=data, on_opened_change=tell), shape)


_component = mounted("model_view", '<section class="matrix model-view"></section>')
