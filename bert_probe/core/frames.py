"""Building blocks of result tables. Layers and heads in tables count from 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.model.trace import Array

TOKEN = "token"


def plain_strings(units: Sequence[str]) -> list[str]:
    """Convert tokens or words, which are instances of subclasses of str, to plain strings."""
    return [str(unit) for unit in units]


def matrix(values: Array, rows: Sequence[str], columns: Sequence[str], label: str = TOKEN) -> pd.DataFrame:
    """Convert a matrix to a table whose index is named `label`. Row and column names need not be unique."""
    index = pd.Index(plain_strings(rows), name=label, dtype=object)
    return pd.DataFrame(values, index=index, columns=pd.Index(plain_strings(columns), dtype=object))


def vectors(values: Array, rows: Sequence[str], label: str = TOKEN) -> pd.DataFrame:
    """Convert vectors to a table with one row per vector and one column per dimension: "0", "1", …"""
    return matrix(values, rows, [str(dimension) for dimension in range(values.shape[1])], label)


def by_head(columns: Mapping[str, Array], labels: Sequence[Sequence[str]] | None = None) -> pd.DataFrame:
    """Return a table with one row per attention head.

    Args:
        columns: values of each column, shape [layer, head], by column name.
        labels: label of each head, [layer][head], for the column `label`; if None, the column is omitted.
    """
    layers, heads = np.indices(next(iter(columns.values())).shape) + 1
    frame = pd.DataFrame({"layer": layers.ravel(), "head": heads.ravel()})
    for name, values in columns.items():
        frame[name] = values.ravel()
    if labels is not None:
        frame["label"] = [label for row in labels for label in row]
    return frame


def nullable_integers(numbers: Sequence[int | None]) -> Any:
    """Return a nullable pandas array of integers; None becomes a missing value."""
    return pd.array(list(numbers), dtype="Int64")


def repeated_texts(texts: Iterable[str]) -> pd.Series[Any]:
    """Return a column of texts; in a column of pandas' type str, each repeated text would be a copy."""
    return pd.Series(plain_strings(list(texts)), dtype=object)


def text_length(frame: pd.DataFrame) -> int:
    """Return the total number of characters of the texts in a table; a repeated text counts each time."""
    total = 0
    for place, dtype in enumerate(frame.dtypes):
        if isinstance(dtype, pd.StringDtype):
            total += int(frame.iloc[:, place].str.len().sum())
        elif pd.api.types.is_object_dtype(dtype):
            total += sum(len(cell) for cell in frame.iloc[:, place] if isinstance(cell, str))
    return total
