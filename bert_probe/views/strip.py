"""A text as its tokens: pills that flow like words, of which one may be chosen."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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


def described(
    pieces: Sequence[Piece],
    *,
    label: str,
    selectable: Literal["none", "one"] = "none",
    selected: int | None = None,
    held: int | None = None,
    row: bool = False,
) -> dict[str, object]:
    """What the browser draws of pieces in their order; `held` is the position that its reader chose.

    `selected` is the position chosen at first; `row` keeps all in one row, which is pushed aside.
    Raises ValueError for a position that occurs twice or a `selected` that is none of them.
    """
    positions = [piece.position for piece in pieces]
    if len(set(positions)) != len(positions):
        raise ValueError("Two pieces have the same position.")
    if selected is not None and selected not in positions:
        raise ValueError(
            f"selected is {selected}, which is the position of none of the {len(pieces)} pieces."
        )
    return {
        "pieces": [_record(piece) for piece in pieces],
        "digest": digest(pieces),
        "label": label,
        "row": row,
        "selectable": selectable == "one",
        "initial": selected,
        "selected": selected if held not in positions else held,
    }


def _record(piece: Piece) -> dict[str, object]:
    return {
        "text": piece.text,
        "position": piece.position,
        "kind": "special" if piece.special else "B" if piece.segment else "A",
        "joined": piece.joined,
        "detail": piece.detail,
        "mark": piece.mark,
    }


def digest(pieces: Sequence[Piece]) -> str:
    """Names the pieces, so that a choice among others is let go."""
    shown = json.dumps([[piece.text, piece.position, piece.mark] for piece in pieces])
    return hashlib.sha256(shown.encode()).hexdigest()[:16]


def chosen(state: Any, digest: str) -> int | None:
    """The position in what a browser reports; None if it was chosen among other pieces."""
    held = state.get("chosen") if isinstance(state, Mapping) else None
    if not isinstance(held, Mapping) or held.get("digest") != digest:
        return None
    position = held.get("position")
    return position if type(position) is int else None
