"""Sample data that was written for this project: labeled texts and a treebank."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from bert_probe.text.labeled_texts import CLASSES, LabeledTexts, parse_labeled_texts
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences

FILE = "everyday_topics.csv"
TREEBANK_FILES = ("sample_treebank.conllu", "sample_treebank_held_out.conllu")


@lru_cache(maxsize=1)
def everyday_topics() -> LabeledTexts:
    """Return 300 short English sentences on six everyday topics, 50 per topic.

    Few individual words indicate the topic, so a classifier needs contextual vectors.
    """
    return parse_labeled_texts(everyday_topics_file(), FILE, CLASSES)


def everyday_topics_file() -> bytes:
    """Return the sentences on everyday topics as a CSV file with the columns text and label."""
    return resources.files("bert_probe").joinpath("data", FILE).read_bytes()


@lru_cache(maxsize=1)
def sample_treebank() -> tuple[tuple[TaggedSentence, ...], tuple[TaggedSentence, ...]]:
    """Return 16 short English sentences and 8 held-out sentences with Universal Dependencies trees."""
    training, held_out = (
        parse_tagged_sentences(resources.files("bert_probe").joinpath("data", file).read_bytes(), file)
        for file in TREEBANK_FILES
    )
    return training, held_out
