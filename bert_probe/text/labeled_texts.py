"""Texts with what is right for each, out of a table: classes, several labels, or numbers."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.text.formats import checked, format_of
from bert_probe.text.json_lines import LabelList, NonTextCell
from bert_probe.text.sentence_files import MAX_SENTENCES, is_table, lines, lines_of, opened, table_of
from bert_probe.text.validation import ValidationErrors

CLASSES, SEVERAL, NUMBER = "classes", "several", "number"
KINDS = (CLASSES, SEVERAL, NUMBER)
"""One label a text, any number of labels a text, or a number a text."""

SEPARATOR = "|"
"""Between the labels of a text that has several."""
MAX_LABELS = 1000
"""Different ones in a file: more are no classes that a head could learn, but numbers or a column of texts."""

_WHOLE_NUMBERS = 20
"""Whole numbers are taken for classes, as stars are, while there are no more different ones than this."""
_TEXTS = (("text",), ("sentence",), ("text_a", "text_b"))
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
MOST_NUMBER = 1e15
"""The largest number of a text: its square, a loss, fits in a float32 with room to add up."""
_FORM = "Give it a header with text,label or text_a,text_b,label, and a row for each text"

Label = str | tuple[str, ...] | float


@dataclass(frozen=True)
class LabeledText:
    """A text, and what is right for it.

    Attributes:
        pair: the second text of the same input, or None.
        label: a class, the labels in order, or a number.
        line: that it begins on, from 1.
    """

    text: str
    pair: str | None
    label: Label
    line: int


@dataclass(frozen=True, eq=False)
class LabeledTexts:
    """Texts with labels.

    Attributes:
        kind: "classes", "several" (labels a text), or "number".
        rows: in the order of the file.
        labels: all there are, sorted; none for numbers.
        digest: SHA-256 of kind, texts and labels, whatever the file looked like.
    """

    kind: str
    rows: tuple[LabeledText, ...]
    labels: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, kind: str, rows: Iterable[LabeledText]) -> Self:
        """Rows of one kind, with their labels and digest."""
        kept = tuple(rows)
        digest = hashlib.sha256(f"{kind}\n".encode())
        for row in kept:
            line = json.dumps([row.text, row.pair, row.label])
            digest.update(f"{line}\n".encode())
        return cls(kind, kept, tuple(sorted(set(_named(row.label for row in kept)))), digest.hexdigest())


def read_labeled_texts(file: str | Path, kind: str | None = None, as_named: bool = False) -> LabeledTexts:
    """The labelled texts of a CSV or TSV file with a header, text,label or text_a,text_b,label, or of a JSON
    lines file whose objects have these keys.

    Other columns are left out. A column called labels holds any number of them, with | between. Within the
    bounds of `read_sentences`.

    Args:
        file: in UTF-8.
        kind: one of `KINDS`; None takes labels for numbers where all are, and one has a decimal point or
            there are more than twenty different ones.
        as_named: read the file as its ending says, even if it looks like another format.

    Raises:
        TextError: the file cannot be opened, is no table with these columns, or has faults in its rows,
            which are all told by their lines.
        EmptyTextError: no rows in it.
        SelectionError: no such kind.
    """
    with opened(file) as (stream, name):
        return _read(stream, name, kind, as_named)


def parse_labeled_texts(
    content: bytes, name: str, kind: str | None = None, as_named: bool = False
) -> LabeledTexts:
    """The labelled texts in a file's bytes; see `read_labeled_texts`.

    Args:
        name: of the file, with its ending.

    Raises:
        TextError, EmptyTextError, SelectionError: as `read_labeled_texts`.
    """
    return _read(io.BytesIO(content), name, kind, as_named)


def _read(stream: BinaryIO, name: str, kind: str | None, as_named: bool) -> LabeledTexts:
    if kind is not None and kind not in KINDS:
        raise SelectionError(f"There is no kind of labels {kind!r}; there are {', '.join(KINDS)}.")
    if not is_table(name):
        raise TextError(f"{name} is no table with labels. {_FORM}, in a .csv, .tsv or .jsonl file.")
    header, rows = table_of(checked(lines_of(stream, name), name, format_of(name), as_named), name)
    places, label_column = _columns(header, name)
    limited = islice(rows, MAX_SENTENCES + 1)
    cells = [_cells(line, row, places, header) for line, row in limited]
    if not cells:
        raise EmptyTextError(f"{name} holds no rows. {_FORM}.")
    if len(cells) > MAX_SENTENCES:
        raise TextError(f"{name} holds more than {MAX_SENTENCES:,} rows. Give a part of it.")
    if (
        kind is None
        and label_column == "label"
        and _has_decimal_commas([cell.label for cell in cells if not cell.fault])
    ):
        raise TextError(
            f"The labels of {name} look like numbers with a decimal comma. Write a point, or choose the kind "
            "classes (--labels classes) if they are classes."
        )
    chosen = kind or _guessed(label_column, [cell.label for cell in cells if not cell.fault])
    faults = ValidationErrors(name)
    found = []
    for one in cells:
        label, fault = _label(one.label, chosen)
        if chosen != SEVERAL and one.is_list:
            fault = "label is a list; call the key labels if a text has several, or give one label"
        if not fault and kind is None and chosen == CLASSES and _NOT_FINITE.fullmatch(one.label):
            fault = (
                f"label {one.label[:40]}, a missing or infinite number. Remove the row, or choose the kind "
                "classes (--labels classes) if it is one"
            )
        if one.fault or fault:
            faults.add(one.line, one.fault or fault)
        else:
            found.append(
                LabeledText(one.texts[0], one.texts[1] if len(one.texts) > 1 else None, label, one.line)
            )
    faults.check()
    labelled = LabeledTexts.of(chosen, found)
    if len(labelled.labels) > MAX_LABELS:
        raise TextError(
            f"{name} has {len(labelled.labels):,} different labels; at most {MAX_LABELS:,} can be "
            "told apart. Choose the kind number if they are numbers, or check which column is called label."
        )
    return labelled


def _columns(header: Sequence[str], name: str) -> tuple[list[int], str]:
    """Where the texts and, last, the label stand; and what the label's column is called.

    Raises:
        TextError: they are not there, or twice.
    """
    called = [cell.casefold() for cell in header]
    texts = [one for one in _TEXTS if all(column in called for column in one)]
    labels = [one for one in ("label", "labels") if one in called]
    if len(texts) != 1 or len(labels) != 1:
        listed = ", ".join(cell[:40] for cell in header[:8])
        raise TextError(f"{name} has the columns {listed}. {_FORM}.")
    names = [*texts[0], *labels]
    twice = [column for column in names if called.count(column) > 1]
    if twice:
        raise TextError(f"{name} has several columns {twice[0]}. Keep one of them.")
    return [called.index(column) for column in names], labels[0]


class _Cells(NamedTuple):
    """What a row holds, and what is wrong with it, if anything."""

    line: int
    texts: list[str]
    label: str
    fault: str
    is_list: bool = False


def _cells(line: int, row: Sequence[str], places: Sequence[int], header: Sequence[str]) -> _Cells:
    if len(row) != len(header):
        cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
        width = f"{cells} where the header has {len(header)}; quote a text that holds the separator"
        return _Cells(line, [], "", width)
    for place in places:
        if isinstance(row[place], NonTextCell):
            return _Cells(line, [], "", f"{header[place]} is {row[place]}")
    *texts, label = (" ".join(lines(row[place])) for place in places)  # a line break becomes a space
    is_list = isinstance(row[places[-1]], LabelList)
    empty = [header[place] for place, text in zip(places, texts, strict=False) if not text]
    return _Cells(line, texts, label, f"{empty[0]} is empty" if empty else "", is_list)


def _guessed(column: str, written: Sequence[str]) -> str:
    if column == "labels":
        return SEVERAL
    # Of a column of numbers, those that are missing or infinite are faults of their rows.
    different = {label for label in written if not _NOT_FINITE.fullmatch(label)}
    numbers = bool(different) and all(map(_NUMBER.fullmatch, different))
    decimals = any(not re.fullmatch("[+-]?[0-9]+", one) for one in different)
    return NUMBER if numbers and (decimals or len(different) > _WHOLE_NUMBERS) else CLASSES


def _has_decimal_commas(labels: Iterable[str]) -> bool:
    different = set(labels)
    decimals = any(re.fullmatch("[+-]?[0-9]*,[0-9]+", label) for label in different)
    return decimals and all(re.fullmatch("[+-]?[0-9]*[,.]?[0-9]+", label) for label in different)


def _label(written: str, kind: str) -> tuple[Label, str]:
    """What a cell says, and what is wrong with it, or ""."""
    if kind == SEVERAL:
        # A text may have none of the labels.
        parts = [part.strip() for part in written.split(SEPARATOR)] if written else []
        return tuple(sorted(set(parts))), "" if all(parts) else f"an empty label among {written[:40]}"
    if not written:
        return written, "no label"
    return _read_number(written) if kind == NUMBER else (written, "")


def _read_number(written: str) -> tuple[float, str]:
    """What a cell says as a number, and what is wrong with it, or ""."""
    if _NOT_FINITE.fullmatch(written):
        return 0.0, f"{written[:40]} is no finite number; remove the row, or write a number"
    if not _NUMBER.fullmatch(written):
        return 0.0, f"{written[:40]} is no number"
    if not abs(float(written)) <= MOST_NUMBER:
        return 0.0, f"{written[:40]} is too large; numbers of at most {MOST_NUMBER:g} can be learned"
    return float(written), ""


def _named(labels: Iterable[Label]) -> Iterator[str]:
    for label in labels:
        if isinstance(label, str):
            yield label
        elif isinstance(label, tuple):
            yield from label
