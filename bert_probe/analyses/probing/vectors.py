"""Vectors of words and of sentences at every layer, for as many layers at a time as there is room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bert_probe.analyses.probing.reading import EncodedTexts
from bert_probe.errors import memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import batches, forward
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array, resolve
from bert_probe.text.tag_alignment import NOWHERE, placed

PASS_BYTES = 1_600_000_000
"""Of vectors that are held at once; for more layers than that the model runs again."""
BATCH_TOKENS = 4096
"""Padded tokens in one pass; each keeps a state for every layer meanwhile."""


@dataclass(frozen=True, eq=False)
class PooledTokens:
    """Which tokens of each sentence make a vector.

    Attributes:
        encodings: of the sentences.
        tokens: of each sentence, for each of its vectors, the positions that are averaged.
        starts: of each sentence, the row of its first vector.
        count: of all vectors.
    """

    encodings: tuple[Encoding, ...]
    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    starts: Array
    count: int


def of_words(part: EncodedTexts) -> tuple[PooledTokens, Array, Array]:
    """The mean over each word's pieces, and for each row its sentence and its word."""
    tokens, sentences, words = [], [], []
    for index, (sentence, encoding) in enumerate(zip(part.sentences, part.encodings, strict=True)):
        found = placed(sentence, encoding)
        there = np.flatnonzero(found.units != NOWHERE)
        tokens.append(tuple(found.lens.units[found.units[word]].positions for word in there))
        sentences += [index] * len(there)
        words += there.tolist()
    return _pooled(part.encodings, tokens), np.array(sentences, dtype=np.intp), np.array(words, dtype=np.intp)


POOLINGS: Mapping[str, str] = {
    "mean": "The mean of all tokens, special ones included.",
    "cls": "The first token, [CLS] or <s>.",
}
"""What makes the vector of a sentence, in every layer alike."""


def of_sentences(part: EncodedTexts, pooling: str) -> PooledTokens:
    """One of `POOLINGS` for each sentence."""
    ends = [1 if pooling == "cls" else len(encoding) for encoding in part.encodings]
    return _pooled(part.encodings, [(tuple(range(end)),) for end in ends])


def _pooled(encodings: tuple[Encoding, ...], tokens: Sequence[tuple[tuple[int, ...], ...]]) -> PooledTokens:
    sizes = np.array([len(token) for token in tokens])
    return PooledTokens(encodings, tuple(tokens), np.cumsum(sizes) - sizes, int(sizes.sum()))


class StepCounter:
    """Tells how many steps of work are done."""

    def __init__(self, report: Progress, total: int) -> None:
        self._report, self._total, self._done = report, total, 0
        self.tell()

    def tell(self) -> None:
        """Say it again, which is where the work can be ended."""
        self._report(self._done, self._total)

    def done(self, count: int = 1) -> None:
        """One more is, or several."""
        self._done += count
        self.tell()


@dataclass(frozen=True)
class ForwardPasses:
    """How often the model runs, and what is kept of each time.

    Attributes:
        layers: those of each time, from 0 for the embeddings' output.
        batches: in each time, over all parts.
    """

    layers: tuple[tuple[int, ...], ...]
    batches: int


def chosen(checkpoint: Checkpoint, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Layers from 0, each once; None for all.

    Raises:
        SelectionError: one that the model does not have.
    """
    count = checkpoint.description.layers + 1
    asked = range(count) if layers is None else layers
    return tuple(dict.fromkeys(resolve(one, count, "layer") for one in asked))


def planned(checkpoint: Checkpoint, parts: Sequence[PooledTokens], layers: Sequence[int]) -> ForwardPasses:
    """As few passes as there is room for."""
    width = checkpoint.description.hidden_size * (8 if checkpoint.description.dtype == "float64" else 4)
    most = max(1, PASS_BYTES // max(1, width * sum(part.count for part in parts)))
    groups = tuple(tuple(layers[start : start + most]) for start in range(0, len(layers), most))
    return ForwardPasses(groups, sum(len(_batches(checkpoint, part)) for part in parts))


def by_layer(
    checkpoint: Checkpoint, parts: Sequence[PooledTokens], passes: ForwardPasses, steps: StepCounter
) -> Iterator[list[torch.Tensor]]:
    """Of each layer in turn the vectors of each part, [vector, hidden]: float32, or float64 where the model
    computes in it.

    Raises:
        OutOfMemoryError: the machine is too small for the vectors of one layer.
    """
    for layers in passes.layers:
        held = [_of_part(checkpoint, part, layers, steps) for part in parts]
        for place in range(len(layers)):
            yield [vectors[place] for vectors in held]


def _of_part(
    checkpoint: Checkpoint, part: PooledTokens, layers: Sequence[int], steps: StepCounter
) -> list[torch.Tensor]:
    vectors: list[torch.Tensor] = []
    for group in _batches(checkpoint, part):
        output, _ = forward(checkpoint, [part.encodings[index] for index in group], states=True)
        states = [output.hidden_states[layer] for layer in layers]
        if not vectors:
            kind = torch.float64 if states[0].dtype == torch.float64 else torch.float32
            with memory_errors(
                f"Vectors of {part.count:,} words or sentences need more memory than is free."
            ):
                vectors = [torch.empty(part.count, state.shape[-1], dtype=kind) for state in states]
        width = states[0].shape[1]
        bags = [bag for index in group for bag in part.tokens[index]]
        if bags:
            _keep(states, bags, part, group, width, vectors)
        steps.done()
    return vectors


def _keep(
    states: Sequence[torch.Tensor],
    bags: Sequence[tuple[int, ...]],
    part: PooledTokens,
    group: Sequence[int],
    width: int,
    vectors: Sequence[torch.Tensor],
) -> None:
    """Put the means over some tokens of a batch where they belong."""
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
    return batches([len(encoding) for encoding in part.encodings], BATCH_TOKENS, checkpoint.pads)
