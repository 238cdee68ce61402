"""Choice of the attention head to show first for a text: the head that stands out most."""

from __future__ import annotations

from dataclasses import dataclass

from bert_probe.analyses.attention.attention import Head
from bert_probe.analyses.attention.heads import LABEL_SHARE, SHARE_TARGETS, SHARES, measure_heads
from bert_probe.model.trace import Trace

SPECIALIZED_SHARES = tuple(share for share in SHARES if share not in ("first", "separator"))
"""Attention shares by which a head can stand out; the shares of attention sinks are excluded."""

MAX_QUERIES = 64
"""Maximum number of queries that are measured, so that long texts open quickly.

The queries are taken from the beginning of the text.
"""

MAX_TOKENS = 1024
"""Maximum number of tokens of a text whose heads are measured.

With some attention masks, measuring a few queries requires the attention of a whole layer.
"""


@dataclass(frozen=True)
class FirstLook:
    """The attention head to show first, with the reason.

    Attributes:
        layer, head: indices from 0. They are the last layer and "mean" if no head stands out, if rows of
            attention do not sum to 1, or if the text has more than `MAX_TOKENS` tokens.
        measure: the share by which the head stands out, one of `SPECIALIZED_SHARES`; "" if no head does.
        share: value of this share, 0 to 1, averaged over the queries.
        queries: number of queries measured.
        is_complete: whether all tokens of the text were measured as queries.
    """

    layer: int
    head: Head
    measure: str = ""
    share: float = 0.0
    queries: int = 0
    is_complete: bool = True

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes, used by the cache."""
        return 64

    @property
    def reason(self) -> str:
        """Reason for showing the head, as a predicate such as "puts 60 % of its attention on …".

        "" if no head stands out.
        """
        if not self.measure:
            return ""
        queries = "" if self.is_complete else f" (mean over the first {self.queries} tokens)"
        return f"puts {100 * self.share:.0f} % of its attention on {SHARE_TARGETS[self.measure]}{queries}"


def first_look(trace: Trace) -> FirstLook:
    """Return the attention head that stands out most on a text.

    Candidates are the heads whose largest share is one of `SPECIALIZED_SHARES` and at least `LABEL_SHARE`.
    For each candidate, the excess of its share over the mean of that share over all heads of the model is
    computed. The result is the candidate with the largest excess; in a tie, the first one.

    Raises:
        OutOfMemoryError: see `Heads.of`.
    """
    best = FirstLook(trace.layers - 1, "mean")
    if trace.caveat or len(trace.tokens) > MAX_TOKENS:
        return best  # attention shares are meaningless in this case
    values = measure_heads(trace, None, MAX_QUERIES)
    queries = min(MAX_QUERIES, len(trace.tokens))
    means = {name: values[name].mean() for name in SPECIALIZED_SHARES}
    largest_excess = 0.0
    for layer in range(trace.layers):
        for head in range(trace.heads):
            name = max(SHARES, key=lambda share: values[share][layer, head])
            share = float(values[name][layer, head])
            if name in means and share >= LABEL_SHARE and share - means[name] > largest_excess:
                best = FirstLook(layer, head, name, share, queries, queries == len(trace.tokens))
                largest_excess = share - means[name]
    return best
