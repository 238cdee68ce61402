"""The lens: what a trained head makes of every layer's vectors, so that one sees where its answer comes up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.fill_mask import masked, target
from bert_probe.analyses.predicting import entropy_bits, probabilities
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import CLASSIFYING, FILLING, LABELLING, Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.layers import passing
from bert_probe.model.outputs import Output, missing, output_of
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.results import frames
from bert_probe.results.kinds import Choice, Number, Optional, WordName, Words
from bert_probe.results.provenance import Subject
from bert_probe.results.question import Question, asked, question
from bert_probe.results.result import Result

TASKS = (FILLING, CLASSIFYING, LABELLING)
"""Tasks whose heads can be put on any layer, in the order in which one is taken where none is named."""

CAVEAT = (
    "The head was trained on the last layer only. What it makes of a layer before says how near that layer's "
    "vectors are, in the head's terms, to an answer; not what the model had decided there."
)


@question("lens")
class Lens(Question):
    """What the model's own output head makes of each layer's vectors; nostalgebraist 2020, "the logit lens".

    The last layer is the model's answer exactly. A model that ends in a norm of its own gets that norm on
    every layer.

    Attributes:
        task: which head; None for the first of `TASKS` that the checkpoint has.
        top: how many words or labels, likeliest first.
        targets: at masks these words only, and no others; see `FillMask`.
        mask: a token; its word is masked, beside the masks that the text has.
        show: "answers", a row for each word or label; or "entropy", a row for each layer and token.
    """

    task: str | None = asked(Optional(Choice(TASKS)), default=None, about="Which trained head.")
    top: int = asked(Number(1), default=5, about="How many, likeliest first.")
    targets: tuple[str, ...] = asked(Words(), default=(), about="Only these words.")
    mask: int | str | None = asked(Optional(WordName()), default=None, about="Mask this word of the text.")
    show: str = asked(
        Choice(("answers", "entropy")), default="answers", key="lens_show", facet=True, about="The table."
    )

    def of(self, trace: Trace) -> LayerAnswers:
        """The head on every layer: at the masks of a text, or, where it has none, at all tokens.

        Raises:
            UnavailableError: the checkpoint has no such head, does not show its layers, or no model made the
                trace.
            SelectionError: a word that is not in the text, or a target, or a mask, for a head of labels.
        """
        output = _output(trace.checkpoint, self.task)
        if output.task != FILLING and (self.targets or self.mask is not None):
            raise SelectionError(f"Words and masks go with {FILLING}; this is the head for {output.task}.")
        asked_for = self.resolved(trace)
        read = trace if asked_for.mask is None else trace.checkpoint.trace(*masked(trace, int(asked_for.mask)))
        places = _places(read, output)
        found = [
            self._chosen(output, read.checkpoint, logits)
            for logits in _by_layer(read, output, [place.position for place in places])
        ]
        ids, ranks, shares, entropies = (np.stack(part) for part in zip(*found, strict=True))
        arrays = (read_only(part) for part in (ids, ranks, shares, entropies))
        return LayerAnswers(asked_for, Subject.of(trace), output.task, read, places, *arrays, _names(output, read))

    def _chosen(
        self, output: Output, checkpoint: Checkpoint, logits: Array
    ) -> tuple[Array, Array, Array, Array]:
        """Of a layer: ids, ranks and probabilities [place, answer], and entropies [place]."""
        shares = probabilities(logits, output.problem)
        best = np.argsort(-logits, axis=-1, kind="stable")
        if self.targets:
            wanted = {target(checkpoint, word)[0] for word in self.targets}
            best = np.stack([[one for one in row if one in wanted] for row in best])
        ids = best[:, : self.top]
        chosen = np.take_along_axis(logits, ids, axis=-1)
        ranks = (logits[:, None, :] > chosen[..., None]).sum(axis=-1) + 1
        return ids, ranks, np.take_along_axis(shares, ids, axis=-1), entropy_bits(shares)
