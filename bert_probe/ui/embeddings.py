"""The Embeddings page: the input embedding of a token, the token vectors of each layer, and the pooler."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from bert_probe.analyses.vectors.embedding import Embedding, HiddenStates, Pooler
from bert_probe.core.result import Result
from bert_probe.errors import UnavailableError
from bert_probe.model.trace import Array, Trace
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.blocks import numbers
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export
from bert_probe.views import steps
from bert_probe.views.palette import Scale

_PARTS = {"input": "Input embedding", "vectors": "Token vectors", "pooler": "[CLS] and pooler"}

Export = tuple[Result, str]
"""The result of a section, and the name of the files to which it is exported."""


def render() -> None:
    """Draw the Embeddings page."""
    blocks.heading(
        "Embeddings",
        "A model represents each token as a vector, a list of numbers. See how the input vector is "
        "computed as the sum of a word, a position and a segment embedding, and how each layer changes "
        "the vector.",
    )
    traced = workbench.trace_request()
    with st.container(horizontal=True, gap="medium"):
        part = state.segmented_control("part", "Section", _PARTS, "input")
        trace = workbench.choose_trace(traced)
        st.space("stretch")
        menu = st.container(width="content")
    blocks.truncation_notice(trace)
    draw = {"input": _input_embedding, "vectors": _token_vectors, "pooler": _pooler}[part]
    result, name = draw(trace)
    with menu:
        export(result, name)


def _check(difference: float, comparison: str) -> None:
    """Draw the largest difference between a recomputed vector and the model's own output."""
    verdict = "exactly equal" if difference == 0 else f"largest difference {difference:.1e}"
    st.markdown(f"**Check:** {comparison}: {verdict}.")


def _input_embedding(trace: Trace) -> Export:
    """Draw a token's word, position and segment embeddings, their sum, and the normalized sum (LayerNorm)."""
    embedding = Embedding().of(trace)
    st.markdown("Choose a token")
    default = embedding.chosen
    first = state.token_position("embedding_token", trace.tokens, default)
    clicked = blocks.token_strip(trace, f"anatomy_{len(trace.tokens)}", "Tokens to choose from", first)
    position = first if clicked is None else clicked
    state.remember("embedding_token", None if position == default else str(position))
    indices = {name: rows[position] for name, rows in embedding.indices.items()}
    names = {
        "word": f"word · id {indices['word']}",
        "position": f"+ position · row {indices.get('position')}",
        "segment": f"+ segment · row {indices.get('segment')}",
        "sum": "= sum",
    }
    _strips(
        [rows[position] for rows in embedding.summed.values()],
        [names[name] for name in embedding.summed],
        Scale.around_zero(*embedding.summed.values()),
        "embedding-sum",
        f"Sum of the embeddings of token {position}",
    )
    if embedding.normalised is not None:
        _strips(
            [embedding.normalised[position]],
            ["LayerNorm of the sum"],
            Scale.around_zero(embedding.normalised),
            "embedding-norm",
            f"Input vector of token {position} after LayerNorm",
        )
    _check(
        embedding.difference,
        f"the recomputed embeddings of all {len(trace.tokens)} tokens were compared with the output of "
        "the model's embedding module",
    )
    for sentence in embedding.absent:
        st.caption(state.escape(sentence))
    result = embedding.showing(token=position)
    numbers(result.frame())
    blocks.caveat(
        "Each row is one vector, and each cell is one dimension. In BERT, all three embedding tables "
        "are learned. LayerNorm shifts and rescales each vector, so the vector after LayerNorm has its "
        "own color range."
    )
    return result, f"embedding-token{position}"


def _token_vectors(trace: Trace) -> Export:
    """Draw the vectors of all tokens after the selected layer."""
    with st.container(width=320):
        layer = state.select_layer(
            "vector_layer", 0, trace.layers, "Layer 0 is the output of the embeddings."
        )
    result = HiddenStates(layer).of(trace)
    _strips(
        result.values,
        blocks.unique_names(trace.tokens),
        Scale.around_zero(*trace.states),
        "token-vectors",
        f"Token vectors after layer {layer}" if layer else "Token vectors at the output of the embeddings",
        "token",
    )
    numbers(result.frame())
    blocks.caveat(
        "The heatmap has one row per token and one column per dimension. The color range is the same "
        "for all layers of this text. Individual dimensions rarely have a meaning. A vertical line shows "
        "a dimension whose value is large for every token."
    )
    return result, f"embeddings-layer{layer}"


def _pooler(trace: Trace) -> Export:
    """Draw the [CLS] vector and the recomputed pooler output."""
    if trace.cls is None:
        raise UnavailableError("This model has no [CLS] token that attends to the whole text.")
    result: Result
    try:
        pooler = Pooler().of(trace)
    except UnavailableError as error:
        st.text(str(error))
        states = HiddenStates(which="cls").of(trace)
        _strips(states.values, states.names, Scale.around_zero(states.values), "cls", "The [CLS] vector")
        result = states
    else:
        _strips(
            [pooler.cls, pooler.linear],
            [f"{trace.tokens[0]}, last layer", "W · CLS + b"],
            Scale.around_zero(pooler.cls, pooler.linear),
            "cls-linear",
            "The [CLS] vector and the pooler's linear layer",
        )
        _strips(
            [pooler.replay, pooler.model_output],
            ["tanh(W · CLS + b)", "the model's pooler"],
            Scale.around_zero(pooler.model_output),
            "pooler",
            "The pooler's output: recomputed on this page, and as returned by the model",
        )
        _check(pooler.difference, "tanh(W · CLS + b) was compared with the model's pooler output")
        result = pooler
    numbers(result.frame())
    blocks.caveat(
        "The pooler was trained for BERT's next-sentence prediction (Devlin et al. 2019). Neither the "
        "pooler's output nor the vector of [CLS] is a good sentence embedding unless the model was "
        "trained for this purpose (Reimers and Gurevych 2019)."
    )
    return result, "cls-pooler"


def _strips(
    values: Array | Sequence[Array],
    rows: Sequence[str],
    scale: Scale,
    key: str,
    caption: str,
    row_axis: str = "step",
) -> None:
    """Draw vectors as rows of colored cells, one cell per dimension.

    Args:
        values: the vectors, one per row.
        key: key of the component, and name of its image file.
    """
    heatmap(steps.strips(values, rows, scale, key, caption, row_axis), key=key)
