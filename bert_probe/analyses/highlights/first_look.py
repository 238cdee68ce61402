"""What of a text is worth seeing first: the head that stands out most, by what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bert_probe.analyses.attention.attention import Head
from bert_probe.analyses.attention.head_measures import SHARES, measure_heads
from bert_probe.analyses.attention.heads import LABEL_SHARE
from bert_probe.model.trace import Trace

DOES: Final = {
    "self": "looks at the token itself",
    "previous": "looks at the token before",
    "next": "looks at the next token",
    "punctuation": "looks at punctuation",
    "other_segment": "looks at the other segment",
    "same_word": "looks at the rest of the word",
    "same_token": "looks at the same token elsewhere",
}
"""What a head does whose largest share is this one. Resting on [CLS] or [SEP] is no such thing."""

QUERIES: Final = 64
"""Tokens, from the beginning of a text, that are measured: a first picture of a long text does not wait."""


MOST: Final = 1024
"""Tokens of a text that is looked at; under some masks a whole layer has to be computed, however few are."""


@dataclass(frozen=True)
class FirstLook:
    """Where to look first.

    Attributes:
        layer, head: from 0; the mean over the heads of the last layer where none stands out, or the text is
            longer than `MOST`.
        measure: one of `DOES`, or "".
        share: of the head's attention, averaged over the queries.
        queries: how many tokens were measured.
        whole: whether those are all there are.
    """

    layer: int
    head: Head
    measure: str = ""
    share: float = 0.0
    queries: int = 0
    whole: bool = True

    @property
    def nbytes(self) -> int:
        """Next to nothing."""
        return 64

    @property
    def reason(self) -> str:
        """Why, in a line; empty where no head stands out."""
        if not self.measure:
            return ""
        whose = "its attention" if self.whole else f"the attention of the first {self.queries} tokens"
        return f"{DOES[self.measure]}, {self.share:.2f} of {whose}"


def first_look(trace: Trace) -> FirstLook:
    """The head that stands out most on this text.

    Of all heads whose largest share is one of `DOES` and at least `LABEL_SHARE`: the one whose share lies
    farthest above the mean of that share over all heads of the model; of equal ones the first.

    Raises:
        OutOfMemoryError: see `Heads.of`.
    """
    nothing = FirstLook(trace.layers - 1, "mean")
    if trace.caveat or len(trace.tokens) > MOST:
        return nothing  # half of a row is not one half where rows do not sum to 1
    values = measure_heads(trace, None, QUERIES)
    queries = min(QUERIES, len(trace.tokens))
    usual = {name: values[name].mean() for name in DOES}
    best, farthest = nothing, 0.0
    for layer in range(trace.layers):
        for head in range(trace.heads):
            name = max(SHARES, key=lambda one: values[one][layer, head])
            share = float(values[name][layer, head])
            if name in DOES and share >= LABEL_SHARE and share - usual[name] > farthest:
                best = FirstLook(layer, head, name, share, queries, queries == len(trace.tokens))
                farthest = share - usual[name]
    return best
