"""The pooling of queries and of documents, with the prompts that belong to them."""

from __future__ import annotations

from collections.abc import Iterable

from bert_probe.analyses.vectors.pooling import PoolingConfig, resolve_pooling
from bert_probe.model.checkpoint import Checkpoint

QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the prompts that sentence-transformers uses for documents, in order of precedence."""


def search_pooling(
    checkpoint: Checkpoint, prompt: str | None, defaults: Iterable[str], dimensions: int | None
) -> PoolingConfig:
    """Return the pooling of queries or documents: that of the checkpoint if it has one, otherwise the mean.

    Args:
        prompt: name of a prompt; None for the first of ``defaults`` that the checkpoint has, otherwise its
            default prompt.

    Raises:
        UnavailableError, CheckpointError, SelectionError: see `resolve_pooling`.
    """
    model = checkpoint.sentence_model
    if prompt is None and model is not None:
        names = dict(model.prompts)
        prompt = next((name for name in defaults if name in names), None)
    is_own = model is not None or checkpoint.sentence_model_error is not None
    return resolve_pooling(checkpoint, "model" if is_own else "mean", prompt, dimensions)
