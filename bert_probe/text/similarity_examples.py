"""Read pairs and triplets of texts for similarity training from a table."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from bert_probe.errors import EmptyTextError, TextError
from bert_probe.text.duplicates import group_rows, text_key
from bert_probe.text.formats import (
    NonTextCell,
    ValidationErrors,
    check_format,
    check_unique_columns,
    format_of,
)
from bert_probe.text.labeled_texts import parse_number
from bert_probe.text.sentence_files import MAX_SENTENCES, lines, lines_of, open_file, unpack
from bert_probe.text.tables import is_table, table_of, unquoted_table_of

SCORED, PAIRS, TRIPLETS = "scored pairs", "pairs", "triplets"
COLUMNS = {
    SCORED: ("text_a", "text_b", "score"),
    TRIPLETS: ("anchor", "positive", "negative"),
    PAIRS: ("anchor", "positive"),
}
"""Required columns of a table, by the kind of its examples. `TRIPLETS` precedes `PAIRS`, because a table of
triplets also has the columns of pairs."""
_FORMAT_HELP = (
    "Use a header with text_a,text_b,score or anchor,positive or anchor,positive,negative, and write "
    "one row per example"
)


@dataclass(frozen=True)
class SimilarityExample:
    """A training or test example for sentence similarity: a scored pair, a pair or a triplet.

    Attributes:
        texts: two texts; or an anchor, a similar text and a dissimilar text.
        score: the similarity of two texts, on any scale; None for pairs and triplets.
        line: number of the first line of the row, from 1.
    """

    texts: tuple[str, ...]
    score: float | None
    line: int


def split_groups(rows: Sequence[SimilarityExample]) -> list[int]:
    """Return the group of each example, as the index of the group's first example.

    Examples of one group must be in the same split. Two examples are in one group if they have the same first
    text, or the same first two texts in either order. If a group would contain more than half of the
    examples, which would prevent a useful split, only the second rule applies. Texts with the same `text_key`
    count as the same.
    """
    keys = [tuple(map(text_key, row.texts)) for row in rows]
    unordered = [tuple(sorted(key[:2])) for key in keys]
    groups = group_rows([key[0] for key in keys], unordered)
    largest = max(Counter(groups).values(), default=0)
    return groups if largest <= len(rows) / 2 else group_rows(unordered)


@dataclass(frozen=True, eq=False)
class SimilarityExamples:
    """A dataset of similarity examples.

    Attributes:
        kind: "scored pairs", "pairs" or "triplets".
        rows: the examples in the order of the file.
        digest: SHA-256 of the kind, texts and scores, which does not depend on the file format.
    """

    kind: str
    rows: tuple[SimilarityExample, ...]
    digest: str

    @classmethod
    def of(cls, kind: str, rows: Iterable[SimilarityExample]) -> Self:
        """Create a dataset from rows, and compute its digest."""
        examples = tuple(rows)
        digest = hashlib.sha256(f"{kind}\n".encode())
        for row in examples:
            digest.update(f"{json.dumps([*row.texts, row.score])}\n".encode())
        return cls(kind, examples, digest.hexdigest())


def read_similarity_examples(file: str | Path, as_named: bool = False) -> SimilarityExamples:
    """Read pairs or triplets of texts from a CSV, TSV or JSON Lines file.

    The columns (in JSON Lines, the keys) must be text_a,text_b,score for pairs with a score on any scale;
    anchor,positive for pairs of similar texts; or anchor,positive,negative. Other columns are ignored. The
    size limits of `read_sentences` apply.

    Args:
        file: a file in UTF-8.
        as_named: trust the file extension, even if the contents look like another format.

    Raises:
        TextError: the file cannot be opened, does not have these columns, or has invalid rows, which are
            listed by line.
        EmptyTextError: the file has no rows.
    """
    with open_file(file) as opened, unpack(*opened) as (stream, name):
        return _read(stream, name, as_named)


def parse_similarity_examples(
    content: bytes, name: str, as_named: bool = False, max_rows: int = MAX_SENTENCES
) -> SimilarityExamples:
    """Parse pairs or triplets from a file's bytes; see `read_similarity_examples`.

    Args:
        content: the content of the file.
        name: the file name with its extension.
        as_named: see `read_similarity_examples`.
        max_rows: maximum number of rows; reading stops at the next one.
    """
    with unpack(io.BytesIO(content), name) as (stream, unpacked_name):
        return _read(stream, unpacked_name, as_named, max_rows)


def similarity_kind(header: Sequence[str]) -> str | None:
    """Return the kind of similarity examples in a table with the columns `header`; None if it has none.

    A table with a column `label` or `labels` contains labeled texts instead.
    """
    names = {cell.casefold() for cell in header}
    if names & {"label", "labels"}:
        return None
    return next((kind for kind, columns in COLUMNS.items() if set(columns) <= names), None)


def find_similarity_kind(file: str | Path) -> str | None:
    """Return the kind of similarity examples in a file; None if it is not a table with their columns."""
    with open_file(file) as opened, unpack(*opened) as (stream, name):
        if not is_table(name):
            return None
        try:
            header, _ = table_of(lines_of(stream, name), name)
        except TextError:
            return None  # the function that reads the file reports this error
        return similarity_kind(header)


def _read(stream: BinaryIO, name: str, as_named: bool, max_rows: int = MAX_SENTENCES) -> SimilarityExamples:
    if not is_table(name):
        raise TextError(f"{name} is not a table. {_FORMAT_HELP}, in a .csv, .tsv or .jsonl file.")
    file_lines = check_format(lines_of(stream, name), name, format_of(name), as_named)
    header, rows = unquoted_table_of(file_lines, name, max_rows)
    kind = similarity_kind(header)
    if kind is None:
        listed = ", ".join(cell[:40] for cell in header[:8])
        raise TextError(f"{name} has the columns {listed}. {_FORMAT_HELP}.")
    names = [cell.casefold() for cell in header]
    check_unique_columns(COLUMNS[kind], names, name)
    columns = [names.index(column) for column in COLUMNS[kind]]
    errors, examples = ValidationErrors(name), []
    for line, row in rows:
        example, error = _parse_row(line, row, columns, header, kind)
        if example is None:
            errors.add(line, error)
        else:
            examples.append(example)
    if not rows:
        raise EmptyTextError(f"{name} has no rows. {_FORMAT_HELP}.")
    errors.check()
    return SimilarityExamples.of(kind, examples)


def _parse_row(
    line: int, row: Sequence[str], columns: Sequence[int], header: Sequence[str], kind: str
) -> tuple[SimilarityExample | None, str]:
    """Return the example in a row and "", or None and an error message."""
    if len(row) != len(header):
        size = "1 cell" if len(row) == 1 else f"{len(row)} cells"
        return None, (
            f"the row has {size}, but the header has {len(header)}; quote texts that contain the separator"
        )
    for column in columns:
        if isinstance(row[column], NonTextCell):
            return None, f"{header[column]} is {row[column]}"
    cells = [" ".join(lines(row[column])) for column in columns]  # replace line breaks with spaces
    empty = [header[column] for column, cell in zip(columns, cells, strict=True) if not cell]
    if empty:
        return None, f"{empty[0]} is empty"
    if kind != SCORED:
        return SimilarityExample(tuple(cells), None, line), ""
    score, error = parse_number(cells[-1])
    return (None, f"score {error}") if error else (SimilarityExample(tuple(cells[:-1]), score, line), "")
