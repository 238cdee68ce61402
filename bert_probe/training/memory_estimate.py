"""Estimate the memory of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bert_probe.model.checkpoint import FILL_MASK
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.training.models import ALL, HEAD, LORA, TOP, count_trainable, lora_targets
from bert_probe.training.objectives import Objective, TrainingExample

_STATES, _INNER, _WEIGHTS = 14, 3, 3
"""Activations that a layer stores for its backward pass: multiples of the hidden size per token, of the inner
size per token, and of the number of attention weights.
"""
_ONCE_STATES, _ONCE_INNER = 10, 2
"""Activations of a layer without a backward pass, where one layer at a time is in memory. The values are
multiples of the hidden and of the inner size per token."""
_OTHER_LAYERS = 0.5
"""Size of the model's temporary activations, in multiples of the activations that one layer stores."""
_LORA_OUTPUTS = 3.5
"""Size of LoRA activations per token, in multiples of the output sizes of the adapted matrices."""
_CONSTANT = 40_000_000
"""Memory for the optimizer, batches and libraries, in bytes. With this constant, estimates for the built-in
model were 1.0 to 1.3 times the measured memory (texts of 10 and 128 tokens, batches of 16 and 32).
"""
_LOGITS = 4
"""Size of logits, exponentials and gradients per masked token, in multiples of the vocabulary size."""
_MASKED = 0.2
_COPIES = 4
"""Extra values stored per trainable parameter: gradient, two moments of AdamW, and the best checkpoint."""


def frozen_activations(config: Any, examples: Sequence[TrainingExample]) -> int:
    """Return the number of activations that an encoder without gradients stores for a batch of examples."""
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    batch_tokens = min(BATCH_TOKENS, sum(len(example) for example in examples))
    return int(batch_tokens * (_ONCE_STATES * hidden + _ONCE_INNER * inner))


def estimate_memory(
    full_model: Any, objective: Objective, update: str, batch: int, examples: Sequence[TrainingExample]
) -> int:
    """Estimate the peak memory of a training run in bytes, excluding the original checkpoint.

    The estimate includes weights, gradients, AdamW moments, the best checkpoint, and the activations of the
    largest batch.

    Args:
        full_model: the model, which may be on the meta device.
        examples: all examples, including held-out ones.
    """
    config, size = full_model.config, next(full_model.parameters()).element_size()
    parameters = sum(parameter.numel() for parameter in full_model.parameters())
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    longest = max(len(example) for example in examples)
    tokens = batch * longest * objective.texts_per_example
    if update == HEAD and objective.task != FILL_MASK:
        # Vectors for the task head (at most one per token), and activations of the encoder without gradients.
        stored = sum(len(example) for example in examples) if objective.of_tokens else len(examples)
        activations = stored * hidden + frozen_activations(config, examples)
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
