"""Names and descriptions of the head measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadMeasure:
    """Group, name and description of a head measure."""

    group: str
    name: str  # column heading
    meaning: str  # description in one sentence

    @property
    def title(self) -> str:
        """The title of a heatmap that shows the measure for all heads."""
        return f"{self.name[0].upper()}{self.name[1:]}, by head"


MEASURES = {
    "previous": HeadMeasure("Position", "previous token", "Share of attention on the previous token."),
    "next": HeadMeasure("Position", "next token", "Share of attention on the next token."),
    "self": HeadMeasure("Position", "same token", "Share of attention that a token pays to itself."),
    "mean_distance": HeadMeasure(
        "Position", "distance", "Mean distance of the attended tokens: Σ weight × |query − key|."
    ),
    "first": HeadMeasure(
        "Special tokens",
        "first token",
        "Share of attention on the first token, [CLS] or <s>; heads often attend to this token when no "
        "other token is relevant.",
    ),
    "separator": HeadMeasure(
        "Special tokens",
        "separator",
        "Share of attention on [SEP] or the model's separator, to which heads often attend when no "
        "other token is relevant.",
    ),
    "same_word": HeadMeasure(
        "Words", "same word", "Share of attention on the other tokens of the same word."
    ),
    "same_token": HeadMeasure(
        "Words", "repeated token", "Share of attention on the same token at other positions."
    ),
    "punctuation": HeadMeasure("Words", "punctuation", "Share of attention on punctuation marks."),
    "other_segment": HeadMeasure(
        "Words", "other segment", "Share of attention on the other sentence of a pair; 0 for a single text."
    ),
    "entropy_bits": HeadMeasure(
        "Spread",
        "entropy",
        "Entropy of a row in bits: 0 for a single key, log₂ of the number of keys for equal weights.",
    ),
    "relative_entropy": HeadMeasure(
        "Spread",
        "normalized entropy",
        "Entropy divided by the entropy of a uniform row: 0 for a single key, 1 for equal weights.",
    ),
    "difference_from_mean": HeadMeasure(
        "Spread",
        "difference from layer mean",
        "Total variation distance between a head's rows and the mean of its layer, from 0 to 1.",
    ),
}
LABELLING = (
    "A head is labeled with its largest share if that share is at least one half. Otherwise it is labeled "
    "“broad” if its normalized entropy is at least 0.85."
)

CHANGES = {
    "total_variation": HeadMeasure(
        "Change",
        "Total variation",
        "The share of an aligned token's attention that moves to other keys, "
        "averaged over the aligned tokens: 0 for equal rows, 1 for disjoint rows.",
    ),
    "jensen_shannon": HeadMeasure(
        "Change",
        "Jensen–Shannon",
        "The square root of the Jensen–Shannon divergence (base 2) between a token's rows, "
        "averaged over the aligned tokens: 0 for equal rows, 1 for disjoint rows.",
    ),
}
"""Measures of how much a head's attention differs between two texts."""
