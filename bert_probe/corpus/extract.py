"""Compute the tables of a shard: run its sentences through the model in batches of similar length."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bert_probe.analyses.attention.heads import MEASURES
from bert_probe.analyses.outputs.prediction import PROBABILITIES, problem_type, softmax
from bert_probe.analyses.vectors.pooling import pool
from bert_probe.analyses.vectors.sentences import encode_inputs, pool_inputs
from bert_probe.corpus.head_batch import HeadBatch, Units, measure_batch
from bert_probe.corpus.inputs import (
    ANSWERS,
    NEIGHBORS,
    PROFILES,
    SENTENCE_VECTORS,
    VECTORS,
    IngestConfig,
    Record,
    sentence_pooling,
    sentence_vector_size,
)
from bert_probe.corpus.schema import (
    BINS,
    REFUSALS,
    ROWS,
    STATISTICS,
    TOKENS,
    Tables,
    TableSchema,
    bin_edges,
    bin_indices,
    layouts,
)
from bert_probe.errors import TextError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.encoding import Encoding, ModelInputs
from bert_probe.model.forward import (
    as_array,
    attention_matrices,
    batch,
    group_by_length,
    layer_states,
    memory_message,
    run_with_capture,
)
from bert_probe.model.outputs import OutputHead
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array
from bert_probe.text.tagged_sentences import NO_UNIT, AlignedWords, align_words
from bert_probe.text.words import WordLens, word_lens

BATCH_TOKENS = 1024
"""Maximum number of tokens in a batch on a CPU, including padding, so that vectors fit in the CPU cache."""
DEVICE_BATCH_TOKENS = 2**15
"""Maximum number of tokens in a batch on a GPU, including padding; a GPU needs larger batches than a CPU."""


def extract_tables(
    checkpoint: Checkpoint,
    question: IngestConfig,
    records: Sequence[Record],
    progress: Progress = no_progress,
) -> Tables:
    """Run the model on the records of a shard, and return all tables of the shard.

    Batches depend only on the records and the type of device, so results on the same device are identical.

    Args:
        checkpoint: the model.
        question: what to extract, resolved by `IngestConfig.of`.
        records: the records of the shard.
        progress: called with the number of processed records and their total.
    """
    sentences, rejected = tokenize_records(checkpoint, question, records)
    schemas = table_layouts(checkpoint, question)
    buffers = _Buffers(checkpoint, question, sentences)
    done = len(rejected)
    progress(done, len(records))
    budget = BATCH_TOKENS if checkpoint.device.type == "cpu" else DEVICE_BATCH_TOKENS
    lengths = [len(sentence.encoding) for sentence in sentences]
    for group in group_by_length(lengths, budget, checkpoint.pads):
        buffers.add_batch(group)
        done += len(group)
        progress(done, len(records))
    return {
        ROWS: rows_table(sentences, schemas[ROWS]),
        TOKENS: tokens_table(sentences, schemas[TOKENS]),
        REFUSALS: refusals_table(rejected, schemas[REFUSALS]),
        **buffers.tables(schemas),
    }


def table_layouts(checkpoint: Checkpoint, question: IngestConfig) -> dict[str, TableSchema]:
    """Return the schemas of the tables that a run with this model writes, by table name."""
    size = sentence_vector_size(checkpoint) if SENTENCE_VECTORS in question.keep else None
    return layouts(question, checkpoint.description.hidden_size, size)


class _Buffers:
    """Preallocated arrays for all values of a shard, which batches of sentences fill in any order."""

    def __init__(
        self, checkpoint: Checkpoint, question: IngestConfig, sentences: Sequence[ReadRecord]
    ) -> None:
        description = checkpoint.description
        self._checkpoint, self._question, self._sentences = checkpoint, question, sentences
        self._heads = description.layers * description.heads
        # Cumulative number of units (tokens or words) at the start of each sentence, and in total.
        self.ends = np.concatenate(
            [[0], np.cumsum([sentence.units for sentence in sentences], dtype=np.int64)]
        )
        keep, units = question.keep, int(self.ends[-1])
        shape = (len(sentences), description.layers, description.heads, len(MEASURES))
        self.profiles = np.empty(shape if PROFILES in keep else 0, np.float32)
        layers = question.layers or ()
        self.vectors = np.empty(  # shape [layer, unit, hidden]
            (len(layers), units, description.hidden_size) if VECTORS in keep else 0, np.dtype(question.dtype)
        )
        # The key that each query attends to most, and its weight, ordered by sentence, layer, head and query.
        count = units * self._heads if NEIGHBORS in keep else 0
        self.keys, self.weights = np.empty(count, np.int32), np.empty(count, np.float32)
        self.sentences: _SentenceVectors | None = None
        if SENTENCE_VECTORS in keep:
            self.sentences = _SentenceVectors(checkpoint, sentences, np.dtype(question.dtype))
        self.predictions: _Predictions | None = None
        if ANSWERS in keep:  # the model has a classification head, as `IngestConfig.of` has checked
            outputs = checkpoint.outputs
            self.predictions = _Predictions(outputs.get(TEXT_CLASSIFICATION) or outputs[TOKEN_CLASSIFICATION])

    def add_batch(self, group: Sequence[int]) -> None:
        """Run the model on one batch, the sentences with these indices, and store the results."""
        checkpoint, keep = self._checkpoint, self._question.keep
        members = [self._sentences[index] for index in group]
        inputs = batch(checkpoint, [member.encoding for member in members])
        with memory_errors(memory_message(inputs)), torch.inference_mode(), checkpoint.running() as model:
            output, calls = run_with_capture(checkpoint, model, inputs)
            if PROFILES in keep or NEIGHBORS in keep:
                attention = calls or attention_matrices(model, output)
                is_causal = self._checkpoint.description.is_causal
                measured = measure_batch(attention, _units(members), NEIGHBORS in keep, is_causal)
                self._store_heads(group, measured)
            if VECTORS in keep:
                layers = self._question.layers or ()
                self._store_vectors(group, [layer_states(output)[layer] for layer in layers])
            if self.sentences is not None:
                self.sentences.add_batch(group, output)
            if self.predictions is not None:
                self.predictions.add_batch(group, members, inputs, output)
        if self.sentences is not None:
            self.sentences.run_second_pass(group)

    def _store_heads(self, group: Sequence[int], heads: HeadBatch) -> None:
        if len(self.profiles):
            self.profiles[group] = heads.measures.transpose(1, 2, 3, 0)
        if heads.keys is None or heads.weights is None:
            return
        for member, index in enumerate(group):
            units = self._sentences[index].units
            span = slice(self.ends[index] * self._heads, self.ends[index + 1] * self._heads)
            self.keys[span] = heads.keys[member, ..., :units].ravel()
            self.weights[span] = heads.weights[member, ..., :units].ravel()

    def _store_vectors(self, group: Sequence[int], states: Sequence[torch.Tensor]) -> None:
        for layer, padded_states in enumerate(map(as_array, states)):
            for padded, index in zip(padded_states, group, strict=True):
                sentence = self._sentences[index]
                vectors = padded[: len(sentence.encoding)]
                if sentence.merged is not None:
                    vectors = sentence.merged.average(vectors)
                self.vectors[layer, self.ends[index] : self.ends[index + 1]] = vectors

    def tables(self, schemas: Mapping[str, TableSchema]) -> Tables:
        """Return the tables in `schemas` that are computed from the model's outputs, by name."""
        max_tokens = self._checkpoint.description.max_tokens
        sentences = self.sentences
        columns: dict[str, Callable[[], Mapping[str, Any]]] = {
            PROFILES: self._profile_columns,
            STATISTICS: lambda: statistics_columns(self.profiles, max_tokens),
            VECTORS: self._vector_columns,
            SENTENCE_VECTORS: lambda: {} if sentences is None else sentences.columns(self._rows),
            NEIGHBORS: self._neighbor_columns,
            ANSWERS: lambda: {} if self.predictions is None else self.predictions.columns(self._sentences),
        }
        return {
            name: pa.table(make_columns(), schemas[name].schema)
            for name, make_columns in columns.items()
            if name in schemas
        }

    @property
    def _rows(self) -> Array:
        return np.array([sentence.record.row for sentence in self._sentences], np.int64)

    def _profile_columns(self) -> dict[str, Array]:
        _, layers, heads, _ = self.profiles.shape
        count = len(self._sentences)
        return {
            "row": np.repeat(self._rows, layers * heads),
            "layer": np.tile(np.repeat(_numbers(layers), heads), count),
            "head": np.tile(_numbers(heads), count * layers),
            **{name: self.profiles[..., column].ravel() for column, name in enumerate(MEASURES)},
        }

    def _vector_columns(self) -> dict[str, Any]:
        layers = self._question.layers or ()
        sizes = np.diff(self.ends)
        components = pa.array(self.vectors.ravel())
        return {
            "row": np.tile(np.repeat(self._rows, sizes), len(layers)),
            "position": np.tile(_positions(sizes), len(layers)),
            "layer": np.repeat(np.array(layers, np.int16), int(self.ends[-1])),
            "vector": pa.FixedSizeListArray.from_arrays(components, self.vectors.shape[2]),
        }

    def _neighbor_columns(self) -> dict[str, Array]:
        description = self._checkpoint.description
        sizes = np.diff(self.ends)
        lengths = np.repeat(sizes, self._heads)
        layers = np.repeat(_numbers(description.layers), description.heads)
        heads = np.tile(_numbers(description.heads), description.layers * len(sizes))
        return {
            "row": np.repeat(self._rows, sizes * self._heads),
            "layer": np.repeat(np.tile(layers, len(sizes)), lengths),
            "head": np.repeat(heads, lengths),
            "query": _positions(lengths),
            "key": self.keys + 1,
            "weight": self.weights,
        }


class _SentenceVectors:
    """The sentence vectors of a shard.

    A sentence vector is pooled from the forward pass that computes the other tables. The sentence gets a
    second forward pass if the pooling changes its tokens: adds a prompt, lowercases the text, or has a
    different maximum length.

    Args:
        dtype: data type of the stored vectors.
    """

    def __init__(self, checkpoint: Checkpoint, sentences: Sequence[ReadRecord], dtype: np.dtype[Any]) -> None:
        self._checkpoint, self._sentences = checkpoint, sentences
        self._recipe = sentence_pooling(checkpoint)
        self._inputs: dict[int, ModelInputs] = {}  # inputs of the second pass, by sentence
        self._vectors = np.empty((len(sentences), sentence_vector_size(checkpoint)), dtype)
        self._dropped = np.array([sentence.encoding.dropped for sentence in sentences], np.int32)
        recipe = self._recipe
        for index, sentence in enumerate(sentences) if recipe.changes_text else ():
            text = sentence.record.text or ""
            inputs = encode_inputs(checkpoint, recipe.text(text), recipe.max_tokens, True, "The sentence")
            self._dropped[index] = inputs.dropped
            if inputs.inputs["input_ids"].tolist() != list(sentence.encoding.ids):
                self._inputs[index] = inputs

    def add_batch(self, group: Sequence[int], output: Any) -> None:
        """Pool the vectors of the sentences with these indices from the encoder output of their batch."""
        states = output.last_hidden_state
        lengths = torch.tensor(
            [len(self._sentences[index].encoding) for index in group], device=states.device
        )
        mask = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
        rows = [row for row, index in enumerate(group) if index not in self._inputs]
        if rows:
            pooler = getattr(output, "pooler_output", None)
            selected = SimpleNamespace(
                last_hidden_state=states[rows], pooler_output=None if pooler is None else pooler[rows]
            )
            vectors = pool(selected, mask[rows].long(), self._recipe).cpu().numpy()
            self._vectors[[group[row] for row in rows]] = vectors

    def run_second_pass(self, group: Sequence[int]) -> None:
        """Run the model again on the sentences with these indices whose tokens the pooling changes."""
        indices = [index for index in group if index in self._inputs]
        if indices:
            inputs = [self._inputs[index] for index in indices]
            self._vectors[indices] = pool_inputs(self._checkpoint, inputs, self._recipe, no_progress)

    def columns(self, rows: Array) -> dict[str, Any]:
        """Return the columns of the table of sentence vectors.

        Args:
            rows: record number of each sentence.
        """
        components = pa.array(self._vectors.ravel())
        vectors = pa.FixedSizeListArray.from_arrays(components, self._vectors.shape[1])
        return {"row": rows, "tokens_dropped": self._dropped, "vector": vectors}


class _Predictions:
    """The predictions of a task head, collected batch by batch.

    Args:
        output: a classification head, or a token classification head.
    """

    def __init__(self, output: OutputHead) -> None:
        self._output = output
        self._labels_tokens = output.task == TOKEN_CLASSIFICATION
        self._logits: dict[int, Array] = {}  # logits of each sentence

    def add_batch(
        self,
        group: Sequence[int],
        members: Sequence[ReadRecord],
        inputs: Mapping[str, torch.Tensor],
        output: Any,
    ) -> None:
        """Compute and store the logits of a batch of sentences.

        Args:
            group: indices of the sentences.
            members: the sentences.
            inputs: the inputs of the model.
            output: the output of the encoder.

        Raises:
            UnavailableError: a logit is not finite.
        """
        pooled = getattr(output, "pooler_output", None)
        padded = as_array(self._output.answer(inputs, output.last_hidden_state, pooled))
        for index, sentence, logits in zip(group, members, padded, strict=True):
            if self._labels_tokens:
                logits = logits[: len(sentence.encoding)]
            if not np.isfinite(logits).all():
                raise UnavailableError(
                    f"The {self._output.task} head returns logits that are not finite for line "
                    f"{sentence.record.line:,} of {sentence.record.file}. Use float32, or omit the table "
                    "of answers."
                )
            self._logits[index] = logits.copy()  # copy, because a view would keep the whole batch in memory

    def columns(self, sentences: Sequence[ReadRecord]) -> dict[str, list[Any]]:
        """Return the columns of the table of predictions for the sentences of the shard."""
        make_rows = self._token_rows if self._labels_tokens else self._text_rows
        rows = [
            row
            for index, sentence in enumerate(sentences)
            for row in make_rows(sentence, self._logits[index])
        ]
        names = ("row", "position", "label", "logit", "probability")
        columns = zip(*rows, strict=True) if rows else ((),) * len(names)
        return {name: list(column) for name, column in zip(names, columns, strict=True)}

    def _text_rows(self, sentence: ReadRecord, logits: Array) -> list[tuple[Any, ...]]:
        """Return the predictions for a sentence: one row per class."""
        row = sentence.record.row
        probabilities = PROBABILITIES[problem_type(self._output)](logits)
        classes = zip(self._output.labels, logits.tolist(), probabilities.tolist(), strict=True)
        return [  # a regression has no probabilities, so the last column is null
            (row, None, label, logit, None if np.isnan(probability) else probability)
            for label, logit, probability in classes
        ]

    def _token_rows(self, sentence: ReadRecord, logits: Array) -> list[tuple[Any, ...]]:
        """Return the predictions for a sentence: one row per token, except for special tokens."""
        row, labels = sentence.record.row, self._output.labels
        best, probabilities = logits.argmax(axis=-1).tolist(), softmax(logits)
        return [
            (row, i + 1, labels[label], float(logits[i, label]), float(probabilities[i, label]))
            for i, (token, label) in enumerate(zip(sentence.encoding.tokens, best, strict=True))
            if not token.special
        ]


def _units(sentences: Sequence[ReadRecord]) -> Units:
    """Return the units of the sentences: words if the store merges tokens into words, otherwise tokens."""
    merged = [sentence.merged for sentence in sentences if sentence.merged is not None]
    return (
        Units.of_words(merged) if merged else Units.of_tokens([sentence.encoding for sentence in sentences])
    )


def _numbers(count: int) -> Array:
    """Return the numbers from 1 to `count`."""
    return np.arange(1, count + 1, dtype=np.int16)


def _positions(sizes: Array) -> Array:
    """Return the positions, from 1, in consecutive sequences of these sizes: [1, 2, 1, 2, 3] for [2, 3]."""
    starts = np.cumsum(sizes) - sizes
    positions: Array = np.arange(1, int(sizes.sum()) + 1) - np.repeat(starts, sizes)
    return positions.astype(np.int32)


REFUSED_CHARACTERS = 200
"""Maximum length of the text stored for a rejected record, in characters; longer texts are truncated."""


@dataclass(frozen=True, eq=False)
class ReadRecord:
    """A tokenized sentence.

    Attributes:
        record: the input row.
        encoding: tokens of the sentence.
        words: alignment of the tagged words with the tokens; None for a record without tags.
        merged: the words into which tokens are merged; None if the store contains tokens.
    """

    record: Record
    encoding: Encoding
    words: AlignedWords | None
    merged: WordLens | None

    @cached_property
    def units(self) -> int:
        """Number of tokens, or of words if the store merges tokens into words."""
        return len(self.encoding) if self.merged is None else len(self.merged.units)


@dataclass(frozen=True)
class RejectedRecord:
    """A rejected record, and a sentence that explains why it was rejected."""

    record: Record
    reason: str


def tokenize_records(
    checkpoint: Checkpoint, question: IngestConfig, records: Iterable[Record]
) -> tuple[list[ReadRecord], list[RejectedRecord]]:
    """Tokenize records; return the tokenized sentences and the rejected records, both in input order."""
    sentences, rejected = [], []
    for record in records:
        if record.text is None:
            rejected.append(RejectedRecord(record, record.problem))
            continue
        try:
            encoding = checkpoint.encode(record.text, truncate=question.truncate)
        except TextError as error:
            rejected.append(RejectedRecord(record, str(error)))
            continue
        words = None if record.tagged is None else align_words(record.tagged, encoding)
        merged = None
        if question.words:  # prefer the words of a tagged file to those of the tokenizer
            merged = word_lens(encoding) if words is None else words.lens
        sentences.append(ReadRecord(record, encoding, words, merged))
    return sentences, rejected


def statistics_columns(profiles: Array, max_tokens: int | None) -> dict[str, Any]:
    """Return the columns of the statistics table of a shard, with one row per measure and head.

    Args:
        profiles: measures of every head, float32 of shape [sentence, layer, head, measure].
        max_tokens: maximum input length of the model in tokens, see `Description`.
    """
    count, layers, heads, _ = profiles.shape
    grid = [(layer, head, name) for name in MEASURES for layer in range(layers) for head in range(heads)]
    values = profiles.astype(np.float64).transpose(3, 1, 2, 0).reshape(len(grid), count)
    bins = np.concatenate(
        [
            _histograms(measured, bin_edges(name, max_tokens))
            for name, measured in zip(MEASURES, np.split(values, len(MEASURES)), strict=True)
        ]
    )
    no_value = np.full(len(grid), np.nan)
    return {
        "layer": [layer + 1 for layer, _, _ in grid],
        "head": [head + 1 for _, head, _ in grid],
        "measure": [name for _, _, name in grid],
        "count": np.full(len(grid), count),
        "sum": values.sum(axis=1),
        "squares": (values**2).sum(axis=1),
        "min": values.min(axis=1) if count else no_value,
        "max": values.max(axis=1) if count else no_value,
        "bins": pa.FixedSizeListArray.from_arrays(pa.array(bins.ravel()), BINS),
    }


def _histograms(values: Array, edges: Array) -> Array:
    """Return the histogram of each row of a matrix, as int64 of shape [row, bin]."""
    flat = bin_indices(values, edges) + np.arange(len(values))[:, None] * BINS
    counts: Array = np.bincount(flat.ravel(), minlength=len(values) * BINS).reshape(-1, BINS)
    return counts


def rows_table(sentences: Sequence[ReadRecord], schema: TableSchema) -> pa.Table:
    """Return the table of sentences, with one row per sentence."""
    records = [sentence.record for sentence in sentences]
    columns = {
        "row": [record.row for record in records],
        "file": [record.file for record in records],
        "line": [record.line for record in records],
        "text": [record.text for record in records],
        "tokens": [len(sentence.encoding) for sentence in sentences],
        "tokens_dropped": [sentence.encoding.dropped for sentence in sentences],
        "about": [
            json.dumps(dict(header), ensure_ascii=False)
            if (header := record.header or (record.tagged.metadata if record.tagged else None))
            else None
            for record in records
        ],
    }
    return pa.table(columns, schema.schema)


def refusals_table(rejected: Sequence[RejectedRecord], schema: TableSchema) -> pa.Table:
    """Return the table of rejected records, with one row per record."""
    records = [refusal.record for refusal in rejected]
    columns = {
        "row": [record.row for record in records],
        "file": [record.file for record in records],
        "line": [record.line for record in records],
        "text": [record.text and record.text[:REFUSED_CHARACTERS] for record in records],
        "reason": [refusal.reason for refusal in rejected],
    }
    return pa.table(columns, schema.schema)


def tokens_table(sentences: Sequence[ReadRecord], schema: TableSchema) -> pa.Table:
    """Return the table of tokens, with one row per token, or per word if tokens are merged into words."""
    rows: list[tuple[object, ...]] = []
    for sentence in sentences:
        rows += _token_rows(sentence) if sentence.merged is None else _word_rows(sentence, sentence.merged)
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema.schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema.schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema.schema)


def _token_rows(sentence: ReadRecord) -> list[tuple[object, ...]]:
    row, tagged = sentence.record.row, _tagged_words(sentence)
    return [
        (
            row,
            token.position + 1,
            token.id,
            token.token,
            token.display,
            _from_1(tagged.get(token.position, token.word) if tagged else token.word),
            token.start,
            token.end,
            token.special,
            *_tags(sentence, tagged.get(token.position)),
        )
        for token in sentence.encoding.tokens
    ]


def _word_rows(sentence: ReadRecord, merged: WordLens) -> list[tuple[object, ...]]:
    row, tagged, tokens = sentence.record.row, _tagged_words(sentence), sentence.encoding.tokens
    rows = []
    for number, unit in enumerate(merged.units, 1):
        first, last = tokens[unit.positions[0]], tokens[unit.positions[-1]]
        is_single = len(unit.positions) == 1
        word = tagged.get(first.position)
        rows.append(
            (
                row,
                number,
                first.id if is_single else None,
                first.token if is_single else None,
                unit.display,
                _from_1(word if tagged else first.word),
                first.start,
                last.end,
                unit.special,
                *_tags(sentence, word),
            )
        )
    return rows


def _tagged_words(sentence: ReadRecord) -> dict[int, int]:
    """Return a mapping from token positions to the indices of tagged words, both from 0."""
    if sentence.words is None:
        return {}
    units = sentence.words.lens.units
    # Iterate in reverse order, so that a token shared by several words is assigned to the first of these.
    return {
        position: word
        for word, unit in reversed(list(enumerate(sentence.words.units.tolist())))
        if unit != NO_UNIT
        for position in units[unit].positions
    }


def _from_1(word: int | None) -> int | None:
    return None if word is None else word + 1


def _tags(sentence: ReadRecord, word: int | None) -> tuple[object, ...]:
    """Return the tag, head and relation of a word, each None if missing. Heads count from 1; a root has 0."""
    tagged = sentence.record.tagged
    if tagged is None or word is None:
        return None, None, None
    if not tagged.heads:
        return tagged.tags[word], None, None
    return tagged.tags[word], tagged.heads[word] + 1, tagged.relations[word]  # `heads` has -1 for a root
