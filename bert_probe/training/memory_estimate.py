"""Estimate of the memory that a training needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bert_probe.model.checkpoint import FILL_MASK
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.training.objectives import Objective, TrainingExample
from bert_probe.training.trainable_parameters import ALL, HEAD, LORA, TOP, count_trainable, lora_targets

_STATES, _INNER, _WEIGHTS = 14, 3, 3
"""Activations stored for the backward pass of a layer, in multiples of: the hidden size per token, the
inner size per token, and one number per pair of tokens and head.
"""
_ONCE_STATES, _ONCE_INNER = 10, 2
"""The same per token without a backward pass, when one layer at a time is in memory."""
_OTHER_LAYERS = 0.5
"""In layers: temporary activations of the layer being computed, and of the rest of the model."""
_LORA_OUTPUTS = 3.5
"""LoRA activations per token, in multiples of the output sizes of the adapted matrices."""
_CONSTANT = 40_000_000
"""Bytes for the optimizer, batches and libraries. With this constant, estimates were 1.0 to 1.3 times
the measured memory for the built-in model, with texts of 10 and 128 tokens and batches of 16 and 32.
"""
_LOGITS = 4
"""Logits, exponentials and gradients per masked token, in multiples of the vocabulary size."""
_MASKED = 0.2
_COPIES = 4
"""Copies of each updated number: gradient, two moments of AdamW, and the best checkpoint."""


def estimate_memory(
    full_model: Any, objective: Objective, update: str, batch: int, examples: Sequence[TrainingExample]
) -> int:
    """Estimate the peak memory of a training in bytes, in addition to the checkpoint that it starts from.

    It comprises weights, gradients, AdamW moments, the best checkpoint, and activations of the largest batch.

    Args:
        full_model: the model; may be on the meta device.
        examples: all examples, including held-out ones.
    """
    config, size = full_model.config, next(full_model.parameters()).element_size()
    parameters = sum(parameter.numel() for parameter in full_model.parameters())
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    longest = max(len(example) for example in examples)
    tokens = batch * longest
    if update == HEAD and objective.task != FILL_MASK:
        # Vectors for the head, in the worst case of every token, while the encoder runs without gradients.
        stored = sum(len(example) for example in examples) if objective.of_tokens else len(examples)
        batch_tokens = min(BATCH_TOKENS, sum(len(example) for example in examples))
        activations = stored * hidden + batch_tokens * (_ONCE_STATES * hidden + _ONCE_INNER * inner)
    else:
        depth = int(update.partition(":")[2]) if update.startswith(TOP) else 1 if update == HEAD else layers
        per_layer = tokens * (_STATES * hidden + _INNER * inner + _WEIGHTS * heads * longest)
        activations = int((depth + _OTHER_LAYERS) * per_layer)
        if update == LORA:
            output_size = sum(parameter.out_features for parameter in lora_targets(full_model).values())
            activations += int(_LORA_OUTPUTS * tokens * output_size)
    if objective.task == FILL_MASK:
        activations += int(_MASKED * tokens) * config.vocab_size * _LOGITS
        # The tied embeddings have gradients both as input and as output embeddings.
        activations += config.vocab_size * hidden if update == ALL else 0
    estimate: int = _CONSTANT + size * (
        parameters + _COPIES * count_trainable(full_model, update) + activations
    )
    return estimate
