"""The labelled texts that are shipped, to train on at a first visit."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from bert_probe.text.labeled_texts import CLASSES, LabeledTexts, parse_labeled_texts

FILE = "everyday_topics.csv"


@lru_cache(maxsize=1)
def everyday_topics() -> LabeledTexts:
    """300 short English sentences on six topics of everyday life, 50 each, written for this project.

    Hardly a word tells the topic: what they share is what they mean, so that vectors help where words do not.
    """
    return parse_labeled_texts(everyday_topics_file(), FILE, CLASSES)


def everyday_topics_file() -> bytes:
    """The same as a table, text,label."""
    return resources.files("bert_probe").joinpath("data", FILE).read_bytes()
