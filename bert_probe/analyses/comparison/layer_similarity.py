"""How alike the layers of two models are over many texts: linear CKA (Kornblith et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.head_means import BATCH_TOKENS
from bert_probe.analyses.comparison.model_change import (
    are_one,
    check_encodings,
    check_tokenizers,
)
from bert_probe.analyses.vectors.encoded import encoded
from bert_probe.core.field_types import Number
from bert_probe.core.inputs import TwoModelSentences
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import batches
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import numbered


@question("alikeness of layers", command="diff layers")
class LayerSimilarity(Question):
    """Linear CKA of every layer of A with every layer of B, over the tokens of many texts.

    It asks whether tokens that are alike in the one are alike in the other, whatever the dimensions mean: no
    turning and no scaling of a layer's vectors changes it. So the models may be of any sizes.

    Attributes:
        examples: tokens that are compared at most; of more, so many are drawn. Special ones are left out.
        seed: of the drawing.
    """

    inputs = TwoModelSentences()

    examples: int = param(
        Number(2, 20_000), default=2000, about="Tokens that are compared, at most.  [default: 2000]"
    )
    seed: int = param(Number(0), default=0, about="Of drawing them, where there are more.")

    def of(
        self,
        a: Checkpoint,
        b: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> LayerSimilarityResult:
        """The alikeness over sentences, each of which is read by itself.

        Args:
            sentences: one an entry; blank ones do not count.
            truncate: cut sentences that are too long instead of refusing them.
            report: told how many steps are done, and of how many: sentences of either model, pairs of layers.

        Raises:
            SelectionError: not the same tokenizer.
            EmptyTextError, TooLongError, TextError: no sentence, one that cannot be read, a single token.
            OutOfMemoryError: the machine is too small for these models.
        """
        a, b = a.now(), b.now()
        check_tokenizers(a, b)
        lines = [(line, text, None) for line, text in numbered(sentences, "sentence")]
        read = [encoded(one, lines, truncate, report) for one in (a, b)]
        for number, (mine, yours) in enumerate(zip(*read, strict=True), start=1):
            check_encodings(mine, yours, f"sentence {number:,}")
        texts, dropped = [one.text for one in read[0]], sum(one.dropped for one in read[0])
        subject = InputRecord.of_sentences(a, texts, dropped).beside(InputRecord.of_model(b))
        places = self._drawn(read[0])
        single = are_one(subject, a, b)
        steps = _PairCounter(
            report,
            len(texts) * (1 if single else 2) + (a.description.layers + 1) * (b.description.layers + 1),
        )
        with memory_errors(
            "The vectors of so many tokens need more memory than is free. Ask for fewer examples."
        ):
            mine_by_layer = _vectors(a, read[0], places, steps)
            theirs = mine_by_layer if single else _vectors(b, read[1], places, steps)
            return LayerSimilarityResult(
                self, subject, len(places), read_only(_alikeness(mine_by_layer, theirs, steps))
            )

    def _drawn(self, encodings: Sequence[Encoding]) -> Array:
        """Sentence and position of the tokens that are compared, [token, 2], in the order of the texts."""
        places = np.array(
            [
                (number, token.position)
                for number, encoding in enumerate(encodings)
                for token in encoding.tokens
                if not token.special
            ]
        )
        if len(places) < 2:
            raise TextError("CKA compares tokens with each other, and there is only one. Give more text.")
        if len(places) <= self.examples:
            return places
        drawn = np.random.default_rng(self.seed).choice(len(places), self.examples, replace=False)
        chosen: Array = places[np.sort(drawn)]
        return chosen


class _PairCounter:
    """Counts what is done."""

    def __init__(self, report: Progress, total: int) -> None:
        self.report, self.done, self.total = report, 0, total

    def __call__(self, count: int = 1) -> None:
        self.done += count
        self.report(self.done, self.total)


@dataclass(frozen=True, eq=False, repr=False)
class LayerSimilarityResult(Result):
    """How alike the layers of two models are.

    Attributes:
        examples: how many tokens were compared.
        cka: float64 [layer of A + 1, layer of B + 1], 0 to 1; 1 where they are alike. Row and column 0 are of
            the outputs of the embeddings. NaN where the vectors of a layer are all the same.
    """

    question: LayerSimilarity
    examples: int
    cka: Array

    def __post_init__(self) -> None:
        if self.cka.ndim != 2:
            raise ShapeError(f"cka has shape {self.cka.shape}; [layer, layer] is needed.")

    @property
    def finding(self) -> str:
        """Where models of as many layers differ most, else which layer is most like A's last; a sentence."""
        if self.cka.shape[0] == self.cka.shape[1]:
            same = np.diagonal(self.cka)
            if np.isnan(same).all():
                return "No layer has vectors that differ."
            layer = int(np.nanargmin(same))
            if same[layer] == 1:
                return "Every layer is as it was: CKA 1."
            return f"Layer {layer} is the least like itself: CKA {same[layer]:.3f}."
        last = self.cka[-1]
        if np.isnan(last).all():
            return "The last layer of A has vectors that do not differ."
        layer = int(np.nanargmax(last))
        return f"The last layer of A is most like layer {layer} of B: CKA {last[layer]:.3f}."

    def frame(self) -> pd.DataFrame:
        """A row for each pair of layers: layer_a, layer_b, cka; layer 0 is the output of the embeddings."""
        first, second = np.indices(self.cka.shape)
        return pd.DataFrame({"layer_a": first.ravel(), "layer_b": second.ravel(), "cka": self.cka.ravel()})


def linear_cka(x: Array, y: Array) -> float:
    """‖Yᵀ X‖²_F ÷ (‖Xᵀ X‖_F ‖Yᵀ Y‖_F), columns less their means; Kornblith et al. 2019, section 3.

    Args:
        x: [example, dimension]; y: [example, another dimension].

    Returns:
        0 to 1; exactly 1 for x and x itself, NaN where all rows of one are the same.

    Raises:
        ShapeError: not of the same examples.
    """
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ShapeError(
            f"Two matrices of the same examples are needed; the shapes are {x.shape} and {y.shape}."
        )
    one = _centred(x)
    other = one if y is x else _centred(y)
    return float(_alikeness([one], [other])[0, 0])


def _alikeness(one: Sequence[Array], other: Sequence[Array], steps: _PairCounter | None = None) -> Array:
    """CKA of every layer of the one with every layer of the other, all centred."""
    own = [_shared(x, x) for x in one]
    theirs = own if other is one else [_shared(y, y) for y in other]
    found = np.full((len(one), len(other)), np.nan)
    for place in np.ndindex(found.shape):
        x, y = one[place[0]], other[place[1]]
        size = own[place[0]] * theirs[place[1]]
        shared = own[place[0]] if y is x else _shared(x, y)
        if size > 0:
            found[place] = min(shared / np.sqrt(size), 1.0)
        if steps is not None:
            steps()
    return found


def _shared(x: Array, y: Array) -> float:
    """‖Yᵀ X‖²_F."""
    product = x.T @ y
    return float(np.vdot(product, product))


def _centred(x: Array) -> Array:
    """Float64, columns less their means, the whole of length 1, so that squares can be held."""
    less = x.astype(np.float64)
    less -= less.mean(axis=0)
    length = np.linalg.norm(less)
    # Of equal rows rounding may leave what is no difference.
    if length <= len(x) * np.finfo(np.float64).eps * np.linalg.norm(x.astype(np.float64)):
        return np.zeros_like(less)
    less /= length
    return less


def _vectors(
    checkpoint: Checkpoint, encodings: Sequence[Encoding], places: Array, steps: _PairCounter
) -> list[Array]:
    """Vectors of the chosen tokens after each layer from 0, each [token, hidden] and centred."""
    found: list[Array] = []
    for group in batches([len(encoding) for encoding in encodings], BATCH_TOKENS, checkpoint.pads):
        traces = checkpoint.trace_encodings([encodings[index] for index in group])
        for index, trace in zip(group, traces, strict=True):
            if not found:
                widths = [trace.vectors(layer).shape[1] for layer in range(trace.layers + 1)]
                found = [np.empty((len(places), width), trace.dtype) for width in widths]
            rows = np.flatnonzero(places[:, 0] == index)
            for layer, kept in enumerate(found):
                kept[rows] = trace.vectors(layer)[places[rows, 1]]
        steps(len(group))
    return [_centred(one) for one in found]
