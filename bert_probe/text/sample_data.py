"""Sample data written for this project: labeled texts, scored pairs, judged queries, and a treebank."""

from __future__ import annotations

import io
from functools import lru_cache
from importlib import resources

from bert_probe.text.documents import DocumentList, parse_documents
from bert_probe.text.labeled_texts import CLASSES, NUMBER, LabeledTexts, parse_labeled_texts
from bert_probe.text.retrieval_data import Judgments, parse_judgments
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences

FILE = "everyday_topics.csv"
PAIRS_FILE = "sample_pairs.csv"
SEARCH_FILES = ("help_center.jsonl", "help_center_queries.jsonl", "help_center_qrels.tsv")
TREEBANK_FILES = ("sample_treebank.conllu", "sample_treebank_held_out.conllu")


@lru_cache(maxsize=1)
def everyday_topics() -> LabeledTexts:
    """Return 300 short English sentences on six everyday topics, 50 per topic.

    Few individual words indicate the topic, so a classifier needs contextual vectors.
    """
    return parse_labeled_texts(everyday_topics_file(), FILE, CLASSES)


def everyday_topics_file() -> bytes:
    """Return the sentences on everyday topics as a CSV file with the columns text and label."""
    return _read(FILE)


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


def _read(file: str) -> bytes:
    return resources.files("bert_probe").joinpath("data", file).read_bytes()


@lru_cache(maxsize=1)
def sample_treebank() -> tuple[tuple[TaggedSentence, ...], tuple[TaggedSentence, ...]]:
    """Return 16 short English sentences and 8 held-out sentences with Universal Dependencies trees."""
    training, held_out = (parse_tagged_sentences(_read(file), file) for file in TREEBANK_FILES)
    return training, held_out
