"""The numbers of a shard: its sentences through the model in batches by length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.corpus import labels
from bert_probe.corpus.head_batch import HeadBatch, read_heads
from bert_probe.corpus.ingest import ANSWERS, NEIGHBOURS, PROFILES, VECTORS, IngestConfig
from bert_probe.corpus.inputs import Record
from bert_probe.corpus.predictions import answering
from bert_probe.corpus.statistics import statistics
from bert_probe.corpus.tables import REFUSALS, ROWS, STATISTICS, TOKENS, Tables, TableSchema, layouts
from bert_probe.corpus.tokenization import ReadRecord, read
from bert_probe.corpus.units import Units
from bert_probe.errors import memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import as_array, batch, batches, no_memory, watched
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

BATCH_TOKENS = 1024
"""Padded tokens in one pass: few enough that what passes between layers stays in the processor's cache."""
DEVICE_BATCH_TOKENS = 2**15
"""The same for a graphics processor, which is idle between passes."""


def gathered(
    checkpoint: Checkpoint, question: IngestConfig, records: Sequence[Record], report: Progress = no_progress
) -> Tables:
    """All that is kept of some records: texts in, tables out, wherever that runs.

    The batches depend on the records alone, so that the same ones give the same digits on the same machine.

    Args:
        question: resolved, see `IngestConfig.of`.
        report: told how many records are done, and of how many.
    """
    found, refused = read(checkpoint, question, records)
    layout = layouts(question, checkpoint.description.hidden_size)
    numbers = _NumberBuffers(checkpoint, question, found)
    done = len(refused)
    report(done, len(records))
    most = BATCH_TOKENS if checkpoint.device.type == "cpu" else DEVICE_BATCH_TOKENS
    for group in batches([len(one.encoding) for one in found], most, checkpoint.pads):
        numbers.take(group)
        done += len(group)
        report(done, len(records))
    tables = {
        ROWS: labels.rows(found, layout[ROWS]),
        TOKENS: labels.tokens(found, layout[TOKENS]),
        REFUSALS: labels.refusals(refused, layout[REFUSALS]),
    }
    return {**tables, **numbers.tables(layout)}


class _NumberBuffers:
    """Room for the numbers of some sentences, filled in any order.

    Attributes:
        ends: units of all sentences up to each, [sentence + 1], from 0.
        profiles: [sentence, layer, head, measure].
        vectors: [layer, unit, hidden].
        keys, weights: of the sentences one after the other, each [layer, head, query].
    """

    def __init__(self, checkpoint: Checkpoint, question: IngestConfig, found: Sequence[ReadRecord]) -> None:
        about = checkpoint.description
        self._checkpoint, self._question, self._found = checkpoint, question, found
        self._heads = about.layers * about.heads
        self.ends = np.concatenate([[0], np.cumsum([one.units for one in found], dtype=np.int64)])
        keep, units = question.keep, int(self.ends[-1])
        grid = (len(found), about.layers, about.heads, len(MEASURES))
        layers = question.layers or ()
        self.profiles = np.empty(grid if PROFILES in keep else 0, np.float32)
        self.vectors = np.empty(
            (len(layers), units, about.hidden_size) if VECTORS in keep else 0, np.dtype(question.dtype)
        )
        strongest = units * self._heads if NEIGHBOURS in keep else 0
        self.keys, self.weights = np.empty(strongest, np.int32), np.empty(strongest, np.float32)
        self.answers = answering(checkpoint) if ANSWERS in keep else None

    def take(self, group: Sequence[int]) -> None:
        """One pass."""
        checkpoint, keep = self._checkpoint, self._question.keep
        members = [self._found[one] for one in group]
        inputs = batch(checkpoint, [member.encoding for member in members])
        with memory_errors(no_memory(inputs)), torch.inference_mode(), checkpoint.running() as model:
            output, calls = watched(checkpoint, model, inputs)
            if PROFILES in keep or NEIGHBOURS in keep:
                heads = read_heads(calls or output.attentions, _units(members), NEIGHBOURS in keep)
                self._take_heads(group, heads)
            if VECTORS in keep:
                self._take_vectors(group, [output.hidden_states[one] for one in self._question.layers or ()])
            if self.answers is not None:
                self.answers.take(group, members, inputs, output)

    def _take_heads(self, group: Sequence[int], heads: HeadBatch) -> None:
        if len(self.profiles):
            self.profiles[group] = heads.measures.transpose(1, 2, 3, 0)
        if heads.keys is None or heads.weights is None:
            return
        for place, one in enumerate(group):
            units = self._found[one].units
            span = slice(self.ends[one] * self._heads, self.ends[one + 1] * self._heads)
            self.keys[span] = heads.keys[place, ..., :units].ravel()
            self.weights[span] = heads.weights[place, ..., :units].ravel()

    def _take_vectors(self, group: Sequence[int], states: Sequence[torch.Tensor]) -> None:
        for place, of_layer in enumerate(map(as_array, states)):
            for vectors, one in zip(of_layer, group, strict=True):
                read = self._found[one]
                own = vectors[: len(read.encoding)]
                own = own if read.merged is None else read.merged.average(own)
                self.vectors[place, self.ends[one] : self.ends[one + 1]] = own

    def tables(self, layout: dict[str, TableSchema]) -> Tables:
        """What is kept of them."""
        made: dict[str, Callable[[], Mapping[str, Any]]] = {
            PROFILES: self._profiles,
            STATISTICS: lambda: statistics(self.profiles, self._checkpoint.description.max_tokens),
            VECTORS: self._vectors,
            NEIGHBOURS: self._neighbours,
            ANSWERS: lambda: {} if self.answers is None else self.answers.columns(self._found),
        }
        return {
            name: pa.table(columns(), layout[name].schema) for name, columns in made.items() if name in layout
        }

    @property
    def _rows(self) -> Array:
        return np.array([one.record.row for one in self._found], np.int64)

    def _profiles(self) -> dict[str, Array]:
        _, layers, heads, _ = self.profiles.shape
        count = len(self._found)
        return {
            "row": np.repeat(self._rows, layers * heads),
            "layer": np.tile(np.repeat(_counted(layers), heads), count),
            "head": np.tile(_counted(heads), count * layers),
            **{name: self.profiles[..., place].ravel() for place, name in enumerate(MEASURES)},
        }

    def _vectors(self) -> dict[str, Any]:
        layers = self._question.layers or ()
        sizes = np.diff(self.ends)
        numbers = pa.array(self.vectors.ravel())
        return {
            "row": np.tile(np.repeat(self._rows, sizes), len(layers)),
            "position": np.tile(_within(sizes), len(layers)),
            "layer": np.repeat(np.array(layers, np.int16), int(self.ends[-1])),
            "vector": pa.FixedSizeListArray.from_arrays(numbers, self.vectors.shape[2]),
        }

    def _neighbours(self) -> dict[str, Array]:
        about = self._checkpoint.description
        sizes = np.diff(self.ends)
        lines = np.repeat(sizes, self._heads)
        layers = np.repeat(_counted(about.layers), about.heads)
        return {
            "row": np.repeat(self._rows, sizes * self._heads),
            "layer": np.repeat(np.tile(layers, len(sizes)), lines),
            "head": np.repeat(np.tile(_counted(about.heads), about.layers * len(sizes)), lines),
            "query": _within(lines),
            "key": self.keys + 1,
            "weight": self.weights,
        }


def _units(read: Sequence[ReadRecord]) -> Units:
    """What the measures are of; all of a corpus are tokens, or all are words."""
    merged = [one.merged for one in read if one.merged is not None]
    return Units.of_words(merged) if merged else Units.of_tokens([one.encoding for one in read])


def _counted(count: int) -> Array:
    """1, 2, … as people count."""
    return np.arange(1, count + 1, dtype=np.int16)


def _within(sizes: Array) -> Array:
    """1 to the first size, 1 to the second, …"""
    starts = np.cumsum(sizes) - sizes
    within: Array = np.arange(1, int(sizes.sum()) + 1) - np.repeat(starts, sizes)
    return within.astype(np.int32)
