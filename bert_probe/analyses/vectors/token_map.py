"""The tokens of one or many texts on a plane at every layer, from the embeddings to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bert_probe.analyses.vectors.encoded import Line, encoded
from bert_probe.analyses.vectors.planes import BASES, Planes, planes
from bert_probe.core.field_types import Choice, Flag
from bert_probe.core.inputs import OneOrTwoTraces, SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.forward import as_array, batches, forward
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace
from bert_probe.text.labeled_texts import Label, LabeledTexts
from bert_probe.text.sentence_files import numbered
from bert_probe.text.words import Unit, WordLens, word_lens

HELD_BYTES = 1_000_000_000
"""Of vectors at most: 25,000 tokens of a BERT-base have so many in its 13 layers."""
BATCH_TOKENS = 2048
"""Padded tokens in one pass, whose vectors of every layer are there at once."""

SEGMENTS = ("A", "B")
"""What the two texts of one input are called."""


class MapPoint(NamedTuple):
    """A token, or a word, that is laid out.

    Attributes:
        name: as in the vocabulary; a word as written.
        display: as a person reads it.
        text: number of its text, from 0.
        position: place of its first token in the input.
        part: number of its part, from 0; see `TokenMapResult.part_names`.
    """

    name: str
    display: str
    text: int
    position: int
    part: int


@dataclass(frozen=True, repr=False)
class _MapQuestion(Question):
    """What is asked of every map of layers."""

    words: bool = param(Flag(), default=False, key="map_words", about="Merge pieces into words first.")
    specials: bool = param(
        Flag(), default=False, key="map_specials", about="Lay out [CLS], [SEP] and the like as well."
    )
    basis: str = param(
        Choice(BASES),
        default="shared",
        key="map_basis",
        about="One plane for all layers, the same less each layer's mean, or one for each layer.",
    )

    def _marks(self, encoding: Encoding, text: int, part: int | None) -> _TextPoints:
        """What is laid out of a text; ``part`` None stands for its segments."""
        lens = word_lens(encoding) if self.words else None
        units: Sequence[Token | Unit] = encoding.tokens if lens is None else lens.units
        kept = [place for place, unit in enumerate(units) if self.specials or not unit.special]
        marks = [
            MapPoint(str(one), one.display, text, one.position, one.segment if part is None else part)
            for one in map(units.__getitem__, kept)
        ]
        return _TextPoints(marks, kept, lens)


@question("layer map", command="map")
class TokenMap(_MapQuestion):
    """The tokens of a text, or of two, as points of a plane, at each layer from the embeddings' output on.

    Attributes:
        words: merge pieces into words, by the mean of their vectors.
        specials: lay out [CLS], [SEP] and the like as well. They often lie far from all others.
        basis: which plane; see `planes.BASES`.
    """

    inputs = OneOrTwoTraces()

    def of(self, trace: Trace, other: Trace | None = None) -> TokenMapResult:
        """The points.

        Args:
            other: a text that was read by itself, to be laid out on the same planes.

        Raises:
            SelectionError: texts that different models read.
            UnavailableError: see `planes`; attention that came without vectors.
        """
        traces = [trace] if other is None else [trace, other]
        subject = InputRecord.of(*traces)
        paired = any(trace.encoding.pair is not None for trace in traces)
        read = [self._marks(trace.encoding, i, None if paired else 0) for i, trace in enumerate(traces)]
        states = [
            np.concatenate([seen.of(trace.vectors(layer)) for seen, trace in zip(read, traces, strict=True)])
            for layer in range(trace.layers + 1)
        ]
        marks = _all_of(read)
        texts = tuple((trace.encoding.text, trace.encoding.pair) for trace in traces)
        laid = planes(states, self.basis)
        return TokenMapResult(self, subject, texts, marks, SEGMENTS if paired else (), laid)


@question("layer map of many", command="corpus-map")
class CorpusTokenMap(_MapQuestion):
    """The same of many texts, each read by itself, on planes that all of them share.

    Attributes:
        words, specials, basis: as in `TokenMap`.
    """

    inputs = SentenceList(labeled_option="--labelled")

    def of(
        self,
        checkpoint: Checkpoint,
        rows: Sequence[str] | LabeledTexts,
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> TokenMapResult:
        """The points of all texts.

        Args:
            rows: one text an entry, of which blank ones do not count; or texts with labels, which are their
                parts.
            truncate: cut texts that are too long instead of refusing them.
            report: told how many texts are read, and of how many; and again while they are laid out.

        Raises:
            EmptyTextError, TooLongError, TextError: no text, one that cannot be read, by its line, or more
                vectors than `HELD_BYTES`.
            OutOfMemoryError: the machine is too small for these texts.
            UnavailableError: see `planes`; a model in memory that changes meanwhile.
        """
        checkpoint = checkpoint.now()
        encodings = encoded(checkpoint, _lines(rows), truncate, report)
        parts = _parts(rows)
        read = [
            self._marks(
                encoding, i, parts.index(_part(rows.rows[i].label)) if isinstance(rows, LabeledTexts) else 0
            )
            for i, encoding in enumerate(encodings)
        ]
        marks = _all_of(read)
        dropped = sum(encoding.dropped for encoding in encodings)
        subject = (
            InputRecord.of_tagged(checkpoint, {"rows": rows}, dropped)
            if isinstance(rows, LabeledTexts)
            else InputRecord.of_sentences(checkpoint, [encoding.text for encoding in encodings], dropped)
        )
        with memory_errors(
            f"The vectors of {len(marks):,} tokens need more memory than is free. Give fewer texts."
        ):
            states = _vectors(checkpoint, encodings, read, report)
            laid = planes(states, self.basis, lambda: report(len(encodings), len(encodings)))
        texts = tuple((encoding.text, encoding.pair) for encoding in encodings)
        return TokenMapResult(self, subject, texts, marks, parts, laid)


@dataclass(frozen=True, eq=False, repr=False)
class TokenMapResult(Result):
    """Tokens, or words, as points of a plane at every layer.

    Attributes:
        texts: that were read, each with the second one of the same input, or None.
        marks: what is laid out, in the order of the texts.
        part_names: labels of the texts, or names of the segments; none where neither is there.
        planes: their points [layer + 1, mark, 2], layer 0 being the embeddings' output, and what of the
            variance these show.
    """

    question: TokenMap | CorpusTokenMap
    texts: tuple[tuple[str, str | None], ...]
    marks: tuple[MapPoint, ...]
    part_names: tuple[str, ...]
    planes: Planes

    def __post_init__(self) -> None:
        if self.planes.points.shape[1] != len(self.marks):
            shape = self.planes.points.shape
            raise ShapeError(f"{len(self.marks)} tokens do not fit points of shape {shape}.")

    @property
    def layers(self) -> int:
        """Number of layers, the embeddings not counted."""
        return len(self.planes.points) - 1

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Shares of the variance along the two axes: of all layers together, and of each one from 0."""
        explained, of_each = self.planes.explained, self.planes.by_layer.tolist()
        by_layer = [[None if np.isnan(share) else share for share in row] for row in of_each]
        together = {} if explained is None else {"explained_variance": list(explained)}
        return {**together, "explained_variance_by_layer": by_layer}

    def frame(self) -> pd.DataFrame:
        """A row for each token at each layer: text, from 1, position, token, layer, from 0, x, y.

        Before the position the part, where there are parts.
        """
        return self._rows(range(len(self.marks)), range(self.layers + 1))

    def some(self, marks: Sequence[int], layer: int | None = None) -> pd.DataFrame:
        """The same of some marks, by their index from 0; at one layer, or at all."""
        layers = range(self.layers + 1) if layer is None else [layer]
        return self._with_provenance(self._rows(marks, layers))

    def _rows(self, chosen: Sequence[int], layers: Sequence[int]) -> pd.DataFrame:
        marks = [self.marks[index] for index in chosen]
        flat = self.planes.points[np.ix_(layers, chosen)].reshape(-1, 2)
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
        """Bytes of points, texts and, about, of what is laid out."""
        texts = sum(len(text) + len(pair or "") for text, pair in self.texts)
        return self.planes.points.nbytes + texts + 300 * len(self.marks)


class _TextPoints(NamedTuple):
    """What is laid out of one text: its marks, their places among tokens or words, and how these merge."""

    marks: list[MapPoint]
    kept: list[int]
    lens: WordLens | None

    def of(self, vectors: Array) -> Array:
        """Vectors of the marks, [mark, hidden], of those of the text's tokens."""
        whole = vectors if self.lens is None else self.lens.average(vectors)
        return whole[self.kept]


def _all_of(read: Sequence[_TextPoints]) -> tuple[MapPoint, ...]:
    return tuple(mark for one in read for mark in one.marks)


def _lines(rows: Sequence[str] | LabeledTexts) -> list[Line]:
    if isinstance(rows, LabeledTexts):
        return [(row.line, row.text, row.pair) for row in rows.rows]
    return [(line, text, None) for line, text in numbered(rows, "text")]


def _parts(rows: Sequence[str] | LabeledTexts) -> tuple[str, ...]:
    """The labels there are, in the order in which they come."""
    return (
        tuple(dict.fromkeys(_part(row.label) for row in rows.rows)) if isinstance(rows, LabeledTexts) else ()
    )


def _part(label: Label) -> str:
    if isinstance(label, tuple):
        return " | ".join(label) or "no label"
    return label if isinstance(label, str) else f"{label:g}"


def _vectors(
    checkpoint: Checkpoint, encodings: Sequence[Encoding], read: Sequence[_TextPoints], report: Progress
) -> list[Array]:
    """Vectors of all marks after each layer from 0, each [mark, hidden]."""
    starts = np.cumsum([0, *(len(one.marks) for one in read)])
    about = checkpoint.description
    need = int(starts[-1]) * about.hidden_size * (about.layers + 1) * (8 if about.dtype == "float64" else 4)
    if need > HELD_BYTES:
        raise TextError(
            f"{starts[-1]:,} tokens have vectors of {need / 1e9:.1f} GB in {about.layers + 1} layers; at "
            f"most {HELD_BYTES / 1e9:.0f} GB is held. Give fewer texts."
        )
    held: list[Array] = []
    done = 0
    for group in batches([len(encoding) for encoding in encodings], BATCH_TOKENS, checkpoint.pads):
        output, _ = forward(checkpoint, [encodings[index] for index in group], states=True)
        for layer, state in enumerate(output.hidden_states):
            vectors = as_array(state)
            if layer == len(held):
                held.append(np.empty((starts[-1], vectors.shape[2]), vectors.dtype))
            for row, index in enumerate(group):
                mine = vectors[row, : len(encodings[index])]
                held[layer][starts[index] : starts[index + 1]] = read[index].of(mine)
        done += len(group)
        report(done, len(encodings))
    return held
