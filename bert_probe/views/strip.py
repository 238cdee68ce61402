"""The token strip: the tokens of a text as pills in wrapped rows, one of which can be selected."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Mark = Literal["", "changed", "partner"]
"""Mark of a token in a comparison: "changed" for a token without a counterpart, "partner" for the counterpart
of the selected token."""


@dataclass(frozen=True)
class StripToken:
    """A token of a strip."""

    text: str
    position: int
    segment: int  # 0 for the first text, 1 for the second
    special: bool
    joined: bool  # whether the token continues the word of the previous token
    detail: str  # tooltip
    mark: Mark = ""
    number: str = ""  # small number after the text, such as a residue number


def strip_data(
    pieces: Sequence[StripToken],
    *,
    key: str,
    of: str,
    label: str,
    selectable: Literal["none", "one"] = "none",
    row: bool = False,
) -> dict[str, object]:
    """Return the data of a strip as JSON.

    Args:
        pieces: The tokens in their order.
        key: Key of the component, under which the browser stores the selection.
        of: Identifier of the text.
        label: Accessible name.
        selectable: Whether a token can be selected.
        row: Whether to keep all tokens in a single scrollable row.
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
        "number": piece.number,
    }


def digest(pieces: Sequence[StripToken]) -> str:
    """Return a hash of the tokens; a selection with another hash is stale."""
    content = json.dumps([[piece.text, piece.position, piece.mark] for piece in pieces])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def selected_position(
    report: Mapping[str, Any] | None, pieces: Sequence[StripToken], selected: int | None
) -> int | None:
    """Return the position of the token that the browser reports as selected, by default `selected`.

    A reported position within a word selects the word.

    Raises:
        ValueError: A position occurs twice, or `selected` is not the position of a token.
    """
    positions = [piece.position for piece in pieces]
    if len(set(positions)) != len(positions):
        raise ValueError("Two tokens have the same position.")
    if selected is not None and selected not in positions:
        raise ValueError(f"selected must be the position of one of the {len(pieces)} tokens, not {selected}.")
    position = None if report is None else report.get("position")
    if type(position) is not int:
        return selected
    return max((start for start in positions if start <= position), default=selected)
