"""The cosine that unrelated tokens of a model reach, without which no other cosine means much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.vectors.cosine import cosine
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array


@question("similarity baseline", command="baseline")
class SimilarityBaseline(Question):
    """The cosines of unrelated tokens, and beside them those of one word in two sentences.

    Unrelated: every two tokens of the shipped sample that come from different sentences and differ in id;
    special tokens left out. The same word: two tokens of one id from different sentences, each a whole word
    of letters or digits.

    Contextual vectors point in similar directions whatever they stand for, the more so in upper layers
    (Ethayarajh 2019), so a cosine says something only next to this.
    """

    inputs = OneCheckpoint()

    def of(self, checkpoint: Checkpoint) -> SimilarityBaselineResult:
        """Measure both in a model.

        Raises:
            UnavailableError: the tokenizer makes no two different tokens of the sample.
            TextError: the sample does not fit this model.
        """
        traces = checkpoint.traces(list(baseline_sentences()))
        kept = [[token for token in trace.tokens if not token.special] for trace in traces]
        groups = _pairs(kept)
        if not groups[0][0].size:
            raise UnavailableError("This tokenizer knows no word of the baseline's sample, which is English.")
        rows: tuple[list[list[float]], ...] = ([], [])
        for layer in range(checkpoint.description.layers + 1):
            vectors = np.concatenate(
                [
                    trace.vectors(layer)[[token.position for token in tokens]]
                    for trace, tokens in zip(traces, kept, strict=True)
                ]
            )
            cosines = cosine(vectors, vectors)
            for group, found in zip(groups, rows, strict=True):
                if group[0].size:
                    found.append(_summary(cosines[group]))
        unrelated, same_word = (
            _spread(row, group[0].size) if row else None for row, group in zip(rows, groups, strict=True)
        )
        assert unrelated is not None  # such pairs were looked for above
        # As the traces have it: a model in memory may be trained on meanwhile.
        subject = InputRecord(InputRecord.of(*traces).model)
        return SimilarityBaselineResult(self, subject, unrelated, same_word, len(traces))


@dataclass(frozen=True)
class CosineDistribution:
    """How the cosines of many pairs spread, one value a layer from the embeddings on.

    Attributes:
        mean, p5, p50, p95: mean and percentiles over the pairs, each of length layers + 1.
        pairs: number of pairs behind each value.
    """

    mean: tuple[float, ...]
    p5: tuple[float, ...]
    p50: tuple[float, ...]
    p95: tuple[float, ...]
    pairs: int

    def __post_init__(self) -> None:
        lengths = {len(values) for values in self.columns().values()}
        if len(lengths) > 1:
            raise ShapeError(f"Columns of {sorted(lengths)} layers; each needs a value for every layer.")

    def columns(self, prefix: str = "") -> dict[str, tuple[float, ...]]:
        """Mean and percentiles as columns of a table."""
        *names, _ = (field.name for field in fields(self))
        *values, _ = astuple(self)
        return {f"{prefix}{name}": column for name, column in zip(names, values, strict=True)}


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityBaselineResult(Result):
    """What unrelated tokens of a model reach, layer by layer.

    Attributes:
        unrelated: over pairs of different tokens.
        same_word: over pairs of one word; None where the sample has no such pair.
        sentences: number of sentences in the sample.
    """

    question: SimilarityBaseline
    unrelated: CosineDistribution
    same_word: CosineDistribution | None
    sentences: int

    def __post_init__(self) -> None:
        if self.same_word is not None and len(self.same_word.mean) != len(self.unrelated.mean):
            raise ShapeError(
                f"{len(self.same_word.mean)} layers of same words, {len(self.unrelated.mean)} of others."
            )

    @property
    def layers(self) -> int:
        """Number of layers, the embeddings not counted."""
        return len(self.unrelated.mean) - 1

    def corrected(self, cosines: Array) -> Array:
        """Cosines less what unrelated tokens reach on average at that layer (Ethayarajh 2019, section 4.1).

        Args:
            cosines: [layer + 1, …].

        Returns:
            float64 of the same shape; 0 is as alike as unrelated tokens are.

        Raises:
            ShapeError: not a row for each layer.
        """
        mean = np.array(self.unrelated.mean)
        if len(cosines) != len(mean):
            raise ShapeError(f"{len(cosines)} layers do not fit a baseline of {len(mean)}.")
        less: Array = cosines.astype(np.float64) - mean.reshape(-1, *[1] * (cosines.ndim - 1))
        return less

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How many sentences and pairs there are behind it."""
        found = {"sentences": self.sentences, "token_pairs": self.unrelated.pairs}
        return found if self.same_word is None else {**found, "same_word_pairs": self.same_word.pairs}

    def frame(self) -> pd.DataFrame:
        """A row a layer from 0: layer, mean, p5, p50, p95; same_word_mean, … where there are such pairs."""
        same = {} if self.same_word is None else self.same_word.columns("same_word_")
        return pd.DataFrame({"layer": range(self.layers + 1), **self.unrelated.columns(), **same})


@lru_cache(maxsize=1)
def baseline_sentences() -> tuple[str, ...]:
    """The text sample shipped with the package: short sentences on unrelated subjects."""
    text = resources.files("bert_probe").joinpath("data/baseline_sentences.txt").read_text("utf-8")
    return tuple(line for line in text.splitlines() if line.strip())


def _pairs(kept: list[list[Token]]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Places, among all tokens kept, of every pair that is unrelated, and of every pair of one word."""
    tokens = [token for sentence in kept for token in sentence]
    ids = np.array([token.id for token in tokens])
    words = np.array([not token.split_word and token.display.isalnum() for token in tokens])
    sentences = np.repeat(np.arange(len(kept)), [len(sentence) for sentence in kept])
    first, second = np.triu_indices(len(tokens), k=1)
    apart, same = sentences[first] != sentences[second], ids[first] == ids[second]
    unrelated, same_word = apart & ~same, apart & same & words[first]
    return (first[unrelated], second[unrelated]), (first[same_word], second[same_word])


def _summary(cosines: Array) -> list[float]:
    percentiles: list[float] = np.percentile(cosines, [5, 50, 95]).tolist()
    return [float(cosines.mean(dtype=np.float64)), *percentiles]


def _spread(rows: list[list[float]], pairs: int) -> CosineDistribution:
    mean, p5, p50, p95 = (tuple(column) for column in zip(*rows, strict=True))
    return CosineDistribution(mean, p5, p50, p95, pairs)
