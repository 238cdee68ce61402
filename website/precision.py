"""Measurement of the differences between the exported ONNX model and the library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import onnxruntime

from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.analyses.vectors.similarity import baseline_sentences
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.trace import Array, Trace
from bert_probe.text.datasets import everyday_topics
from website.onnx_model import OUTPUTS, WEIGHTS_FILE, OnnxModel

COUNT: Final = 50
"""Number of sentences for the comparison."""


@dataclass(frozen=True)
class Precision:
    """The largest absolute differences between the exported model and the library.

    Attributes:
        attention: difference of attention weights.
        hidden: difference of hidden states after the embeddings and after each layer.
        hidden_largest: the largest absolute hidden state, for comparison.
        vectors: difference of queries, keys and values.
        cosine: difference of the cosine similarity of consecutive sentences.
        sentences: number of sentences.
    """

    attention: float
    hidden: float
    hidden_largest: float
    vectors: float
    cosine: float
    sentences: int


def compared_sentences() -> tuple[str, ...]:
    """Return 50 sentences: those of the token similarity baseline, then sentences on everyday topics."""
    return (*baseline_sentences(), *(row.text for row in everyday_topics().rows))[:COUNT]


def measure(model: OnnxModel, checkpoint: Checkpoint) -> Precision:
    """Compare an exported model in ONNX Runtime with the library on 50 sentences."""
    traces = checkpoint.traces(list(compared_sentences()))
    with TemporaryDirectory() as folder:
        (Path(folder) / "model.onnx").write_bytes(model.graph)
        (Path(folder) / WEIGHTS_FILE).write_bytes(model.weights)
        session = onnxruntime.InferenceSession(Path(folder) / "model.onnx")
    runs = [run(session, trace.encoding) for trace in traces]
    differences: dict[str, float] = dict.fromkeys(("attention", "hidden", "vectors"), 0.0)
    for trace, (hidden, queries, keys, values) in zip(traces, runs, strict=True):
        exact = np.stack([trace.attention(layer) for layer in range(trace.layers)])
        largest = {
            "attention": _difference(attention(queries, keys), exact),
            "hidden": _difference(hidden, trace.hidden_states),
            "vectors": max(map(_difference, (queries, keys, values), _qkv(trace))),
        }
        differences = {name: max(differences[name], largest[name]) for name in differences}
    cosines = [
        abs(cosine(runs[i][0], runs[i + 1][0]) - SentenceSimilarity().of(traces[i], traces[i + 1]).score)
        for i in range(len(runs) - 1)
    ]
    size = max(float(np.abs(trace.hidden_states).max()) for trace in traces)
    return Precision(
        differences["attention"], differences["hidden"], size, differences["vectors"], max(cosines), len(runs)
    )


def run(session: onnxruntime.InferenceSession, encoding: Encoding) -> tuple[Array, ...]:
    """Run the exported model on a text or text pair, and return its outputs in the order of `OUTPUTS`."""
    segments = [token.segment for token in encoding.tokens]
    inputs = {"ids": np.array(encoding.ids, np.int64), "segments": np.array(segments, np.int64)}
    return tuple(session.run(list(OUTPUTS), inputs))


def attention(queries: Array, keys: Array) -> Array:
    """Return the attention weights softmax(q · k / √size) in float64, [layer, head, query, key]."""
    scores = (
        queries.astype(np.float64) @ keys.astype(np.float64).swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
    )
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    normalized: Array = weights / weights.sum(axis=-1, keepdims=True)
    return normalized


def cosine(a: Array, b: Array) -> float:
    """Return the cosine of the mean-pooled vectors of two texts, from their hidden states of all layers."""
    first, second = a[-1].mean(axis=0, dtype=np.float64), b[-1].mean(axis=0, dtype=np.float64)
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


def _qkv(trace: Trace) -> tuple[Array, Array, Array]:
    assert trace.q is not None  # not None, because a BERT encoder exposes queries, keys and values
    assert trace.k is not None
    assert trace.v is not None
    return trace.q, trace.k, trace.v


def _difference(actual: Array, expected: Array) -> float:
    return float(np.abs(actual - expected).max())
