"""Tables of minimal pairs; each names both texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.minimal_pair import REST, MinimalPair, RowPair
from bert_probe.model.encoding import Token
from bert_probe.results.tables import columns_table, second_text, vectors_table
from bert_probe.text.words import Unit


def minimal_pair_table(pair: MinimalPair) -> pd.DataFrame:
    """One row a head, most changed first: layer, head, total_variation, jensen_shannon."""
    layers, heads = np.indices(pair.total_variation.shape) + 1
    columns = {
        "layer": layers.ravel(),
        "head": heads.ravel(),
        "total_variation": pair.total_variation.ravel(),
        "jensen_shannon": pair.jensen_shannon.ravel(),
    }
    about = {"table": "minimal pair", "words": pair.words, **second_text(pair.b)}
    frame = columns_table(columns, pair.a.provenance, **about)
    order = ["total_variation", "jensen_shannon"]
    return frame.sort_values(order, ascending=False, kind="stable", ignore_index=True)


def moved_table(pair: MinimalPair) -> pd.DataFrame:
    """1 − cosine of each aligned token's or word's vectors, a row each; columns are the layers from 0."""
    about = {"table": "moved vectors", "words": pair.words, **second_text(pair.b)}
    return vectors_table(pair.moved.T, pair.alignment.aligned, pair.a.provenance, **about)


def row_pair_table(pair: MinimalPair, row: RowPair) -> pd.DataFrame:
    """One query's attention in A and in B, a row a key: key, position_a, position_b, a, b, difference.

    The last row, without a position, is the rest: all keys without a counterpart.
    """
    side = pair.alignment
    columns = {
        "key": [*map(str, row.keys), REST],
        "position_a": _positions(side.units_a, side.places_a),
        "position_b": _positions(side.units_b, side.places_b),
        "a": row.a,
        "b": row.b,
        "difference": row.difference,
    }
    return columns_table(
        columns,
        pair.a.provenance,
        table="attention of one query in two texts",
        query=str(row.query),
        query_position=row.query.position,
        layer=row.layer + 1,
        head=row.head if row.head == "mean" else row.head + 1,
        words=pair.words,
        **second_text(pair.b),
    )


def _positions(units: Sequence[Token | Unit], places: Sequence[int]) -> Any:
    """Positions of the aligned keys, and none for the rest."""
    return pd.array([*(units[place].position for place in places), None], dtype="Int64")
