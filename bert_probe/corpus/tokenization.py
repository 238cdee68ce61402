"""Tokenize the records of a corpus, and build the tables of sentences, tokens and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from bert_probe.corpus.ingest import IngestConfig
from bert_probe.corpus.inputs import Record
from bert_probe.corpus.tables import TableSchema
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.text.tag_alignment import NO_UNIT, AlignedWords, align_words
from bert_probe.text.words import WordLens, word_lens

REFUSED_CHARACTERS = 200
"""Characters of a refused record's text that are stored."""


@dataclass(frozen=True, eq=False)
class ReadRecord:
    """A tokenized sentence.

    Attributes:
        record: the input row.
        encoding: its tokens.
        words: alignment of its tagged words with the tokens; None for a record without tags.
        merged: how tokens are merged into words; None if the store keeps tokens.
    """

    record: Record
    encoding: Encoding
    words: AlignedWords | None
    merged: WordLens | None

    @cached_property
    def units(self) -> int:
        """Number of tokens, or of words if tokens are merged."""
        return len(self.encoding) if self.merged is None else len(self.merged.units)


@dataclass(frozen=True)
class RejectedRecord:
    """A record that was refused, with the reason as a sentence."""

    record: Record
    reason: str


def tokenize_records(
    checkpoint: Checkpoint, question: IngestConfig, records: Iterable[Record]
) -> tuple[list[ReadRecord], list[RejectedRecord]]:
    """Return the tokenized sentences and the refused records, both in input order."""
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
        if question.words:  # words of a tagged file take precedence over those of the tokenizer
            merged = word_lens(encoding) if words is None else words.lens
        sentences.append(ReadRecord(record, encoding, words, merged))
    return sentences, rejected


def rows_table(sentences: Sequence[ReadRecord], schema: TableSchema) -> pa.Table:
    """Return the table with one row per sentence."""
    records = [sentence.record for sentence in sentences]
    columns = {
        "row": [record.row for record in records],
        "file": [record.file for record in records],
        "line": [record.line for record in records],
        "text": [record.text for record in records],
        "tokens": [len(sentence.encoding) for sentence in sentences],
        "tokens_dropped": [sentence.encoding.dropped for sentence in sentences],
        "about": [
            json.dumps(dict(record.tagged.metadata), ensure_ascii=False)
            if record.tagged and record.tagged.metadata
            else None
            for record in records
        ],
    }
    return pa.table(columns, schema.schema)


def refusals_table(rejected: Sequence[RejectedRecord], schema: TableSchema) -> pa.Table:
    """Return the table with one row per refused record."""
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
    """Return the table with one row per token, or per word if tokens are merged."""
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
    """Return token position → index of its tagged word, both from 0."""
    if sentence.words is None:
        return {}
    units = sentence.words.lens.units
    # Reversed, so that the first of several words that share a token wins.
    return {
        position: word
        for word, unit in reversed(list(enumerate(sentence.words.units.tolist())))
        if unit != NO_UNIT
        for position in units[unit].positions
    }


def _from_1(word: int | None) -> int | None:
    return None if word is None else word + 1


def _tags(sentence: ReadRecord, word: int | None) -> tuple[object, ...]:
    """Return the tag, head and relation of a tagged word; None where it has none."""
    tagged = sentence.record.tagged
    if tagged is None or word is None:
        return None, None, None
    if not tagged.heads:
        return tagged.tags[word], None, None
    return tagged.tags[word], tagged.heads[word] + 1, tagged.relations[word]  # the root's head is -1
