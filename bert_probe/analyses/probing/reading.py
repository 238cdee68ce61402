"""Tagged sentences, or texts with labels, as a model reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_probe.analyses.vectors.encoded import encoded
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import EmptyTextError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.progress import Progress
from bert_probe.text.labeled_texts import CLASSES, NUMBER, SEVERAL, LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence

Texts = Sequence[TaggedSentence] | LabeledTexts
Files = Mapping[str, Texts]
"""What each file holds, by what it is to the question."""

_KINDS = {SEVERAL: "any number of labels", NUMBER: "a number"}

HELD_OUT = 0.2
"""Share of the sentences that is held out where no file is given."""


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """Sentences, or rows of a table, and their tokens, one after the other."""

    sentences: tuple[Any, ...]
    encodings: tuple[Encoding, ...]

    @property
    def texts(self) -> tuple[tuple[str, str | None], ...]:
        """Each text and its pair."""
        return tuple((sentence.text, getattr(sentence, "pair", None)) for sentence in self.sentences)


def read(
    checkpoint: Checkpoint, files: Files, truncate: bool, report: Progress, tables: bool = False
) -> tuple[EncodedTexts, ...]:
    """The sentences of files, all of them before any is run: a mistake in the last line is told at once.

    Args:
        tables: texts with labels will do as well.

    Raises:
        EmptyTextError: a file without a sentence.
        TextError, TooLongError: what is no list of tagged sentences, labels that are no classes, files of two
            kinds, or a sentence that cannot be read, by its line.
    """
    found = []
    if len({isinstance(file, LabeledTexts) for file in files.values()}) > 1:
        raise TextError("One file has a label for each text, the other tags of words. Give two of one kind.")
    for name, given in files.items():
        sentences = _sentences(name, given, tables)
        if not sentences:
            raise EmptyTextError(f"There is no sentence in {name}. Give one or more.")
        lines = [(sentence.line, sentence.text, getattr(sentence, "pair", None)) for sentence in sentences]
        found.append(EncodedTexts(sentences, tuple(encoded(checkpoint, lines, truncate, report, name))))
    return tuple(found)


def _sentences(name: str, given: Texts, tables: bool) -> tuple[Any, ...]:
    if tables and isinstance(given, LabeledTexts):
        if given.kind != CLASSES:
            raise TextError(
                f"{name} has {_KINDS[given.kind]} of each text, where a probe tells one class. Read it "
                "as classes, or give other labels."
            )
        return given.rows
    if isinstance(given, LabeledTexts) or not all(isinstance(one, TaggedSentence) for one in given):
        labelled = ", or texts with labels, as read_labeled_texts does" if tables else ""
        raise TextError(
            f"{name} must be a list of tagged sentences, as read_tagged_sentences gives it{labelled}."
        )
    return tuple(given)


def parted(every: Sequence[EncodedTexts], rng: np.random.Generator) -> list[EncodedTexts]:
    """What is learned from, in random order, and what is held out: the second file, or some of the first.

    Of one file no text is in both: one that stands there several times is held out each time or never.

    Raises:
        TextError: one sentence, and no second file.
    """
    order = rng.permutation(len(every[0].sentences)).tolist()
    if len(every) == 2:
        return [_some(every[0], order), every[1]]
    count = max(1, round(HELD_OUT * len(order)))
    texts = every[0].texts
    apart = {texts[index] for index in order[:count]}
    learned = [index for index in order[count:] if texts[index] not in apart]
    if not learned:
        raise TextError("One sentence cannot be both learned from and held out. Give more, or a second file.")
    held_out = [index for index in order if texts[index] in apart]
    return [_some(every[0], learned), _some(every[0], held_out)]


def _some(part: EncodedTexts, order: Sequence[int]) -> EncodedTexts:
    return EncodedTexts(
        tuple(part.sentences[index] for index in order), tuple(part.encodings[index] for index in order)
    )


def subject(checkpoint: Checkpoint, files: Files, every: Sequence[EncodedTexts]) -> InputRecord:
    """Who was asked."""
    dropped = sum(encoding.dropped for part in every for encoding in part.encodings)
    return InputRecord.of_tagged(checkpoint, files, dropped)
