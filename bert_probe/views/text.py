"""Labels of tokens and words, and the data of token strips."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bert_probe.model.encoding import Token
from bert_probe.text.words import Unit

MAX_CHARACTERS = 100
"""Maximum length of a label in characters. Data files contain the complete token."""
Mark = Literal["", "changed", "partner"]
"""Mark of a token in a comparison of two texts: "changed" for a token without counterpart in the other text,
"partner" for the counterpart of the selected token."""


def shorten(text: str) -> str:
    """Return the label of a token or word. A long label is truncated, and its length is appended."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text):,} characters)"


def percentage(value: float) -> str:
    """Return a percentage as text with one decimal. Only exactly 100 is written as 100.0%.

    NaN, an undefined percentage, is written as "an undefined share".
    """
    if math.isnan(value):
        return "an undefined share"
    return f"{value if value == 100 else min(value, 99.9):.1f}%"


def describe_calibration(calibration: Mapping[str, Any]) -> str:
    """Return a sentence about a score, or about the distribution of scores if no score is marked.

    Args:
        calibration: the dict that `SimilarityCalibrationResult.about` returns.

    Raises:
        TypeError, ValueError, LookupError: the dict is invalid.
    """
    # Import here, because this import loads torch, and the app uses this module before torch is loaded.
    from bert_probe.analyses.vectors.pooling import SCORES

    reference = f"random pairs of {int(calibration['sentences']):,} short English reference sentences"
    if "prompts" in calibration:
        reference = f"{reference} with the prompts of these two texts"
    name = calibration["score_name"]
    if name not in SCORES.values():
        raise ValueError(f"{name!r} is not the name of a score.")
    if "score" in calibration:
        share = percentage(float(calibration["percentile"]))
        return f"{float(calibration['score']):.4f} is higher than the {name} of {share} of {reference}."
    median, high, highest = (float(calibration["percentiles"][key]) for key in ("50", "95", "99"))
    return (
        f"Half of the {reference} have a {name} below {median:.2f}, 95% have a {name} below {high:.2f}, "
        f"and 99% have a {name} below {highest:.2f}."
    )


def labels(units: Sequence[Token | Unit]) -> list[str]:
    """Return the label of each token or word; see `shorten`."""
    return [shorten(unit.display) for unit in units]


class ResidueNumbers(list[int | None]):
    """Residue numbers of a protein, from 1. An axis with these numbers is drawn as a ruler."""


def positions(units: Sequence[Token | Unit]) -> Sequence[int | None]:
    """Return the residue numbers of a protein, or the token positions of any other text.

    Special tokens of a protein have the number None.
    """
    if any(unit.residue is not None for unit in units):
        return ResidueNumbers(unit.residue for unit in units)
    return [unit.position for unit in units]


def ruler_number(unit: Token | Unit) -> str:
    """Return the number of the first and of each tenth residue of a protein; "" for other tokens."""
    residue = unit.residue
    return str(residue) if residue is not None and (residue == 1 or residue % 10 == 0) else ""


def describe_place(unit: Token | Unit) -> str:
    """Return the position of a token or word as text: "position 11", or "residue 10" in a protein."""
    return f"position {unit.position}" if unit.residue is None else f"residue {unit.residue}"


def place_name(unit: Token | Unit) -> str:
    """Return a token or word with its position: "ground (11)", or "K10" for a residue of a protein."""
    name = shorten(unit.display)
    return f"{name} ({unit.position})" if unit.residue is None else f"{name}{unit.residue}"


@dataclass(frozen=True)
class StripToken:
    """A token in a token strip."""

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
    """Return the data of a token strip as JSON data.

    Args:
        pieces: The tokens in their order.
        key: Key of the component, under which the browser stores the selection.
        of: Identifier of the text.
        label: Accessible name of the strip.
        selectable: "one" if a token can be selected, "none" otherwise.
        row: Whether to keep all tokens in a single scrollable row.
    """
    return {
        "key": key,
        "of": of,
        "digest": strip_digest(pieces),
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


def strip_digest(pieces: Sequence[StripToken]) -> str:
    """Return a hash of the tokens. A selection that the browser reports with another hash is stale."""
    content = json.dumps([[piece.text, piece.position, piece.mark] for piece in pieces])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def selected_position(
    report: Mapping[str, Any] | None, pieces: Sequence[StripToken], selected: int | None
) -> int | None:
    """Return the position of the token that the browser reports as selected, or `selected` without a report.

    If the strip contains words, a reported position within a word selects the word.

    Raises:
        ValueError: A position occurs twice, or `selected` is not the position of a token.
    """
    positions = [piece.position for piece in pieces]
    if len(set(positions)) != len(positions):
        raise ValueError("Two tokens have the same position, but each token must have its own position.")
    if selected is not None and selected not in positions:
        raise ValueError(f"selected must be the position of one of the {len(pieces)} tokens, not {selected}.")
    position = None if report is None else report.get("position")
    if type(position) is not int:
        return selected
    return max((start for start in positions if start <= position), default=selected)
