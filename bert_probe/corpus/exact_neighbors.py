"""Exact nearest neighbors among the vectors of a set, in blocks."""

from __future__ import annotations

import numpy as np
import torch

from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

_BLOCK = 4096


def nearest_neighbors(vectors: Array, count: int, progress: Progress = no_progress) -> tuple[Array, Array]:
    """Return the rows with the highest cosine to each row, and their cosines, both of shape [row, count].

    The product of each pair of blocks is computed once, and used for both blocks. Neighbors are in descending
    order; the order of ties is arbitrary.

    Args:
        vectors: L2-normalized vectors, shape [row, size], with more than `count` rows.
        count: number of neighbors.
        progress: called with the number of finished blocks and the total.
    """
    rows = torch.from_numpy(np.require(vectors, requirements="W"))
    number = len(rows)
    scores = torch.full((number, count), -np.inf, dtype=rows.dtype)
    neighbors = torch.full((number, count), -1, dtype=torch.int64)
    starts = range(0, number, _BLOCK)
    total, done = block_pairs(number), 0
    for first in starts:
        for second in starts[first // _BLOCK :]:
            block = rows[first : first + _BLOCK] @ rows[second : second + _BLOCK].T
            if first == second:
                block.fill_diagonal_(-np.inf)
            _update(scores, neighbors, block, first, second, axis=1)
            if first != second:
                _update(scores, neighbors, block, second, first, axis=0)
            done += 1
            progress(done, total)
    return neighbors.numpy(), scores.numpy()


def block_pairs(count: int) -> int:
    """Return the number of pairs of blocks, which is the total of the progress, for this many rows."""
    blocks = -(-count // _BLOCK)
    return blocks * (blocks + 1) // 2


def _update(
    scores: torch.Tensor, neighbors: torch.Tensor, block: torch.Tensor, start: int, offset: int, axis: int
) -> None:
    """Update the nearest neighbors of some rows, in place, with the cosines in a block.

    Args:
        scores, neighbors: cosines and row numbers of the neighbors found so far, shape [row, count].
        block: cosines of the rows with the candidates.
        start: number of the first row of the block.
        offset: row number of the first candidate.
        axis: axis of the candidates in the block.
    """
    count, width = scores.shape[1], block.shape[axis]
    current = scores[start : start + block.shape[1 - axis], -1]
    if torch.isinf(current).any():  # true until the first neighbors have been found
        values, indices = (block if axis == 1 else block.T).topk(min(count, width), dim=1)
        changed = torch.arange(len(current))
    else:
        rows, columns = torch.nonzero(block > current.unsqueeze(axis), as_tuple=True)
        candidates = block[rows, columns]
        if axis == 0:
            order = columns.argsort(stable=True)
            rows, columns, candidates = columns[order], rows[order], candidates[order]
        if not len(rows):
            return
        changed, counts = torch.unique_consecutive(rows, return_counts=True)
        places = torch.arange(len(rows)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        line = torch.arange(len(changed)).repeat_interleave(counts)
        shape = (len(changed), int(counts.max()))
        values = torch.full(shape, -np.inf, dtype=scores.dtype)
        indices = torch.full(shape, -1 - offset, dtype=torch.int64)
        values[line, places], indices[line, places] = candidates, columns
    values = torch.cat([scores[start + changed], values], dim=1)
    indices = torch.cat([neighbors[start + changed], indices + offset], dim=1)
    best, order = values.topk(count, dim=1)
    scores[start + changed] = best
    neighbors[start + changed] = indices.gather(1, order)
