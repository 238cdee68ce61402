"""The pooling of queries and of documents, with their prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bert_probe.analyses.vectors.pooling import (
    DIMENSIONS_HELP,
    DOCUMENT_PROMPTS,
    NO_PROMPT,
    PoolingConfig,
    resolve_pooling,
)
from bert_probe.core.field_types import Name, Number, Optional
from bert_probe.core.question import Question, param
from bert_probe.model.checkpoint import Checkpoint

QUERY_PROMPTS = ("query",)


@dataclass(frozen=True, repr=False, kw_only=True)
class PromptedSearch(Question):
    """Base class of questions that compare the vectors of a query and of documents.

    Attributes:
        prompt: name of the query's prompt, or "none". By default, the prompt named "query" if there is one.
            It also selects the task "query" of a Router.
        document_prompt: name of the documents' prompt, or "none". By default, the prompt named "document",
            "passage" or "corpus" if there is one. It also selects the task "document" of a Router.
        dimensions: number of dimensions to which the vectors are truncated.
    """

    # Type checkers read kw_only from the decorator, and the dataclass from each field.
    prompt: str | None = param(
        Optional(Name()),
        default=None,
        about="Prompt of the checkpoint before the query; none for no prompt.",
        kw_only=True,
    )
    document_prompt: str | None = param(
        Optional(Name()),
        default=None,
        about="Prompt of the checkpoint before each document.",
        kw_only=True,
    )
    dimensions: int | None = param(Optional(Number(1)), default=None, about=DIMENSIONS_HELP, kw_only=True)

    def query_pooling(self, checkpoint: Checkpoint) -> PoolingConfig:
        """Return the pooling of the query; see `search_pooling`."""
        return search_pooling(checkpoint, self.prompt, QUERY_PROMPTS, self.dimensions)

    def document_pooling(self, checkpoint: Checkpoint) -> PoolingConfig:
        """Return the pooling of the documents; see `search_pooling`."""
        return search_pooling(checkpoint, self.document_prompt, DOCUMENT_PROMPTS, self.dimensions)


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
