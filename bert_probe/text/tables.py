"""Rows written as the readers read them: the other way round of `labelled` and `tagged`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from bert_probe.text.labelled import SEPARATOR, SEVERAL, Labelled
from bert_probe.text.tagged import TaggedSentence


def as_file(rows: Labelled | Sequence[TaggedSentence] | Sequence[str]) -> bytes:
    """CSV of labelled texts, CoNLL of tagged sentences, plain lines as they are; read again they differ in
    the numbers of their lines alone."""
    if not isinstance(rows, Labelled):
        blank = "\n" if any(isinstance(one, TaggedSentence) for one in rows) else ""
        return blank.join(map(_block, rows)).encode()
    paired = any(row.pair is not None for row in rows.rows)
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    texts = ("text_a", "text_b") if paired else ("text",)
    table.writerow((*texts, "labels" if rows.kind == SEVERAL else "label"))
    for row in rows.rows:
        label = SEPARATOR.join(row.label) if isinstance(row.label, tuple) else row.label
        table.writerow((row.text, row.pair, label) if paired else (row.text, label))
    return written.getvalue().encode()


def _block(one: TaggedSentence | str) -> str:
    if isinstance(one, str):
        return f"{one}\n"
    return "".join(f"{word}\t{tag}\n" for word, tag in zip(one.words, one.tags, strict=True))
