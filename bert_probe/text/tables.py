"""Rows written as the readers read them: the other way round of `labelled` and `tagged`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from bert_probe.text.labelled import SEPARATOR, SEVERAL, Labelled
from bert_probe.text.tagged import TaggedSentence


def as_file(rows: Labelled | Sequence[TaggedSentence]) -> bytes:
    """CSV of labelled texts, CoNLL of tagged sentences; read again they differ in lines alone."""
    if not isinstance(rows, Labelled):
        sentences = (
            "".join(f"{word}\t{tag}\n" for word, tag in zip(one.words, one.tags, strict=True)) for one in rows
        )
        return "\n".join(sentences).encode()
    paired = any(row.pair is not None for row in rows.rows)
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    texts = ("text_a", "text_b") if paired else ("text",)
    table.writerow((*texts, "labels" if rows.kind == SEVERAL else "label"))
    for row in rows.rows:
        label = SEPARATOR.join(row.label) if isinstance(row.label, tuple) else row.label
        table.writerow((row.text, row.pair, label) if paired else (row.text, label))
    return written.getvalue().encode()
