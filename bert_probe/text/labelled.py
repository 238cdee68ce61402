"""Texts with what is right for each, out of a table: classes, several labels, or numbers."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.text.faults import Faults
from bert_probe.text.sentence_files import is_table, lines, lines_of, opened, table_of

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
_FORM = "Give it a header with text,label or text_a,text_b,label, and a row for each text"

Label = str | tuple[str, ...] | float


@dataclass(frozen=True)
class Row:
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
class Labelled:
    """Texts with labels.

    Attributes:
        kind: "classes", "several" (labels a text), or "number".
        rows: in the order of the file.
        labels: all there are, sorted; none for numbers.
        digest: SHA-256 of kind, texts and labels, whatever the file looked like.
    """

    kind: str
    rows: tuple[Row, ...]
    labels: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, kind: str, rows: Iterable[Row]) -> Self:
        """Rows of one kind, with their labels and digest."""
        kept = tuple(rows)
        digest = hashlib.sha256(f"{kind}\n".encode())
        for row in kept:
            line = json.dumps([row.text, row.pair, row.label])
            digest.update(f"{line}\n".encode())
        return cls(kind, kept, tuple(sorted(set(_named(row.label for row in kept)))), digest.hexdigest())


def read_labelled(file: str | Path, kind: str | None = None) -> Labelled:
    """The labelled texts of a CSV or TSV file with a header: text,label or text_a,text_b,label.

    Other columns are left out. A column called labels holds any number of them, with | between. Within the
    bounds of `read_sentences`.

    Args:
        file: in UTF-8.
        kind: one of `KINDS`; None takes labels for numbers where all are, and one has a decimal point or
            there are more than twenty different ones.

    Raises:
        TextError: the file cannot be opened, is no table with these columns, or has faults in its rows,
            which are all told by their lines.
        EmptyTextError: no rows in it.
        SelectionError: no such kind.
    """
    with opened(file) as (stream, name):
        return _read(stream, name, kind)


def labelled_of(content: bytes, name: str, kind: str | None = None) -> Labelled:
    """The labelled texts in a file's bytes; see `read_labelled`.

    Args:
        name: of the file, with its ending.

    Raises:
        TextError, EmptyTextError, SelectionError: as `read_labelled`.
    """
    return _read(io.BytesIO(content), name, kind)


def _read(stream: BinaryIO, name: str, kind: str | None) -> Labelled:
    if kind is not None and kind not in KINDS:
        raise SelectionError(f"There is no kind of labels {kind!r}; there are {', '.join(KINDS)}.")
    if not is_table(name):
        raise TextError(f"{name} is no table with labels. {_FORM}, in a .csv or .tsv file.")
    header, rows = table_of(lines_of(stream, name), name)
    places, label_column = _columns(header, name)
    faults = Faults(name)
    cells = [*_cells(rows, len(header), places, header, faults)]
    if not cells and not faults.count:
        raise EmptyTextError(f"{name} holds no rows. {_FORM}.")
    chosen = kind or _guessed(label_column, [label for *_, label in cells])
    found = [
        Row(texts[0], texts[1] if len(texts) > 1 else None, _label(label, chosen, line, faults), line)
        for line, texts, label in cells
    ]
    faults.check()
    labelled = Labelled.of(chosen, found)
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


def _cells(
    rows: Iterator[tuple[int, list[str]]],
    width: int,
    places: Sequence[int],
    header: Sequence[str],
    faults: Faults,
) -> Iterator[tuple[int, list[str], str]]:
    """Line, texts and label of each row that has them."""
    *of_texts, of_label = places
    for line, row in rows:
        if len(row) != width:
            cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
            faults.add(line, f"{cells} where the header has {width}; quote a text that holds the separator")
            continue
        # A line break within a cell becomes a space.
        texts = [" ".join(lines(row[place])) for place in of_texts]
        empty = [header[place] for place, text in zip(of_texts, texts, strict=True) if not text]
        if empty:
            faults.add(line, f"{empty[0]} is empty")
        else:
            yield line, texts, " ".join(lines(row[of_label]))


def _guessed(column: str, written: Sequence[str]) -> str:
    if column == "labels":
        return SEVERAL
    different = set(written)
    numbers = bool(different) and all(map(_number, different))
    decimals = any(not re.fullmatch("[+-]?[0-9]+", one) for one in different)
    return NUMBER if numbers and (decimals or len(different) > _WHOLE_NUMBERS) else CLASSES


def _number(written: str) -> bool:
    return bool(_NUMBER.fullmatch(written)) and math.isfinite(float(written))


def _label(written: str, kind: str, line: int, faults: Faults) -> Label:
    """What a cell says; what is wrong with it is noted."""
    if kind == SEVERAL:
        if not written:
            return ()  # a text that has none of the labels
        parts = [part.strip() for part in written.split(SEPARATOR)]
        if not all(parts):
            faults.add(line, f"an empty label among {written[:40]}")
        return tuple(sorted(set(parts)))
    if not written:
        faults.add(line, "no label")
    elif kind == NUMBER:
        if _number(written):
            return float(written)
        faults.add(line, f"{written[:40]} is no number")
    return written


def _named(labels: Iterable[Label]) -> Iterator[str]:
    for label in labels:
        if isinstance(label, str):
            yield label
        elif isinstance(label, tuple):
            yield from label
