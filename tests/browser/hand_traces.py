"""Traces written by hand: any token strings, and weights known beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Trace

HOSTILE = (
    "</script><img src=x onerror=window.__pwned=1>",
    "<script>window.__pwned=1</script>",
    "-->",
    "<!--<script>",
    "PYTHON_PARAMS",
    "; // HACK: ",
    '"token-0"',
    "token-1",
    "\\u003cimg\\u003e",
    "\\ue000",
    "back\\slash\\",
    "double\"quote'single",
    "line\u2028separator\u2029",
    "private\ue000use\uf8ff",
    "${window.__pwned=1}`",
    "&lt;b&gt;&amp;",
    "new\nline\ttab",
    "two  spaces ",
    "עברית 東京 🙂",
    "null\x00byte\x1f",
    "half\ud800pair",
)
"""Tokens that have broken such pages, or would."""


def hand_trace(
    displays: Sequence[str], layers: int = 3, heads: int = 4, second: int | None = None, seed: int = 0
) -> Trace:
    """A trace of these tokens with random attention, the second text starting at token ``second``."""
    random = np.random.default_rng(seed)
    count = len(displays)
    tokens = tuple(
        Token(
            display,
            position=position,
            id=position,
            segment=int(second is not None and position >= second),
            word=position,
            start=0,
            end=1,
            special=False,
            split_word=False,
            display=display,
        )
        for position, display in enumerate(displays)
    )
    # Uneven weights: a row's largest is far above the others, as in a trained head.
    scores = random.normal(size=(layers, heads, count, count)) * 3
    weights = np.exp(scores)
    weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
    return Trace(
        encoding=Encoding("text", None if second is None else "pair", tokens, {}, None, 0),
        states=tuple(np.zeros((count, 2), np.float32) for _ in range(layers + 1)),
        pooler=None,
        provenance={"architecture": "by hand"},
        weights=tuple(weights),
    )
