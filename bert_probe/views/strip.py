"""A text as its tokens: pills that flow like words, of which one may be chosen."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Mark = Literal["", "changed", "partner"]
"""Beside another text: nothing, without a counterpart there, or the counterpart of what is chosen."""


@dataclass(frozen=True)
class StripToken:
    """One token as the reader sees it."""

    text: str
    position: int
    segment: int  # 0 for the first text, 1 for the second
    special: bool
    joined: bool  # continues the word of the piece before it
    detail: str  # shown on hover and focus
    mark: Mark = ""


def described(
    pieces: Sequence[StripToken],
    *,
    key: str,
    of: str,
    label: str,
    selectable: Literal["none", "one"] = "none",
    row: bool = False,
) -> dict[str, object]:
    """Return what the browser draws of pieces in their order.

    Args:
        key: the component's key, under which the browser remembers the reader's choice.
        of: names the text whose pieces these are.
        row: keep all in one row, which is pushed aside.
    """
    return {
        "key": key,
        "of": of,
        "digest": digest(pieces),
        "pieces": [_record(piece) for piece in pieces],
        "label": label,
        "row": row,
        "selectable": selectable == "one",
    }


def _record(piece: StripToken) -> dict[str, object]:
    return {
        "text": piece.text,
        "position": piece.position,
        "kind": "special" if piece.special else "B" if piece.segment else "A",
        "joined": piece.joined,
        "detail": piece.detail,
        "mark": piece.mark,
    }


def digest(pieces: Sequence[StripToken]) -> str:
    """Return a name of the pieces, so that a choice among others is dropped."""
    shown = json.dumps([[piece.text, piece.position, piece.mark] for piece in pieces])
    return hashlib.sha256(shown.encode()).hexdigest()[:16]


def chosen(
    report: Mapping[str, Any] | None, pieces: Sequence[StripToken], selected: int | None
) -> int | None:
    """Return the position of the chosen piece: the one that holds the reported position, else `selected`.

    Raises:
        ValueError: a position occurs twice, or `selected` is the position of none of the pieces.
    """
    positions = [piece.position for piece in pieces]
    if len(set(positions)) != len(positions):
        raise ValueError("Two pieces have the same position.")
    if selected is not None and selected not in positions:
        raise ValueError(
            f"selected is {selected}, which is the position of none of the {len(pieces)} pieces."
        )
    position = None if report is None else report.get("position")
    if type(position) is not int:
        return selected
    return max((start for start in positions if start <= position), default=selected)
