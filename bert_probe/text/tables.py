"""Write datasets in the formats that the readers of this package accept."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence

from bert_probe.text.documents import DocumentList
from bert_probe.text.labeled_texts import GROUP, MULTI_LABEL, SEPARATOR, LabeledTexts
from bert_probe.text.retrieval_data import Judgments
from bert_probe.text.similarity_examples import COLUMNS, SimilarityExamples
from bert_probe.text.tagged_sentences import TaggedSentence

Dataset = LabeledTexts | SimilarityExamples | Sequence[TaggedSentence] | Sequence[str] | Judgments


def to_file(rows: Dataset) -> bytes:
    """Return the content of a file that contains a dataset.

    Documents are written as JSON lines, judgments as TSV, labeled texts and similarity examples as CSV,
    tagged sentences as CoNLL, and dependency trees as CoNLL-U. All other datasets have one text per line.
    Reading the file returns the same dataset, except for line numbers.
    """
    if isinstance(rows, Judgments):
        return rows.content
    if isinstance(rows, DocumentList):
        return "".join(f"{line}\n" for line in rows.lines).encode("utf-8", "surrogatepass")
    if isinstance(rows, SimilarityExamples):
        return _similarity_file(rows)
    if not isinstance(rows, LabeledTexts):
        separator = "\n" if any(isinstance(row, TaggedSentence) for row in rows) else ""
        has_trees = any(isinstance(row, TaggedSentence) and row.heads for row in rows)
        return separator.join(_conllu_block(row) if has_trees else _conll_block(row) for row in rows).encode()
    has_pairs = any(row.pair is not None for row in rows.rows)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    texts = ("text_a", "text_b") if has_pairs else ("text",)
    has_groups = any(row.group for row in rows.rows)
    columns = (*texts, "labels" if rows.kind == MULTI_LABEL else "label")
    writer.writerow((*columns, GROUP) if has_groups else columns)
    for row in rows.rows:
        label = SEPARATOR.join(row.label) if isinstance(row.label, tuple) else row.label
        cells = (row.text, row.pair, label) if has_pairs else (row.text, label)
        writer.writerow((*cells, row.group) if has_groups else cells)
    return buffer.getvalue().encode()


def _similarity_file(rows: SimilarityExamples) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS[rows.kind])
    for row in rows.rows:
        writer.writerow(row.texts if row.score is None else (*row.texts, row.score))
    return buffer.getvalue().encode()


def _conll_block(sentence: TaggedSentence | str) -> str:
    if isinstance(sentence, str):
        return f"{sentence}\n"
    comments = [f"# {name} = {value}\n" for name, value in sentence.metadata.items()]
    return "".join(
        [*comments, *(f"{word}\t{tag}\n" for word, tag in zip(sentence.words, sentence.tags, strict=True))]
    )


def _conllu_block(sentence: TaggedSentence | str) -> str:
    """Return a sentence in CoNLL-U format. A contracted token precedes its words, which share one span."""
    assert isinstance(sentence, TaggedSentence)  # only tagged sentences can have trees
    metadata = {"text": sentence.text, **sentence.metadata}
    lines = [f"# {name} = {value}" for name, value in metadata.items()]
    span_counts = Counter(sentence.spans)
    heads = [str(head + 1) for head in sentence.heads] or ["_"] * len(sentence.words)
    relations = sentence.relations or ("_",) * len(sentence.words)
    rows = zip(sentence.words, sentence.tags, heads, relations, sentence.spans, strict=True)
    for number, (word, tag, head, relation, span) in enumerate(rows, 1):
        if span_counts[span] > 1 and span not in sentence.spans[: number - 1]:
            form = sentence.text[slice(*span)]
            lines.append(_columns(f"{number}-{number + span_counts[span] - 1}", form, "_", "_", "_"))
        lines.append(_columns(str(number), word, tag, head, relation))
    return "".join(f"{line}\n" for line in lines)


def _columns(number: str, form: str, tag: str, head: str, relation: str) -> str:
    return "\t".join((number, form, "_", tag, "_", "_", head, relation, "_", "_"))
