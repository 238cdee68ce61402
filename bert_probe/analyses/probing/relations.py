"""Which heads attend from a word to its syntactic head, or from there to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.probing import reading
from bert_probe.core.field_types import Choice, Flag
from bert_probe.core.inputs import TAGGED, FileInput, Files
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import batches
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.tag_alignment import NOWHERE, AlignedWords, placed
from bert_probe.text.tagged_sentences import ROOT, TaggedSentence

BATCH_TOKENS = 2048
"""Padded tokens whose traces are held at once."""
DIRECTIONS = ("dependent to head", "head to dependent")
UNIVERSAL = "Take nsubj:pass for nsubj: leave out what follows a colon."


@question("relations")
class Relations(Question):
    """Heads against a treebank; Clark et al. 2019, section 4.2.

    Of a word's attention to the other words the strongest is the head's guess. For each relation the head and
    the direction that are right most often in one file are reported on another, and so is the fixed offset
    (the word before, the second one after, …) that is right most often in the first.

    Attributes:
        universal: leave out what follows a colon, so that nsubj:pass counts as nsubj.
        show: of each relation the "best" head, or all of them.
    """

    inputs = Files({"chosen": FileInput(formats=(TAGGED,)), "reported": FileInput(formats=(TAGGED,))})

    universal: bool = param(Flag(), default=False, about=UNIVERSAL)
    show: str = param(
        Choice(("best", "all")),
        default="best",
        display_only=True,
        key="relations_part",
        about="The best head of each relation, or all heads.",
    )

    def of(
        self,
        checkpoint: Checkpoint,
        chosen: Sequence[TaggedSentence],
        reported: Sequence[TaggedSentence],
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> RelationsResult:
        """The heads that find each relation. Attention to special tokens and to the word itself is no guess.

        Args:
            chosen: sentences by which head, direction and offset are chosen.
            reported: those that the accuracies are of.
            truncate: cut sentences that are too long instead of refusing them. Relations of words that no
                token covers do not count.
            report: told how many sentences are done, and of how many.

        Raises:
            EmptyTextError, TooLongError, TextError: no sentence, one that cannot be read, by its line, or no
                relations in a file.
            OutOfMemoryError: the machine is too small for one batch.
            UnavailableError: a model in memory that changes meanwhile.
        """
        checkpoint = checkpoint.now()
        files = {"chosen": chosen, "reported": reported}
        every = reading.read(checkpoint, files, truncate, report)
        pairs = [
            [_pairs(*one, self.universal) for one in zip(part.sentences, part.encodings, strict=True)]
            for part in every
        ]
        relations, left_out = _in_both(dict(zip(files, pairs, strict=True)))
        first, second = _count(checkpoint, every, pairs, relations, report)
        offsets = [first.best_offset(relation) for relation in range(len(relations))]
        at_offset = [second.at_offset(relation, offset) for relation, offset in enumerate(offsets)]
        order = np.argsort(-second.count, kind="stable")
        return RelationsResult(
            self,
            reading.subject(checkpoint, files, every),
            tuple(relations[index] for index in order),
            read_only(second.count[order]),
            read_only(first.accuracy[order]),
            read_only(second.accuracy[order]),
            tuple(offsets[index] for index in order),
            read_only(np.array(at_offset)[order]),
            left_out,
        )


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Words of a sentence and their syntactic heads, where both are read.

    Attributes:
        names: of their relations.
        offsets: from word to head, in words.
        dependents, heads: their places among the units.
        words: where these are.
    """

    names: tuple[str, ...]
    offsets: Array
    dependents: Array
    heads: Array
    words: AlignedWords


def _pairs(sentence: TaggedSentence, encoding: Encoding, universal: bool) -> _Pairs:
    words = placed(sentence, encoding)
    found = [
        (word, head)
        for word, head in enumerate(sentence.heads)
        if head != ROOT and words.units[word] != NOWHERE and words.units[head] != NOWHERE
    ]
    names = [sentence.relations[word] for word, _ in found]
    of, to = np.array(found, dtype=np.intp).reshape(-1, 2).T
    return _Pairs(
        tuple(_named(name, universal) for name in names),
        to - of,
        words.units[of],
        words.units[to],
        words,
    )


def _in_both(files: Mapping[str, Sequence[_Pairs]]) -> tuple[list[str], tuple[str, ...]]:
    """Relations that are in both files, and those of the second that the first does not have.

    Raises:
        TextError: a file has none, or none is in both.
    """
    named = {name: {relation for pair in pairs for relation in pair.names} for name, pairs in files.items()}
    for name, found in named.items():
        if not found:
            raise TextError(
                f"There is no relation between two words in {name}. Give a treebank: a CoNLL-U file whose "
                "words have heads."
            )
    first, second = named.values()
    if not first & second:
        raise TextError("No relation is in both files, so no head can be chosen. Give files that are alike.")
    return sorted(first & second), tuple(sorted(second - first))


def _count(
    checkpoint: Checkpoint,
    every: Sequence[reading.EncodedTexts],
    pairs: Sequence[Sequence[_Pairs]],
    relations: Sequence[str],
    report: Progress,
) -> list[_Counted]:
    """Run the model on each file, and count of each relation how often each head finds it."""
    about = checkpoint.description
    total, done = sum(len(part.sentences) for part in every), 0
    found = []
    for part, of_part in zip(every, pairs, strict=True):
        counted = _Counted(relations, about.layers, about.heads)
        for group in batches([len(encoding) for encoding in part.encodings], BATCH_TOKENS, checkpoint.pads):
            report(done, total)
            traces = checkpoint.trace_encodings([part.encodings[index] for index in group])
            for index, trace in zip(group, traces, strict=True):
                counted.add(of_part[index], trace)
            done += len(group)
        found.append(counted)
    report(done, total)
    return found


def _named(relation: str, universal: bool) -> str:
    return relation.partition(":")[0] if universal else relation


class _Counted:
    """How often heads and offsets are right, over the sentences of a file."""

    def __init__(self, relations: Sequence[str], layers: int, heads: int) -> None:
        self._place = {name: index for index, name in enumerate(relations)}
        self.count = np.zeros(len(relations), dtype=np.int64)
        self._right = np.zeros((len(relations), len(DIRECTIONS), layers, heads), dtype=np.int64)
        self._offsets: list[dict[int, int]] = [{} for _ in relations]

    @property
    def accuracy(self) -> Array:
        """Share of the pairs in which a head is right, [relation, direction, layer, head]."""
        share: Array = self._right / self.count[:, None, None, None]
        return share

    def add(self, pairs: _Pairs, trace: Trace) -> None:
        """Count a sentence."""
        kept = np.array([name in self._place for name in pairs.names], dtype=bool)
        if not kept.any():
            return
        relations = np.array([self._place[name] for name in pairs.names if name in self._place])
        self.count += np.bincount(relations, minlength=len(self.count))
        for relation, offset in zip(relations, pairs.offsets[kept].tolist(), strict=True):
            of = self._offsets[relation]
            of[offset] = of.get(offset, 0) + 1
        dependents, heads = pairs.dependents[kept], pairs.heads[kept]
        for layer in range(trace.layers):
            guessed = _strongest(trace.attention(layer), pairs.words)
            right = np.stack([guessed[:, dependents] == heads, guessed[:, heads] == dependents])
            np.add.at(self._right[:, :, layer], relations, right.transpose(2, 0, 1))

    def best_offset(self, relation: int) -> int:
        """From word to head; of equally good ones the smallest, before it rather than after."""
        found = self._offsets[relation]
        return min(found, key=lambda offset: (-found[offset], abs(offset), offset))

    def at_offset(self, relation: int, offset: int) -> float:
        """Share of the pairs that are so far apart."""
        return self._offsets[relation].get(offset, 0) / int(self.count[relation])


def _strongest(weights: Array, words: AlignedWords) -> Array:
    """Of each unit the other word that most of its attention goes to, [head, unit]; -1 where none is left."""
    merged = words.lens.merge(weights)
    are_words = np.zeros(merged.shape[-1], dtype=bool)
    are_words[words.units[words.units != NOWHERE]] = True
    guesses = are_words[None] & ~np.eye(len(are_words), dtype=bool)
    strongest: Array = np.where(guesses, merged, -1.0).argmax(axis=-1)
    strongest[:, ~guesses.any(axis=-1)] = -1
    return strongest


@dataclass(frozen=True)
class BestHead:
    """The head that finds a relation, as one file chose it and another reports it.

    Attributes:
        relation: its name; count: how often it was looked for.
        layer, head: from 0.
        direction: one of `DIRECTIONS`.
        accuracy: share in which it was right.
        offset: the best fixed one, in words from the dependent; offset_accuracy: its share.
    """

    relation: str
    count: int
    layer: int
    head: int
    direction: str
    accuracy: float
    offset: int
    offset_accuracy: float


@dataclass(frozen=True, eq=False, repr=False)
class RelationsResult(Result):
    """How well every head finds each relation.

    Attributes:
        relations: those that are in both files; the most frequent first.
        counts: of each in the reported file, [relation].
        chosen, accuracies: share in which a head is right, float64 [relation, direction, layer, head], in the
            file that chooses and in the one that is reported.
        offsets: of each relation the best fixed one in the first file.
        offset_accuracies: their share in the second, [relation].
        left_out: relations of the second file that the first does not have.
    """

    question: Relations
    relations: tuple[str, ...]
    counts: Array
    chosen: Array
    accuracies: Array
    offsets: tuple[int, ...]
    offset_accuracies: Array
    left_out: tuple[str, ...]

    def __post_init__(self) -> None:
        count = len(self.relations)
        if self.accuracies.shape != self.chosen.shape or self.accuracies.ndim != 4:
            raise ShapeError("Accuracies must be [relation, direction, layer, head] in both files.")
        if {len(self.accuracies), len(self.counts), len(self.offsets), len(self.offset_accuracies)} != {
            count
        }:
            raise ShapeError(f"{count} relations need as many counts, accuracies and offsets.")

    @property
    def best(self) -> tuple[BestHead, ...]:
        """Of each relation the head that the first file chooses; of equal ones the first."""
        return tuple(map(self._best, range(len(self.relations))))

    def in_direction(self, direction: int) -> Array:
        """In the reported file the accuracy of every head in a direction, [relation, layer × head]."""
        of = self.accuracies[:, direction]
        return of.reshape(len(of), -1)

    def _best(self, relation: int) -> BestHead:
        chosen = self.chosen[relation]
        direction, layer, head = map(int, np.unravel_index(chosen.argmax(), chosen.shape))
        return BestHead(
            self.relations[relation],
            int(self.counts[relation]),
            layer,
            head,
            DIRECTIONS[direction],
            float(self.accuracies[relation, direction, layer, head]),
            self.offsets[relation],
            float(self.offset_accuracies[relation]),
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Relations that could not be looked for."""
        return {"not_in_chosen": list(self.left_out)} if self.left_out else {}

    def frame(self) -> pd.DataFrame:
        """A row for each relation: its best head; or one for each relation, direction and head."""
        if self.question.show == "all":
            return self._every()
        frame = pd.DataFrame([vars(one) for one in self.best])
        frame[["layer", "head"]] += 1
        return frame

    def _every(self) -> pd.DataFrame:
        relation, direction, layer, head = (part.ravel() for part in np.indices(self.accuracies.shape))
        return pd.DataFrame(
            {
                "relation": np.array(self.relations, dtype=object)[relation],
                "count": self.counts[relation],
                "layer": layer + 1,
                "head": head + 1,
                "direction": np.array(DIRECTIONS, dtype=object)[direction],
                "accuracy": self.accuracies.ravel(),
                "chosen_accuracy": self.chosen.ravel(),
            }
        )


@dataclass(frozen=True)
class RelationExample:
    """A sentence in which two words stand in a relation.

    Attributes:
        sentence: its place in the file.
        dependent, head: places of the words, from 0.
    """

    sentence: int
    dependent: int
    head: int


def examples(
    sentences: Sequence[TaggedSentence], relation: str, universal: bool = False
) -> Iterator[RelationExample]:
    """Where a relation occurs, in the order of the file.

    Raises:
        SelectionError: nowhere.
    """
    found = False
    for index, sentence in enumerate(sentences):
        for word, name in enumerate(sentence.relations):
            if _named(name, universal) == relation and sentence.heads[word] != ROOT:
                found = True
                yield RelationExample(index, word, sentence.heads[word])
    if not found:
        raise SelectionError(f"There is no relation {relation} in these sentences.")
