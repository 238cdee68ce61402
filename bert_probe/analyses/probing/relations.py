"""Syntactic relations in attention: heads that attend from a word to its syntactic head, or vice versa."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.probing import vectors
from bert_probe.core.field_types import Choice, Flag
from bert_probe.core.inputs import TAGGED, FileInput, Files
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import group_by_length
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.tagged_sentences import NO_UNIT, ROOT, AlignedWords, TaggedSentence, align_words

BATCH_TOKENS = 2048
"""Maximum number of padded tokens in a batch of traces."""
DIRECTIONS = ("dependent to head", "head to dependent")
UNIVERSAL_HELP = "Ignore the subtypes of relations: nsubj:pass counts as nsubj."


@question("relations")
class Relations(Question):
    """Accuracy of attention heads as predictors of syntactic relations; Clark et al. 2019, section 4.2.

    An attention head predicts, for each word, the other word that receives most of its attention. For each
    relation, the head and direction with the highest accuracy in one file are evaluated on another file. The
    baseline is a fixed offset, such as the previous word, which is selected and evaluated in the same way.

    Attributes:
        universal: drop subtypes of relations, so that nsubj:pass counts as nsubj.
        show: the table to return: the "best" head of each relation, or "all" heads.
    """

    inputs = Files({"chosen": FileInput(formats=(TAGGED,)), "reported": FileInput(formats=(TAGGED,))})

    universal: bool = param(Flag(), default=False, about=UNIVERSAL_HELP)
    show: str = param(
        Choice(("best", "all")),
        default="best",
        display_only=True,
        key="relations_part",
        about="Table: the best head for each relation, or all heads.",
    )

    def of(
        self,
        checkpoint: Checkpoint,
        chosen: Sequence[TaggedSentence],
        reported: Sequence[TaggedSentence],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> RelationsResult:
        """Measure how often each attention head predicts each relation correctly.

        Special tokens and the word itself are never predicted, and neither are words that receive no
        attention, such as all later words in a causal model.

        Args:
            chosen: sentences for selecting head, direction and offset.
            reported: sentences for reporting accuracies.
            truncate: truncate sentences that are too long instead of raising an error. Relations of words
                without a token are ignored.
            progress: called with the number of sentences done and the total.

        Raises:
            EmptyTextError, TooLongError, TextError: there is no sentence, a sentence cannot be encoded (the
                message names its line), or the files have no relations in common.
            OutOfMemoryError: one batch does not fit in memory.
            UnavailableError: an in-memory model changed during the computation.
        """
        checkpoint = checkpoint.snapshot()
        files = {"chosen": chosen, "reported": reported}
        encoded = vectors.encode_files(checkpoint, files, truncate, progress)
        pairs = [
            [
                _pairs(sentence, encoding, self.universal)
                for sentence, encoding in zip(part.sentences, part.encodings, strict=True)
            ]
            for part in encoded
        ]
        relations, left_out = _common_relations(dict(zip(files, pairs, strict=True)))
        first, second = _count_matches(checkpoint, encoded, pairs, relations, progress)
        offsets = [first.best_offset(relation) for relation in range(len(relations))]
        at_offset = [second.at_offset(relation, offset) for relation, offset in enumerate(offsets)]
        order = np.argsort(-second.count, kind="stable")
        return RelationsResult(
            self,
            vectors.input_record(checkpoint, files, encoded),
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
    """The pairs of a word and its syntactic head in a sentence, omitting words without tokens.

    Attributes:
        names: relation of each pair.
        offsets: offset of the syntactic head from the word, in words.
        dependents, heads: indices, in the merged attention, of the words and of their syntactic heads.
        words: alignment of the sentence's words with tokens, for merging attention.
    """

    names: tuple[str, ...]
    offsets: Array
    dependents: Array
    heads: Array
    words: AlignedWords


def _pairs(sentence: TaggedSentence, encoding: Encoding, universal: bool) -> _Pairs:
    words = align_words(sentence, encoding)
    pairs = [
        (word, head)
        for word, head in enumerate(sentence.heads)
        if head != ROOT and words.units[word] != NO_UNIT and words.units[head] != NO_UNIT
    ]
    names = [sentence.relations[word] for word, _ in pairs]
    of, to = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return _Pairs(
        tuple(_relation_name(name, universal) for name in names),
        to - of,
        words.units[of],
        words.units[to],
        words,
    )


def _common_relations(files: Mapping[str, Sequence[_Pairs]]) -> tuple[list[str], tuple[str, ...]]:
    """Return the relations that occur in both files, and the relations that occur only in the second file.

    Raises:
        TextError: a file has no relations, or the files have none in common.
    """
    relations_by_file = {
        name: {relation for pair in pairs for relation in pair.names} for name, pairs in files.items()
    }
    for name, relations in relations_by_file.items():
        if not relations:
            raise TextError(
                f"{name} has no relations between words. Use a treebank: a CoNLL-U file in which words have "
                "syntactic heads."
            )
    first, second = relations_by_file.values()
    if not first & second:
        raise TextError("The files have no relation in common. Use files with the same annotation scheme.")
    return sorted(first & second), tuple(sorted(second - first))


def _count_matches(
    checkpoint: Checkpoint,
    encoded: Sequence[vectors.EncodedTexts],
    pairs: Sequence[Sequence[_Pairs]],
    relations: Sequence[str],
    progress: Progress,
) -> list[_HeadCounts]:
    """Run the model on each file, and return the counts of correct predictions in each file.

    Args:
        checkpoint: the model.
        encoded: the sentences of each file.
        pairs: for each file, the word pairs of each sentence.
        relations: names of the relations to count.
        progress: called with the number of sentences done and the total.
    """
    description = checkpoint.description
    total, done = sum(len(part.sentences) for part in encoded), 0
    counts = []
    for part, part_pairs in zip(encoded, pairs, strict=True):
        part_counts = _HeadCounts(relations, description.layers, description.heads)
        for group in group_by_length(
            [len(encoding) for encoding in part.encodings], BATCH_TOKENS, checkpoint.pads
        ):
            progress(done, total)
            traces = checkpoint.trace_encodings([part.encodings[index] for index in group])
            for index, trace in zip(group, traces, strict=True):
                part_counts.add(part_pairs[index], trace)
            done += len(group)
        counts.append(part_counts)
    progress(done, total)
    return counts


def _relation_name(relation: str, universal: bool) -> str:
    return relation.partition(":")[0] if universal else relation


class _HeadCounts:
    """Counts of the correct predictions that attention heads and fixed offsets make in a file."""

    def __init__(self, relations: Sequence[str], layers: int, heads: int) -> None:
        self._place = {name: index for index, name in enumerate(relations)}
        self.count = np.zeros(len(relations), dtype=np.int64)
        self._right = np.zeros((len(relations), len(DIRECTIONS), layers, heads), dtype=np.int64)
        self._offsets: list[dict[int, int]] = [{} for _ in relations]

    @property
    def accuracy(self) -> Array:
        """Accuracy of each head for each relation and direction, [relation, direction, layer, head]."""
        accuracy: Array = self._right / self.count[:, None, None, None]
        return accuracy

    def add(self, pairs: _Pairs, trace: Trace) -> None:
        """Add the predictions for one sentence to the counts."""
        is_counted = np.array([name in self._place for name in pairs.names], dtype=bool)
        if not is_counted.any():
            return
        relations = np.array([self._place[name] for name in pairs.names if name in self._place])
        self.count += np.bincount(relations, minlength=len(self.count))
        for relation, offset in zip(relations, pairs.offsets[is_counted].tolist(), strict=True):
            offsets = self._offsets[relation]
            offsets[offset] = offsets.get(offset, 0) + 1
        dependents, heads = pairs.dependents[is_counted], pairs.heads[is_counted]
        for layer in range(trace.layers):
            guesses = _strongest(trace.attention(layer), pairs.words)
            is_correct = np.stack([guesses[:, dependents] == heads, guesses[:, heads] == dependents])
            np.add.at(self._right[:, :, layer], relations, is_correct.transpose(2, 0, 1))

    def best_offset(self, relation: int) -> int:
        """Return a relation's most frequent offset from a word to its syntactic head.

        Ties go to the offset with the smallest absolute value, and then to the negative offset.
        """
        counts = self._offsets[relation]
        return min(counts, key=lambda offset: (-counts[offset], abs(offset), offset))

    def at_offset(self, relation: int, offset: int) -> float:
        """Return the share of a relation's word pairs that have the given offset."""
        return self._offsets[relation].get(offset, 0) / int(self.count[relation])


def _strongest(weights: Array, words: AlignedWords) -> Array:
    """Return, for each word, the index of the other word that receives most of its attention in each head.

    Args:
        weights: attention of each head, [head, token, token].
        words: alignment of the sentence's words with tokens.

    Returns:
        Indices in the attention merged by ``words``, [head, query]; -1 if no other word receives attention,
        as for the first word in a causal model.
    """
    merged = words.lens.merge(weights)
    are_words = np.zeros(merged.shape[-1], dtype=bool)
    are_words[words.units[words.units != NO_UNIT]] = True
    is_candidate = are_words[None] & ~np.eye(len(are_words), dtype=bool)
    candidates = np.where(is_candidate, merged, 0.0)
    return np.where(candidates.max(axis=-1) > 0, candidates.argmax(axis=-1), -1)


@dataclass(frozen=True)
class BestHead:
    """The best head for a relation, selected on one file and evaluated on another.

    Attributes:
        relation: name of the relation.
        count: number of word pairs with the relation.
        layer, head: indices from 0.
        direction: one of `DIRECTIONS`.
        accuracy: share of the pairs that the head predicts correctly, 0 to 1.
        offset: the best fixed offset, in words from the dependent.
        offset_accuracy: accuracy of the best fixed offset, 0 to 1.
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
    """Accuracy of every attention head for each relation.

    Heads and offsets are selected on one treebank, the argument ``chosen`` of `Relations.of`, and their
    accuracies are reported on another one, the argument ``reported``.

    Attributes:
        relations: relations that occur in both files, most frequent first.
        counts: number of word pairs in the file for reporting, [relation].
        chosen, accuracies: accuracy of each attention head in the file for selection and in the file for
            reporting, float64 [relation, direction, layer, head].
        offsets: the best fixed offset of each relation in the file for selection.
        offset_accuracies: accuracy of `offsets` in the file for reporting, [relation].
        left_out: relations that occur only in the file for reporting.
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
            raise ShapeError(
                "The training and held-out accuracies must have shape [relation, direction, layer, head], "
                f"not {self.chosen.shape} and {self.accuracies.shape}."
            )
        if {len(self.accuracies), len(self.counts), len(self.offsets), len(self.offset_accuracies)} != {
            count
        }:
            raise ShapeError(
                f"Counts, accuracies and offsets must have one value for each of {count} relations."
            )

    @property
    def best(self) -> tuple[BestHead, ...]:
        """The best head of each relation, selected on the first file; in a tie, the first head."""
        return tuple(map(self._best, range(len(self.relations))))

    def in_direction(self, direction: int) -> Array:
        """Return the accuracies in one direction, measured on the file for reporting.

        Args:
            direction: index in `DIRECTIONS`.

        Returns:
            Accuracies of shape [relation, layer × head].
        """
        accuracies = self.accuracies[:, direction]
        return accuracies.reshape(len(accuracies), -1)

    def _best(self, relation: int) -> BestHead:
        accuracies = self.chosen[relation]
        direction, layer, head = map(int, np.unravel_index(accuracies.argmax(), accuracies.shape))
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
        """The relations that are skipped because they occur only in `reported`."""
        return {"not_in_chosen": list(self.left_out)} if self.left_out else {}

    def frame(self) -> pd.DataFrame:
        """Return the table that ``show`` of the question selects.

        "best" gives one row per relation, with the columns of `BestHead`. "all" gives one row per relation,
        direction and head: relation, count, layer, head, direction, accuracy, chosen_accuracy.
        """
        if self.question.show == "all":
            return self._every()
        frame = pd.DataFrame([vars(best) for best in self.best])
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
    """A word and its syntactic head, which are connected by a relation.

    Attributes:
        sentence: index of the sentence in the file.
        dependent, head: word indices, from 0.
    """

    sentence: int
    dependent: int
    head: int


def find_examples(
    sentences: Sequence[TaggedSentence], relation: str, universal: bool = False
) -> Iterator[RelationExample]:
    """Yield the occurrences of a relation, in the order of the file.

    Raises:
        SelectionError: the relation does not occur.
    """
    has_examples = False
    for index, sentence in enumerate(sentences):
        for word, name in enumerate(sentence.relations):
            if _relation_name(name, universal) == relation and sentence.heads[word] != ROOT:
                has_examples = True
                yield RelationExample(index, word, sentence.heads[word])
    if not has_examples:
        raise SelectionError(
            f"The relation {relation} does not occur in these sentences. Choose another relation."
        )
