"""Sample datasets that were written for this project, and conversion of datasets to files."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

from bert_probe.text.documents import DocumentList, parse_documents
from bert_probe.text.labeled_texts import (
    CLASSES,
    GROUP,
    MULTI_LABEL,
    NUMBER,
    SEPARATOR,
    LabeledTexts,
    parse_labeled_texts,
)
from bert_probe.text.retrieval_data import Judgments, parse_judgments
from bert_probe.text.similarity_examples import COLUMNS, SimilarityExamples
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences

Dataset = LabeledTexts | SimilarityExamples | Sequence[TaggedSentence] | Sequence[str] | Judgments
"""The types of datasets that `to_file` writes. A sequence of strings has one text per string."""

TOPICS_FILE = "everyday_topics.csv"
PAIRS_FILE = "sample_pairs.csv"
SEARCH_FILES = ("help_center.jsonl", "help_center_queries.jsonl", "help_center_qrels.tsv")
TREEBANK_FILES = ("sample_treebank.conllu", "sample_treebank_held_out.conllu")


@lru_cache(maxsize=1)
def everyday_topics() -> LabeledTexts:
    """Return 300 short English sentences on six everyday topics, 50 per topic, with the topics as labels.

    Few individual words indicate the topic, so a classifier needs contextual vectors.
    """
    return parse_labeled_texts(everyday_topics_file(), TOPICS_FILE, CLASSES)


def everyday_topics_file() -> bytes:
    """Return the sentences on everyday topics as a CSV file with the columns text and label."""
    return _read(TOPICS_FILE)


@lru_cache(maxsize=1)
def sample_pairs() -> LabeledTexts:
    """Return 36 pairs of short English sentences with scores from 0 (unrelated) to 5 (same meaning).

    The author of the sentences assigned the scores; there were no other raters.
    """
    return parse_labeled_texts(_read(PAIRS_FILE), PAIRS_FILE, NUMBER)


@lru_cache(maxsize=1)
def sample_search() -> tuple[DocumentList, DocumentList, Judgments]:
    """Return 30 articles of an invented help center, 14 queries, and the articles that answer each query."""
    documents, queries = (parse_documents(io.BytesIO(_read(file)), file) for file in SEARCH_FILES[:2])
    return documents, queries, parse_judgments(_read(SEARCH_FILES[2]), SEARCH_FILES[2])


@lru_cache(maxsize=1)
def sample_treebank() -> tuple[tuple[TaggedSentence, ...], tuple[TaggedSentence, ...]]:
    """Return 16 short English sentences and 8 held-out sentences with Universal Dependencies trees."""
    training, held_out = (parse_tagged_sentences(_read(file), file) for file in TREEBANK_FILES)
    return training, held_out


def _read(file: str) -> bytes:
    return resources.files("bert_probe").joinpath("data", file).read_bytes()


def to_file(rows: Dataset) -> bytes:
    """Return a dataset as the content of a file that the readers of this package accept.

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
    """Return a sentence in CoNLL-U format. A contraction precedes its words, which share its span."""
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
