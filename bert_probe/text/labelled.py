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
from typing import BinaryIO, NamedTuple, Self

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
    cells = [_cells(line, row, places, header) for line, row in rows]
    if not cells:
        raise EmptyTextError(f"{name} holds no rows. {_FORM}.")
    chosen = kind or _guessed(label_column, [one.label for one in cells if not one.fault])
    faults = Faults(name)
    found = []
    for one in cells:
        label, fault = _label(one.label, chosen)
        if one.fault or fault:
            faults.add(one.line, one.fault or fault)
        else:
            found.append(Row(one.texts[0], one.texts[1] if len(one.texts) > 1 else None, label, one.line))
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


class _Cells(NamedTuple):
    """What a row holds, and what is wrong with it, if anything."""

    line: int
    texts: list[str]
    label: str
    fault: str


def _cells(line: int, row: Sequence[str], places: Sequence[int], header: Sequence[str]) -> _Cells:
    if len(row) != len(header):
        cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
        width = f"{cells} where the header has {len(header)}; quote a text that holds the separator"
        return _Cells(line, [], "", width)
    *texts, label = (" ".join(lines(row[place])) for place in places)  # a line break becomes a space
    empty = [header[place] for place, text in zip(places, texts, strict=False) if not text]
    return _Cells(line, texts, label, f"{empty[0]} is empty" if empty else "")


def _guessed(column: str, written: Sequence[str]) -> str:
    if column == "labels":
        return SEVERAL
    different = set(written)
    numbers = bool(different) and all(map(_number, different))
    decimals = any(not re.fullmatch("[+-]?[0-9]+", one) for one in different)
    return NUMBER if numbers and (decimals or len(different) > _WHOLE_NUMBERS) else CLASSES


def _number(written: str) -> bool:
    return bool(_NUMBER.fullmatch(written)) and math.isfinite(float(written))


def _label(written: str, kind: str) -> tuple[Label, str]:
    """What a cell says, and what is wrong with it, or ""."""
    if kind == SEVERAL:
        # A text may have none of the labels.
        parts = [part.strip() for part in written.split(SEPARATOR)] if written else []
        return tuple(sorted(set(parts))), "" if all(parts) else f"an empty label among {written[:40]}"
    if not written:
        return written, "no label"
    if kind == NUMBER:
        return (float(written), "") if _number(written) else (0.0, f"{written[:40]} is no number")
    return written, ""


def _named(labels: Iterable[Label]) -> Iterator[str]:
    for label in labels:
        if isinstance(label, str):
            yield label
        elif isinstance(label, tuple):
            yield from label
