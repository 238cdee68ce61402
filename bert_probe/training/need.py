"""How much memory a training takes, reckoned before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bert_probe.model.checkpoint import FILLING
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.training.lessons import Example, Lesson
from bert_probe.training.updates import HEAD, TOP, trainable

_STATES, _INNER, _WEIGHTS = 14, 3, 3
"""Numbers kept for the gradient, in a layer: of a token as many times the hidden size and as many times the
inner one, and of each pair of tokens in a head."""
_WORDS = 4
"""Of a masked token, as many times the vocabulary: scores, their exponentials, gradients."""
_MASKED = 0.2
_COPIES = 4
"""Of a number that is updated: its gradient, two means of AdamW, and the best so far."""


def need(whole: Any, lesson: Lesson, update: str, batch: int, examples: Sequence[Example]) -> int:
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
    longest = max(len(one) for one in examples)
    tokens = batch * longest
    if update == HEAD and lesson.task != FILLING:
        # Vectors that are kept, at worst of every token, while the encoder runs without gradients.
        kept = sum(len(one) for one in examples) if lesson.of_tokens else len(examples)
        at_once = min(BATCH_TOKENS, sum(len(one) for one in examples))
        activations = kept * hidden + at_once * (_STATES * hidden + _INNER * inner)
    else:
        deep = int(update.partition(":")[2]) if update.startswith(TOP) else 1 if update == HEAD else layers
        of_layer = tokens * (_STATES * hidden + _INNER * inner + _WEIGHTS * heads * longest)
        activations = (deep + 1) * of_layer
    if lesson.task == FILLING:
        activations += int(_MASKED * tokens) * config.vocab_size * _WORDS
    estimate: int = size * (parameters + _COPIES * trainable(whole, update) + activations)
    return estimate
