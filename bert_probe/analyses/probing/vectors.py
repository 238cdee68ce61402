"""The vectors of labeled words and sentences at every layer, from as few forward passes as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bert_probe.core.provenance import InputRecord
from bert_probe.errors import EmptyTextError, TextError, memory_errors
from bert_probe.model.checkpoint import Checkpoint, encode_texts
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import forward, group_by_length, layer_states
from bert_probe.model.lengths import task_limit
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array, resolve_index
from bert_probe.text.duplicates import group_rows, groups_to_hold_out, pair_key
from bert_probe.text.labeled_texts import CLASSES, MULTI_LABEL, NUMBER, LabeledTexts
from bert_probe.text.tagged_sentences import NO_UNIT, TaggedSentence, align_words

PASS_BYTES = 1_600_000_000
"""Size limit of the vectors in memory, in bytes. If not all layers fit, the model runs several times."""
BATCH_TOKENS = 4096
"""Maximum number of tokens in a batch, padding included.

The limit saves memory, because the hidden states of all layers of a batch are in memory.
"""


@dataclass(frozen=True, eq=False)
class PooledTokens:
    """The tokens of each sentence that are averaged into vectors.

    Attributes:
        encodings: encodings of the sentences.
        tokens: for each sentence and each of its vectors, the averaged token positions.
        starts: index of the first vector of each sentence.
        count: number of vectors.
    """

    encodings: tuple[Encoding, ...]
    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    starts: Array
    count: int


def pool_words(texts: EncodedTexts) -> tuple[PooledTokens, Array, Array]:
    """Return the tokens to average for each word that has tokens, and two arrays of shape [vector].

    The arrays contain the index of each vector's sentence, and of its word in the sentence.
    """
    tokens, sentences, words = [], [], []
    for index, (sentence, encoding) in enumerate(zip(texts.sentences, texts.encodings, strict=True)):
        aligned = align_words(sentence, encoding)
        words_with_tokens = np.flatnonzero(aligned.units != NO_UNIT)
        tokens.append(tuple(aligned.lens.units[aligned.units[word]].positions for word in words_with_tokens))
        sentences += [index] * len(words_with_tokens)
        words += words_with_tokens.tolist()
    return (
        _make_pooled(texts.encodings, tokens),
        np.array(sentences, dtype=np.intp),
        np.array(words, dtype=np.intp),
    )


POOLINGS: Mapping[str, str] = {
    "mean": "Mean of all token vectors, including special tokens.",
    "cls": "Vector of the first token, [CLS] or <s>.",
}
"""Mapping from the name of each pooling to its description. Every layer has the same pooling."""


def pool_sentences(texts: EncodedTexts, pooling: str) -> PooledTokens:
    """Select the tokens that are averaged into one vector per sentence; for the poolings, see `POOLINGS`."""
    ends = [1 if pooling == "cls" else len(encoding) for encoding in texts.encodings]
    return _make_pooled(texts.encodings, [(tuple(range(end)),) for end in ends])


def _make_pooled(
    encodings: tuple[Encoding, ...], tokens: Sequence[tuple[tuple[int, ...], ...]]
) -> PooledTokens:
    sizes = np.array([len(token) for token in tokens])
    return PooledTokens(encodings, tuple(tokens), np.cumsum(sizes) - sizes, int(sizes.sum()))


class StepCounter:
    """Counts completed steps and reports progress."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        self.report()

    def report(self) -> None:
        """Report the current progress. The callback may raise an exception to cancel the work."""
        self._progress(self._done, self._total)

    def advance(self, count: int = 1) -> None:
        """Count finished steps and report progress."""
        self._done += count
        self.report()


@dataclass(frozen=True)
class ForwardPasses:
    """A plan of forward passes over the data, each of which collects some of the layers.

    Attributes:
        layers: the layers of each pass, from 0 for the embeddings.
        batches: number of batches per pass.
    """

    layers: tuple[tuple[int, ...], ...]
    batches: int


def resolve_layers(checkpoint: Checkpoint, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Return the selected layer indices, counted from 0 and without duplicates; None selects all layers.

    Raises:
        SelectionError: a layer does not exist.
    """
    count = checkpoint.description.layers + 1
    selected = range(count) if layers is None else layers
    return tuple(dict.fromkeys(resolve_index(layer, count, "layer") for layer in selected))


def plan_passes(
    checkpoint: Checkpoint, parts: Sequence[PooledTokens], layers: Sequence[int]
) -> ForwardPasses:
    """Return a plan that collects the vectors of all layers in as few passes as `PASS_BYTES` allows."""
    width = checkpoint.description.hidden_size * (8 if checkpoint.description.dtype == "float64" else 4)
    layers_per_pass = max(1, task_limit(PASS_BYTES) // max(1, width * sum(part.count for part in parts)))
    groups = tuple(
        tuple(layers[start : start + layers_per_pass]) for start in range(0, len(layers), layers_per_pass)
    )
    return ForwardPasses(groups, sum(len(_batches(checkpoint, part)) for part in parts))


def vectors_by_layer(
    checkpoint: Checkpoint, parts: Sequence[PooledTokens], passes: ForwardPasses, steps: StepCounter
) -> Iterator[list[torch.Tensor]]:
    """Yield, for each layer, the vectors of each element of ``parts``, of shape [vector, hidden].

    The vectors are float64 if the model computes in float64, else float32.

    Args:
        checkpoint: the model.
        parts: for each split, the tokens that are averaged into vectors.
        passes: the layers of each forward pass; see `plan_passes`.
        steps: counter of the batches.

    Raises:
        OutOfMemoryError: the vectors of one layer do not fit in memory.
    """
    for layers in passes.layers:
        vectors_by_part = [_run_part(checkpoint, part, layers, steps) for part in parts]
        for index in range(len(layers)):
            yield [vectors[index] for vectors in vectors_by_part]


def _run_part(
    checkpoint: Checkpoint, part: PooledTokens, layers: Sequence[int], steps: StepCounter
) -> list[torch.Tensor]:
    vectors: list[torch.Tensor] = []
    for group in _batches(checkpoint, part):
        output, _ = forward(checkpoint, [part.encodings[index] for index in group], states=True)
        states = [layer_states(output)[layer] for layer in layers]
        if not vectors:
            dtype = torch.float64 if states[0].dtype == torch.float64 else torch.float32
            with memory_errors(
                f"The vectors of {part.count:,} words or sentences do not fit in memory. Use fewer sentences."
            ):
                vectors = [torch.empty(part.count, state.shape[-1], dtype=dtype) for state in states]
        width = states[0].shape[1]
        bags = [bag for index in group for bag in part.tokens[index]]
        if bags:
            _store_means(states, bags, part, group, width, vectors)
        steps.advance()
    return vectors


def _store_means(
    states: Sequence[torch.Tensor],
    bags: Sequence[tuple[int, ...]],
    part: PooledTokens,
    group: Sequence[int],
    width: int,
    vectors: Sequence[torch.Tensor],
) -> None:
    """Average a batch's hidden states over the tokens of each vector, and store the means in ``vectors``.

    Args:
        states: hidden states of the batch after each layer, [text, token, hidden].
        bags: for each vector of the batch, the averaged token positions.
        part: the tokens to average in all sentences.
        group: sentence indices of the batch.
        width: number of tokens per text of the batch, padding included.
        vectors: the output, one array per layer, [vector, hidden].
    """
    firsts = np.repeat(np.arange(len(group)) * width, [len(part.tokens[index]) for index in group])
    sizes = np.array([len(bag) for bag in bags])
    tokens = torch.from_numpy(np.concatenate(bags) + np.repeat(firsts, sizes))
    starts = torch.from_numpy(np.cumsum(sizes) - sizes)
    rows = torch.from_numpy(
        np.concatenate([np.arange(len(part.tokens[index])) + part.starts[index] for index in group])
    )
    for state, vector in zip(states, vectors, strict=True):
        flat = state.flatten(0, 1).to("cpu", vector.dtype)
        vector[rows] = torch.nn.functional.embedding_bag(tokens, flat, starts, mode="mean")


def _batches(checkpoint: Checkpoint, part: PooledTokens) -> list[list[int]]:
    return group_by_length([len(encoding) for encoding in part.encodings], BATCH_TOKENS, checkpoint.pads)


LabeledData = Sequence[TaggedSentence] | LabeledTexts
Files = Mapping[str, LabeledData]
"""Type of the data arguments: mapping from an argument's name, for error messages, to its data."""

_LABEL_DESCRIPTIONS = {MULTI_LABEL: "zero or more labels", NUMBER: "a number"}

HELD_OUT_SHARE = 0.2
"""Share of the sentences that are held out if no held-out data are given."""


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """Sentences, or texts from the rows of a table, and their encodings."""

    sentences: tuple[Any, ...]
    encodings: tuple[Encoding, ...]

    @property
    def texts(self) -> tuple[tuple[str, str | None], ...]:
        """Each text with the second text of its pair, or None."""
        return tuple((sentence.text, getattr(sentence, "pair", None)) for sentence in self.sentences)

    @property
    def groups(self) -> list[int]:
        """For each text, a number that is equal for texts with the same `pair_key` or the same tokens."""
        keys = [pair_key(text, pair) for text, pair in self.texts]
        return group_rows(keys, [encoding.inputs["input_ids"].tobytes() for encoding in self.encodings])


def encode_files(
    checkpoint: Checkpoint, files: Files, truncate: bool, progress: Progress, tables: bool = False
) -> tuple[EncodedTexts, ...]:
    """Encode the sentences of all files, so that errors are raised before the model runs.

    Args:
        tables: whether labeled texts are allowed.

    Raises:
        EmptyTextError: a file has no sentence.
        TextError, TooLongError: the data are of an unsupported type, the labels are not classes, the files
            are of different types, or a sentence cannot be encoded; the message names its line.
    """
    parts = []
    if len({isinstance(file, LabeledTexts) for file in files.values()}) > 1:
        raise TextError("One file has labeled texts, the other tagged words. Use two files of the same type.")
    for name, data in files.items():
        sentences = _sentences(name, data, tables)
        if not sentences:
            raise EmptyTextError(f"There is no sentence in {name}. Add at least one sentence.")
        lines = [(sentence.line, sentence.text, getattr(sentence, "pair", None)) for sentence in sentences]
        parts.append(
            EncodedTexts(sentences, tuple(encode_texts(checkpoint, lines, truncate, progress, name)))
        )
    return tuple(parts)


def _sentences(name: str, data: LabeledData, tables: bool) -> tuple[Any, ...]:
    if tables and isinstance(data, LabeledTexts):
        if data.kind != CLASSES:
            raise TextError(
                f"{name} has {_LABEL_DESCRIPTIONS[data.kind]} per text, but a probe predicts one class. "
                "Read the labels as classes, or use other labels."
            )
        return data.rows
    if isinstance(data, LabeledTexts) or not all(isinstance(row, TaggedSentence) for row in data):
        alternative = " or labeled texts from read_labeled_texts" if tables else ""
        raise TextError(f"{name} must be tagged sentences from read_tagged_sentences{alternative}.")
    return tuple(data)


def split_data(files: Sequence[EncodedTexts], rng: np.random.Generator) -> list[EncodedTexts]:
    """Return the training sentences in random order, and the held-out sentences.

    The held-out sentences are those of the second file or, if there is only one file, about `HELD_OUT_SHARE`
    of its sentences. If there is only one file, texts with the same tokens, and texts that differ only in
    case, spaces or accents (`text_key`), are in the same split.

    Raises:
        TextError: there is only one text and no second file.
    """
    order = rng.permutation(len(files[0].sentences)).tolist()
    if len(files) == 2:
        return [_select(files[0], order), files[1]]
    groups = files[0].groups
    counts = Counter(groups)
    # The first row of each group determines its place, so that all groups are equally likely to be held out.
    sizes = {index: counts[index] for index in order if groups[index] == index}
    held_out_groups = groups_to_hold_out(sizes, max(1, round(HELD_OUT_SHARE * len(order))))
    training = [index for index in order if groups[index] not in held_out_groups]
    if not held_out_groups:
        raise TextError(
            "A single text cannot be split into training and held-out data, even if it is repeated. Pass "
            "more texts, or held-out data."
        )
    held_out = [index for index in order if groups[index] in held_out_groups]
    return [_select(files[0], training), _select(files[0], held_out)]


def _select(part: EncodedTexts, order: Sequence[int]) -> EncodedTexts:
    return EncodedTexts(
        tuple(part.sentences[index] for index in order), tuple(part.encodings[index] for index in order)
    )


def input_record(checkpoint: Checkpoint, files: Files, parts: Sequence[EncodedTexts]) -> InputRecord:
    """Return the provenance of a result: the model and the data files."""
    dropped = sum(encoding.dropped for part in parts for encoding in part.encodings)
    return InputRecord.of_tagged(checkpoint, files, dropped)
