"""Traces without a model: predefined or random values, and arbitrary token strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Trace

HOSTILE_TOKENS = (
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
"""Tokens that have broken a page on which they were shown, or that could break one."""


def hand_trace(
    weights: Sequence[np.ndarray],
    names: str = "[CLS] sun moon [SEP]",
    states: Sequence[np.ndarray] | None = None,
) -> Trace:
    """Return a trace with the given attention weights, one array of shape [head, query, key] per layer.

    Args:
        states: hidden states, one array of shape [token, hidden] for the embeddings and one per layer; zeros
            by default.
    """
    text = " ".join(name for name in names.split() if not name.startswith("["))
    tokens = tuple(
        Token(
            name,
            position=position,
            id=position + 7,
            segment=0,
            word=None if name.startswith("[") else position,
            start=text.find(name),
            end=text.find(name) + len(name),
            special=name.startswith("["),
            split_word=False,
            display=name,
        )
        for position, name in enumerate(names.split())
    )
    if states is None:
        states = [np.zeros((len(tokens), 2))] * (len(weights) + 1)
    vectors, layers = (tuple(np.asarray(array, np.float32) for array in part) for part in (states, weights))
    return Trace(Encoding(text, None, tokens, {}, None, 0), vectors, None, {}, weights=layers)


def random_trace(
    displays: Sequence[str], layers: int = 3, heads: int = 4, second: int | None = None, seed: int = 0
) -> Trace:
    """Return a trace of given tokens with random attention. A second text starts at token ``second``."""
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
    # Multiply the scores by 3, so that one weight dominates each row, as in a trained head.
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


def numbered_tokens(count: int) -> Encoding:
    """Return an encoding with the tokens t0, t1, …, each of which is a separate word."""
    pieces = tuple(
        Token(
            f"t{position}",
            position=position,
            id=position,
            segment=0,
            word=position,
            start=position,
            end=position + 1,
            special=False,
            split_word=False,
            display=f"t{position}",
        )
        for position in range(count)
    )
    return Encoding("x" * count, None, pieces, {}, None, 0)


def two_token_trace(mask: Any = None, **changes: Any) -> Trace:
    """Return a trace of one layer and one head over two tokens.

    q = [[1, 0], [0, 2]], k = [[1, 0], [0, 1]], scaling ½, so the scores are [[½, 0], [0, 1]].
    """
    settings: dict[str, Any] = {
        "encoding": numbered_tokens(2),
        "states": (np.zeros((2, 4), np.float32), np.ones((2, 4), np.float32)),
        "pooler": None,
        "provenance": {"architecture": "Hand"},
        "queries": (np.array([[[1, 0], [0, 2]]], np.float32),),
        "keys": (np.array([[[1, 0], [0, 1]]], np.float32),),
        "values": (np.array([[[1, 2], [3, 4]]], np.float32),),
        "scaling": (0.5,),
        "masks": (mask,),
    }
    return Trace(**settings | changes)


def packed(trace: Trace) -> Trace:
    """Return a float64 trace with queries and keys rounded to values that float32 represents exactly."""

    def rounded(parts: tuple[np.ndarray, ...] | None) -> tuple[np.ndarray, ...] | None:
        return None if parts is None else tuple(part.astype("<f4").astype(np.float64) for part in parts)

    assert trace.dtype == np.float64
    return replace(trace, queries=rounded(trace.queries), keys=rounded(trace.keys))
