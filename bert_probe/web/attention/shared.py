"""What is drawn: weights or another measure, of tokens or of words; one choice for all views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import streamlit as st

from bert_probe.analyses.attention import MEASURE_MEANINGS, AttentionMap, Head, Measure, attention_map
from bert_probe.analyses.norms import projects
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.web import blocks, figures, state
from bert_probe.web.components.head_view import TITLES, VALUE_NAMES
from bert_probe.web.components.matrix import Scale
from bert_probe.web.workbench import Study

MEASURES = {"weights": "Weights", "value-norm": "Value-weighted", "rollout": "Rollout"}


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a reader chose to see of a text.

    Attributes:
        study, trace: the request, and the text of it that is shown.
        measure, words, residual: see `attention_map`.
    """

    study: Study
    trace: Trace
    measure: Measure
    words: bool
    residual: float

    @property
    def checkpoint(self) -> Checkpoint:
        """The model that the trace is of."""
        return self.study.checkpoint

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `attention_map` that can be written down and differ from the usual ones."""
        chosen: dict[str, Any] = {}
        if self.words:
            chosen["words"] = True
        if self.measure != "weights":
            chosen["measure"] = self.measure
        if self.measure == "rollout":
            chosen["residual"] = self.residual
        return chosen

    @property
    def arguments(self) -> dict[str, Any]:
        """`options`, with the checkpoint where the measure needs it."""
        return self.options | ({"checkpoint": self.checkpoint} if self.measure == "value-norm" else {})

    def map(self, layer: int, head: Head, **more: Any) -> AttentionMap:
        """`attention_map` of a layer and head, from 0."""
        return attention_map(self.trace, layer, head, **self.arguments, **more)

    @property
    def value_name(self) -> str:
        """What a number is."""
        return VALUE_NAMES[self.measure]

    def scale(self, shown: AttentionMap, root: bool) -> Scale:
        """0 to 1; lengths have no such end, so theirs is the next round number."""
        end = 1.0 if self.measure != "value-norm" else figures.from_zero_scale(shown.weights, 0.0).high
        return Scale("sequential", 0, end, "sqrt" if root else "linear")

    def python(self, call: str, **more: Any) -> str:
        """Code that makes a table: ``call`` with these options."""
        written = [f"{name}={value!r}" for name, value in {**more, **self.options}.items()]
        written += ["checkpoint=checkpoint"] if self.measure == "value-norm" else []
        request = self.study.request
        line = f"bert_probe.{call}({', '.join(['trace', *written])})"
        return blocks.python_code(request, blocks.trace_code(request, self.trace), line)

    def command(self, *options: str, note: str = "") -> str:
        """The command line for the same."""
        chosen = ["--words"] if self.words else []
        chosen += ["--measure", self.measure] if self.measure != "weights" else []
        chosen += ["--residual", f"{self.residual:g}"] if self.measure == "rollout" else []
        return blocks.command_line(
            self.study.request, "attention", *options, *chosen, trace=self.trace, note=note
        )


def choose(study: Study, trace: Trace, measures: Sequence[Measure]) -> Drawn:
    """Controls for what is drawn; measures that the view cannot show are not offered."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        measure = state.pick("drawn", "What is drawn", {one: MEASURES[one] for one in measures}, "weights")
        words = state.switch(
            "words",
            "Whole words",
            False,
            "Merges the pieces of a word: attention summed over a key's pieces, averaged over a query's. "
            "Rows still sum to 1.",
        )
        residual = residual_share() if measure == "rollout" else 0.5
    if measure != "weights":
        blocks.caveat(meaning(cast(Measure, measure), study.checkpoint))
    return Drawn(study, trace, cast(Measure, measure), words, residual)


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


def meaning(measure: Measure, checkpoint: Checkpoint) -> str:
    """What a measure is and is not, in a sentence."""
    said = MEASURE_MEANINGS[measure]
    if measure == "value-norm" and not projects(checkpoint):
        said += " This architecture's output projection is not known, so lengths are those of the values."
    return said


def layer_slider(trace: Trace) -> int:
    """The layer, counted from 1."""
    return state.layer(
        "layer",
        1,
        trace.layers,
        "The text passes through the layers one after the other; the last one is nearest to the output.",
    )


def title(shown: AttentionMap) -> str:
    """What a picture of it is called."""
    if shown.measure == "rollout":
        return f"{TITLES['rollout']} layer {shown.layer + 1}"
    head = "mean over the heads" if shown.head == "mean" else f"head {shown.head + 1}"
    return f"{TITLES[shown.measure]} in layer {shown.layer + 1}, {head}"
