"""The steps of attention as pandas DataFrames, in the manner of `tables`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.steps import AttentionSteps
from bert_probe.model.trace import Trace, resolve
from bert_probe.results.tables import TOKEN, vectors_table


def steps_table(steps: AttentionSteps, trace: Trace) -> pd.DataFrame:
    """The steps of one query as numbers, one row a key.

    Columns: position, token, dot_product, scaled, masked, bias, score, weight, value_length,
    weighted_length (of the value, and of weight × value). ``bias`` and ``score`` of a masked key, which is
    -inf in the softmax, are empty.
    """
    frame = pd.DataFrame(
        {
            "position": [token.position for token in steps.tokens],
            TOKEN: [str(token) for token in steps.tokens],
            "dot_product": steps.dot_products,
            "scaled": steps.scaled,
            "masked": steps.masked,
            "bias": np.where(steps.masked, np.float32(np.nan), steps.mask),
            "score": np.where(steps.masked, np.float32(np.nan), steps.scores),
            "weight": steps.weights,
            "value_length": steps.value_lengths,
            "weighted_length": steps.weighted_lengths,
        }
    )
    frame.attrs["provenance"] = {**trace.provenance, "view": {"table": "steps", **_about(steps)}}
    return frame


def steps_vectors_table(steps: AttentionSteps, key: int, trace: Trace) -> pd.DataFrame:
    """The vectors behind one weight, a row each: q, k, q×k, v, weight×v, output, and the model's own output.

    Where values are longer or shorter than queries, the dimensions that a vector lacks are empty.

    Raises:
        SelectionError: no such key.
    """
    key = resolve(key, len(steps.tokens), "token")
    rows = {
        "q": steps.q,
        "k": steps.keys[key],
        "q×k": steps.products[key],
        "v": steps.values[key],
        "weight×v": steps.weighted_values[key],
        "output": steps.output,
        "model": steps.model_output,
    }
    values = np.full((len(rows), max(map(len, rows.values()))), np.nan, dtype=np.float32)
    for row, vector in zip(values, rows.values(), strict=True):
        row[: len(vector)] = vector
    about = {"key_position": key, "key_token": str(steps.tokens[key]), **_about(steps)}
    return vectors_table(values, list(rows), trace.provenance, label="step", table="steps vectors", **about)


def _about(steps: AttentionSteps) -> dict[str, Any]:
    return {
        "layer": steps.layer + 1,
        "head": steps.head + 1,
        "query_position": steps.query,
        "query_token": str(steps.tokens[steps.query]),
        "scaling": steps.scaling,
        "difference_to_model": steps.difference,
    }
