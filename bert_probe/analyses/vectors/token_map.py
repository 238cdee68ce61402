"""Map of tokens: the hidden states after every layer, projected onto two principal components."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.linalg import eigh

from bert_probe.analyses.vectors.layouts import loading_signs
from bert_probe.core.field_types import Choice, Flag
from bert_probe.core.inputs import OneOrTwoTraces, SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import Checkpoint, Line, encode_texts
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.forward import as_array, forward, group_by_length, layer_states
from bert_probe.model.lengths import task_limit
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.labeled_texts import Label, LabeledTexts
from bert_probe.text.sentence_files import with_line_numbers
from bert_probe.text.words import Unit, WordLens, word_lens

MAX_BYTES = 1_000_000_000
"""Size limit of all vectors, in bytes; enough for about 25,000 tokens at the 13 layers of BERT-base."""
BATCH_TOKENS = 2048
"""Maximum number of padded tokens in a batch. All layers' hidden states of a batch are in memory."""

BASES: Mapping[str, str] = {
    "shared": "One plane for all layers; their common mean is subtracted.",
    "centred": "One plane for all layers; each layer's own mean is subtracted.",
    "own": "A separate plane for each layer; positions in different layers cannot be compared.",
}

_BLOCK = 4096
"""Number of vectors converted to float64 at a time."""

SEGMENTS = ("A", "B")
"""Names of the two texts of a sentence pair."""


class MapPoint(NamedTuple):
    """A token or word on a map.

    Attributes:
        name: the token as in the vocabulary, or the word as in the text.
        display: readable form of the token or word.
        text: index of the text that contains the token or word.
        position: position of its first token in the input.
        part: index of its label or segment; see `TokenMapResult.part_names`.
    """

    name: str
    display: str
    text: int
    position: int
    part: int


@dataclass(frozen=True, eq=False)
class Planes:
    """Points of all layers on planes of principal components.

    Attributes:
        points: coordinates, float32 [layer, vector, 2].
        explained: share of the variance of all layers along each axis, 0 to 1; None if each layer has its own
            axes.
        by_layer: share of each layer's variance about its own mean along each axis, [layer, 2]; NaN if all
            vectors of the layer are equal.
    """

    points: Array
    explained: tuple[float, float] | None
    by_layer: Array

    def __post_init__(self) -> None:
        layers = len(self.points)
        if self.points.ndim != 3 or self.points.shape[2] != 2 or self.by_layer.shape != (layers, 2):
            raise ShapeError(
                f"points must have shape [layer, vector, 2] and by_layer [layer, 2], not {self.points.shape} "
                f"and {self.by_layer.shape}."
            )


@dataclass(frozen=True, repr=False)
class _MapQuestion(Question):
    """Base class of `TokenMap` and `CorpusTokenMap`, with their common fields."""

    words: bool = param(
        Flag(), default=False, key="map_words", about="Merge subword tokens into words first."
    )
    specials: bool = param(
        Flag(), default=False, key="map_specials", about="Include special tokens such as [CLS] and [SEP]."
    )
    basis: str = param(
        Choice(BASES),
        default="shared",
        key="map_basis",
        about="Projection: one plane for all layers, one plane with each layer centered, or a separate "
        "plane for each layer.",
    )

    def _marks(self, encoding: Encoding, text: int, part: int | None) -> _TextPoints:
        """Return the points of a text. If ``part`` is None, the part of each point is its segment index."""
        lens = word_lens(encoding) if self.words else None
        units: Sequence[Token | Unit] = encoding.tokens if lens is None else lens.units
        indices = [index for index, unit in enumerate(units) if self.specials or not unit.special]
        marks = [
            MapPoint(str(unit), unit.display, text, unit.position, unit.segment if part is None else part)
            for unit in map(units.__getitem__, indices)
        ]
        return _TextPoints(marks, indices, lens)


@question("token map", command="map")
class TokenMap(_MapQuestion):
    """The tokens of one or two texts as points in a plane, after the embeddings and after each layer.

    Attributes:
        words: merge subword tokens into words, whose vectors are the means of their tokens' vectors.
        specials: include special tokens such as [CLS] and [SEP]; they are often far from all other tokens.
        basis: how the principal components are computed; see `BASES`.
    """

    inputs = OneOrTwoTraces()

    def of(self, trace: Trace, other: Trace | None = None) -> TokenMapResult:
        """Return the map of one or two texts.

        Args:
            trace: a text, or a sentence pair.
            other: a second, separate text, which is projected onto the same planes.

        Raises:
            SelectionError: the traces are from different models.
            UnavailableError: see `planes`; also if the trace has no hidden states, only attention weights.
        """
        traces = [trace] if other is None else [trace, other]
        inputs = InputRecord.of(*traces)
        is_pair = any(trace.encoding.pair is not None for trace in traces)
        by_text = [self._marks(trace.encoding, i, None if is_pair else 0) for i, trace in enumerate(traces)]
        states = [
            np.concatenate(
                [points.select(trace.vectors(layer)) for points, trace in zip(by_text, traces, strict=True)]
            )
            for layer in range(trace.layers + 1)
        ]
        marks = _concatenate(by_text)
        texts = tuple((trace.encoding.text, trace.encoding.pair) for trace in traces)
        parts = SEGMENTS if is_pair else ()
        return TokenMapResult(self, inputs, texts, marks, parts, planes(states, self.basis))


@question("corpus token map", command="corpus-map")
class CorpusTokenMap(_MapQuestion):
    """A map of the tokens of many separate texts, projected together.

    Attributes:
        words, specials, basis: see `TokenMap`.
    """

    inputs = SentenceList(labeled_option="--labeled")

    def of(
        self,
        checkpoint: Checkpoint,
        rows: Sequence[str] | LabeledTexts,
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> TokenMapResult:
        """Return the map of all texts.

        Args:
            checkpoint: the model.
            rows: texts (blank texts are skipped), or labeled texts, whose labels become the `part_names` of
                the result.
            truncate: truncate texts that are too long instead of raising an error.
            progress: called with the number of texts done and the total; during the layout, all texts are
                reported as done.

        Raises:
            EmptyTextError, TooLongError, TextError: there is no text, a text cannot be encoded (the message
                names its line), or the vectors exceed `MAX_BYTES`.
            OutOfMemoryError: the texts need more memory than is available.
            UnavailableError: see `planes`; also if the model in memory changes during the computation.
        """
        checkpoint = checkpoint.snapshot()
        encodings = encode_texts(checkpoint, _lines(rows), truncate, progress)
        parts = _parts(rows)
        by_text = [
            self._marks(
                encoding,
                i,
                parts.index(_part_name(rows.rows[i].label)) if isinstance(rows, LabeledTexts) else 0,
            )
            for i, encoding in enumerate(encodings)
        ]
        marks = _concatenate(by_text)
        dropped = sum(encoding.dropped for encoding in encodings)
        inputs = (
            InputRecord.of_tagged(checkpoint, {"rows": rows}, dropped)
            if isinstance(rows, LabeledTexts)
            else InputRecord.of_sentences(checkpoint, [encoding.text for encoding in encodings], dropped)
        )
        with memory_errors(
            f"The vectors of {len(marks):,} tokens need more memory than is available. Use fewer texts."
        ):
            states = _vectors(checkpoint, encodings, by_text, progress)
            layout = planes(states, self.basis, lambda: progress(len(encodings), len(encodings)))
        texts = tuple((encoding.text, encoding.pair) for encoding in encodings)
        return TokenMapResult(self, inputs, texts, marks, parts, layout)


@dataclass(frozen=True, eq=False, repr=False)
class TokenMapResult(Result):
    """Tokens or words as points in a plane after every layer.

    Attributes:
        texts: each text with the second text of its sentence pair, which is None for a single text.
        marks: the tokens or words, in the order of the texts.
        part_names: labels of the texts or names of the segments; empty if there are neither.
        planes: points [layer + 1, mark, 2], where layer 0 is the output of the embeddings, and the explained
            variance.
    """

    question: TokenMap | CorpusTokenMap
    texts: tuple[tuple[str, str | None], ...]
    marks: tuple[MapPoint, ...]
    part_names: tuple[str, ...]
    planes: Planes

    def __post_init__(self) -> None:
        if self.planes.points.shape[1] != len(self.marks):
            shape = self.planes.points.shape
            raise ShapeError(f"The shape of points, {shape}, does not match {len(self.marks)} tokens.")

    @property
    def layers(self) -> int:
        """Number of layers, without the embeddings."""
        return len(self.planes.points) - 1

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The share of the variance that each axis explains, over all layers and in each layer."""
        explained = self.planes.explained
        by_layer = [
            [None if np.isnan(share) else share for share in row] for row in self.planes.by_layer.tolist()
        ]
        overall = {} if explained is None else {"explained_variance": list(explained)}
        return {**overall, "explained_variance_by_layer": by_layer}

    def frame(self) -> pd.DataFrame:
        """Return one row per token and layer: text (from 1), position, token, layer (from 0), x, y.

        If there are `part_names`, the column part precedes position.
        """
        return self._rows(range(len(self.marks)), range(self.layers + 1))

    def some(self, marks: Sequence[int], layer: int | None = None) -> pd.DataFrame:
        """Return the table rows of the marks with these indices, for one layer, or for all layers (None)."""
        layers = range(self.layers + 1) if layer is None else [layer]
        return self._with_provenance(self._rows(marks, layers))

    def _rows(self, indices: Sequence[int], layers: Sequence[int]) -> pd.DataFrame:
        marks = [self.marks[index] for index in indices]
        flat = self.planes.points[np.ix_(layers, indices)].reshape(-1, 2)
        times = len(layers)
        parts = {"part": [self.part_names[mark.part] for mark in marks] * times} if self.part_names else {}
        return pd.DataFrame(
            {
                "text": [mark.text + 1 for mark in marks] * times,
                **parts,
                "position": [mark.position for mark in marks] * times,
                "token": [mark.name for mark in marks] * times,
                "layer": np.repeat(layers, len(marks)),
                "x": flat[:, 0],
                "y": flat[:, 1],
            }
        )

    @property
    def nbytes(self) -> int:
        """Approximate size of the points, texts and marks, in bytes."""
        texts = sum(len(text) + len(pair or "") for text, pair in self.texts)
        return self.planes.points.nbytes + texts + 300 * len(self.marks)


class _TextPoints(NamedTuple):
    """The points of one text.

    Attributes:
        marks: the tokens or words that the map shows.
        indices: index of each mark among all tokens or words of the text, from 0.
        lens: merges tokens into words; None for a map of tokens.
    """

    marks: list[MapPoint]
    indices: list[int]
    lens: WordLens | None

    def select(self, vectors: Array) -> Array:
        """Select the vectors of the marks, [mark, hidden], from the vectors of all tokens of the text."""
        units = vectors if self.lens is None else self.lens.average(vectors)
        return units[self.indices]


def _concatenate(by_text: Sequence[_TextPoints]) -> tuple[MapPoint, ...]:
    return tuple(mark for points in by_text for mark in points.marks)


def _lines(rows: Sequence[str] | LabeledTexts) -> list[Line]:
    if isinstance(rows, LabeledTexts):
        return [(row.line, row.text, row.pair) for row in rows.rows]
    return [(line, text, None) for line, text in with_line_numbers(rows, "text")]


def _parts(rows: Sequence[str] | LabeledTexts) -> tuple[str, ...]:
    """Return the labels in the order of their first occurrence, or () if the texts have no labels."""
    return (
        tuple(dict.fromkeys(_part_name(row.label) for row in rows.rows))
        if isinstance(rows, LabeledTexts)
        else ()
    )


def _part_name(label: Label) -> str:
    if isinstance(label, tuple):
        return " | ".join(label) or "no label"
    return label if isinstance(label, str) else f"{label:g}"


def _vectors(
    checkpoint: Checkpoint, encodings: Sequence[Encoding], by_text: Sequence[_TextPoints], progress: Progress
) -> list[Array]:
    """Return an array for each layer, from 0, with the vectors of all marks; shape [mark, hidden]."""
    starts = np.cumsum([0, *(len(points.marks) for points in by_text)])
    description = checkpoint.description
    layers, itemsize = description.layers + 1, 8 if description.dtype == "float64" else 4
    size = int(starts[-1]) * description.hidden_size * layers * itemsize
    limit = task_limit(MAX_BYTES)
    if size > limit:
        raise TextError(
            f"The vectors of {starts[-1]:,} tokens in {layers} layers need {size / 1e6:,.0f} MB, but the "
            f"limit is {limit / 1e6:,.0f} MB. Use fewer texts."
        )
    states: list[Array] = []
    done = 0
    for batch in group_by_length([len(encoding) for encoding in encodings], BATCH_TOKENS, checkpoint.pads):
        output, _ = forward(checkpoint, [encodings[index] for index in batch], states=True)
        for layer, state in enumerate(layer_states(output)):
            vectors = as_array(state)
            if layer == len(states):
                states.append(np.empty((starts[-1], vectors.shape[2]), vectors.dtype))
            for row, index in enumerate(batch):
                tokens = vectors[row, : len(encodings[index])]
                states[layer][starts[index] : starts[index + 1]] = by_text[index].select(tokens)
        done += len(batch)
        progress(done, len(encodings))
    return states


def planes(states: Sequence[Array], basis: str, check_cancelled: Callable[[], None] = lambda: None) -> Planes:
    """Project the vectors of all layers onto two principal components (Pearson 1901; Hotelling 1933).

    Sums are in float64. The arbitrary sign of a component is set so that the loading with the largest
    absolute value is positive. A component without variance is all zeros.

    Args:
        states: vectors of each layer, [vector, hidden], all of the same shape.
        basis: one of `BASES`.
        check_cancelled: called twice for each layer; an exception that it raises ends the computation.

    Raises:
        UnavailableError: layers differ in width, all vectors are equal, or a vector is not finite.
    """
    if len({state.shape for state in states}) != 1 or states[0].ndim != 2:
        raise UnavailableError(
            "The hidden size of this model differs between layers, so the layers cannot be projected onto a "
            "common plane. Use another model."
        )
    means = np.stack([state.mean(axis=0, dtype=np.float64) for state in states])
    origins = np.broadcast_to(means.mean(axis=0), means.shape) if basis == "shared" else means
    total = np.zeros((states[0].shape[1],) * 2)
    axes: list[Array] = []
    spread = 0.0
    for state, origin in zip(states, origins, strict=True):
        check_cancelled()
        scatter = _scatter(state, origin)
        spread += float(np.trace(scatter))
        if basis == "own":
            axes.append(_axes(scatter))
        else:
            total += scatter
    if not np.isfinite(spread):
        raise UnavailableError(
            "The vector of a token contains NaN or infinite values. Open the model in float32."
        )
    if not spread > 0:
        raise UnavailableError("All vectors are equal, so there is no map. Use another text.")
    axes = axes or [_axes(total)] * len(states)
    by_plane = []
    by_layer = np.full((len(states), 2), np.nan)
    for layer, state in enumerate(states):
        check_cancelled()
        projected, variance = _project(state, means[layer], axes[layer])
        if variance > 0:
            by_layer[layer] = (projected**2).sum(axis=0) / variance
        by_plane.append(projected + (means[layer] - origins[layer]) @ axes[layer])
    points = np.stack(by_plane)
    shares = (points**2).sum(axis=(0, 1)) / spread
    explained = None if basis == "own" else (float(shares[0]), float(shares[1]))
    return Planes(read_only(points.astype(np.float32)), explained, read_only(by_layer))


def _scatter(vectors: Array, origin: Array) -> Array:
    """Return the scatter matrix Σ (v − origin)(v − origin)ᵀ of the vectors, float64 [hidden, hidden]."""
    scatter = np.zeros((vectors.shape[1],) * 2)
    for start in range(0, len(vectors), _BLOCK):
        centered = vectors[start : start + _BLOCK] - origin
        scatter += centered.T @ centered
    return scatter


def _axes(scatter: Array) -> Array:
    """Return the two directions with the largest variance, in descending order, of shape [hidden, 2]."""
    hidden = len(scatter)
    if not np.isfinite(scatter).all():
        return np.zeros((hidden, 2))  # `planes` raises an error for vectors that are not finite
    values, vectors = eigh(scatter, subset_by_index=[hidden - 2, hidden - 1])
    axes: Array = vectors[:, ::-1]
    axes = axes * loading_signs(axes)
    # Treat a variance that rounding errors can explain as zero.
    axes[:, values[::-1] <= hidden * np.finfo(np.float64).eps * np.trace(scatter)] = 0
    return axes


def _project(vectors: Array, mean: Array, axes: Array) -> tuple[Array, float]:
    """Return the coordinates of vectors, [vector, 2], and the sum of their squared distances to the mean."""
    points = np.empty((len(vectors), 2))
    squares = 0.0
    for start in range(0, len(vectors), _BLOCK):
        centered = vectors[start : start + _BLOCK] - mean
        points[start : start + _BLOCK] = centered @ axes
        squares += float(np.vdot(centered, centered))
    # If the sum of squares is within the rounding error, treat all vectors as equal.
    rounding = len(vectors) * np.finfo(np.float64).eps * float(np.vdot(mean, mean))
    return points, squares if squares > rounding else 0.0
