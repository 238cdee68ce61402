"""Read labeled texts from a table; each text has one class, any number of labels, or one number."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.text.formats import (
    LabelList,
    NonTextCell,
    ValidationErrors,
    check_format,
    check_unique_columns,
    format_of,
    label_error,
)
from bert_probe.text.sentence_files import MAX_SENTENCES, lines, lines_of, open_file, unpack
from bert_probe.text.tables import is_table, unquoted_table_of

CLASSES, MULTI_LABEL, NUMBER = "classes", "several", "number"
KINDS = (CLASSES, MULTI_LABEL, NUMBER)
"""Kinds of labels: one class per text, any number of labels per text, or one number per text."""

SEPARATOR = "|"
"""Character that separates the labels of a text in a cell."""
MAX_LABELS = 1000
"""Maximum number of distinct labels. A column with more labels probably contains numbers or texts."""

_MAX_INTEGER_CLASSES = 20
"""Maximum number of distinct integer labels that are read as classes, such as star ratings."""
GROUP = "group"
"""Name of the optional column with the group of each row, such as its source."""
_TEXT_COLUMNS = (("text",), ("sentence",), ("text_a", "text_b"))
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
MAX_ABS_LABEL = 1e15
"""Maximum absolute value of a numeric label. It keeps sums of squared errors within the range of float32."""
_FORMAT_HELP = "Use a header with text,label or text_a,text_b,label (or score), and write one row per text"

Label = str | tuple[str, ...] | float


@dataclass(frozen=True)
class LabeledText:
    """A text and its label.

    Attributes:
        pair: the second text of a text pair; None for a single text.
        label: the class, the sorted labels, or the number.
        line: number of the first line of the row, from 1.
        group: value in the column named "group"; "" if the table does not have this column.
    """

    text: str
    pair: str | None
    label: Label
    line: int
    group: str = ""


@dataclass(frozen=True, eq=False)
class LabeledTexts:
    """A dataset of labeled texts.

    Attributes:
        kind: "classes", "several" for several labels per text, or "number".
        rows: the texts in the order of the file.
        labels: the distinct labels, sorted; empty if the labels are numbers.
        digest: SHA-256 of the kind, texts and labels, which does not depend on the file format.
    """

    kind: str
    rows: tuple[LabeledText, ...]
    labels: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, kind: str, rows: Iterable[LabeledText]) -> Self:
        """Create a dataset from rows, and compute its distinct labels and its digest."""
        texts = tuple(rows)
        digest = hashlib.sha256(f"{kind}\n".encode())
        for row in texts:
            line = json.dumps([row.text, row.pair, row.label, *filter(None, [row.group])])
            digest.update(f"{line}\n".encode())
        return cls(
            kind, texts, tuple(sorted(set(_label_names(row.label for row in texts)))), digest.hexdigest()
        )


def read_labeled_texts(file: str | Path, kind: str | None = None, as_named: bool = False) -> LabeledTexts:
    """Read labeled texts from a CSV, TSV or JSON Lines file.

    The columns (in JSON Lines, the keys) must be text,label or text_a,text_b,label. Instead of label, a
    column named labels contains any number of labels, separated by |, and a column named score contains
    numbers. A column named group is optional; all other columns are ignored. The size limits of
    `read_sentences` apply.

    Args:
        file: a file in UTF-8, which may be compressed (.gz, .zst).
        kind: one of `KINDS`. By default, labels are numbers if all of them are numeric and one has a decimal
            point or more than twenty are distinct; otherwise classes.
        as_named: trust the file extension, even if the contents look like another format.

    Raises:
        TextError: the file cannot be opened, is not a table of labeled texts, or has invalid rows, which are
            listed by line.
        EmptyTextError: the file has no rows.
        SelectionError: the kind is unknown.
    """
    with open_file(file) as opened, unpack(*opened) as (stream, name):
        return _read(stream, name, kind, as_named)


def parse_labeled_texts(
    content: bytes,
    name: str,
    kind: str | None = None,
    as_named: bool = False,
    max_rows: int = MAX_SENTENCES,
) -> LabeledTexts:
    """Parse labeled texts from a file's bytes; see `read_labeled_texts`.

    Args:
        content: the content of the file.
        name: the file name with its extension.
        kind, as_named: see `read_labeled_texts`.
        max_rows: maximum number of rows; reading stops at the next one.

    Raises:
        TextError, EmptyTextError, SelectionError: as in `read_labeled_texts`.
    """
    with unpack(io.BytesIO(content), name) as (stream, unpacked_name):
        return _read(stream, unpacked_name, kind, as_named, max_rows)


def _read(
    stream: BinaryIO, name: str, kind: str | None, as_named: bool, max_rows: int = MAX_SENTENCES
) -> LabeledTexts:
    if kind is not None and kind not in KINDS:
        raise SelectionError(f"Unknown label type {kind!r}. Use one of {', '.join(KINDS)}.")
    if not is_table(name):
        raise TextError(f"{name} is not a table with labels. {_FORMAT_HELP}, in a .csv, .tsv or .jsonl file.")
    file_lines = check_format(lines_of(stream, name), name, format_of(name), as_named)
    header, rows = unquoted_table_of(file_lines, name, max_rows)
    columns, label_column = _columns(header, name)
    cells = [_cells(line, row, columns, header) for line, row in rows]
    if not cells:
        raise EmptyTextError(f"{name} has no rows. {_FORMAT_HELP}.")
    if (
        kind is None
        and label_column == "label"
        and _has_decimal_commas([cell.label for cell in cells if not cell.error])
    ):
        raise TextError(
            f"The labels of {name} look like numbers with a decimal comma. Write a decimal point, or "
            "choose the label type classes (train --labels classes) if the labels are classes."
        )
    label_kind = kind or _detect_kind(label_column, [cell.label for cell in cells if not cell.error])
    errors = ValidationErrors(name)
    texts = []
    for row in cells:
        label, error = _parse_label(row.label, label_kind)
        if label_kind != MULTI_LABEL and row.is_list:
            error = (
                "the value of label is a list; rename the key to labels if texts have several labels, "
                "or write a single label"
            )
        if not error and kind is None and label_kind == CLASSES and _NOT_FINITE.fullmatch(row.label):
            error = (
                f"the label {row.label[:40]} is a missing or infinite number. Remove the row, or choose "
                "the label type classes (train --labels classes) if the label is a class"
            )
        if row.error or error:
            errors.add(row.line, row.error or error)
        else:
            texts.append(
                LabeledText(
                    row.texts[0], row.texts[1] if len(row.texts) > 1 else None, label, row.line, row.group
                )
            )
    errors.check()
    dataset = LabeledTexts.of(label_kind, texts)
    if len(dataset.labels) > MAX_LABELS:
        raise TextError(
            f"{name} has {len(dataset.labels):,} different labels, but at most {MAX_LABELS:,} are "
            "supported. Choose the label type number if the labels are numbers, or check which column "
            "is named label."
        )
    return dataset


def _columns(header: Sequence[str], name: str) -> tuple[list[int], str]:
    """Find the columns with texts and labels in a header.

    Returns:
        The indices of the text columns and, last, of the label column; and the name of the label column.

    Raises:
        TextError: the header lacks a required column or contains it twice, or has columns of several kinds
            that the texts or labels could be in, such as text and sentence.
    """
    column_names = [cell.casefold() for cell in header]
    texts = [candidate for candidate in _TEXT_COLUMNS if all(column in column_names for column in candidate)]
    labels = [candidate for candidate in ("label", "labels", "score") if candidate in column_names]
    if len(labels) > 1 and "score" in labels:  # ignore the column score if another column has labels
        labels.remove("score")
    if len(texts) != 1 or len(labels) != 1:
        listed = ", ".join(cell[:40] for cell in header[:8])
        raise TextError(f"{name} has the columns {listed}. {_FORMAT_HELP}.")
    names = [*texts[0], *labels]
    check_unique_columns(names, column_names, name)
    return [column_names.index(column) for column in names], labels[0]


class _Cells(NamedTuple):
    """The cells of a row; ``error`` is a message that describes what is wrong, or "" for a valid row."""

    line: int
    texts: list[str]
    label: str
    error: str
    is_list: bool = False
    group: str = ""


def _cells(line: int, row: Sequence[str], columns: Sequence[int], header: Sequence[str]) -> _Cells:
    if len(row) != len(header):
        cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
        error = (
            f"the row has {cells}, but the header has {len(header)}; quote texts that contain the separator"
        )
        return _Cells(line, [], "", error)
    group_column = next((index for index, name in enumerate(header) if name.casefold() == GROUP), None)
    for column in columns if group_column is None else [*columns, group_column]:
        if isinstance(row[column], NonTextCell):
            return _Cells(line, [], "", f"{header[column]} is {row[column]}")
    *texts, label = (" ".join(lines(row[column])) for column in columns)  # replace line breaks with spaces
    is_list = isinstance(row[columns[-1]], LabelList)
    empty = [header[column] for column, text in zip(columns, texts, strict=False) if not text]
    group = "" if group_column is None else " ".join(lines(row[group_column]))
    return _Cells(line, texts, label, f"{empty[0]} is empty" if empty else "", is_list, group)


def _detect_kind(column: str, labels: Sequence[str]) -> str:
    if column == "labels":
        return MULTI_LABEL
    if column == "score":
        return NUMBER
    # Missing and infinite numbers are ignored here and reported later as errors in their rows.
    distinct = {label for label in labels if not _NOT_FINITE.fullmatch(label)}
    are_numbers = bool(distinct) and all(map(_NUMBER.fullmatch, distinct))
    has_decimals = any(not re.fullmatch("[+-]?[0-9]+", label) for label in distinct)
    return NUMBER if are_numbers and (has_decimals or len(distinct) > _MAX_INTEGER_CLASSES) else CLASSES


def _has_decimal_commas(labels: Iterable[str]) -> bool:
    distinct = set(labels)
    has_commas = any(re.fullmatch("[+-]?[0-9]*,[0-9]+", label) for label in distinct)
    return has_commas and all(re.fullmatch("[+-]?[0-9]*[,.]?[0-9]+", label) for label in distinct)


def _parse_label(cell: str, kind: str) -> tuple[Label, str]:
    """Return the label in a cell, and an error message, which is "" for a valid cell."""
    if kind == MULTI_LABEL:
        # In multi-label data, a text may have no label.
        names = [name.strip() for name in cell.split(SEPARATOR)] if cell else []
        error = "" if all(names) else f"there is an empty label in {cell[:40]}"
        return tuple(sorted(set(names))), error or next(filter(None, map(label_error, names)), "")
    if not cell:
        return cell, "no label"
    return parse_number(cell) if kind == NUMBER else (cell, label_error(cell))


def parse_number(cell: str) -> tuple[float, str]:
    """Return the number in a cell, and an error message, which is "" for a valid cell."""
    if _NOT_FINITE.fullmatch(cell):
        return 0.0, f"{cell[:40]} is not finite; remove the row, or write a number"
    if not _NUMBER.fullmatch(cell):
        return 0.0, f"{cell[:40]} is not a number"
    if not abs(float(cell)) <= MAX_ABS_LABEL:
        return 0.0, f"{cell[:40]} is too large; the absolute value must be at most {MAX_ABS_LABEL:g}"
    return float(cell), ""


def _label_names(labels: Iterable[Label]) -> Iterator[str]:
    for label in labels:
        if isinstance(label, str):
            yield label
        elif isinstance(label, tuple):
            yield from label
