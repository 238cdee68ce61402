"""Parts that tables are made of. Layers and heads in tables count from 1, as people do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.model.trace import Array

TOKEN = "token"


def plain_strings(units: Sequence[str]) -> list[str]:
    """Tokens or words as plain strings, which a frame can hold and write."""
    return [str(unit) for unit in units]


def matrix(values: Array, rows: Sequence[str], columns: Sequence[str], label: str = TOKEN) -> pd.DataFrame:
    """A matrix with names on both axes, ``label`` saying what the rows are; names may repeat."""
    index = pd.Index(plain_strings(rows), name=label, dtype=object)
    return pd.DataFrame(values, index=index, columns=pd.Index(plain_strings(columns), dtype=object))


def vectors(values: Array, rows: Sequence[str], label: str = TOKEN) -> pd.DataFrame:
    """Vectors with a name each; columns are the dimensions, "0", "1", …"""
    return matrix(values, rows, [str(dimension) for dimension in range(values.shape[1])], label)


def by_head(columns: Mapping[str, Array], labels: Sequence[Sequence[str]] | None = None) -> pd.DataFrame:
    """One row a head: layer, head, the columns, each [layer, head], and label where there are labels."""
    layers, heads = np.indices(next(iter(columns.values())).shape) + 1
    frame = pd.DataFrame({"layer": layers.ravel(), "head": heads.ravel()})
    for name, values in columns.items():
        frame[name] = values.ravel()
    if labels is not None:
        frame["label"] = [label for row in labels for label in row]
    return frame


def nullable_integers(numbers: Sequence[int | None]) -> Any:
    """Whole numbers of which some are missing."""
    return pd.array(list(numbers), dtype="Int64")
