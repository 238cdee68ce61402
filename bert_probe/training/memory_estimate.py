"""How much memory a training takes, reckoned before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bert_probe.model.checkpoint import FILLING
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.training.objectives import Objective, TrainingExample
from bert_probe.training.trainable_parameters import ALL, HEAD, LORA, TOP, beside, trainable

_STATES, _INNER, _WEIGHTS = 14, 3, 3
"""Numbers kept for the gradient, in a layer: of a token as many times the hidden size and as many times the
inner one, and of each pair of tokens in a head."""
_ONCE_STATES, _ONCE_INNER = 10, 2
"""The same of a token where nothing is kept, and one layer is there at a time."""
_OTHER_LAYERS = 0.5
"""Beside those that are kept: what a layer needs while it is computed, and what the rest keeps."""
_BESIDE = 3.5
"""With lora, as many times what the matrices of a layer give for a token."""
_REST = 40_000_000
"""Bytes of optimizer, batches and whatever else is loaded. With this the estimate is 1.0 to 1.3 times what
trainings of the built-in model took, on texts of 10 and of 128 tokens, in batches of 16 and 32."""
_WORDS = 4
"""Of a masked token, as many times the vocabulary: scores, their exponentials, gradients."""
_MASKED = 0.2
_COPIES = 4
"""Of a number that is updated: its gradient, two means of AdamW, and the best so far."""


def need(whole: Any, lesson: Objective, update: str, batch: int, examples: Sequence[TrainingExample]) -> int:
    """Bytes that a training takes at its peak beside the checkpoint that it begins with; an estimate.

    Weights, gradients, what AdamW keeps, the best so far, and the activations of the largest batch.

    Args:
        whole: the model, which may be without memory.
        examples: all texts, those held out too.
    """
    config, size = whole.config, next(whole.parameters()).element_size()
    parameters = sum(part.numel() for part in whole.parameters())
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    longest = max(len(example) for example in examples)
    tokens = batch * longest
    if update == HEAD and lesson.task != FILLING:
        # Vectors that are kept, at worst of every token, while the encoder runs without gradients.
        kept = sum(len(example) for example in examples) if lesson.of_tokens else len(examples)
        at_once = min(BATCH_TOKENS, sum(len(example) for example in examples))
        activations = kept * hidden + at_once * (_ONCE_STATES * hidden + _ONCE_INNER * inner)
    else:
        deep = int(update.partition(":")[2]) if update.startswith(TOP) else 1 if update == HEAD else layers
        of_layer = tokens * (_STATES * hidden + _INNER * inner + _WEIGHTS * heads * longest)
        activations = int((deep + _OTHER_LAYERS) * of_layer)
        if update == LORA:
            gives = sum(part.out_features for part in beside(whole).values())
            activations += int(_BESIDE * tokens * gives)
    if lesson.task == FILLING:
        activations += int(_MASKED * tokens) * config.vocab_size * _WORDS
        # The embeddings have gradients as words that are read and as words that are guessed.
        activations += config.vocab_size * hidden if update == ALL else 0
    estimate: int = _REST + size * (parameters + _COPIES * trainable(whole, update) + activations)
    return estimate
