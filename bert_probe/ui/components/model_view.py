"""The model view as a Streamlit component."""

from collections.abc import Callable

import streamlit as st

from bert_probe.ui.components.mounting import mounted
from bert_probe.views.model_view import HeadThumbnail, read_opened_head


def model_view(
    data: bytes, shape: tuple[int, int], *, key: str, on_open: Callable[[HeadThumbnail], None] | None = None
) -> HeadThumbnail | None:
    """Draw the model view and return the head that was just clicked, once per click.

    `shape` is the number of layers and of heads. `on_open` is called before the script reruns, so it may set
    the values of widgets.
    """

    def on_click() -> None:
        head = read_opened_head(st.session_state.get(key), shape)
        if head is not None and on_open is not None:
            on_open(head)

    # Streamlit returns a trigger value only if a callback is registered for it.
    return read_opened_head(_component(key=key, data=data, on_opened_change=on_click), shape)


_component = mounted("model_view")
