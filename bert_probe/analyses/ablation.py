"""Switching heads off, and what changes; in this call alone, never in the model that others share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from bert_probe.analyses.cosine import cosine, cosine_of_rows
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.capture import switched_off
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.forward import BATCH_TOKENS, batch
from bert_probe.model.trace import Array, Trace, resolve

Head = tuple[int, int]
"""Layer and head, from 0."""

Replacement = Literal["zero", "mean"]


@dataclass(frozen=True, eq=False)
class Ablation:
    """What changed when some heads were switched off.

    Attributes:
        heads: the heads switched off.
        token_change: 1 − cosine of each token's last-layer vector with and without them, float64 [token].
        cls_change: that of the first token.
        pooler_change: that of the pooler's output, or None without a pooler.
        vectors: last-layer vectors without them, float32 [token, hidden].
    """

    heads: tuple[Head, ...]
    token_change: Array
    cls_change: float
    pooler_change: float | None
    vectors: Array

    @property
    def mean_token_change(self) -> float:
        """Mean over the tokens of their change."""
        return float(self.token_change.mean())


def ablate(
    checkpoint: Checkpoint,
    encoding: Encoding,
    sets: Sequence[Sequence[Head]],
    replacement: Replacement = "zero",
) -> Iterator[Ablation]:
    """Switch off each set of heads in turn, several sets in one batched pass.

    What is asked for is checked at once; the model runs as results are taken.

    Args:
        sets: heads to switch off together, (layer, head) from 0.
        replacement: a head's output becomes 0, or its mean over the text's tokens.

    Returns:
        One `Ablation` a set, in order; stop taking them to cancel.

    Raises:
        SelectionError: no such layer or head.
        UnavailableError: the architecture does not let its heads be reached.
    """
    about = checkpoint.description
    if not about.shows_qkv:
        raise UnavailableError(f"{about.architecture} does not let single heads be switched off.")
    checked = [_checked(heads, about.layers, about.heads) for heads in sets]
    return _ablations(checkpoint, encoding, checked, replacement)


def _ablations(
    checkpoint: Checkpoint, encoding: Encoding, checked: Sequence[tuple[Head, ...]], replacement: Replacement
) -> Iterator[Ablation]:
    untouched = _run(checkpoint, encoding, [()], replacement)
    size = max(1, BATCH_TOKENS // len(encoding))
    for start in range(0, len(checked), size):
        group = checked[start : start + size]
        vectors, pooled = _run(checkpoint, encoding, group, replacement)
        for row, heads in enumerate(group):
            change = 1 - cosine_of_rows(vectors[row], untouched[0][0])
            poolers = None if pooled is None or untouched[1] is None else (pooled[row], untouched[1][0])
            yield Ablation(
                heads=heads,
                token_change=change,
                cls_change=float(change[0]),
                pooler_change=None if poolers is None else float(1 - cosine_of_rows(*poolers)[0]),
                vectors=vectors[row],
            )


@dataclass(frozen=True, eq=False)
class SimilarityChange:
    """Cosines of a text's tokens with each other after the last layer, with and without some heads.

    Attributes:
        ablation: what was switched off.
        tokens: the tokens compared.
        before, after: float32 [token, token], -1 to 1, symmetric; NaN for a vector of zeros.
    """

    ablation: Ablation
    tokens: tuple[Token, ...]
    before: Array
    after: Array

    @property
    def difference(self) -> Array:
        """After minus before, [token, token], -2 to 2: above 0 where tokens became more alike."""
        difference: Array = self.after - self.before
        return difference


def similarity_change(trace: Trace, ablation: Ablation, *, specials: bool = False) -> SimilarityChange:
    """How alike the tokens of a text are without some heads, beside how alike they are with them.

    Args:
        trace: of the text that the heads were switched off for.
        specials: keep [CLS] and [SEP].

    Raises:
        ShapeError: the trace is of another text or model.
    """
    with_heads = trace.vectors(-1)
    if with_heads.shape != ablation.vectors.shape:
        raise ShapeError(f"A trace of shape {with_heads.shape} for {ablation.vectors.shape} ablated vectors.")
    tokens = tuple(token for token in trace.tokens if specials or not token.special)
    chosen = [token.position for token in tokens]
    before, after = (cosine(all_[chosen], all_[chosen]) for all_ in (with_heads, ablation.vectors))
    return SimilarityChange(ablation, tokens, before, after)


def each_head(checkpoint: Checkpoint) -> list[tuple[Head]]:
    """Every head as a set of its own, for `ablate`."""
    about = checkpoint.description
    return [((layer, head),) for layer in range(about.layers) for head in range(about.heads)]


def _checked(heads: Sequence[Head], layers: int, count: int) -> tuple[Head, ...]:
    if not heads:
        raise SelectionError("No head is given. Name at least one.")
    return tuple((resolve(layer, layers, "layer"), resolve(head, count, "head")) for layer, head in heads)


def _run(
    checkpoint: Checkpoint, encoding: Encoding, sets: Sequence[Sequence[Head]], replacement: Replacement
) -> tuple[Array, Array | None]:
    """Last-layer vectors [set, token, hidden] and pooler outputs [set, 1, hidden]."""
    about = checkpoint.description
    off = np.zeros((about.layers, len(sets), about.heads), dtype=bool)
    for row, heads in enumerate(sets):
        for layer, head in heads:
            off[layer, row, head] = True
    inputs = batch(checkpoint, [encoding] * len(sets))
    with (
        torch.inference_mode(),
        checkpoint.running() as model,
        switched_off(torch.from_numpy(off).to(checkpoint.device), replacement),
    ):
        output = model(**inputs)
    pooled = getattr(output, "pooler_output", None)
    vectors: Array = output.last_hidden_state.float().cpu().numpy()
    return vectors, None if pooled is None else pooled[:, None].float().cpu().numpy()
