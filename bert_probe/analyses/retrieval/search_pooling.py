"""The pooling of queries and of documents, with the prompts that belong to them."""

from __future__ import annotations

from collections.abc import Iterable

from bert_probe.analyses.vectors.pooling import (
    NO_PROMPT,
    PoolingConfig,
    resolve_pooling,
)
from bert_probe.model.checkpoint import Checkpoint

QUERY_PROMPTS = ("query",)


def search_pooling(
    checkpoint: Checkpoint, prompt: str | None, defaults: Iterable[str], dimensions: int | None
) -> PoolingConfig:
    """Return the pooling of queries or documents: that of the checkpoint if it has one, otherwise the mean.

    Args:
        prompt: name of a prompt; None for the first of ``defaults`` that the checkpoint has as a prompt,
            otherwise as a task, otherwise for no prompt. Like `encode_query` and `encode_document`, it never
            uses the checkpoint's default prompt.

    Raises:
        UnavailableError, CheckpointError, SelectionError: see `resolve_pooling`.
    """
    model = checkpoint.sentence_model
    if prompt is None and model is not None:
        names = [name for own in (dict(model.prompts), model.tasks) for name in defaults if name in own]
        prompt = names[0] if names else NO_PROMPT
    is_own = model is not None or checkpoint.sentence_model_error is not None
    return resolve_pooling(checkpoint, "model" if is_own else "mean", prompt, dimensions)
