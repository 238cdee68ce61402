"""Labels of tokens and words, which are shortened, because a user's text may contain a very long word."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bert_probe.model.encoding import Token
from bert_probe.text.words import Unit

MAX_CHARACTERS = 100
"""Maximum length of a label, in characters; data files contain the complete token."""


def shorten(text: str) -> str:
    """Return the label of a token or word. If too long, it is truncated and its length is appended."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text):,} characters)"


def percentage(value: float) -> str:
    """Return a percentage with one decimal; only 100 is written as 100.0%.

    An undefined percentage is NaN and is written as "an undefined share".
    """
    if math.isnan(value):
        return "an undefined share"
    return f"{value if value == 100 else min(value, 99.9):.1f}%"


def describe_calibration(calibration: Mapping[str, Any]) -> str:
    """Return a sentence about a score, or about the distribution of scores if no score is marked.

    Args:
        calibration: what `SimilarityCalibrationResult.about` returns.

    Raises:
        TypeError, ValueError, LookupError: the values do not have this form.
    """
    # Imported here, because the input form labels tokens before torch is imported.

    from bert_probe.analyses.vectors.pooling import SCORES  # slow: imports torch

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
        f"Half of the {reference} have a {name} below {median:.2f}, 95% have one below {high:.2f}, and 99% "
        f"have one below {highest:.2f}."
    )


def labels(units: Sequence[Token | Unit]) -> list[str]:
    """Return the label of each token or word, shortened if necessary."""
    return [shorten(unit.display) for unit in units]


class ResidueNumbers(list[int | None]):
    """Residue numbers of a sequence, from 1. An axis with these numbers is drawn as a ruler."""


def positions(units: Sequence[Token | Unit]) -> Sequence[int | None]:
    """Return the numbers of residues, or the positions in the model's input if the tokens are not residues.

    A special token of a sequence has no number.
    """
    if any(unit.residue is not None for unit in units):
        return ResidueNumbers(unit.residue for unit in units)
    return [unit.position for unit in units]


def ruler_number(unit: Token | Unit) -> str:
    """Return the number of the first and of each tenth residue of a sequence; "" for all other units."""
    residue = unit.residue
    return str(residue) if residue is not None and (residue == 1 or residue % 10 == 0) else ""


def describe_place(unit: Token | Unit) -> str:
    """Return the place of a token or word: "position 11", or "residue 10" in a sequence."""
    return f"position {unit.position}" if unit.residue is None else f"residue {unit.residue}"


def place_name(unit: Token | Unit) -> str:
    """Return a token or word with its place: "ground (11)", or "K10" for the tenth residue of a sequence."""
    name = shorten(unit.display)
    return f"{name} ({unit.position})" if unit.residue is None else f"{name}{unit.residue}"
