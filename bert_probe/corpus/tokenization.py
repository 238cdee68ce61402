"""Records as a model reads them: tokens, and the units that numbers are of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from bert_probe.corpus.ingest import IngestConfig
from bert_probe.corpus.inputs import Record
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.text.tag_alignment import NOWHERE, AlignedWords, placed
from bert_probe.text.words import WordLens, word_lens

REFUSED_CHARACTERS = 200
"""Of the text of a refused record, what is kept."""


@dataclass(frozen=True, eq=False)
class ReadRecord:
    """A sentence and its tokens.

    Attributes:
        words: where the words of its tags stand; None without tags.
        merged: how pieces become the units that numbers are of; None where these are tokens.
    """

    record: Record
    encoding: Encoding
    words: AlignedWords | None
    merged: WordLens | None

    @cached_property
    def units(self) -> int:
        """How many tokens, or words."""
        return len(self.encoding) if self.merged is None else len(self.merged.units)


@dataclass(frozen=True)
class RejectedRecord:
    """A record that is not read, and why."""

    record: Record
    reason: str


def read(
    checkpoint: Checkpoint, question: IngestConfig, records: Iterable[Record]
) -> tuple[list[ReadRecord], list[RejectedRecord]]:
    """What can be read, and what cannot, both in the order given."""
    found, refused = [], []
    for record in records:
        if record.text is None:
            refused.append(RejectedRecord(record, record.trouble))
            continue
        try:
            encoding = checkpoint.encode(record.text, truncate=question.truncate)
        except TextError as error:
            refused.append(RejectedRecord(record, str(error)))
            continue
        words = None if record.tagged is None else placed(record.tagged, encoding)
        found.append(ReadRecord(record, encoding, words, _merging(question, encoding, words)))
    return found, refused


def _merging(question: IngestConfig, encoding: Encoding, words: AlignedWords | None) -> WordLens | None:
    """The file's own words, where it has them."""
    if not question.words:
        return None
    return word_lens(encoding) if words is None else words.lens


def tagged_word_of(read: ReadRecord) -> dict[int, int]:
    """Token → the tagged word that it is a piece of, both from 0."""
    if read.words is None:
        return {}
    units = read.words.lens.units
    return {
        position: word
        for word, unit in reversed(list(enumerate(read.words.units.tolist())))
        if unit != NOWHERE
        for position in units[unit].positions
    }
