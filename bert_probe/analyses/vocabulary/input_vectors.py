"""The table of words that a model begins with: a row for each piece of the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bert_probe.analyses.vectors.cosine import cosine, cosine_of_rows
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import as_array
from bert_probe.model.trace import Array, read_only

_BLOCK = 1 << 22
"""Numbers that are taken at once where they are made float64: 250,000 rows in whole would be 1.5 GB more."""
_SPARE = 32
"""Rows beyond those wanted whose cosine is computed again in float64, lest rounding leaves one out."""


def table_of(model: Any, checkpoint: Checkpoint) -> torch.Tensor:
    """The rows [piece, dimension], where they lie in the model; whoever reads them is within `running`.

    Raises:
        UnavailableError: the model has no such table.
    """
    try:
        table: torch.Tensor = model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        raise UnavailableError(
            f"{checkpoint.description.architecture} has no table with a row for each piece."
        ) from None
    return table.detach()


def norms_of(table: torch.Tensor) -> Array:
    """The length of each row, float64 [piece]."""
    rows = max(1, _BLOCK // table.shape[1])
    blocks = [torch.linalg.vector_norm(part.double(), dim=1) for part in torch.split(table, rows)]
    return read_only(torch.cat(blocks).cpu().numpy())


def rows_of(table: torch.Tensor, ids: Array) -> Array:
    """Some rows, [row, dimension]."""
    return as_array(table[torch.from_numpy(ids).to(table.device)])


def nearest(table: torch.Tensor, norms: Array, one: int, count: int) -> tuple[Array, Array]:
    """The rows whose cosine with a row is highest, itself left out: their ids and cosines, highest first.

    One product of the table with the row finds them; the cosines of those found are computed in float64.
    """
    row = table[one]
    if table.dtype in (torch.float32, torch.float64):
        products = (table @ row).double().cpu().numpy()
    else:
        # Sums of small types are rounded to these, so a block at a time in float32.
        rows = max(1, _BLOCK // table.shape[1])
        parts = [part.float() @ row.float() for part in torch.split(table, rows)]
        products = torch.cat(parts).double().cpu().numpy()
    cosines = np.divide(products, norms * norms[one], out=np.full(len(norms), -np.inf), where=norms > 0)
    cosines[one] = -np.inf
    most = min(count + _SPARE, int((cosines > -np.inf).sum()))
    found = np.argpartition(-cosines, most - 1)[:most] if most else np.array([], dtype=np.int64)
    exact = cosine(rows_of(table, np.array([one])).astype(np.float64), rows_of(table, found))[0]
    order = np.lexsort((found, -exact))[:count]
    return found[order], exact[order]


def between_pairs(table: torch.Tensor, pairs: Array) -> Array:
    """The cosine of the rows of each pair [pair, 2], float64; NaN where a row is all zeros."""
    rows = max(1, _BLOCK // table.shape[1])
    parts = [
        cosine_of_rows(rows_of(table, part[:, 0]), rows_of(table, part[:, 1]))
        for part in np.array_split(pairs, max(1, len(pairs) // rows))
    ]
    return np.concatenate(parts)
