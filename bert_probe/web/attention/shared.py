"""What is drawn: weights or another measure, of tokens or of words; one choice for all views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ref

import streamlit as st

from bert_probe.analyses.attention import Attention, AttentionLong, Head
from bert_probe.analyses.measures import Measure
from bert_probe.analyses.measures import measure as measure_named
from bert_probe.model.progress import Report
from bert_probe.model.trace import Trace
from bert_probe.web import blocks, jobs, state


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a reader chose to see of a text.

    Attributes:
        trace: of the text that is shown.
        measure, words, residual: see `Attention`.
    """

    trace: Trace
    measure: str
    words: bool
    residual: float

    @property
    def what(self) -> Measure:
        """The measure itself."""
        return measure_named(self.measure)

    def one(self, layer: int, head: Head, *, specials: bool = True, renormalise: bool = False) -> Attention:
        """What is asked of a layer and head, from 0."""
        return Attention(layer, head, self.measure, self.words, specials, renormalise, self.residual)

    def all(
        self,
        layers: Sequence[int] | None = None,
        heads: Sequence[Head] | None = None,
        *,
        specials: bool = True,
        renormalise: bool = False,
    ) -> AttentionLong:
        """What is asked of several."""
        return AttentionLong(layers, heads, self.measure, self.words, specials, renormalise, self.residual)


def computed(drawn: Drawn, layers: Sequence[int], *, start: bool = True) -> bool:
    """Whether these layers, from 0, can be drawn at once; until then, the work that takes long.

    Args:
        start: begin at once; otherwise a button is drawn first.

    Raises:
        ProbeError: what the work raised.
    """
    trace, what = drawn.trace, drawn.what
    if not any(what.takes_long(trace, layer) for layer in layers):
        return True

    def work(report: Report) -> bool:
        drawn.all(list(layers)).of(trace, report)
        return True  # nothing that would hold the trace for as long as the session has the job

    done = jobs.run(
        "measure" if start else "measure of all layers",
        (ref(trace), what.name, tuple(layers)),  # what is computed is kept with this very trace
        f"Compute {what.label.lower()}" if start else "Compute all layers first",
        work,
        "runs of a layer",
        f"{len(layers) * len(trace.tokens):,} runs of a layer. You can cancel at any time.",
        start=start,
    )
    return done is True


def choose(trace: Trace, measures: Sequence[Measure]) -> Drawn:
    """Controls for what is drawn; measures that the view cannot show are not offered."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        labels = {one.name: one.label for one in measures}
        chosen = state.pick("drawn", "What is drawn", labels, measures[0].name)
        words = state.switch(
            "words",
            "Whole words",
            False,
            "Merges the pieces of a word: attention summed over a key's pieces, averaged over a query's. "
            "Rows still sum to 1.",
        )
        drawn = Drawn(trace, chosen, words, 0.5)
        if drawn.what.rolled:
            drawn = Drawn(trace, chosen, words, residual_share())
    if chosen != measures[0].name:
        blocks.caveat(f"{drawn.what.meaning} {drawn.what.caveat(trace)}")
    if trace.caveat:
        blocks.caveat(trace.caveat)
    return drawn


def residual_share() -> float:
    """The share that rollout gives to the residual connection."""
    shares = [percent / 100 for percent in range(0, 101, 5)]
    state.prepare("residual", shares, 0.5, lambda share: f"{share:g}")
    chosen: float = st.select_slider(
        "Residual share",
        shares,
        key="residual",
        persist_state="session",
        help="How much of each token is taken to pass a layer unchanged, through the residual connection. "
        "Abnar and Zuidema take one half.",
    )
    return chosen


def layer_slider(trace: Trace) -> int:
    """The layer, counted from 1."""
    return state.layer(
        "layer",
        1,
        trace.layers,
        "The text passes through the layers one after the other; the last one is nearest to the output.",
    )
