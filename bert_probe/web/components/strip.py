"""A text as its tokens: pills that flow like words, of which one may be chosen."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import streamlit as st
from streamlit.components.v2 import component

from bert_probe.web import palette

_FOLDER: Final = Path(__file__).parent
# One ES module in two files: the browser gets them joined.
_SCRIPTS: Final = ("visible_text.js", "strip.js")


Mark = Literal["", "changed", "partner"]
"""Beside another text: nothing, without a counterpart there, or the counterpart of what is chosen."""


@dataclass(frozen=True)
class Piece:
    """One token as the reader sees it."""

    text: str
    position: int
    segment: int  # 0 for the first text, 1 for the second
    special: bool
    joined: bool  # continues the word of the piece before it
    detail: str  # shown on hover and focus
    mark: Mark = ""


def strip(
    pieces: Sequence[Piece],
    *,
    key: str,
    label: str,
    selectable: Literal["none", "one"] = "none",
    selected: int | None = None,
) -> int | None:
    """Draw pieces in their order; with `selectable="one"` return the position that is chosen, if any.

    `selected` is the position chosen at first; the reader's own choice outlives reruns until the pieces
    change. Raises ValueError for a position that occurs twice or a `selected` that is none of them.
    """
    positions = [piece.position for piece in pieces]
    if len(set(positions)) != len(positions):
        raise ValueError("Two pieces have the same position.")
    if selected is not None and selected not in positions:
        raise ValueError(
            f"selected is {selected}, which is the position of none of the {len(pieces)} pieces."
        )
    digest = _digest(pieces)
    held = _chosen(st.session_state.get(key), digest)
    data = {
        "pieces": [_record(piece) for piece in pieces],
        "digest": digest,
        "label": label,
        "selectable": selectable == "one",
        "initial": selected,
        "selected": selected if held not in positions else held,
        "tints": {name: list(tint) for name, tint in palette.SEGMENTS.items()},
    }
    result = _component(key=key, data=data, on_chosen_change=_ignore)
    if selectable == "none":
        return None
    chosen = _chosen(result, digest)
    return chosen if chosen in positions else selected


def _record(piece: Piece) -> dict[str, object]:
    return {
        "text": piece.text,
        "position": piece.position,
        "kind": "special" if piece.special else "B" if piece.segment else "A",
        "joined": piece.joined,
        "detail": piece.detail,
        "mark": piece.mark,
    }


def _digest(pieces: Sequence[Piece]) -> str:
    shown = json.dumps([[piece.text, piece.position, piece.mark] for piece in pieces])
    return hashlib.sha256(shown.encode()).hexdigest()[:16]


def _chosen(state: Any, digest: str) -> int | None:
    """The position in a component's state; None if it was chosen among other pieces."""
    held = state.get("chosen") if isinstance(state, Mapping) else None
    if not isinstance(held, Mapping) or held.get("digest") != digest:
        return None
    position = held.get("position")
    return position if type(position) is int else None


def _ignore() -> None:
    """Streamlit lists a state value in the result only if it has a callback."""


_component = component(
    "bert_probe.strip",
    html='<div class="strip"></div>',
    css=(_FOLDER / "strip.css").read_text(encoding="utf-8"),
    js="\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS),
)
