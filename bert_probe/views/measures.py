"""What is measured of a head, in words for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadMeasure:
    """A measure of a head as a person reads it.

    Attributes:
        name: short, for a column; group is what it is about.
        meaning: one sentence.
    """

    group: str
    name: str
    meaning: str

    @property
    def title(self) -> str:
        """Of a picture of all heads."""
        return f"{self.name[0].upper()}{self.name[1:]}, by head"


MEASURES = {
    "previous": HeadMeasure("Place", "previous token", "Share of attention on the token before."),
    "next": HeadMeasure("Place", "next token", "Share of attention on the token after."),
    "self": HeadMeasure("Place", "same token", "Share of attention that a token keeps for itself."),
    "mean_distance": HeadMeasure(
        "Place", "distance", "How many tokens away a head looks on average: Σ weight × |query − key|."
    ),
    "first": HeadMeasure(
        "Special tokens",
        "first token",
        "Share of attention on the first token, [CLS] or <s>: often where a head looks when it has nothing "
        "to do.",
    ),
    "separator": HeadMeasure(
        "Special tokens",
        "separator",
        "Share of attention on [SEP], or the model's own separator: often a place to rest, too.",
    ),
    "same_word": HeadMeasure(
        "Words", "same word", "Share of attention on the other pieces of the same word."
    ),
    "same_token": HeadMeasure(
        "Words", "repeated token", "Share of attention on the same token at another place."
    ),
    "punctuation": HeadMeasure("Words", "punctuation", "Share of attention on punctuation marks."),
    "other_segment": HeadMeasure(
        "Words", "other segment", "Share of attention on the other sentence of a pair; 0 without a pair."
    ),
    "entropy_bits": HeadMeasure(
        "Spread",
        "entropy",
        "How spread out a row is, in bits: 0 for a single key, log₂ of the number of keys for all alike.",
    ),
    "relative_entropy": HeadMeasure(
        "Spread",
        "relative entropy",
        "Entropy divided by that of a uniform row: 0 for a single key, 1 for all alike.",
    ),
    "difference_from_mean": HeadMeasure(
        "Spread",
        "unlike its layer",
        "How much a head's rows differ from the mean over its layer: total variation, 0 to 1.",
    ),
}
LABELLING = (
    "A label is given where a share is at least one half, or, for “broad”, where the relative entropy is at "
    "least 0.85."
)

CHANGES = {
    "total_variation": HeadMeasure(
        "Change",
        "Total variation",
        "The share of its attention that an aligned token gives to other keys than before, "
        "averaged over the aligned tokens: 0 for the same rows, 1 for rows with nothing in common.",
    ),
    "jensen_shannon": HeadMeasure(
        "Change",
        "Jensen–Shannon",
        "The square root of the Jensen–Shannon divergence to base 2 between a token's rows, "
        "averaged over the aligned tokens: 0 for the same rows, 1 for rows with nothing in common.",
    ),
}
"""How much a head changed between two texts, in words for people."""
