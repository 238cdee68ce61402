"""Traces whose numbers are given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Trace


def hand_trace(weights: Sequence[np.ndarray], names: str = "[CLS] sun moon [SEP]") -> Trace:
    """A trace whose attention weights are given, one array [head, query, key] a layer."""
    tokens = tuple(
        Token(
            name,
            position=position,
            id=position + 7,
            segment=0,
            word=None if name.startswith("[") else position,
            start=None,
            end=None,
            special=name.startswith("["),
            split_word=False,
            display=name,
        )
        for position, name in enumerate(names.split())
    )
    states = tuple(np.zeros((len(tokens), 2), np.float32) for _ in range(len(weights) + 1))
    layers = tuple(np.asarray(layer, np.float32) for layer in weights)
    return Trace(Encoding("sun moon", None, tokens, {}, None, 0), states, None, {}, weights=layers)
