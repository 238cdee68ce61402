"""Attention weights, as the softmax gives them."""

from __future__ import annotations

from bert_probe.analyses.attention.measures import AttentionMeasure

MEASURE = AttentionMeasure(
    name="weights",
    label="Weights",
    title="Attention",
    value="attention weight",
    total="attention",
    meaning="How a token divides its attention over all tokens: where a head reads from, but neither "
    "what it reads there nor whether the output depends on it.",
    order=1,
    of_layer=lambda trace, layer, _residual, _report: trace.mean_attention(layer),
    of_heads=lambda trace, layer, heads: trace.attention_of(layer, heads),
)
