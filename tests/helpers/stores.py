"""Reference values for the sentences of a store, computed with loops over the raw model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import bert_probe
from bert_probe.model.encoding import Encoding, Token
from bert_probe.text.tagged_sentences import TaggedSentence
from tests.helpers import treebank
from tests.helpers.raw import Raw

EXTRA = treebank.conllu(
    (
        ("Anna", "PROPN", 2, "nsubj"),
        ("took", "VERB", 0, "root"),
        ("a", "DET", 4, "det"),
        ("walk", "NOUN", 2, "obj:lvc"),
        ("beside", "ADP", 7, "case"),
        ("two", "NUM", 7, "nummod"),
        ("rivers", "NOUN", 4, "nmod"),
    )
)
"""A sentence with a relation that has a subtype."""


@dataclass(frozen=True, eq=False)
class Loops:
    """The raw model's attention for a sentence of a store, in float64.

    Attributes:
        weights: attention between the store's tokens or words, shape [layer, head, query, key].
        words: for each token or word, the index of the word in the file that contains it.
    """

    weights: np.ndarray
    words: tuple[int | None, ...]


def loops(store: bert_probe.Store, sentences: Sequence[TaggedSentence]) -> list[Loops]:
    """Return the raw model's attention for each sentence, between the store's tokens or words."""
    checkpoint = store.checkpoint(trust=True)
    raw = Raw(checkpoint.folder, "float64")
    return [
        _loops(raw, checkpoint.encode(sentence.text), sentence, store.question.words)
        for sentence in sentences
    ]


def _loops(raw: Raw, encoding: Encoding, sentence: TaggedSentence, words: bool) -> Loops:
    weights = np.stack([attention[0].numpy() for attention in raw.run(encoding).attentions])
    owners = [_owner(token, sentence) for token in encoding.tokens]
    if not words:
        return Loops(weights, tuple(owners))
    groups: list[list[int]] = []
    for position, owner in enumerate(owners):
        if position and owner is not None and owner == owners[position - 1]:
            groups[-1].append(position)
        else:
            groups.append([position])
    merged = np.empty((*weights.shape[:2], len(groups), len(groups)))
    for query, rows in enumerate(groups):
        for key, columns in enumerate(groups):
            merged[:, :, query, key] = weights[:, :, rows][:, :, :, columns].sum(axis=3).mean(axis=2)
    return Loops(merged, tuple(owners[group[0]] for group in groups))


def _owner(token: Token, sentence: TaggedSentence) -> int | None:
    inside = (word for word, (start, end) in enumerate(sentence.spans) if start <= token.start < end)
    return None if token.special else next(inside, None)
