"""Exact nearest neighbors among the vectors of a set, in blocks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

_BLOCK = 4096
_MAX_CANDIDATES = 16
"""Mean number of candidates of a row up to which they are sorted; of more, `topk` of the block is faster."""


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
    scores = np.full((number, count), -np.inf, dtype=vectors.dtype)
    neighbors = np.full((number, count), -1, dtype=np.int64)
    starts = range(0, number, _BLOCK)
    total, done = block_pairs(number), 0
    # Allocating memory for each product would take as long as the comparisons.
    memory = torch.empty(min(number, _BLOCK) ** 2, dtype=rows.dtype)
    masks = [np.empty(len(memory), dtype=np.bool_) for _ in range(2)]
    with ThreadPoolExecutor(len(masks)) as pool:
        for first in starts:
            for second in starts[first // _BLOCK :]:
                a, b = rows[first : first + _BLOCK], rows[second : second + _BLOCK]
                product = torch.mm(a, b.T, out=memory[: len(a) * len(b)].view(len(a), len(b)))
                if first == second:
                    product.fill_diagonal_(-np.inf)
                update = partial(_update, scores, neighbors, product.numpy())
                # Each of the two updates changes other rows.
                updates = [(first, second, 1), (second, first, 0)][: 1 + (first != second)]
                list(pool.map(lambda values, mask, update=update: update(*values, mask), updates, masks))
                done += 1
                progress(done, total)
    return neighbors, scores


def block_pairs(count: int) -> int:
    """Return the number of pairs of blocks, which is the total of the progress, for this many rows."""
    blocks = -(-count // _BLOCK)
    return blocks * (blocks + 1) // 2


def _update(
    scores: Array, neighbors: Array, block: Array, start: int, offset: int, axis: int, mask: Array
) -> None:
    """Update the nearest neighbors of some rows, in place, with the cosines in a block.

    Args:
        scores, neighbors: cosines and row numbers of the neighbors found so far, shape [row, count].
        block: cosines of the rows with the candidates.
        start: number of the first row of the block.
        offset: row number of the first candidate.
        axis: axis of the candidates in the block.
        mask: memory for a Boolean array of the size of the block; its contents are overwritten.
    """
    length, count = block.shape[1 - axis], scores.shape[1]
    current = scores[start : start + length, -1]
    is_higher = mask[: block.size].reshape(block.shape)
    np.greater(block, np.expand_dims(current, axis), out=is_higher)
    if np.count_nonzero(is_higher) > _MAX_CANDIDATES * length:
        lines = torch.from_numpy(block if axis == 1 else block.T).contiguous()
        best, indices = lines.topk(min(count, block.shape[axis]), dim=1)
        values, columns = best.numpy().ravel(), indices.numpy().ravel()
        rows = np.repeat(np.arange(length), best.shape[1])
    else:
        rows, columns = np.divmod(np.flatnonzero(is_higher), block.shape[1])
        values = block[rows, columns]
        rows, columns = (rows, columns) if axis == 1 else (columns, rows)
    changed = np.flatnonzero(np.bincount(rows, minlength=length))
    lines = np.r_[np.repeat(changed, count), rows]
    values = np.r_[scores[start + changed].ravel(), values]
    indices = np.r_[neighbors[start + changed].ravel(), columns + offset]
    order = np.lexsort((-values, lines))
    starts = np.searchsorted(lines[order], changed)
    best = order[starts[:, None] + np.arange(count)]
    scores[start + changed], neighbors[start + changed] = values[best], indices[best]
