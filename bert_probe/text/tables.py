"""Rows written as the readers read them: the other way round of `labelled` and `tagged`."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence

from bert_probe.text.labeled_texts import SEPARATOR, SEVERAL, LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence


def as_file(rows: LabeledTexts | Sequence[TaggedSentence] | Sequence[str]) -> bytes:
    """CSV of labelled texts, CoNLL of tagged sentences, CoNLL-U of those with heads, plain lines as they are;
    read again they differ in the numbers of their lines alone."""
    if not isinstance(rows, LabeledTexts):
        blank = "\n" if any(isinstance(row, TaggedSentence) for row in rows) else ""
        tree = any(isinstance(row, TaggedSentence) and row.heads for row in rows)
        return blank.join(_tree(row) if tree else _block(row) for row in rows).encode()
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
    said = [f"# {name} = {value}\n" for name, value in one.about.items()]
    return "".join([*said, *(f"{word}\t{tag}\n" for word, tag in zip(one.words, one.tags, strict=True))])


def _tree(one: TaggedSentence | str) -> str:
    """The ten columns of CoNLL-U; the words of a contracted token share its span, and follow it."""
    assert isinstance(one, TaggedSentence)  # plain lines have no trees
    about = {"text": one.text, **one.about}
    lines = [f"# {name} = {value}" for name, value in about.items()]
    shared = Counter(one.spans)
    heads = [str(head + 1) for head in one.heads] or ["_"] * len(one.words)
    relations = one.relations or ("_",) * len(one.words)
    written = zip(one.words, one.tags, heads, relations, one.spans, strict=True)
    for number, (word, tag, head, relation, span) in enumerate(written, 1):
        if shared[span] > 1 and span not in one.spans[: number - 1]:
            form = one.text[slice(*span)]
            lines.append(_columns(f"{number}-{number + shared[span] - 1}", form, "_", "_", "_"))
        lines.append(_columns(str(number), word, tag, head, relation))
    return "".join(f"{line}\n" for line in lines)


def _columns(number: str, form: str, tag: str, head: str, relation: str) -> str:
    return "\t".join((number, form, "_", tag, "_", "_", head, relation, "_", "_"))
