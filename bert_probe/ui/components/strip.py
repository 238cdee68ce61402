"""The strip of tokens in a page."""

from collections.abc import Sequence
from typing import Literal

from bert_probe.ui.components import choices
from bert_probe.ui.components.mounting import mounted
from bert_probe.views.strip import StripToken, chosen, described, digest


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
    """Draw pieces in their order; with `selectable="one"` return the position that is chosen, if any.

    `selected` is the position chosen at first; the reader's own choice outlives reruns until the text
    changes; `row` keeps all pieces in one row, which is pushed aside. Pieces of one `text` may be merged
    differently from run to run: the choice then stays on the piece that holds the chosen position. Raises
    ValueError for a position that occurs twice or a `selected` that is none of them.
    """
    name = digest(pieces) if text is None else text
    revision, report = choices.latest(key, "chosen", name)
    now = chosen(report, pieces, selected)
    data = described(pieces, key=key, of=name, label=label, selectable=selectable, row=row)
    _component(key=key, data={**data, "revision": revision, "selected": now}, on_chosen_change=_ignore)
    return None if selectable == "none" else now


def _ignore() -> None:
    """Streamlit lists a state value in the result only if it has a callback."""


_component = mounted("strip", '<div class="strip"></div>')
