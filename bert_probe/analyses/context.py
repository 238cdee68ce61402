"""One word, or several, in different sentences: how alike its vectors are at every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from bert_probe.analyses.cosine import cosine
from bert_probe.analyses.similarity import Baseline
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit, find_word


@dataclass(frozen=True, eq=False)
class Occurrence:
    """A word where it stands in a sentence."""

    trace: Trace
    unit: Unit

    def vector(self, layer: int) -> Array:
        """Its vector after a layer, [hidden]: the mean of those of its pieces; 0 is the embeddings' output.

        Raises:
            SelectionError: no such layer.
        """
        pieces = self.trace.vectors(layer)[list(self.unit.positions)]
        mean: Array = pieces.mean(axis=0, dtype=np.float64)
        return mean


@dataclass(frozen=True, eq=False)
class WordsInContext:
    """Occurrences of words, in the order given, and the cosine between every two of them.

    Attributes:
        occurrences: two or more, in traces of one model.
    """

    occurrences: tuple[Occurrence, ...]

    def __post_init__(self) -> None:
        if len(self.occurrences) < 2:
            raise SelectionError("One word has nothing to be compared with. Give two or more.")
        models = {
            (one.trace.provenance["weights_sha256"], one.trace.layers, one.trace.vectors(0).shape[1])
            for one in self.occurrences
        }
        if len(models) > 1:
            raise ShapeError("The traces are of different models, whose vectors cannot be compared.")
        for one in self.occurrences:
            if not max(one.unit.positions) < len(one.trace.tokens):
                raise ShapeError(f"{one.unit} is not a word of its text.")

    @property
    def layers(self) -> int:
        """Number of layers, the embeddings not counted."""
        return self.occurrences[0].trace.layers

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Every two occurrences, as indices from 0."""
        return tuple(combinations(range(len(self.occurrences)), 2))

    def cosine(self, layer: int) -> Array:
        """Cosines after a layer, float32 [occurrence, occurrence], -1 to 1; 0 is the embeddings' output.

        Raises:
            SelectionError: no such layer.
        """
        vectors = np.stack([one.vector(layer) for one in self.occurrences])
        return cosine(vectors, vectors)

    @cached_property
    def curves(self) -> Array:
        """The cosine of each pair at every layer, float32 [layer + 1, pair], read-only."""
        first, second = zip(*self.pairs, strict=True)
        layers = [self.cosine(layer)[list(first), list(second)] for layer in range(self.layers + 1)]
        return read_only(np.stack(layers))


def words_in_context(occurrences: Sequence[tuple[Trace, Unit]]) -> WordsInContext:
    """Compare words where they stand: every two occurrences, at every layer.

    Args:
        occurrences: a trace and a word of it (see `find_word` and `word_lens`); a trace may come twice.

    Raises:
        SelectionError: fewer than two.
        ShapeError: traces of different models, or a word of another text.
    """
    return WordsInContext(tuple(Occurrence(trace, unit) for trace, unit in occurrences))


def find_in_each(traces: Sequence[Trace], word: str) -> WordsInContext:
    """The same word in each of several texts; WORD:2 is its second occurrence there.

    Raises:
        SelectionError: fewer than two texts, or one in which the word is not, or is more than once.
    """
    found = []
    for number, trace in enumerate(traces, start=1):
        try:
            found.append((trace, find_word(trace, word)))
        except SelectionError as error:
            raise SelectionError(f"Text {number}, “{_shortened(trace.encoding.text)}”: {error}") from None
    return words_in_context(found)


def corrected(cosines: Array, baseline: Baseline) -> Array:
    """Cosines less what unrelated tokens reach on average at that layer (Ethayarajh 2019, section 4.1).

    Args:
        cosines: [layer + 1, …].

    Returns:
        float64 of the same shape; 0 is as alike as unrelated tokens are.

    Raises:
        ShapeError: not a row for each layer of the baseline.
    """
    mean = np.array(baseline.mean)
    if len(cosines) != len(mean):
        raise ShapeError(f"{len(cosines)} layers do not fit a baseline of {len(mean)}.")
    less: Array = cosines.astype(np.float64) - mean.reshape(-1, *[1] * (cosines.ndim - 1))
    return less


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
