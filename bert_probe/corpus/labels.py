"""What is said of rows and of their tokens, beside numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from bert_probe.corpus.tables import TableSchema
from bert_probe.corpus.tokenization import REFUSED_CHARACTERS, ReadRecord, RejectedRecord, tagged_word_of
from bert_probe.text.words import WordLens


def rows(read: Sequence[ReadRecord], layout: TableSchema) -> pa.Table:
    """A line a sentence."""
    records = [one.record for one in read]
    columns = {
        "row": [record.row for record in records],
        "file": [record.file for record in records],
        "line": [record.line for record in records],
        "text": [record.text for record in records],
        "tokens": [len(one.encoding) for one in read],
        "tokens_dropped": [one.encoding.dropped for one in read],
        "about": [
            json.dumps(dict(record.tagged.about), ensure_ascii=False)
            if record.tagged and record.tagged.about
            else None
            for record in records
        ],
    }
    return pa.table(columns, layout.schema)


def refusals(refused: Sequence[RejectedRecord], layout: TableSchema) -> pa.Table:
    """A line a record that is not read."""
    columns = {
        "row": [one.record.row for one in refused],
        "file": [one.record.file for one in refused],
        "line": [one.record.line for one in refused],
        "text": [one.record.text and one.record.text[:REFUSED_CHARACTERS] for one in refused],
        "reason": [one.reason for one in refused],
    }
    return pa.table(columns, layout.schema)


def tokens(read: Sequence[ReadRecord], layout: TableSchema) -> pa.Table:
    """A line a token, or a word where pieces are merged."""
    lines: list[tuple[object, ...]] = []
    for one in read:
        lines += _of_tokens(one) if one.merged is None else _of_words(one, one.merged)
    columns = zip(*lines, strict=True) if lines else ((),) * len(layout.schema)
    arrays = [pa.array(column, one.type) for column, one in zip(columns, layout.schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=layout.schema)


_UNTAGGED = (None, None, None)
"""Tag, head and relation of what has none."""


def _of_tokens(read: ReadRecord) -> list[tuple[object, ...]]:
    row, tagged = read.record.row, tagged_word_of(read)
    return [
        (
            row,
            token.position + 1,
            token.id,
            token.token,
            token.display,
            _numbered(tagged.get(token.position, token.word) if tagged else token.word),
            token.start,
            token.end,
            token.special,
            *_tags(read, tagged.get(token.position)),
        )
        for token in read.encoding.tokens
    ]


def _of_words(read: ReadRecord, merged: WordLens) -> list[tuple[object, ...]]:
    row, tagged, every = read.record.row, tagged_word_of(read), read.encoding.tokens
    lines = []
    for number, unit in enumerate(merged.units, 1):
        first, last = every[unit.positions[0]], every[unit.positions[-1]]
        alone = len(unit.positions) == 1
        word = tagged.get(first.position)
        lines.append(
            (
                row,
                number,
                first.id if alone else None,
                first.token if alone else None,
                unit.display,
                _numbered(word if tagged else first.word),
                first.start,
                last.end,
                unit.special,
                *_tags(read, word),
            )
        )
    return lines


def _numbered(word: int | None) -> int | None:
    return None if word is None else word + 1


def _tags(read: ReadRecord, word: int | None) -> tuple[object, ...]:
    tagged = read.record.tagged
    if tagged is None or word is None:
        return _UNTAGGED
    if not tagged.heads:
        return tagged.tags[word], None, None
    return tagged.tags[word], tagged.heads[word] + 1, tagged.relations[word]  # the root's head is -1
