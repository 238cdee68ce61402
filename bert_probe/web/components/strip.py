"""The strip of tokens in a page."""

from collections.abc import Sequence
from typing import Literal

import streamlit as st

from bert_probe.views.strip import Piece, chosen, described, digest
from bert_probe.web.components.mounting import mounted


def strip(
    pieces: Sequence[Piece],
    *,
    key: str,
    label: str,
    selectable: Literal["none", "one"] = "none",
    selected: int | None = None,
    row: bool = False,
) -> int | None:
    """Draw pieces in their order; with `selectable="one"` return the position that is chosen, if any.

    `selected` is the position chosen at first; the reader's own choice outlives reruns until the pieces
    change; `row` keeps all pieces in one row, which is pushed aside. Raises ValueError for a position that
    occurs twice or a `selected` that is none of them.
    """
    name = digest(pieces)
    held = chosen(st.session_state.get(key), name)
    data = described(pieces, label=label, selectable=selectable, selected=selected, held=held, row=row)
    result = _component(key=key, data=data, on_chosen_change=_ignore)
    if selectable == "none":
        return None
    position = chosen(result, name)
    return position if position in [piece.position for piece in pieces] else selected


def _ignore() -> None:
    """Streamlit lists a state value in the result only if it has a callback."""


_component = mounted("strip", '<div class="strip"></div>')
