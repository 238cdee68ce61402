"""Formats of text files: which one an ending names, and which one the first lines look like."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from bert_probe.errors import TextError
from bert_probe.text.csv_reader import csv_reader

LINES, TABLE, JSON_LINES, CONLL, CONLLU = "lines", "table", "JSON lines", "CoNLL", "CoNLL-U"
_JSON, _MARKUP = "JSON", "markup"

_ENDINGS = {
    ".csv": TABLE,
    ".tsv": TABLE,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".conll": CONLL,
    ".conllu": CONLLU,
}
_DESCRIPTIONS = {
    LINES: "plain text",
    TABLE: "a CSV or TSV table",
    JSON_LINES: "JSON lines",
    CONLL: "CoNLL",
    CONLLU: "CoNLL-U",
    _JSON: "JSON",
    _MARKUP: "HTML or XML",
}
_REMEDIES = {
    LINES: "Rename it to end in .txt",
    TABLE: "Rename it to end in .csv or .tsv",
    JSON_LINES: "Rename it to end in .jsonl",
    CONLL: "Rename it to end in .conll",
    CONLLU: "Rename it to end in .conllu",
    _JSON: "Save it as JSON lines, an object a line",
    _MARKUP: "Save its text, or its table as CSV",
}
_SAMPLE = 50
"""Lines that are looked at."""
_LEAST_LINES = 3
"""Lines without which columns are chance."""
_HEADER_CELL = re.compile(r"[^\W\d][\w.-]{0,40}")
_COLUMNS = {"text", "sentence", "text_a", "text_b", "label", "labels"}
_TAG = re.compile(r"[BIOES]-\S+|O|[A-Z]{1,6}\$?|[.,:;!?]")
_SENTENCE_WORDS = 6
"""Words of the only header cell from which on it is taken for a sentence."""


def format_of(name: str) -> str:
    """Return the format that the ending of a file's name stands for; plain text for any other ending."""
    return _ENDINGS.get(Path(name).suffix.lower(), LINES)


def checked(written: Iterator[str], name: str, read_as: str, as_named: bool) -> Iterator[str]:
    """Return the same lines, unless they look like another format than the one they are read as.

    Args:
        as_named: whether to trust the name without looking.

    Raises:
        TextError: if they look like another format.
    """
    if as_named:
        return written
    start = list(islice(written, _SAMPLE))
    seen = looks_like([line.rstrip("\n") for line in start], read_as)
    if seen not in ("", read_as):
        raise TextError(
            f"{name} is read as {_DESCRIPTIONS[read_as]}, but it looks like {_DESCRIPTIONS[seen]}. "
            f"{_REMEDIES[seen]}. If it is {_DESCRIPTIONS[read_as]} nevertheless, pass --as-named."
        )
    return chain(start, written)


def looks_like(lines: Sequence[str], read_as: str) -> str:
    """Return the format that the first lines of a file look like; "" where that is open.

    Columns alone are no proof of a table: there must be a header whose cells are single words.
    """
    filled = [line for line in lines if line.strip()]
    if not filled:
        return ""
    first = filled[0].lstrip()
    if re.match(r"<(!doctype\s+html|html|\?xml)\b", first, re.IGNORECASE):
        return _MARKUP
    if first[0] in "{[" and (kind := _json_kind(filled)):
        return kind
    if _is_treebank(filled):
        return CONLLU
    if _is_conll(lines):
        return CONLL
    if _is_table(filled, ",;" if read_as in (CONLL, CONLLU) else "\t,;"):
        return TABLE
    return LINES if read_as == TABLE and _is_sentence(filled[0]) else ""


def _json_kind(filled: Sequence[str]) -> str:
    values = [_parsed(line) for line in filled[:5]]
    if all(isinstance(value, dict) for value in values):
        return JSON_LINES
    begins = filled[0].strip() in ("{", "[", "[{")
    return _JSON if begins or all(isinstance(value, dict | list) for value in values) else ""


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_treebank(filled: Sequence[str]) -> bool:
    words = [line for line in filled if not line.startswith("#")]
    return bool(words) and all(
        re.match(r"[0-9]+([-.][0-9]+)?\t", line) and line.count("\t") == 9 for line in words
    )


def _is_conll(lines: Sequence[str]) -> bool:
    """Return whether all lines are a word and a tag, with blank lines in between."""
    filled = [line.split() for line in lines if line.strip() and not line.startswith("# ")]
    widths = {len(columns) for columns in filled}
    return (
        len(filled) >= _LEAST_LINES
        and len(widths) == 1
        and min(widths) >= 2
        and any(not line.strip() for line in lines[:-1])
        and all(_TAG.fullmatch(columns[-1]) for columns in filled)
    )


def _is_table(filled: Sequence[str], separators: str) -> bool:
    """Return whether a header of single words stands above rows of as many cells."""
    if len(filled) < 2:
        return False
    for separator in separators:
        try:
            rows = list(csv_reader((f"{line}\n" for line in filled), separator))
        except csv.Error:  # also a quoted cell whose lines go on behind the sample
            continue
        header = [cell.casefold() for cell in rows[0]]
        widths = {len(row) for row in rows}
        if len(widths) == 1 and min(widths) >= 2 and all(_HEADER_CELL.fullmatch(cell) for cell in header):
            # Lines may have tabs themselves: a pair of texts, or a label and a text.
            return len({*header}) == len(header) and (separator != "\t" or bool(_COLUMNS & {*header}))
    return False


def _is_sentence(line: str) -> bool:
    """Return whether a line is a sentence rather than a header."""
    words = line.split()
    return not any(mark in line for mark in "\t;,") and (
        len(words) >= _SENTENCE_WORDS or (len(words) > 1 and words[-1].endswith((".", "!", "?")))
    )
