"""Attention weights: the output of the softmax."""

from __future__ import annotations

from bert_probe.analyses.attention.measures import AttentionMeasure

MEASURE = AttentionMeasure(
    name="weights",
    label="Weights",
    title="Attention",
    value="attention weight",
    total="attention",
    meaning="How a token distributes its attention over all tokens. The weights show where a head reads "
    "from, but not what the head reads there or whether the output depends on it.",
    order=1,
    of_layer=lambda trace, layer, _residual, _report: trace.mean_attention(layer),
    of_heads=lambda trace, layer, heads: trace.attention_of(layer, heads),
)
