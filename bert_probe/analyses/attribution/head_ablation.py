"""Switching heads off, and what changes; in these passes alone, never in the model that others share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vectors.cosine import cosine, cosine_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Flag
from bert_probe.core.field_types_of_lists import HeadSet
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError, memory_errors
from bert_probe.model.capture import switched_off
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only

Head = tuple[int, int]
"""Layer and head, from 0."""

REPLACEMENTS = ("zero", "mean")
SIMILARITIES = ("before", "after", "difference")
REPLACED = "What a head's output becomes: 0, or its mean over the text's tokens."


@question("ablation", command="ablate")
class HeadAblation(Question):
    """What changes in the last layer when some heads are switched off together; Michel et al. 2019.

    Attributes:
        heads: (layer, head) from 0; negative ones count from the end.
        replacement: a head's output, before the output projection, becomes "zero", or its "mean" over the
            text's tokens.
        show: the table: "tokens", a row each; "set", one row for all heads together; or the cosines of
            the tokens with each other "before", "after", or their "difference", after minus before.
        specials: with the cosines, keep [CLS] and [SEP].
    """

    inputs = OneTrace()

    heads: Sequence[Head] = param(HeadSet(whole_layers=True), key="off")
    replacement: str = param(Choice(REPLACEMENTS), default="zero", about=REPLACED)
    show: str = param(
        Choice(("tokens", "set", *SIMILARITIES)),
        default="tokens",
        key="ablation_table",
        display_only=True,
    )
    specials: bool = param(
        Flag(),
        default=False,
        key="ablation_specials",
        about="Keep [CLS], [SEP] and the like in tables of cosines.",
        display_only=True,
    )

    def of(self, trace: Trace) -> HeadAblationResult:
        """The text without these heads.

        Raises:
            SelectionError: no such layer or head.
            UnavailableError: the architecture does not let its heads be reached, or no model made the trace.
            OutOfMemoryError: the machine is too small for this text.
        """
        asked_for = self.resolved(trace)
        changed = next(_without(trace, [asked_for.heads], self.replacement))
        vectors = trace.vectors(-1), read_only(changed.vectors)
        return HeadAblationResult(
            asked_for, InputRecord.of(trace), trace.tokens, *vectors, changed.of_tokens, changed.of_pooler
        )


@question("ablation of each head", command="ablate-each")
class HeadAblationSweep(Question):
    """What changes in the last layer when each head is switched off in turn, the others being there.

    Attributes:
        replacement: as in `HeadAblation`.
    """

    inputs = OneTrace()

    replacement: str = param(Choice(REPLACEMENTS), default="zero", about=REPLACED)

    def of(self, trace: Trace, report: Progress = no_progress) -> HeadAblationSweepResult:
        """The effect of every head by itself; several heads in one batched pass.

        Args:
            report: told how many heads are done, and of how many.

        Raises:
            UnavailableError, OutOfMemoryError: as `HeadAblation.of`.
        """
        heads = [(layer, head) for layer in range(trace.layers) for head in range(trace.heads)]
        means, firsts = np.empty((2, trace.layers, trace.heads))
        report(0, len(heads))
        for done, changed in enumerate(_without(trace, [[head] for head in heads], self.replacement)):
            means[heads[done]] = changed.of_tokens.mean()
            firsts[heads[done]] = changed.of_tokens[0]
            report(done + 1, len(heads))
        return HeadAblationSweepResult(self, InputRecord.of(trace), read_only(means), read_only(firsts))


@dataclass(frozen=True, eq=False, repr=False)
class HeadAblationResult(Result):
    """What changed when some heads were switched off.

    A change is 1 − cosine of a last-layer vector with and without them: 0 is unchanged, 1 a right angle.

    Attributes:
        tokens: of the text.
        with_heads, without_heads: last-layer vectors, [token, hidden], in the trace's type.
        token_change: of each token, float64 [token], 0 to 2.
        pooler_change: that of the pooler's output, or None without a pooler.
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
                raise ShapeError(f"{name} has shape {values.shape}; [{count} tokens, hidden] is needed.")
        if self.token_change.shape != (count,):
            raise ShapeError(f"token_change has shape {self.token_change.shape}; [{count} tokens] is needed.")

    @property
    def cls_change(self) -> float:
        """Change of the first token, which is [CLS] or <s> where the model has one."""
        return float(self.token_change[0])

    @property
    def mean_token_change(self) -> float:
        """Mean over the tokens of their change."""
        return float(self.token_change.mean())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The changes that are one number each."""
        return {
            "cls_change": self.cls_change,
            "pooler_change": self.pooler_change,
            "mean_token_change": self.mean_token_change,
        }

    def similarity(self) -> SimilarityChange:
        """How alike the tokens are without the heads, beside how alike they are with them."""
        tokens = tuple(token for token in self.tokens if self.question.specials or not token.special)
        chosen = [token.position for token in tokens]
        before, after = (cosine(all_[chosen], all_[chosen]) for all_ in (self.with_heads, self.without_heads))
        return SimilarityChange(tokens, before, after)

    def frame(self) -> pd.DataFrame:
        """The table that the question shows.

        "tokens": position, token, change; "set": layer, head, cls_change, mean_token_change, where several
        heads have no one layer and are named 8.10+3.2; else a row and a column for each token.
        """
        if self.question.show == "tokens":
            positions = [token.position for token in self.tokens]
            names = frames.names(self.tokens)
            return pd.DataFrame({"position": positions, frames.TOKEN: names, "change": self.token_change})
        if self.question.show == "set":
            return self._one_row()
        change = self.similarity()
        return frames.matrix(getattr(change, self.question.show), change.tokens, change.tokens)

    def _one_row(self) -> pd.DataFrame:
        heads = self.question.heads
        layer, head = (heads[0][0] + 1, heads[0][1] + 1) if len(heads) == 1 else (None, _names(heads))
        return pd.DataFrame(
            {
                "layer": frames.optional([layer]),
                "head": [head],
                "cls_change": [self.cls_change],
                "mean_token_change": [self.mean_token_change],
            }
        )


@dataclass(frozen=True, eq=False)
class SimilarityChange:
    """Cosines of a text's tokens with each other after the last layer, with and without some heads.

    Attributes:
        tokens: the tokens compared.
        before, after: [token, token], -1 to 1, symmetric, in the trace's type; NaN for a vector of zeros.
    """

    tokens: tuple[Token, ...]
    before: Array
    after: Array

    @property
    def difference(self) -> Array:
        """After minus before, [token, token], -2 to 2: above 0 where tokens became more alike."""
        difference: Array = self.after - self.before
        return difference


@dataclass(frozen=True, eq=False, repr=False)
class HeadAblationSweepResult(Result):
    """What changed when each head was switched off by itself.

    Attributes:
        mean_token_change: mean over the tokens of 1 − cosine of their last-layer vectors with and without
            the head, float64 [layer, head], 0 to 2.
        cls_change: that of the first token.
    """

    question: HeadAblationSweep
    mean_token_change: Array
    cls_change: Array

    def __post_init__(self) -> None:
        if self.mean_token_change.ndim != 2 or self.mean_token_change.shape != self.cls_change.shape:
            raise ShapeError(
                f"mean_token_change and cls_change have shapes {self.mean_token_change.shape} and "
                f"{self.cls_change.shape}; both must be [layer, head]."
            )

    def frame(self) -> pd.DataFrame:
        """A row for each head, largest effect first: layer, head, cls_change, mean_token_change."""
        columns = {"cls_change": self.cls_change, "mean_token_change": self.mean_token_change}
        order = np.argsort(-self.mean_token_change, axis=None, kind="stable")
        return frames.by_head(columns).iloc[order].reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class _AblatedText:
    """A text without some heads: its vectors, and how far they and the pooler's output moved."""

    vectors: Array
    of_tokens: Array
    of_pooler: float | None


def model_with_heads(trace: Trace) -> Checkpoint:
    """The model of a trace, whose heads can be switched off.

    Raises:
        UnavailableError: they cannot, or no model made the trace.
    """
    checkpoint = trace.checkpoint
    about = checkpoint.description
    if not about.shows_qkv:
        raise UnavailableError(f"{about.architecture} does not let single heads be switched off.")
    return checkpoint


def _without(trace: Trace, sets: Sequence[Sequence[Head]], replacement: str) -> Iterator[_AblatedText]:
    """The text without each set of heads in turn, several sets in one pass, which runs as they are taken."""
    checkpoint, encoding = model_with_heads(trace), trace.encoding
    untouched = _run(checkpoint, encoding, [()], replacement)
    size = max(1, BATCH_TOKENS // len(encoding))
    for start in range(0, len(sets), size):
        vectors, pooled = _run(checkpoint, encoding, sets[start : start + size], replacement)
        for row, after in enumerate(vectors):
            poolers = None if pooled is None or untouched[1] is None else (pooled[row], untouched[1][0])
            yield _AblatedText(
                after,
                read_only(1 - cosine_of_rows(after, untouched[0][0])),
                None if poolers is None else float(1 - cosine_of_rows(*poolers)[0]),
            )


def _run(
    checkpoint: Checkpoint, encoding: Encoding, sets: Sequence[Sequence[Head]], replacement: str
) -> tuple[Array, Array | None]:
    """Last-layer vectors [set, token, hidden] and pooler outputs [set, 1, hidden]."""
    about = checkpoint.description
    off = np.zeros((about.layers, len(sets), about.heads), dtype=bool)
    for row, heads in enumerate(sets):
        for layer, head in heads:
            off[layer, row, head] = True
    inputs = batch(checkpoint, [encoding] * len(sets))
    with (
        memory_errors(f"{len(sets)} runs of the model need more memory than is free. Shorten the text."),
        torch.inference_mode(),
        checkpoint.running() as model,
        switched_off(torch.from_numpy(off).to(checkpoint.device), replacement),
    ):
        output = model(**inputs)
    pooled = getattr(output, "pooler_output", None)
    return as_array(output.last_hidden_state), None if pooled is None else as_array(pooled[:, None])


def _names(heads: Sequence[Head]) -> str:
    return "+".join(f"{layer + 1}.{head + 1}" for layer, head in heads)
