"""What each layer knows of syntactic trees: the structural probe, and the trees that it sees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.probing import reading, vectors
from bert_probe.analyses.probing.tree_map import MOST_EPOCHS, STOPPING, batched, learned
from bert_probe.analyses.probing.tree_paths import (
    Tree,
    distances,
    rank_correlations,
    spanning_tree,
    squared_distances,
)
from bert_probe.core.field_types import Index, Number
from bert_probe.core.field_types_of_lists import Indices
from bert_probe.core.inputs import HELD_OUT, TAGGED, FileInput, Files
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only, resolve
from bert_probe.text.tagged_sentences import ROOT, TaggedSentence
from bert_probe.text.words import Unit, word_lens

PUNCTUATION = "PUNCT"
LENGTHS = (5, 50)
"""Words of the trees whose order of distances is reported, as in the paper."""
MOST_WORDS = 255
"""Of a sentence; no distance in it is larger than a byte holds."""


@question("trees")
class StructuralProbe(Question):
    """The structural probe: whether a linear map B of a layer's frozen vectors holds syntactic trees.

    ‖B (h_i − h_j)‖² is learned to be the number of steps between two words in the tree of their sentence;
    Hewitt and Manning 2019, sections 2 and 3. What a linear map can read off is not what the model uses.

    Attributes:
        rank: of B; at most the size of the vectors.
        layers: from 0, the output of the embeddings; None for all.
        seed: of the first B, and of what is held out and in which order it is learned from.
    """

    inputs = Files(
        {
            "data": FileInput(formats=(TAGGED,)),
            "held_out": FileInput("--held-out", False, (TAGGED,), HELD_OUT),
        }
    )

    rank: int = param(Number(1), default=64, about="Of the map; at most the vectors' size.  [default: 64]")
    layers: Sequence[int] | None = param(
        Indices(Index("layer", first=0)), default=None, about="From 0, the output of the embeddings."
    )
    seed: int = param(Number(0), default=0, about="Of the first map, and of order.")

    def of(
        self,
        checkpoint: Checkpoint,
        data: Sequence[TaggedSentence],
        held_out: Sequence[TaggedSentence] | None = None,
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> StructuralProbeResult:
        """The probes of every layer, each learned from the data and measured on what is held out.

        Words that no token covers do not count, nor do sentences of more than `MOST_WORDS`. A sentence of
        several trees counts as so many.

        Args:
            held_out: sentences to measure on; None holds out a fifth of the data.
            truncate: cut sentences that are too long instead of refusing them; words cut off do not count.
            report: told how many steps are done, and of how many: batches that are read, and epochs.

        Raises:
            EmptyTextError, TooLongError, TextError: no sentence, one that cannot be read, by its line, or no
                trees.
            SelectionError: a layer that the model does not have.
            OutOfMemoryError: the machine is too small for the vectors of one layer.
            UnavailableError: vectors that are not finite; a model in memory that changes meanwhile.
        """
        checkpoint = checkpoint.now()
        files = {"data": data} if held_out is None else {"data": data, "held_out": held_out}
        every = reading.read(checkpoint, files, truncate, report)
        names = ["data", "the fifth that is held out" if held_out is None else "held_out"]
        parted = reading.parted(every, np.random.default_rng(self.seed))
        learn, judge = (_trees(*one) for one in zip(names, parted, strict=True))
        layers = vectors.chosen(checkpoint, self.layers)
        pooled = [learn.pooled, judge.pooled]
        passes = vectors.planned(checkpoint, pooled, layers)
        steps = vectors.StepCounter(report, passes.batches * len(passes.layers) + len(layers) * MOST_EPOCHS)
        stop = max(1, round(STOPPING * len(learn.trees)))
        if stop == len(learn.trees):
            raise TextError("There is one tree; a probe learns from some and stops by others. Give more.")
        parts = batched(learn.trees[stop:]), batched(learn.trees[:stop])
        maps, found = [], []
        for layer, rows in zip(layers, vectors.by_layer(checkpoint, pooled, passes, steps), strict=True):
            if not all(torch.isfinite(part).all() for part in rows):
                raise UnavailableError(
                    f"Layer {layer} has vectors that are not finite for these sentences, so there is nothing "
                    "to learn from. Use float32."
                )
            # Of its own, so that a layer's probe is the same whatever others are asked for.
            rng = np.random.default_rng([self.seed, layer])
            maps.append(learned(rows[0], *parts, min(self.rank, rows[0].shape[1]), rng, steps.done))
            found.append(judge.judged(maps[-1], rows[1].numpy()))
        uuas, spearman = (read_only(np.array(column)) for column in zip(*found, strict=True))
        return StructuralProbeResult(
            replace(self, rank=len(maps[0]), layers=None if self.layers is None else layers),
            reading.subject(checkpoint, files, every),
            layers,
            (len(learn.trees) - stop, stop, len(judge.trees)),
            judge.edges,
            learn.left_out + judge.left_out,
            uuas,
            judge.baseline,
            spearman,
            tuple(map(read_only, maps)),
        )


@dataclass(frozen=True, eq=False)
class _Trees:
    """The trees of some sentences.

    Attributes:
        pooled: whose vectors.
        left_out: sentences without a tree of two words.
    """

    pooled: vectors.PooledTokens
    trees: tuple[Tree, ...]
    left_out: int

    @property
    def edges(self) -> int:
        """How many join words that are no punctuation."""
        return sum(len(tree.edges) for tree in self.trees)

    @property
    def baseline(self) -> float:
        """UUAS of joining each word with the next."""
        return sum(len(tree.edges & tree.in_a_row) for tree in self.trees) / self.edges

    def judged(self, weights: Array, rows: Array) -> tuple[float, float]:
        """UUAS, and Spearman's correlation, of what a map [rank, hidden] makes of vectors [row, hidden]."""
        points = rows.astype(np.float64) @ weights.T.astype(np.float64)
        right, of_length = 0, defaultdict[int, list[Array]](list)
        for tree in self.trees:
            apart = squared_distances(points[tree.rows])
            right += len(tree.edges & spanning_tree(apart, tree.counted))
            if LENGTHS[0] <= len(tree.rows) <= LENGTHS[1]:
                of_length[len(tree.rows)].append(rank_correlations(apart, tree.distances))
        words = [np.concatenate(of_words) for of_words in of_length.values()]
        means = [word[~np.isnan(word)].mean() for word in words if not np.isnan(word).all()]
        return right / self.edges, float(np.mean(means)) if means else float("nan")


def _trees(name: str, part: reading.EncodedTexts) -> _Trees:
    pooled, _, words = vectors.of_words(part)
    found: list[Tree] = []
    left_out = 0
    for index, sentence in enumerate(part.sentences):
        rows = pooled.starts[index] + np.arange(len(pooled.tokens[index]))
        before = len(found)
        if len(sentence.heads) <= MOST_WORDS:
            found += _of_sentence(sentence, rows, words[rows])
        left_out += len(found) == before
    trees = _Trees(pooled, tuple(found), left_out)
    if not trees.edges:
        raise TextError(
            f"There is no tree in {name} that joins two words other than punctuation. Give a treebank: a "
            "CoNLL-U file whose words have heads."
        )
    return trees


def _of_sentence(sentence: TaggedSentence, rows: Array, words: Array) -> Iterator[Tree]:
    """Its trees over words that have vectors, and two of them at least."""
    apart = distances(sentence.heads)
    more = np.array([tag != PUNCTUATION for tag in sentence.tags])
    for root in [word for word, head in enumerate(sentence.heads) if head == ROOT]:
        there = np.isfinite(apart[root, words])
        own = words[there]
        if len(own) > 1:
            yield Tree(rows[there], apart[np.ix_(own, own)].astype(np.uint8), more[own])


@dataclass(frozen=True, eq=False, repr=False)
class StructuralProbeResult(Result):
    """What each layer holds of the trees; all arrays are float64 [layer probed].

    Attributes:
        layers: that were probed, from 0, the output of the embeddings.
        counts: of trees that were learned from, that told when to stop, and that are held out.
        edges: of the held-out trees, without those of punctuation.
        left_out: sentences without a tree of two words, or of more than `MOST_WORDS`.
        uuas: share of the edges that are in the tree of least predicted distances; undirected, unlabelled.
        baseline: the same where each word is joined with the next one.
        spearman: correlation of predicted and true distances from a word to all of its sentence: its mean
            over the words of sentences of one length, and of these over lengths from 5 to 50; NaN without
            any.
        maps: what was learned, of each layer [rank, hidden].
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
            raise ShapeError(f"{len(self.layers)} layers were probed; a number and a map for each is needed.")

    @property
    def best(self) -> int:
        """The layer whose trees are right most often; of equal ones the first."""
        return self.layers[int(self.uuas.argmax())]

    def tree(self, trace: Trace, layer: int | None = None) -> PredictedTree:
        """The tree that a layer's probe sees in a sentence; of a pair, in its first text.

        Words are the tokenizer's. What has neither letter nor digit is taken for punctuation, and is not
        joined.

        Args:
            layer: one of `layers`; None for the best.

        Raises:
            SelectionError: a layer that was not probed, or another model's trace.
            TextError: more than `MOST_WORDS` words.
        """
        chosen = self.best if layer is None else resolve(layer, trace.layers + 1, "layer")
        if chosen not in self.layers:
            probed = ", ".join(map(str, self.layers))
            raise SelectionError(f"Layer {chosen} was not probed; these were: {probed}. Give one of them.")
        subject = InputRecord.of(trace)
        if subject.model.get("weights_sha256") != self.inputs.model.get("weights_sha256"):
            raise SelectionError("The sentence was read by another model than the probe. Trace it with that.")
        lens = word_lens(trace)
        own = [place for place, unit in enumerate(lens.units) if not unit.special and unit.segment == 0]
        if len(own) > MOST_WORDS:
            raise TextError(f"{len(own):,} words; a tree has at most {MOST_WORDS}. Give one sentence.")
        means = lens.average(trace.vectors(chosen))[own].astype(np.float64)
        apart = squared_distances(means @ self.maps[self.layers.index(chosen)].T.astype(np.float64))
        words = tuple(lens.units[place] for place in own)
        counted = np.array([any(map(str.isalnum, word)) for word in words], dtype=bool)
        edges = tuple(sorted(spanning_tree(apart, counted)))
        return PredictedTree(chosen, words, edges, read_only(apart), {**self.provenance, **subject.record})

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How many there were."""
        learned_from, stopped_by, held_out = self.counts
        return {
            "trees": {"learned_from": learned_from, "stopped_by": stopped_by, "held_out": held_out},
            "edges": self.edges,
            "sentences_left_out": self.left_out,
        }

    def frame(self) -> pd.DataFrame:
        """A row for each layer."""
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
    """The tree that a probe sees in a sentence.

    Attributes:
        layer: whose probe.
        words: of the sentence; `edges` joins all of them that are no punctuation.
        distances: squared, as the probe has them, float64 [word, word].
        provenance: of the probe and the sentence.
    """

    layer: int
    words: tuple[Unit, ...]
    edges: tuple[tuple[int, int], ...]
    distances: Array
    provenance: Mapping[str, Any]

    def table(self) -> pd.DataFrame:
        """A row for each edge: both words with their places in the sentence, from 1, and their distance."""
        frame = pd.DataFrame(
            [
                (first + 1, self.words[first], second + 1, self.words[second], self.distances[first, second])
                for first, second in self.edges
            ],
            columns=["place", "word", "other_place", "other_word", "distance"],
        )
        frame.attrs["provenance"] = {**self.provenance, "layer": self.layer}
        return frame
