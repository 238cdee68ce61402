"""Cross-encoders as scorers of a search. A cross-encoder encodes a query and a document together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bert_probe.analyses.vectors.sentences import BATCH_TOKENS, name_text_errors
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import as_array, batch, forward, group_by_length
from bert_probe.model.outputs import OutputHead
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sentence_modules import MODEL_FILE, read_prompts, read_settings, token_limit
from bert_probe.model.trace import Array

NOT_A_SUM = (
    "A cross-encoder reads query and document together, so its score is not a sum over their tokens. Compute "
    "attributions of the pair instead, on the page Answer or with bert-probe why."
)


def cross_encoder_head(checkpoint: Checkpoint) -> OutputHead:
    """Return the task head that scores a pair of texts.

    Raises:
        UnavailableError: the checkpoint has no head with one label, or a setting is not supported.
    """
    head = checkpoint.outputs.get(TEXT_CLASSIFICATION)
    name = checkpoint.description.name
    if head is None or len(head.labels) != 1:
        labels = "no text-classification head" if head is None else f"{len(head.labels)} labels"
        raise UnavailableError(
            f"{name} is not a cross-encoder: it has {labels}, but a cross-encoder has one label. Open a "
            "cross-encoder, or use other scorers."
        )
    if problem := _score_problem(checkpoint):
        raise UnavailableError(problem)
    folder = checkpoint.folder
    if folder is not None and (folder / MODEL_FILE).is_file():
        prompts, default = read_prompts(read_settings(folder / MODEL_FILE, dict))
        if default is not None and dict(prompts)[default]:
            raise UnavailableError(
                f"{name} puts the prompt {default[:100]!r} before each pair, which is not supported. Use "
                "other scorers."
            )
    return head


def _score_problem(checkpoint: Checkpoint) -> str:
    """Return why the activation function of the score is not supported; "" if it is supported."""
    notes = checkpoint.description.notes
    return next((note for note in notes if note.startswith("The score is not shown.")), "")


def pair_scores(
    checkpoint: Checkpoint,
    query: str,
    documents: Sequence[str],
    names: Sequence[str],
    progress: Progress = no_progress,
) -> tuple[Array, tuple[int, ...]]:
    """Return the score of the query with each document, as `CrossEncoder.predict` computes it.

    A pair that is too long is truncated. If the checkpoint does not specify an activation function, Sigmoid
    is used, the default of sentence-transformers for one label.

    Args:
        names: names of the documents in error messages.
        progress: called with the number of pairs done and the total.

    Returns:
        The scores of shape [document], and the number of tokens truncated from each pair.

    Raises:
        UnavailableError: the model is not a cross-encoder, or a score is not a finite number.
        TextError, EmptyTextError: a text cannot be encoded.
        OutOfMemoryError: a batch needs more memory than is available.
    """
    head = cross_encoder_head(checkpoint)
    limit = token_limit(None, checkpoint.tokenizer.model_max_length, checkpoint.description.max_tokens)
    inputs: list[ModelInputs] = []
    for document, name in zip(documents, names, strict=True):
        with name_text_errors(name):
            inputs.append(checkpoint.encoder.inputs(query, limit, True, str(document)))
    activation = head.activation or torch.nn.Sigmoid()
    values = np.empty(len(inputs), np.float64)
    done = 0
    progress(0, len(inputs))
    for group in group_by_length([len(pair) for pair in inputs], BATCH_TOKENS, checkpoint.pads):
        pairs = [inputs[index] for index in group]
        output, _ = forward(checkpoint, pairs)
        with torch.inference_mode(), checkpoint.running():
            pooled = getattr(output, "pooler_output", None)
            logits = head.answer(batch(checkpoint, pairs), output.last_hidden_state, pooled)
            values[group] = as_array(activation(logits))[:, 0]
        done += len(group)
        progress(done, len(inputs))
    if not np.isfinite(values).all():
        raise UnavailableError("The cross-encoder returns scores that are not finite numbers. Use float32.")
    dtype = np.float64 if checkpoint.description.dtype == "float64" else np.float32
    return values.astype(dtype), tuple(pair.dropped for pair in inputs)
