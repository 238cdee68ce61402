"""Every result as a pandas DataFrame that knows where it came from.

``frame.attrs["provenance"]`` names model, digest, libraries, text and view. Layers and heads in tables
count from 1, as people do; arguments of the functions are Python indices from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array

TOKEN = "token"


def matrix_table(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    provenance: Mapping[str, Any],
    label: str = TOKEN,
    **view: Any,
) -> pd.DataFrame:
    """A matrix with names on both axes, ``label`` saying what the rows are; names may repeat."""
    index = pd.Index(_names(rows), name=label, dtype=object)
    frame = pd.DataFrame(values, index=index, columns=pd.Index(_names(columns), dtype=object))
    return _with(frame, provenance, **view)


def columns_table(columns: Mapping[str, Any], provenance: Mapping[str, Any], **view: Any) -> pd.DataFrame:
    """A table of named columns of one length."""
    return _with(pd.DataFrame(columns), provenance, **view)


def vectors_table(
    values: Array, rows: Sequence[str], provenance: Mapping[str, Any], label: str = TOKEN, **view: Any
) -> pd.DataFrame:
    """Vectors with a name each; columns are the dimensions, "0", "1", …"""
    index = pd.Index(_names(rows), name=label, dtype=object)
    columns = [str(dimension) for dimension in range(values.shape[1])]
    return _with(pd.DataFrame(values, index=index, columns=columns), provenance, **view)


def _names(tokens: Sequence[Token] | Sequence[str]) -> list[str]:
    return [str(token) for token in tokens]


def _with(frame: pd.DataFrame, provenance: Mapping[str, Any], **view: Any) -> pd.DataFrame:
    frame.attrs["provenance"] = {**provenance, "view": view}
    return frame
