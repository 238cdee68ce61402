"""Head ablation: how the vectors of the last layer change when attention heads are ablated.

Heads are ablated by replacing their output during a forward pass, so the shared model is never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vectors.similarity import cosine, cosine_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Flag
from bert_probe.core.field_types_of_lists import HeadSet
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import ShapeError, UnavailableError, memory_errors
from bert_probe.model.capture import heads_switched_off
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only

Head = tuple[int, int]
"""Type of a head: its layer index and its head index, both from 0."""

REPLACEMENTS = ("zero", "mean")
SIMILARITIES = ("before", "after", "difference")
REPLACEMENT_HELP = "Replacement for a head's output: 0, or its mean over the tokens of the text."


@question("head ablation", command="ablate")
class HeadAblation(Question):
    """Change of the last layer's vectors when some attention heads are ablated (Michel et al. 2019).

    Attributes:
        heads: layer and head index of each head, from 0; negative values count from the end.
        replacement: what replaces the output of a head before the output projection: "zero", or "mean" for
            its mean over the tokens of the text.
        show: the table to return: "set" for one row for all heads together; "tokens" for one row per token;
            "before", "after" or "difference" (after minus before) for the cosines between tokens.
        specials: include special tokens in the cosines.
    """

    inputs = OneTrace()

    heads: Sequence[Head] = param(
        HeadSet(whole_layers=True),
        key="off",
        about="Attention heads to ablate, such as 2.3,4.9; 2 means all heads of layer 2.",
    )
    replacement: str = param(Choice(REPLACEMENTS), default="zero", about=REPLACEMENT_HELP)
    show: str = param(
        Choice(("set", "tokens", *SIMILARITIES)),
        default="set",
        key="ablation_table",
        about="Table: one row for all ablated heads together, one row per token, or the cosines between "
        "tokens.",
        display_only=True,
    )
    specials: bool = param(
        Flag(),
        default=False,
        key="ablation_specials",
        about="Include special tokens such as [CLS] and [SEP] in tables of cosines.",
        display_only=True,
    )

    def of(self, trace: Trace) -> HeadAblationResult:
        """Run the model on a traced text with the heads ablated, and compare the last layer's vectors.

        Raises:
            SelectionError: a layer or head does not exist.
            UnavailableError: the architecture does not expose its heads, or the trace has no model.
            OutOfMemoryError: there is not enough memory.
        """
        resolved = self.resolved(trace)
        ablated = next(_ablate(trace, [resolved.heads], self.replacement))
        vectors = trace.vectors(-1), read_only(ablated.vectors)
        return HeadAblationResult(
            resolved,
            InputRecord.of(trace),
            trace.tokens,
            *vectors,
            ablated.token_change,
            ablated.pooler_change,
        )


@question("head ablation sweep", command="ablate-each")
class HeadAblationSweep(Question):
    """Change of the last layer's vectors when each attention head is ablated alone.

    Attributes:
        replacement: as in `HeadAblation`.
    """

    inputs = OneTrace()

    replacement: str = param(Choice(REPLACEMENTS), default="zero", about=REPLACEMENT_HELP)

    def of(self, trace: Trace, progress: Progress = no_progress) -> HeadAblationSweepResult:
        """Measure the effect of ablating each head alone.

        Args:
            progress: called with the number of heads done and the total.

        Raises:
            UnavailableError, OutOfMemoryError: see `HeadAblation.of`.
        """
        heads = [(layer, head) for layer in range(trace.layers) for head in range(trace.heads)]
        means, firsts = np.empty((2, trace.layers, trace.heads))
        progress(0, len(heads))
        for done, ablated in enumerate(_ablate(trace, [[head] for head in heads], self.replacement)):
            means[heads[done]] = ablated.token_change.mean()
            firsts[heads[done]] = ablated.token_change[0]
            progress(done + 1, len(heads))
        return HeadAblationSweepResult(self, InputRecord.of(trace), read_only(means), read_only(firsts))


@dataclass(frozen=True, eq=False, repr=False)
class HeadAblationResult(Result):
    """Changes of the last layer's vectors after some attention heads were ablated.

    The change of a token is 1 − cosine of its last-layer vectors with and without the heads: 0 if the vectors
    have the same direction, and 1 if they are orthogonal.

    Attributes:
        tokens: tokens of the text.
        with_heads, without_heads: last-layer vectors with all heads and without the ablated heads, shape
            [token, hidden], in the trace's dtype.
        token_change: change of each token's vector, float64 of shape [token], 0 to 2.
        pooler_change: change of the pooler's output; None if the model has no pooler.
    """

    question: HeadAblation
    tokens: tuple[Token, ...]
    with_heads: Array
    without_heads: Array
    token_change: Array
    pooler_change: float | None

    def __post_init__(self) -> None:
        count = len(self.tokens)
        for name, values in (("with_heads", self.with_heads), ("without_heads", self.without_heads)):
            if values.ndim != 2 or len(values) != count:
                raise ShapeError(f"{name} must have shape [{count} tokens, hidden], not {values.shape}.")
        if self.token_change.shape != (count,):
            raise ShapeError(f"token_change must have shape [{count} tokens], not {self.token_change.shape}.")

    @property
    def cls_change(self) -> float:
        """Change of the first token's vector; in many models, the first token is [CLS] or <s>."""
        return float(self.token_change[0])

    @property
    def mean_token_change(self) -> float:
        """Mean of `token_change` over the tokens."""
        return float(self.token_change.mean())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Changes of the first token and of the pooler's output, and the mean change over the tokens."""
        return {
            "cls_change": self.cls_change,
            "pooler_change": self.pooler_change,
            "mean_token_change": self.mean_token_change,
        }

    def similarity(self) -> SimilarityChange:
        """Return the cosines between tokens before and after the ablation."""
        tokens = tuple(token for token in self.tokens if self.question.specials or not token.special)
        positions = [token.position for token in tokens]
        before, after = (
            cosine(vectors[positions], vectors[positions])
            for vectors in (self.with_heads, self.without_heads)
        )
        return SimilarityChange(tokens, before, after)

    def frame(self) -> pd.DataFrame:
        """Return the table that ``show`` of the question selects.

        Columns of "set": layer, head, cls_change, mean_token_change. If several heads were ablated, the layer
        is empty and the head is a list such as 8.10+3.2. Columns of "tokens": position, token, change. Tables
        of cosines have a row and a column per token.
        """
        if self.question.show == "set":
            return self._one_row()
        if self.question.show == "tokens":
            positions = [token.position for token in self.tokens]
            names = frames.plain_strings(self.tokens)
            return pd.DataFrame({"position": positions, frames.TOKEN: names, "change": self.token_change})
        change = self.similarity()
        return frames.matrix(getattr(change, self.question.show), change.tokens, change.tokens)

    def _one_row(self) -> pd.DataFrame:
        heads = self.question.heads
        names = "+".join(f"{layer + 1}.{head + 1}" for layer, head in heads)
        layer, head = (heads[0][0] + 1, heads[0][1] + 1) if len(heads) == 1 else (None, names)
        return pd.DataFrame(
            {
                "layer": frames.nullable_integers([layer]),
                "head": [head],
                "cls_change": [self.cls_change],
                "mean_token_change": [self.mean_token_change],
            }
        )


@dataclass(frozen=True, eq=False)
class SimilarityChange:
    """Cosines between the tokens of a text after the last layer, before and after an ablation.

    Attributes:
        tokens: the compared tokens.
        before, after: cosines before and after the ablation, shape [token, token], -1 to 1, in the trace's
            dtype; NaN for a zero vector.
    """

    tokens: tuple[Token, ...]
    before: Array
    after: Array

    @property
    def difference(self) -> Array:
        """Cosines after minus cosines before, shape [token, token], -2 to 2.

        Positive values mean that two tokens became more similar.
        """
        difference: Array = self.after - self.before
        return difference


@dataclass(frozen=True, eq=False, repr=False)
class HeadAblationSweepResult(Result):
    """Changes of the last layer's vectors after each attention head was ablated alone.

    The change of a token is 1 − cosine of its last-layer vectors with and without the head.

    Attributes:
        mean_token_change: mean change over the tokens, float64 of shape [layer, head], 0 to 2.
        cls_change: change of the first token, float64 of shape [layer, head], 0 to 2.
    """

    question: HeadAblationSweep
    mean_token_change: Array
    cls_change: Array

    def __post_init__(self) -> None:
        if self.mean_token_change.ndim != 2 or self.mean_token_change.shape != self.cls_change.shape:
            raise ShapeError(
                "mean_token_change and cls_change must have shape [layer, head], not "
                f"{self.mean_token_change.shape} and {self.cls_change.shape}."
            )

    @property
    def sort_order(self) -> SortOrder:
        """The order of the heads, by descending mean change."""
        return SortOrder("mean_token_change")

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per head, sorted by descending mean change.

        Columns: layer, head, cls_change, mean_token_change.
        """
        columns = {"cls_change": self.cls_change, "mean_token_change": self.mean_token_change}
        order = np.argsort(-self.mean_token_change, axis=None, kind="stable")
        return frames.by_head(columns).iloc[order].reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class _AblatedText:
    """Last-layer vectors of a text with some heads ablated, and the changes as in `HeadAblationResult`."""

    vectors: Array
    token_change: Array
    pooler_change: float | None


def model_with_heads(trace: Trace) -> Checkpoint:
    """Return the model of a trace, after checking that its heads can be ablated.

    Raises:
        UnavailableError: the architecture does not expose its heads, or the trace has no model.
    """
    checkpoint = trace.checkpoint
    description = checkpoint.description
    if not description.shows_qkv:
        raise UnavailableError(
            f"{description.architecture} does not expose the output of each head, so heads cannot be "
            "ablated. Use another model."
        )
    return checkpoint


def _ablate(trace: Trace, sets: Sequence[Sequence[Head]], replacement: str) -> Iterator[_AblatedText]:
    """Yield the vectors and changes of the text for each set of ablated heads.

    ``replacement`` is "zero" or "mean", as in `HeadAblation`. Each set of heads is one row of a batch.
    """
    checkpoint, encoding = model_with_heads(trace), trace.encoding
    original = _run(checkpoint, encoding, [()], replacement)
    size = max(1, BATCH_TOKENS // len(encoding))
    for start in range(0, len(sets), size):
        vectors, pooled = _run(checkpoint, encoding, sets[start : start + size], replacement)
        for row, after in enumerate(vectors):
            poolers = None if pooled is None or original[1] is None else (pooled[row], original[1][0])
            yield _AblatedText(
                after,
                read_only(1 - cosine_of_rows(after, original[0][0])),
                None if poolers is None else float(1 - cosine_of_rows(*poolers)[0]),
            )


def _run(
    checkpoint: Checkpoint, encoding: Encoding, sets: Sequence[Sequence[Head]], replacement: str
) -> tuple[Array, Array | None]:
    """Return the last-layer vectors and the pooler outputs for each set of ablated heads.

    The vectors have shape [set, token, hidden]. The pooler outputs have shape [set, 1, hidden], or are None
    if the model has no pooler. ``replacement`` is "zero" or "mean", as in `HeadAblation`.
    """
    description = checkpoint.description
    off = np.zeros((description.layers, len(sets), description.heads), dtype=bool)
    for row, heads in enumerate(sets):
        for layer, head in heads:
            off[layer, row, head] = True
    inputs = batch(checkpoint, [encoding] * len(sets))
    with (
        memory_errors(f"A batch of {len(sets)} runs does not fit in memory. Shorten the text."),
        torch.inference_mode(),
        checkpoint.running() as model,
        heads_switched_off(torch.from_numpy(off).to(checkpoint.device), replacement),
    ):
        output = model(**inputs)
    pooled = getattr(output, "pooler_output", None)
    return as_array(output.last_hidden_state), None if pooled is None else as_array(pooled[:, None])
