"""What is computed of the sentences of a store by plain loops over the raw model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import bert_probe
from bert_probe.text.tagged import TaggedSentence
from bert_probe.text.tagged_words import placed
from tests.helpers.raw import Raw


def attention(store: bert_probe.Store, text: str, sentence: TaggedSentence) -> np.ndarray:
    """[layer, head, query, key] of the units of a store, in float64; words as the file has them."""
    checkpoint = store.checkpoint()
    encoding = checkpoint.encode(text)
    weights = np.stack([one[0].numpy() for one in Raw(checkpoint.folder, "float64").run(encoding).attentions])
    if not store.question.words:
        return weights
    groups = [list(unit.positions) for unit in placed(sentence, encoding).lens.units]
    merged = np.empty((*weights.shape[:2], len(groups), len(groups)))
    for query, rows in enumerate(groups):
        for key, columns in enumerate(groups):
            merged[:, :, query, key] = weights[:, :, rows][:, :, :, columns].sum(axis=3).mean(axis=2)
    return merged


def units(store: bert_probe.Store, sentence: TaggedSentence) -> Iterator[int | None]:
    """Of each unit the word of the file that it is, or is a piece of, from 0."""
    encoding = store.checkpoint().encode(sentence.text)
    for unit in placed(sentence, encoding).lens.units:
        first = encoding.tokens[unit.position]
        inside = [
            word
            for word, (start, end) in enumerate(sentence.spans)
            if not first.special and start <= first.start < end
        ]
        pieces = 1 if store.question.words else len(unit.positions)
        yield from [inside[0] if inside else None] * pieces
