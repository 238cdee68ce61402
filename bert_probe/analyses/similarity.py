"""Cosine similarity of token vectors, and the baseline without which it means little."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from bert_probe.analyses.cosine import cosine
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace


@dataclass(frozen=True, eq=False)
class Similarity:
    """Tokens of one text against tokens of another, or of the same one.

    Attributes:
        a, b: the traces; the same one twice for a text with itself.
        row_positions, column_positions: the tokens compared, as positions in ``a`` and ``b``.
    """

    a: Trace
    b: Trace
    row_positions: tuple[int, ...]
    column_positions: tuple[int, ...]

    @property
    def rows(self) -> tuple[Token, ...]:
        """Tokens of ``a`` that are compared."""
        return tuple(self.a.tokens[position] for position in self.row_positions)

    @property
    def columns(self) -> tuple[Token, ...]:
        """Tokens of ``b`` that are compared."""
        return tuple(self.b.tokens[position] for position in self.column_positions)

    def cosine(self, layer: int) -> Array:
        """Cosines after a layer, [row token, column token]; 0 is the output of the embeddings.

        Raises:
            SelectionError: no such layer.
        """
        return cosine(
            self.a.vectors(layer)[list(self.row_positions)],
            self.b.vectors(layer)[list(self.column_positions)],
        )


def token_similarity(
    checkpoint: Checkpoint,
    text_a: str,
    text_b: str | None = None,
    *,
    specials: bool = False,
    truncate: bool = False,
) -> Similarity:
    """Compare every token of two separate texts, read in one batched pass.

    Args:
        text_b: None compares ``text_a`` with itself.
        specials: keep [CLS] and [SEP].

    Raises:
        TextError, OutOfMemoryError: as `Checkpoint.trace`.
    """
    if text_b is None:
        trace = checkpoint.trace(text_a, truncate=truncate)
        return compare(trace, trace, specials=specials)
    a, b = checkpoint.traces([text_a, text_b], truncate=truncate)
    return compare(a, b, specials=specials)


def compare(a: Trace, b: Trace, *, specials: bool = False) -> Similarity:
    """Every token of one trace with every token of another."""
    return Similarity(a, b, _positions(a, None, specials), _positions(b, None, specials))


def compare_segments(trace: Trace, *, specials: bool = False) -> Similarity:
    """The first sentence of a pair with the second, in the context of each other.

    Raises:
        SelectionError: the trace is not of a pair.
    """
    if trace.encoding.pair is None:
        raise SelectionError("This text is one sentence; two segments are needed. Trace it with a pair.")
    return Similarity(trace, trace, _positions(trace, 0, specials), _positions(trace, 1, specials))


def _positions(trace: Trace, segment: int | None, specials: bool) -> tuple[int, ...]:
    return tuple(
        token.position
        for token in trace.tokens
        if (specials or not token.special) and segment in (None, token.segment)
    )


@dataclass(frozen=True)
class Spread:
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


@dataclass(frozen=True)
class Baseline(Spread):
    """Cosines that unrelated tokens of a model reach.

    Attributes:
        sentences: number of sentences in the sample.
        same_word: what one word reaches with itself in another sentence; None where the sample has
            no such pair.
    """

    sentences: int
    same_word: Spread | None = None


@lru_cache(maxsize=1)
def baseline_sentences() -> tuple[str, ...]:
    """The text sample shipped with the package: short sentences on unrelated subjects."""
    text = resources.files("bert_probe").joinpath("data/baseline_sentences.txt").read_text("utf-8")
    return tuple(line for line in text.splitlines() if line.strip())


def baseline(checkpoint: Checkpoint) -> Baseline:
    """Measure the cosine of unrelated tokens: every two tokens of the shipped sample that come from
    different sentences and differ in id; special tokens left out. Beside it that of same-word pairs: two
    tokens of one id from different sentences, each a whole word of letters or digits.

    Contextual vectors point in similar directions whatever they stand for, the more so in upper
    layers (Ethayarajh 2019), so a cosine says something only next to this.

    Raises:
        UnavailableError: the tokenizer makes no two different tokens of the sample.
        TextError: the sample does not fit this model.
    """
    traces = checkpoint.traces(list(baseline_sentences()))
    kept = [[token for token in trace.tokens if not token.special] for trace in traces]
    ids = np.array([token.id for tokens in kept for token in tokens])
    words = np.array([_is_word(token) for tokens in kept for token in tokens])
    sentence = np.repeat(np.arange(len(traces)), [len(tokens) for tokens in kept])
    first, second = np.triu_indices(len(ids), k=1)
    apart, same = sentence[first] != sentence[second], ids[first] == ids[second]
    groups = (apart & ~same, apart & same & words[first])
    if not groups[0].any():
        raise UnavailableError("This tokenizer knows no word of the baseline's sample, which is English.")
    rows: tuple[list[list[float]], ...] = ([], [])
    for layer in range(traces[0].layers + 1):
        vectors = np.concatenate(
            [trace.vectors(layer)[_places(tokens)] for trace, tokens in zip(traces, kept, strict=True)]
        )
        cosines = cosine(vectors, vectors)[first, second]
        for group, found in zip(groups, rows, strict=True):
            if group.any():
                found.append(_summary(cosines[group]))
    unrelated, same_word = (
        _spread_of(found, int(group.sum())) for found, group in zip(rows, groups, strict=True)
    )
    assert unrelated is not None  # such pairs were looked for above
    return Baseline(
        unrelated.mean,
        unrelated.p5,
        unrelated.p50,
        unrelated.p95,
        pairs=unrelated.pairs,
        sentences=len(traces),
        same_word=same_word,
    )


def _is_word(token: Token) -> bool:
    return not token.split_word and token.display.isalnum()


def _places(tokens: list[Token]) -> list[int]:
    return [token.position for token in tokens]


def _summary(cosines: Array) -> list[float]:
    percentiles: list[float] = np.percentile(cosines, [5, 50, 95]).tolist()
    return [float(cosines.mean(dtype=np.float64)), *percentiles]


def _spread_of(rows: list[list[float]], pairs: int) -> Spread | None:
    if not pairs:
        return None
    mean, p5, p50, p95 = (tuple(column) for column in zip(*rows, strict=True))
    return Spread(mean, p5, p50, p95, pairs)
