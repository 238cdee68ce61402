"""The token strip as a Streamlit component."""

from collections.abc import Sequence
from typing import Literal

from bert_probe.ui.components import choices
from bert_probe.ui.components.mounting import mounted
from bert_probe.views.strip import StripToken, digest, selected_position, strip_data


def strip(
    pieces: Sequence[StripToken],
    *,
    key: str,
    label: str,
    selectable: Literal["none", "one"] = "none",
    selected: int | None = None,
    row: bool = False,
    text: str | None = None,
) -> int | None:
    """Draw tokens in order; with `selectable="one"` return the selected position, if any.

    `selected` is the initial position. The user's selection survives reruns until `text` (by default a digest
    of the tokens) changes. If the same text is split into other tokens, the token that contains the selected
    position is selected. `row` keeps all tokens in one scrolling row. Raises ValueError for a repeated
    position, or if `selected` is not one of the positions.
    """
    name = digest(pieces) if text is None else text
    revision, report = choices.latest(key, "token", name)
    position = selected_position(report, pieces, selected)
    data = strip_data(pieces, key=key, of=name, label=label, selectable=selectable, row=row)
    _component(key=key, data={**data, "revision": revision, "selected": position}, on_token_change=_ignore)
    return None if selectable == "none" else position


def _ignore() -> None:
    """Do nothing. Streamlit returns a state value only if a callback is registered for it."""


_component = mounted("strip")
