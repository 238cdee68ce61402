"""The input embedding matrix of a model: a row for each token of the vocabulary."""

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
"""Elements converted to float64 at a time; all 250,000 rows of a large vocabulary would need 1.5 GB."""
_EXTRA_CANDIDATES = 32
"""Additional rows whose cosine is recomputed in float64, so that rounding does not exclude a neighbor."""


def input_embeddings(model: Any, checkpoint: Checkpoint) -> torch.Tensor:
    """Return the input embeddings [token, dimension] without copying; call it within `Checkpoint.running`.

    Raises:
        UnavailableError: the model has no input embedding matrix.
    """
    try:
        table: torch.Tensor = model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        raise UnavailableError(
            f"{checkpoint.description.architecture} has no input embedding matrix with a row for each token."
        ) from None
    return table.detach()


def row_norms(table: torch.Tensor) -> Array:
    """Return the Euclidean norm of each row, float64 [token]."""
    rows = max(1, _BLOCK // table.shape[1])
    blocks = [torch.linalg.vector_norm(part.double(), dim=1) for part in torch.split(table, rows)]
    return read_only(torch.cat(blocks).cpu().numpy())


def select_rows(table: torch.Tensor, ids: Array) -> Array:
    """Return the rows of some ids, [id, dimension]."""
    return as_array(table[torch.from_numpy(ids).to(table.device)])


def nearest_rows(table: torch.Tensor, norms: Array, token: int, count: int) -> tuple[Array, Array]:
    """Return the ids and cosines of the other rows most similar to a token's row, by descending cosine.

    A matrix product selects candidates; their cosines are then recomputed in float64.
    """
    row = table[token]
    if table.dtype in (torch.float32, torch.float64):
        products = (table @ row).double().cpu().numpy()
    else:
        # Products in half precision are rounded too coarsely, so blocks are converted to float32.
        rows = max(1, _BLOCK // table.shape[1])
        parts = [part.float() @ row.float() for part in torch.split(table, rows)]
        products = torch.cat(parts).double().cpu().numpy()
    cosines = np.divide(products, norms * norms[token], out=np.full(len(norms), -np.inf), where=norms > 0)
    cosines[token] = -np.inf
    size = min(count + _EXTRA_CANDIDATES, int((cosines > -np.inf).sum()))
    candidates = np.argpartition(-cosines, size - 1)[:size] if size else np.array([], dtype=np.int64)
    exact = cosine(select_rows(table, np.array([token])).astype(np.float64), select_rows(table, candidates))[
        0
    ]
    order = np.lexsort((candidates, -exact))[:count]
    return candidates[order], exact[order]


def pair_cosines(table: torch.Tensor, pairs: Array) -> Array:
    """Return the cosine of each pair of rows [pair, 2], float64; NaN if a row is all zeros."""
    rows = max(1, _BLOCK // table.shape[1])
    parts = [
        cosine_of_rows(select_rows(table, part[:, 0]), select_rows(table, part[:, 1]))
        for part in np.array_split(pairs, max(1, len(pairs) // rows))
    ]
    return np.concatenate(parts)
