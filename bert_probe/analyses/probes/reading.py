"""Tagged sentences as a model reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bert_probe.errors import EmptyTextError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.progress import Report
from bert_probe.results.provenance import Subject
from bert_probe.text.tagged import TaggedSentence

Files = Mapping[str, Sequence[TaggedSentence]]
"""Sentences of each file, by what it is to the question."""

HELD_OUT = 0.2
"""Share of the sentences that is held out where no file is given."""


@dataclass(frozen=True, eq=False)
class Read:
    """Sentences and their tokens, one after the other."""

    sentences: tuple[TaggedSentence, ...]
    encodings: tuple[Encoding, ...]


def read(checkpoint: Checkpoint, files: Files, truncate: bool, report: Report) -> tuple[Read, ...]:
    """The sentences of files, all of them before any is run: a mistake in the last line is told at once.

    Raises:
        EmptyTextError: a file without a sentence.
        TextError, TooLongError: what is no list of tagged sentences, or a sentence that cannot be read, by
            its line.
    """
    found = []
    for name, sentences in files.items():
        if not all(isinstance(one, TaggedSentence) for one in sentences):
            raise TextError(f"{name} must be a list of tagged sentences, as read_tagged gives it.")
        if not sentences:
            raise EmptyTextError(f"There is no sentence in {name}. Give one or more.")
        found.append(Read(tuple(sentences), _encoded(checkpoint, name, sentences, truncate, report)))
    return tuple(found)


def _encoded(
    checkpoint: Checkpoint, name: str, sentences: Sequence[TaggedSentence], truncate: bool, report: Report
) -> tuple[Encoding, ...]:
    encodings = []
    for one in sentences:
        report(0, len(sentences))
        try:
            encodings.append(checkpoint.encode(one.text, truncate=truncate))
        except TextError as error:
            raise type(error)(f"{name}, line {one.line:,}: {error}") from None
    return tuple(encodings)


def parted(every: Sequence[Read], rng: np.random.Generator) -> list[Read]:
    """What is learned from, in random order, and what is held out: the second file, or some of the first.

    Raises:
        TextError: one sentence, and no second file.
    """
    order = rng.permutation(len(every[0].sentences)).tolist()
    if len(every) == 2:
        return [_some(every[0], order), every[1]]
    count = max(1, round(HELD_OUT * len(order)))
    if count == len(order):
        raise TextError("One sentence cannot be both learned from and held out. Give more, or a second file.")
    return [_some(every[0], order[count:]), _some(every[0], order[:count])]


def _some(part: Read, order: Sequence[int]) -> Read:
    return Read(
        tuple(part.sentences[index] for index in order), tuple(part.encodings[index] for index in order)
    )


def subject(checkpoint: Checkpoint, files: Files, every: Sequence[Read]) -> Subject:
    """Who was asked."""
    dropped = sum(one.dropped for part in every for one in part.encodings)
    return Subject.of_tagged(checkpoint, files, dropped)
