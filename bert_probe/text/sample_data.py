"""The labeled texts that are included as sample training data."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from bert_probe.text.labeled_texts import CLASSES, LabeledTexts, parse_labeled_texts

FILE = "everyday_topics.csv"


@lru_cache(maxsize=1)
def everyday_topics() -> LabeledTexts:
    """Return 300 short English sentences on six everyday topics, 50 each, written for this project.

    Few individual words indicate the topic; it follows from the meaning, so that contextual vectors help.
    """
    return parse_labeled_texts(everyday_topics_file(), FILE, CLASSES)


def everyday_topics_file() -> bytes:
    """Return the sample data as a CSV file with the columns text,label."""
    return resources.files("bert_probe").joinpath("data", FILE).read_bytes()
