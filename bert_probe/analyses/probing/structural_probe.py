"""The structural probe, which tests whether distances between word vectors encode syntactic trees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.spatial.distance import pdist, squareform
from scipy.stats import rankdata

from bert_probe.analyses.probing import vectors
from bert_probe.analyses.probing.probe import standardization
from bert_probe.core.field_types import Index, Number
from bert_probe.core.field_types_of_lists import Indices
from bert_probe.core.inputs import HELD_OUT_HELP, TAGGED, FileInput, Files
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import group_by_length
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only, resolve_index
from bert_probe.text.tagged_sentences import ROOT, TaggedSentence
from bert_probe.text.words import Unit, word_lens

PUNCTUATION = "PUNCT"
SENTENCE_LENGTHS = (5, 50)
"""Minimum and maximum sentence length for Spearman's correlation, in words, as in the paper."""
MAX_WORDS = 255
"""Maximum number of words in a sentence. Distances in longer sentences might not fit in one byte."""


@question("structural probe", command="trees")
class StructuralProbe(Question):
    """A structural probe: a linear map B under which a layer's frozen vectors encode syntactic trees.

    B is trained so that ‖B (h_i − h_j)‖² approximates the number of steps between two words in the tree of
    their sentence; Hewitt and Manning 2019, sections 2 and 3. A probe shows what a layer encodes, not what
    the model uses.

    Attributes:
        rank: rank of B, at most the hidden size.
        layers: layer indices, where 0 is the embeddings. If None, all layers are probed.
        seed: random seed of the initial B, of the split, and of the training order.
    """

    inputs = Files(
        {
            "data": FileInput(formats=(TAGGED,)),
            "held_out": FileInput("--held-out", False, (TAGGED,), HELD_OUT_HELP),
        }
    )

    rank: int = param(Number(1), default=64, about="Rank of the linear map.  [default: 64]")
    layers: Sequence[int] | None = param(
        Indices(Index("layer", first=0)), default=None, about="Layers, from 0 for the embeddings."
    )
    seed: int = param(
        Number(0), default=0, about="Seed of the initial map, the split and the training order."
    )

    def of(
        self,
        checkpoint: Checkpoint,
        data: Sequence[TaggedSentence],
        held_out: Sequence[TaggedSentence] | None = None,
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> StructuralProbeResult:
        """Train a probe on each layer and measure it on held-out sentences.

        Words without tokens and sentences of more than `MAX_WORDS` words are ignored. If a sentence has
        several trees, all trees are used.

        Args:
            held_out: held-out sentences. If None, a fifth of the data is held out.
            truncate: truncate sentences that are too long instead of raising an error; truncated words are
                ignored.
            progress: called with the number of steps done and the total. A step is a forward pass of a batch,
                or an epoch.

        Raises:
            EmptyTextError, TooLongError, TextError: there is no sentence, a sentence cannot be encoded (the
                message names its line), or there are too few trees.
            SelectionError: a layer does not exist.
            OutOfMemoryError: the vectors of one layer do not fit in memory.
            UnavailableError: vectors are not finite, or an in-memory model changed during training.
        """
        checkpoint = checkpoint.snapshot()
        files = {"data": data} if held_out is None else {"data": data, "held_out": held_out}
        encoded = vectors.encode_files(checkpoint, files, truncate, progress)
        names = ["data", "the held-out fifth" if held_out is None else "held_out"]
        splits = vectors.split_data(encoded, np.random.default_rng(self.seed))
        training, evaluation = (_trees(name, split) for name, split in zip(names, splits, strict=True))
        layers = vectors.resolve_layers(checkpoint, self.layers)
        pooled = [training.pooled, evaluation.pooled]
        passes = vectors.plan_passes(checkpoint, pooled, layers)
        steps = vectors.StepCounter(progress, passes.batches * len(passes.layers) + len(layers) * MAX_EPOCHS)
        validation_count = max(1, round(VALIDATION_SHARE * len(training.trees)))
        if validation_count == len(training.trees):
            raise TextError(
                "Training needs at least two trees, because one tree is used for early stopping. Use "
                "more sentences."
            )
        batches = (
            batch_trees(training.trees[validation_count:]),
            batch_trees(training.trees[:validation_count]),
        )
        maps, scores = [], []
        for layer, rows in zip(
            layers, vectors.vectors_by_layer(checkpoint, pooled, passes, steps), strict=True
        ):
            if not all(torch.isfinite(layer_vectors).all() for layer_vectors in rows):
                raise UnavailableError(
                    f"Layer {layer} has vectors that are not finite for these sentences. Use float32."
                )
            # Each layer has its own seed, so that its probe does not depend on the other layers.
            rng = np.random.default_rng([self.seed, layer])
            maps.append(train_map(rows[0], *batches, min(self.rank, rows[0].shape[1]), rng, steps.advance))
            scores.append(evaluation.score(maps[-1], rows[1].numpy()))
        uuas, spearman = (read_only(np.array(column)) for column in zip(*scores, strict=True))
        return StructuralProbeResult(
            replace(self, rank=len(maps[0]), layers=None if self.layers is None else layers),
            vectors.input_record(checkpoint, files, encoded),
            layers,
            (len(training.trees) - validation_count, validation_count, len(evaluation.trees)),
            evaluation.edges,
            training.left_out + evaluation.left_out,
            uuas,
            evaluation.baseline,
            spearman,
            tuple(map(read_only, maps)),
        )


@dataclass(frozen=True, eq=False)
class _Trees:
    """The syntactic trees of a set of sentences.

    Attributes:
        pooled: the tokens that are averaged into the vector of each word.
        trees: the trees with at least two words.
        left_out: number of sentences without a tree of at least two words, or with more than `MAX_WORDS`
            words.
    """

    pooled: vectors.PooledTokens
    trees: tuple[Tree, ...]
    left_out: int

    @property
    def edges(self) -> int:
        """Number of edges between words that are not punctuation."""
        return sum(len(tree.edges) for tree in self.trees)

    @property
    def baseline(self) -> float:
        """UUAS of a baseline that connects each word to the next word."""
        return sum(len(tree.edges & tree.in_a_row) for tree in self.trees) / self.edges

    def score(self, weights: Array, rows: Array) -> tuple[float, float]:
        """Return the UUAS and Spearman's correlation of a probe's linear map.

        Args:
            weights: the linear map, [rank, hidden].
            rows: the vectors of all words, [word, hidden].
        """
        points = rows.astype(np.float64) @ weights.T.astype(np.float64)
        correct, correlations_by_length = 0, defaultdict[int, list[Array]](list)
        for tree in self.trees:
            distances = squared_distances(points[tree.rows])
            correct += len(tree.edges & spanning_tree(distances, tree.counted))
            if SENTENCE_LENGTHS[0] <= len(tree.rows) <= SENTENCE_LENGTHS[1]:
                correlations_by_length[len(tree.rows)].append(rank_correlations(distances, tree.distances))
        by_length = [np.concatenate(correlations) for correlations in correlations_by_length.values()]
        means = [values[~np.isnan(values)].mean() for values in by_length if not np.isnan(values).all()]
        return correct / self.edges, float(np.mean(means)) if means else float("nan")


def _trees(name: str, texts: vectors.EncodedTexts) -> _Trees:
    pooled, _, words = vectors.pool_words(texts)
    trees: list[Tree] = []
    left_out = 0
    for index, sentence in enumerate(texts.sentences):
        rows = pooled.starts[index] + np.arange(len(pooled.tokens[index]))
        count = len(trees)
        if len(sentence.heads) <= MAX_WORDS:
            trees += _trees_of_sentence(sentence, rows, words[rows])
        left_out += len(trees) == count
    result = _Trees(pooled, tuple(trees), left_out)
    if not result.edges:
        raise TextError(
            f"{name} has no tree with two words other than punctuation. Use a treebank: a CoNLL-U file in "
            "which words have syntactic heads."
        )
    return result


def _trees_of_sentence(sentence: TaggedSentence, rows: Array, words: Array) -> Iterator[Tree]:
    """Yield the trees of a sentence that have at least two words with vectors.

    Args:
        sentence: the sentence.
        rows: vector index of each word that has a vector.
        words: word index, in the sentence, of each word that has a vector.
    """
    steps = distances(sentence.heads)
    is_word = np.array([tag != PUNCTUATION for tag in sentence.tags])
    for root in [word for word, head in enumerate(sentence.heads) if head == ROOT]:
        is_reachable = np.isfinite(steps[root, words])
        tree_words = words[is_reachable]
        if len(tree_words) > 1:
            yield Tree(
                rows[is_reachable],
                steps[np.ix_(tree_words, tree_words)].astype(np.uint8),
                is_word[tree_words],
            )


@dataclass(frozen=True, eq=False, repr=False)
class StructuralProbeResult(Result):
    """Scores of the structural probe of each layer; all arrays are float64 and have shape [probed layer].

    Attributes:
        layers: probed layers; 0 is the embeddings.
        counts: numbers of trees for training, for early stopping, and held out.
        edges: number of edges of the held-out trees, without punctuation.
        left_out: number of sentences without a tree of at least two words, or with more than `MAX_WORDS`
            words.
        uuas: undirected unlabeled attachment score: share of the edges that are in the minimum spanning tree
            of the predicted distances.
        baseline: UUAS of a baseline that connects each word to the next word.
        spearman: Spearman's correlation between predicted and true distances from a word to all others. The
            correlation is averaged over the words of all sentences of the same length, and then over lengths
            from 5 to 50; NaN if no sentence has such a length.
        maps: the trained maps, [rank, hidden] for each layer.
    """

    question: StructuralProbe
    layers: tuple[int, ...]
    counts: tuple[int, int, int]
    edges: int
    left_out: int
    uuas: Array
    baseline: float
    spearman: Array
    maps: tuple[Array, ...]

    def __post_init__(self) -> None:
        if {self.uuas.shape, self.spearman.shape, (len(self.maps),)} != {(len(self.layers),)}:
            raise ShapeError(
                f"uuas, spearman and maps must have one value for each of {len(self.layers)} layers."
            )

    @property
    def best(self) -> int:
        """The layer with the highest UUAS; in a tie, the first layer."""
        return self.layers[int(self.uuas.argmax())]

    def tree(self, trace: Trace, layer: int | None = None) -> PredictedTree:
        """Predict the tree of a sentence, or of the first text of a text pair.

        The tokenizer splits the sentence into words. Words without letters and digits are treated as
        punctuation and left out of the tree.

        Args:
            layer: one of `layers`. If None, the layer with the highest UUAS.

        Raises:
            SelectionError: the layer was not probed, or the trace is from another model.
            TextError: the sentence has more than `MAX_WORDS` words.
        """
        selected = self.best if layer is None else resolve_index(layer, trace.layers + 1, "layer")
        if selected not in self.layers:
            probed = ", ".join(map(str, self.layers))
            raise SelectionError(
                f"Layer {selected} was not probed. Choose one of the probed layers: {probed}."
            )
        inputs = InputRecord.of(trace)
        if inputs.model.get("weights_sha256") != self.inputs.model.get("weights_sha256"):
            raise SelectionError(
                "The trace was not computed with the model of the probe. Trace the sentence with the "
                "probe's model."
            )
        lens = word_lens(trace)
        indices = [index for index, unit in enumerate(lens.units) if not unit.special and unit.segment == 0]
        if len(indices) > MAX_WORDS:
            raise TextError(
                f"The text has {len(indices):,} words, but at most {MAX_WORDS} are allowed. Use a single "
                "sentence."
            )
        means = lens.average(trace.vectors(selected))[indices].astype(np.float64)
        distances = squared_distances(means @ self.maps[self.layers.index(selected)].T.astype(np.float64))
        words = tuple(lens.units[index] for index in indices)
        is_word = np.array([any(map(str.isalnum, word)) for word in words], dtype=bool)
        edges = tuple(sorted(spanning_tree(distances, is_word)))
        return PredictedTree(
            selected, words, edges, read_only(distances), {**self.provenance, **inputs.record}
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The numbers of trees, edges and ignored sentences."""
        training, validation, held_out = self.counts
        return {
            "trees": {"learned_from": training, "stopped_by": validation, "held_out": held_out},
            "edges": self.edges,
            "sentences_left_out": self.left_out,
        }

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per layer: layer, uuas, baseline, spearman."""
        return pd.DataFrame(
            {
                "layer": self.layers,
                "uuas": self.uuas,
                "baseline": self.baseline,
                "spearman": self.spearman,
            }
        )


@dataclass(frozen=True, eq=False)
class PredictedTree:
    """The tree that a probe predicts for a sentence.

    Attributes:
        layer: layer of the probe.
        words: words of the sentence.
        edges: word indices of each edge of the spanning tree of all words except punctuation.
        distances: predicted squared distances, float64 [word, word].
        provenance: provenance of the probe and the sentence.
    """

    layer: int
    words: tuple[Unit, ...]
    edges: tuple[tuple[int, int], ...]
    distances: Array
    provenance: Mapping[str, Any]

    def table(self) -> pd.DataFrame:
        """Return a table with one row per edge.

        Columns: place (word number from 1), word, other_place, other_word, distance.
        """
        frame = pd.DataFrame(
            [
                (first + 1, self.words[first], second + 1, self.words[second], self.distances[first, second])
                for first, second in self.edges
            ],
            columns=["place", "word", "other_place", "other_word", "distance"],
        )
        frame.attrs["provenance"] = {**self.provenance, "layer": self.layer}
        return frame


LEARNING_RATE = 0.1
"""Learning rate of Adam (Kingma and Ba 2015), relative to the standard deviation of the initial map."""
DECAY = 0.1
"""Factor by which the learning rate is multiplied after an epoch without improvement."""
MAX_DECAYS = 3
"""Training ends after the learning rate has been reduced this many times."""
MAX_EPOCHS = 40
STEP_WORDS = 400
"""Maximum number of padded words per training step, about 20 sentences."""
VALIDATION_SHARE = 0.1
"""Share of the training trees used only for early stopping."""

OnEpoch = Callable[[int], None]
"""Type of a callback that takes 1 after each epoch, and the number of skipped epochs after early stopping.

An exception raised by the callback ends the training.
"""


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """A padded batch of trees.

    Attributes:
        rows: vector indices, [tree, word]; 0 for padding.
        distances: number of steps between words, uint8 [tree, word, word]; 0 for padding.
        shares: weight of each pair in the loss, [tree, word, word]: 1 / words²; 0 for padding.
    """

    rows: torch.Tensor
    distances: torch.Tensor
    shares: torch.Tensor


def batch_trees(trees: Sequence[Tree]) -> list[TreeBatch]:
    """Return batches of trees of similar size."""
    return [_batch([trees[index] for index in group]) for group in group_by_length(_sizes(trees), STEP_WORDS)]


def _sizes(trees: Sequence[Tree]) -> list[int]:
    return [len(tree.rows) for tree in trees]


def _batch(trees: Sequence[Tree]) -> TreeBatch:
    longest = max(_sizes(trees))
    rows = torch.zeros(len(trees), longest, dtype=torch.long)
    distances = torch.zeros(len(trees), longest, longest, dtype=torch.uint8)
    shares = torch.zeros(len(trees), longest, longest)
    for index, tree in enumerate(trees):
        size = len(tree.rows)
        rows[index, :size] = torch.from_numpy(tree.rows)
        distances[index, :size, :size] = torch.from_numpy(tree.distances)
        shares[index, :size, :size] = 1 / size**2
    return TreeBatch(rows, distances, shares)


class _StandardizedSpace:
    """Standardized word vectors, so that the same learning rate can be used for all layers and models."""

    def __init__(self, vectors: torch.Tensor) -> None:
        self.vectors = vectors
        self.mean, self.spread = standardization(vectors)

    def loss(self, weights: torch.Tensor, batch: TreeBatch) -> torch.Tensor:
        """Return the sum of |predicted squared distance − tree distance| / words² over all trees."""
        points = (self.vectors[batch.rows] - self.mean) / self.spread @ weights.T
        squares = points.square().sum(dim=-1)
        products = points @ points.transpose(1, 2)
        predicted = squares[:, :, None] + squares[:, None] - 2 * products
        return ((predicted - batch.distances).abs() * batch.shares).sum()


def train_map(
    vectors: torch.Tensor,
    training: Sequence[TreeBatch],
    validation: Sequence[TreeBatch],
    rank: int,
    rng: np.random.Generator,
    on_epoch: OnEpoch = lambda _: None,
) -> Array:
    """Train a map B of shape [rank, hidden] so that ‖B (h_i − h_j)‖² approximates distances in trees.

    Args:
        vectors: word vectors, [row, hidden].
        training: trees to train on.
        validation: trees for early stopping.
        rank: number of rows of B.
        rng: random generator of the initial B and of the training order.
        on_epoch: called after each epoch.
    """
    space, hidden = _StandardizedSpace(vectors), vectors.shape[1]
    # With this standard deviation, the expected squared distance of two standardized vectors is 4.
    width = np.sqrt(2 / (rank * hidden))
    initial = torch.from_numpy(rng.normal(scale=width, size=(rank, hidden))).to(vectors.dtype)
    weights = initial.requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=float(LEARNING_RATE * width))
    best, lowest_loss, decays = weights.detach().clone(), np.inf, 0
    for epoch in range(1, MAX_EPOCHS + 1):
        for index in rng.permutation(len(training)):
            batch = training[index]
            with torch.enable_grad():
                loss = space.loss(weights, batch) / len(batch.rows)
            (weights.grad,) = torch.autograd.grad(loss, weights)
            optimizer.step()
        with torch.no_grad():
            validation_loss = sum(float(space.loss(weights, batch)) for batch in validation)
        if validation_loss < lowest_loss:
            best, lowest_loss = weights.detach().clone(), validation_loss
        else:
            decays += 1
            optimizer.param_groups[0]["lr"] *= DECAY
        on_epoch(1)
        if decays == MAX_DECAYS:
            on_epoch(MAX_EPOCHS - epoch)
            break
    trained: Array = (best / space.spread).numpy()
    return trained


Edges = set[tuple[int, int]]
"""The edges of a tree, as pairs of word indices with the smaller index first."""


@dataclass(frozen=True, eq=False)
class Tree:
    """A syntactic tree of a sentence, without words that have no vector.

    Attributes:
        rows: vector index of each word.
        distances: number of steps between words, uint8 [word, word].
        counted: True for words, False for punctuation, bool [word].
    """

    rows: Array
    distances: Array
    counted: Array

    @property
    def edges(self) -> Edges:
        """Edges between words other than punctuation."""
        joined = np.triu(self.distances == 1) & self.counted & self.counted[:, None]
        return {(int(first), int(second)) for first, second in np.argwhere(joined)}

    @property
    def in_a_row(self) -> Edges:
        """Pairs of consecutive words other than punctuation."""
        return {*pairwise(np.flatnonzero(self.counted).tolist())}


def distances(heads: Sequence[int]) -> Array:
    """Return the number of steps between every two words in their syntactic tree, float64 [word, word].

    The number is infinite between words of different trees, and between words not connected to a root.

    Args:
        heads: index of the syntactic head of each word, from 0; `ROOT` for roots.
    """
    count = len(heads)
    steps = np.full((count, count), np.inf)
    np.fill_diagonal(steps, 0)
    dependents: list[list[int]] = [[] for _ in heads]
    for word, head in enumerate(heads):
        if head != ROOT:
            dependents[head].append(word)
    reached = [word for word, head in enumerate(heads) if head == ROOT]
    for word in reached:  # the loop also visits words that it appends to `reached`
        for dependent in dependents[word]:
            steps[dependent, reached] = steps[reached, dependent] = steps[word, reached] + 1
            reached.append(dependent)
    return steps


def squared_distances(points: Array) -> Array:
    """Return the squared distance ‖p_i − p_j‖² of each pair of words, given their points, [word, rank]."""
    squares: Array = squareform(pdist(points, "sqeuclidean"))
    return squares


def spanning_tree(distance_matrix: Array, counted: Array) -> Edges:
    """Return the minimum spanning tree over words other than punctuation.

    In Prim's algorithm (1957), the word nearest to the tree is added until no word is left. In a tie, the
    first word is added.

    Args:
        distance_matrix: distances, [word, word].
        counted: True for words, False for punctuation, bool [word].
    """
    remaining = np.flatnonzero(counted)
    if not len(remaining):
        return set()
    first, remaining = remaining[0], remaining[1:]
    nearest, neighbor = distance_matrix[first].astype(np.float64), np.full(len(distance_matrix), first)
    edges: Edges = set()
    while len(remaining):
        word = remaining[nearest[remaining].argmin()]
        edges.add((int(min(word, neighbor[word])), int(max(word, neighbor[word]))))
        remaining = remaining[remaining != word]
        closer = distance_matrix[word] < nearest
        nearest[closer], neighbor[closer] = distance_matrix[word, closer], word
    return edges


def rank_correlations(predicted: Array, true: Array) -> Array:
    """Return Spearman's correlation between the rows of two matrices, [row]; NaN if a row is constant."""
    ranks_a, ranks_b = (rankdata(rows, axis=1) - (rows.shape[1] + 1) / 2 for rows in (predicted, true))
    with np.errstate(invalid="ignore"):
        correlations: Array = (ranks_a * ranks_b).sum(axis=1) / np.sqrt(
            (ranks_a**2).sum(axis=1) * (ranks_b**2).sum(axis=1)
        )
    return correlations
