"""Similarity of vectors and tokens, its baseline from unrelated tokens, and scores of sentence vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from bert_probe.core import frames
from bert_probe.core.field_types import Flag, Index
from bert_probe.core.inputs import OneCheckpoint, OneOrTwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only, resolve_index

_BLOCK_NUMBERS = 1_000_000
"""Maximum number of values of a matrix that are converted to float64 at once."""
_BLOCK_ROWS = 2_048
"""Number of rows and columns of the blocks in which the scores of all pairs are computed."""


def cosine(a: Array, b: Array) -> Array:
    """Return the cosine similarity of every row of ``a`` [m, hidden] and every row of ``b`` [n, hidden].

    Returns:
        Cosines from -1 to 1 of shape [m, n], float32, or float64 for float64 rows; NaN for rows of zeros.

    Raises:
        ShapeError: the arguments are not matrices with rows of the same length.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ShapeError(
            f"a and b must be matrices with the same number of columns, not arrays of shapes {a.shape} "
            f"and {b.shape}."
        )
    # Use double precision, so that a vector's cosine similarity to itself is 1 and not 0.99999994.
    product = _product(unit_rows(a), unit_rows(b), np.result_type(a, b, np.float32))
    bounded: Array = np.clip(product, -1.0, 1.0)
    return bounded


def _product(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """Return the product of every row of ``a`` with every row of ``b``, equal for equal rows of ``b``.

    The rounding error of BLAS in float64 depends on the position of a row. Rounding to float32 removes the
    difference; in float64, the product of the first equal row is used.
    """
    product: Array = (a @ b.T).astype(dtype)
    if product.dtype == np.float64:
        first_rows: dict[bytes, int] = {}
        equal = [first_rows.setdefault(row.tobytes(), index) for index, row in enumerate(b)]
        if len(first_rows) < len(b):
            product = product[:, equal]
    return product


def cosine_of_rows(a: Array, b: Array) -> Array:
    """Return the cosine similarity of each row of ``a`` and the corresponding row of ``b``, both [n, hidden].

    Returns:
        Cosines from -1 to 1 of shape [n], float64; exactly 1 for equal rows, NaN for rows of zeros.

    Raises:
        ShapeError: the arguments are not two matrices of the same shape.
    """
    if a.ndim != 2 or a.shape != b.shape:
        raise ShapeError(
            f"a and b must be matrices of the same shape, not arrays of shapes {a.shape} and {b.shape}."
        )
    return _cosines_of_unit_rows(unit_rows(a), unit_rows(b))


def cosines_of_pairs(a: Array, b: Array, pairs: Array) -> Array:
    """Return the cosine similarity of pairs of rows of two matrices; see `cosine_of_rows`.

    The cosines are computed in blocks, because a token that occurs 512 times has 130,000 pairs.

    Args:
        a, b: matrices with the same number of columns.
        pairs: indices of shape [pair, 2]: a row of ``a`` and a row of ``b``.
    """
    a, b, size = unit_rows(a), unit_rows(b), max(1, _BLOCK_VALUES // a.shape[1])
    blocks = (pairs[first : first + size].T for first in range(0, len(pairs), size))
    return np.concatenate([_cosines_of_unit_rows(a[rows], b[others]) for rows, others in blocks])


_BLOCK_VALUES = 2**18
"""Maximum number of values in the rows that `cosines_of_pairs` compares at once, on each side."""


def _cosines_of_unit_rows(a: Array, b: Array) -> Array:
    product = np.clip((a * b).sum(axis=1), -1.0, 1.0)
    cosines: Array = np.where((a == b).all(axis=1), 1.0, product)
    return cosines


def unit_rows(rows: Array) -> Array:
    """Divide each row of a matrix by its Euclidean norm, in float64; rows of zeros become NaN."""
    rows = rows.astype(np.float64)
    # Dividing by the largest value first avoids overflow and underflow of the squares.
    peaks = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    rows = np.divide(rows, peaks, out=np.zeros_like(rows), where=peaks > 0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Array = np.divide(rows, lengths, out=np.full_like(rows, np.nan), where=lengths > 0)
    return unit


VECTOR_LAYER = Index("layer", 0)
"""Field type of a layer index of hidden states, where 0 is the output of the embeddings."""

VECTOR_LAYER_HELP = "Layer; 0 is the output of the embeddings."


@question("similarity")
class Similarity(Question):
    """Cosine similarity of each pair of tokens after one layer.

    A cosine is only meaningful in comparison with the cosines of unrelated tokens; see `SimilarityBaseline`.

    Attributes:
        layer: layer index, where 0 is the output of the embeddings; negative values count from the end.
        specials: keep special tokens such as [CLS] and [SEP].
    """

    inputs = OneOrTwoTraces()

    layer: int = param(VECTOR_LAYER, default=-1, key="vector_layer", about=VECTOR_LAYER_HELP)
    specials: bool = param(
        Flag(),
        default=False,
        key="similarity_specials",
        about="Include special tokens such as [CLS] and [SEP].",
    )

    def of(self, a: Trace, b: Trace | None = None) -> SimilarityResult:
        """Return the cosine similarity of the tokens of two texts.

        Args:
            a: a text, or a sentence pair.
            b: another text. If None, a text is compared with itself, and the first text of a sentence pair
                with the second.

        Raises:
            SelectionError: the layer does not exist, or the traces are from different models.
        """
        resolved = self.resolved(a)
        inputs = InputRecord.of(a) if b is None else InputRecord.of(a, b)
        second = a if b is None else b
        segments = (0, 1) if b is None and a.encoding.pair is not None else (None, None)
        rows, columns = (
            self._tokens(trace, segment) for trace, segment in zip((a, second), segments, strict=True)
        )
        vectors = (
            trace.vectors(resolved.layer)[[token.position for token in tokens]]
            for trace, tokens in ((a, rows), (second, columns))
        )
        return SimilarityResult(resolved, inputs, a, second, rows, columns, read_only(cosine(*vectors)))

    def _tokens(self, trace: Trace, segment: int | None) -> tuple[Token, ...]:
        return tuple(
            token
            for token in trace.tokens
            if (self.specials or not token.special) and segment in (None, token.segment)
        )


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityResult(Result):
    """Cosine similarities of the tokens of one or two texts.

    Attributes:
        a, b: traces of the rows and of the columns; the same trace twice for one text.
        rows, columns: tokens of the rows and of the columns.
        cosines: cosine similarities, [row, column], -1 to 1; NaN for vectors of zeros.
    """

    question: Similarity
    a: Trace
    b: Trace
    rows: tuple[Token, ...]
    columns: tuple[Token, ...]
    cosines: Array

    def __post_init__(self) -> None:
        if self.cosines.shape != (len(self.rows), len(self.columns)):
            raise ShapeError(
                f"cosines must have shape [{len(self.rows)} rows, {len(self.columns)} columns], not "
                f"{self.cosines.shape}."
            )

    def curve(self, row: int, column: int) -> Array:
        """Return the cosine similarity of two tokens after every layer, -1 to 1, float64 [layer + 1].

        Raises:
            SelectionError: the row or column does not exist.
        """
        first = self.rows[resolve_index(row, len(self.rows), "row")].position
        second = self.columns[resolve_index(column, len(self.columns), "column")].position
        vectors = (
            np.stack([trace.vectors(layer)[position] for layer in range(trace.layers + 1)])
            for trace, position in ((self.a, first), (self.b, second))
        )
        return cosine_of_rows(*vectors)

    def frame(self) -> pd.DataFrame:
        """Return the table of cosines, with a row for each of `rows` and a column for each of `columns`."""
        return frames.matrix(self.cosines, self.rows, self.columns)


@question("similarity baseline", command="baseline")
class SimilarityBaseline(Question):
    """Cosine similarities of unrelated tokens, and of the same word in two sentences.

    Unrelated tokens are all pairs of tokens with different ids from different reference sentences, without
    special tokens. Pairs of the same word are all pairs of tokens with the same id from different sentences,
    if the token is an unsplit alphanumeric word.

    Contextual vectors have similar directions regardless of their meaning, especially in upper layers
    (Ethayarajh 2019), so a cosine is only meaningful in comparison with this baseline.
    """

    inputs = OneCheckpoint()

    def of(self, checkpoint: Checkpoint) -> SimilarityBaselineResult:
        """Return the distributions of the cosines of unrelated tokens and of the same word.

        Raises:
            UnavailableError: the tokenizer maps all words of the reference sentences to the same token.
            TextError: a reference sentence is too long for this model.
        """
        traces = checkpoint.traces(list(baseline_sentences()))
        tokens_by_sentence = [[token for token in trace.tokens if not token.special] for trace in traces]
        groups = _pairs(tokens_by_sentence)
        if not groups[0][0].size:
            raise UnavailableError(
                "The vocabulary of this tokenizer contains none of the words in the English reference "
                "sentences, so there is no baseline."
            )
        rows: tuple[list[list[float]], ...] = ([], [])
        for layer in range(checkpoint.description.layers + 1):
            vectors = np.concatenate(
                [
                    trace.vectors(layer)[[token.position for token in tokens]]
                    for trace, tokens in zip(traces, tokens_by_sentence, strict=True)
                ]
            )
            cosines = cosine(vectors, vectors)
            for group, summaries in zip(groups, rows, strict=True):
                if group[0].size:
                    summaries.append(_summary(cosines[group]))
        unrelated, same_word = (
            _distribution(row, group[0].size) if row else None
            for row, group in zip(rows, groups, strict=True)
        )
        assert unrelated is not None  # not None, because there are unrelated pairs
        # Take the model's state from the traces, because a model in memory may have been trained since.
        inputs = InputRecord(InputRecord.of(*traces).model)
        return SimilarityBaselineResult(self, inputs, unrelated, same_word, len(traces))


@dataclass(frozen=True)
class CosineDistribution:
    """Mean and percentiles of the cosines of many pairs, after the embeddings and after each layer.

    Attributes:
        mean, p5, p50, p95: mean and percentiles over the pairs, each of length layers + 1.
        pairs: number of pairs.
    """

    mean: tuple[float, ...]
    p5: tuple[float, ...]
    p50: tuple[float, ...]
    p95: tuple[float, ...]
    pairs: int

    def __post_init__(self) -> None:
        lengths = {len(values) for values in self.columns().values()}
        if len(lengths) > 1:
            raise ShapeError(
                f"The columns have {sorted(lengths)} layers, but all columns must have the same number of "
                "layers."
            )

    def columns(self, prefix: str = "") -> dict[str, tuple[float, ...]]:
        """Return the mean and the percentiles as table columns, whose names begin with ``prefix``."""
        *names, _ = (field.name for field in fields(self))
        *values, _ = astuple(self)
        return {f"{prefix}{name}": column for name, column in zip(names, values, strict=True)}


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityBaselineResult(Result):
    """Cosine similarities of unrelated tokens and of the same word, after each layer.

    Attributes:
        unrelated: distribution over pairs of unrelated tokens.
        same_word: distribution over pairs of the same word; None if no word occurs in two sentences.
        sentences: number of reference sentences.
    """

    question: SimilarityBaseline
    unrelated: CosineDistribution
    same_word: CosineDistribution | None
    sentences: int

    def __post_init__(self) -> None:
        if self.same_word is not None and len(self.same_word.mean) != len(self.unrelated.mean):
            raise ShapeError(
                f"same_word has {len(self.same_word.mean)} layers, "
                f"but unrelated has {len(self.unrelated.mean)}."
            )

    @property
    def layers(self) -> int:
        """Number of layers, without the embeddings."""
        return len(self.unrelated.mean) - 1

    def corrected(self, cosines: Array) -> Array:
        """Subtract the mean cosine of unrelated tokens at each layer (Ethayarajh 2019, section 4.1).

        Args:
            cosines: cosines after each layer, [layer + 1, …].

        Returns:
            The differences, float64 of the same shape; 0 means as similar as unrelated tokens.

        Raises:
            ShapeError: `cosines` does not have one row per layer.
        """
        mean = np.array(self.unrelated.mean)
        if len(cosines) != len(mean):
            raise ShapeError(f"cosines has {len(cosines)} layers, but the baseline has {len(mean)}.")
        corrected: Array = cosines.astype(np.float64) - mean.reshape(-1, *[1] * (cosines.ndim - 1))
        return corrected

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The numbers of reference sentences, of pairs of unrelated tokens, and of pairs of the same word."""
        same = {} if self.same_word is None else {"same_word_pairs": self.same_word.pairs}
        return {"sentences": self.sentences, "token_pairs": self.unrelated.pairs, **same}

    def frame(self) -> pd.DataFrame:
        """Return one row per layer, from 0, with statistics of the cosines of unrelated tokens.

        The columns are layer, mean, p5, p50 and p95, and, if available, the same statistics for the same word
        in different sentences, with the prefix same_word_.
        """
        same = {} if self.same_word is None else self.same_word.columns("same_word_")
        return pd.DataFrame({"layer": range(self.layers + 1), **self.unrelated.columns(), **same})


@lru_cache(maxsize=1)
def baseline_sentences() -> tuple[str, ...]:
    """Return the reference sentences: short English sentences on unrelated subjects."""
    text = resources.files("bert_probe").joinpath("data/baseline_sentences.txt").read_text("utf-8")
    return tuple(line for line in text.splitlines() if line.strip())


def _pairs(tokens_by_sentence: list[list[Token]]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return all pairs of unrelated tokens, and all pairs of the same word.

    Pairs are two arrays with the indices of the first and second tokens among the tokens of all sentences.
    """
    tokens = [token for sentence in tokens_by_sentence for token in sentence]
    ids = np.array([token.id for token in tokens])
    words = np.array([not token.split_word and token.display.isalnum() for token in tokens])
    lengths = [len(sentence) for sentence in tokens_by_sentence]
    sentences = np.repeat(np.arange(len(lengths)), lengths)
    first, second = np.triu_indices(len(tokens), k=1)
    apart, same = sentences[first] != sentences[second], ids[first] == ids[second]
    unrelated, same_word = apart & ~same, apart & same & words[first]
    return (first[unrelated], second[unrelated]), (first[same_word], second[same_word])


def _summary(cosines: Array) -> list[float]:
    percentiles: list[float] = np.percentile(cosines, [5, 50, 95]).tolist()
    return [float(cosines.mean(dtype=np.float64)), *percentiles]


def _distribution(rows: list[list[float]], pairs: int) -> CosineDistribution:
    mean, p5, p50, p95 = (tuple(column) for column in zip(*rows, strict=True))
    return CosineDistribution(mean, p5, p50, p95, pairs)


def iso_score(variances: Array) -> float:
    """Return IsoScore, 0 to 1: how evenly the variance is spread over all dimensions (Rudman et al. 2022).

    Args:
        variances: variance along each principal component.
    """
    size = len(variances)
    if size == 1:
        return 1.0
    norm = float(np.linalg.norm(variances))
    if not norm:
        return float("nan")
    scaled = np.sqrt(size) * variances / norm
    defect = float(np.linalg.norm(scaled - 1)) / np.sqrt(2 * (size - np.sqrt(size)))
    used = (size - defect**2 * (size - np.sqrt(size))) ** 2 / size**2
    return float((size * used - 1) / (size - 1))


def score(a: Array, b: Array, similarity: str) -> float:
    """Return the score of two vectors (see `scores`); the cosine of a zero vector is NaN."""
    if similarity == "cosine":
        return float(cosine_of_rows(a[None], b[None])[0])  # returns exactly 1 for equal vectors
    return float(scores(a[None], b[None], similarity)[0, 0])


def differentiable_scores(a: torch.Tensor, b: torch.Tensor, similarity: str) -> torch.Tensor:
    """Return the score of each row of ``a`` and the corresponding row of ``b`` (see `scores`)."""
    if similarity == "cosine":
        return torch.nn.functional.cosine_similarity(a, b, dim=-1)
    if similarity == "dot":
        return (a * b).sum(dim=-1)
    distances: torch.Tensor = torch.linalg.vector_norm(
        a - b, ord=2 if similarity == "euclidean" else 1, dim=-1
    )
    return -distances


def scores(a: Array, b: Array, similarity: str) -> Array:
    """Return the score of every row of ``a`` [m, size] with every row of ``b`` [n, size].

    The scores equal those of sentence-transformers. Distances are negated, so that a larger score always
    means more similar.

    Args:
        similarity: a name in `SIMILARITIES`.

    Returns:
        Scores of shape [m, n], float32, or float64 for float64 rows.
    """
    if similarity == "cosine":
        return cosine(a, b)
    first, second, dtype = a.astype(np.float64), b.astype(np.float64), np.result_type(a, b, np.float32)
    if similarity == "dot":
        return _product(first, second, dtype)
    from scipy.spatial.distance import cdist  # imported here because the import is slow

    values = -cdist(first, second, {"euclidean": "euclidean", "manhattan": "cityblock"}[similarity])
    compared: Array = values.astype(dtype)
    return compared


def nearest_pairs(vectors: Array, similarity: str, count: int) -> tuple[Array, Array, Array]:
    """Return the pairs of rows with the highest scores, without computing all scores at once.

    Args:
        vectors: vectors of shape [n, size].
        similarity: a name in `SIMILARITIES`.
        count: maximum number of pairs.

    Returns:
        The scores in descending order, NaN last, and the indices of the first and the second vectors. Pairs
        with equal scores are in the order of their indices.
    """
    best = _Pairs(np.empty(0, np.result_type(vectors, np.float32)), *[np.empty(0, np.int64)] * 2)
    pending: list[_Pairs] = []
    starts = range(0, len(vectors), _BLOCK_ROWS)
    for row, column in ((row, column) for row in starts for column in starts if column >= row):
        rows, columns = vectors[row : row + _BLOCK_ROWS], vectors[column : column + _BLOCK_ROWS]
        block = scores(rows, columns, similarity)
        is_candidate = np.ones(block.shape, bool)
        if len(best.values) == count and not np.isnan(best.values[-1]):
            is_candidate = block >= best.values[-1]
        positions = np.flatnonzero(np.triu(is_candidate, 1) if row == column else is_candidate)
        positions = positions[_largest(block.ravel()[positions], count)]
        found = block.ravel()[positions]
        pending.append(_Pairs(found, row + positions // len(columns), column + positions % len(columns)))
        if sum(len(pairs.values) for pairs in pending) >= count:
            best, pending = _best_pairs([best, *pending], count), []
    return _best_pairs([best, *pending], count)


class _Pairs(NamedTuple):
    """Scores of pairs of vectors, and the indices of the first and the second vectors."""

    values: Array
    first: Array
    second: Array


def _best_pairs(pairs: Sequence[_Pairs], count: int) -> _Pairs:
    """Return the pairs with the highest scores, see `nearest_pairs`."""
    values, first, second = map(np.concatenate, zip(*pairs, strict=True))
    by_index = np.lexsort((second, first))
    best = by_index[_largest(values[by_index], count)]
    return _Pairs(values[best], first[best], second[best])


def _largest(values: Array, count: int) -> Array:
    """Return the indices of the largest values in descending order, NaN last; ties keep their order."""
    keys = np.where(np.isnan(values), -np.inf, values)
    candidates = np.arange(len(keys))
    if len(keys) > count:  # sort only the largest values
        threshold = np.partition(keys, -count)[-count]
        above, equal = np.flatnonzero(keys > threshold), np.flatnonzero(keys == threshold)
        candidates = np.sort(np.concatenate((above, equal[: count - len(above)])))
    largest: Array = candidates[np.argsort(-keys[candidates], kind="stable")]
    return largest


def scores_of_rows(a: Array, b: Array, similarity: str) -> Array:
    """Return the score of each row of ``a`` [m, size] and the corresponding row of ``b``, float64 [m].

    The score of a vector of zeros is NaN if the similarity is the cosine.

    Args:
        similarity: a name in `SIMILARITIES`.
    """
    values = np.empty(len(a), np.float64)
    size = max(1, _BLOCK_NUMBERS // max(1, a.shape[-1]))
    for start in range(0, len(a), size):
        rows = slice(start, start + size)
        values[rows] = _scores_of_block(a[rows].astype(np.float64), b[rows].astype(np.float64), similarity)
    return values


def _scores_of_block(first: Array, second: Array, similarity: str) -> Array:
    if similarity == "cosine":
        return cosine_of_rows(first, second)
    values: Array
    if similarity == "dot":
        values = (first * second).sum(axis=1)
    else:
        values = -np.linalg.norm(first - second, ord={"euclidean": 2, "manhattan": 1}[similarity], axis=1)
    return values
