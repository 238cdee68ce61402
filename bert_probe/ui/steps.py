"""The Steps page: the computation of one attention weight, from query and key to the head's output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.analyses.attention.steps import (
    AttentionSteps,
    AttentionStepsResult,
    default_query,
    head_outputs,
)
from bert_probe.core import files
from bert_probe.model.encoding import Token
from bert_probe.model.trace import CAUSAL, Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.blocks import numbers
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export
from bert_probe.views.matrix import Heatmap
from bert_probe.views.steps import step_heatmaps, step_titles
from bert_probe.views.text import place_name


def _choose_head(trace: Trace) -> tuple[int, int]:
    """Draw selectors for the layer and the head; return both numbers, counted from 1."""
    left, right = st.columns([1, 3], gap="medium")
    with left:
        layer = state.select_layer(
            "layer", 1, trace.layers, "Each layer reads the output of the previous layer."
        )
    with right:
        return layer, state.select_single_head("head", trace.heads)


def _choose_token(trace: Trace, key: str, label: str, default: int) -> int:
    """Draw a token strip and return the position of the selected token. The position is stored in the URL."""
    st.markdown(f"**{label}**")
    first = state.token_position(key, trace.tokens, default)
    clicked = blocks.token_strip(trace, f"steps_{key}_{len(trace.tokens)}", label, first)
    position = first if clicked is None else clicked
    state.remember(key, None if position == default else str(position))
    return position


def _name(token: Token) -> str:
    """Return a token's text and position as Markdown."""
    if token.residue is not None:
        return f"**{state.escape(place_name(token))}**"
    return f"**{state.escape(token.display)}** ({token.position})"


def _number(value: float) -> str:
    """Format a value with four decimals; negative infinity, the score of a masked key, becomes −∞."""
    return f"{value:.4f}".replace("inf", "∞").replace("-", "−")


def _step(title: str, sentences: Sequence[str], label: str, value: str, calculation: str) -> DeltaGenerator:
    """Draw the title, description and value of a step; return a container for its heatmap.

    Args:
        sentences: sentences of the description; empty sentences are skipped.
        label: label of the value.
        calculation: formula with numbers, displayed below the value.
    """
    st.header(title, anchor=False)
    words, picture = st.columns([2, 5], gap="large")
    with words:
        st.markdown(" ".join(sentence for sentence in sentences if sentence))
        with st.container(gap="xxsmall"):
            st.metric(label, value)
            st.caption(calculation)
    return picture


def _query_and_key(steps: AttentionStepsResult, key: int, heatmaps: dict[str, Heatmap]) -> None:
    """Draw steps 1 and 2: the query and key vectors, and their elementwise product."""
    query_name, key_name = _name(steps.tokens[steps.query]), _name(steps.tokens[key])
    titles = step_titles(steps)
    heads = ", ".join(str(head + 1) for head in steps.sharing)
    notes = [
        "This layer rotates q and k by an angle that depends on their tokens' positions (Su et al. "
        "2021). The vectors are shown after the rotation."
        if steps.rotary
        else "",
        f"Heads {heads} share these keys and values (grouped-query attention)."
        if len(steps.sharing) > 1
        else "",
    ]
    with _step(
        titles["qk"],
        [
            f"{query_name} has a query vector q, and {key_name} has a key vector k. Both are projections "
            "of the tokens' hidden states by learned matrices.",
            *notes,
        ],
        "Head dimension",
        str(len(steps.q)),
        "elements of each vector",
    ):
        heatmap(heatmaps["qk"], key="steps-qk")
    with _step(
        titles["products"],
        [
            "The dot product is the sum of the elementwise products of q and k. The dot product is "
            "large if both vectors point in the same direction."
        ],
        "q · k",
        _number(steps.dot_products[key]),
        "sum of all cells",
    ):
        heatmap(heatmaps["products"], key="steps-products")


def _scale_and_mask(steps: AttentionStepsResult, key: int, heatmaps: dict[str, Heatmap]) -> None:
    """Draw the scaling, the soft cap (if the model has one) and the mask of the scores of all keys."""
    titles = step_titles(steps)
    with _step(
        titles["scaled"],
        [
            "Each dot product is multiplied by the same factor, so that large vectors do not saturate the "
            "softmax. The heatmap shows the scaled products for all keys of the text."
        ],
        "q · k × scaling",
        _number(steps.scaled[key]),
        f"{_number(steps.dot_products[key])} × {_number(steps.scaling)}",
    ):
        heatmap(heatmaps["scaled"], key="steps-scaled")
    if steps.softcap is not None:
        limit = f"{steps.softcap:g}"
        with _step(
            titles["limited"],
            [
                f"This model limits every scaled product to ±{limit} (softcap; Gemma Team 2024). Small "
                "products hardly change, and large ones approach the limit."
            ],
            f"{limit} × tanh(q · k × scaling ÷ {limit})",
            _number(steps.limited[key]),
            f"{limit} × tanh({_number(steps.scaled[key])} ÷ {limit})",
        ):
            heatmap(heatmaps["limited"], key="steps-limited")
    with _step(
        titles["scores"],
        [_mask_note(steps)],
        "Score",
        _number(steps.scores[key]),
        f"{_number(steps.limited[key])} + {_number(steps.mask[key])}",
    ):
        heatmap(heatmaps["scores"], key="steps-scores")


def _mask_note(steps: AttentionStepsResult) -> str:
    """Return sentences about the mask and the bias that are added to the scores of the query."""
    is_causal = steps.trace.is_causal
    window = "that ends with" if is_causal else "around"
    sentences = [f"This layer attends only to a window {window} the query."] if steps.local else []
    sentences += [CAUSAL] if is_causal else []
    if steps.forbidden:
        sentences.append(
            f"{steps.forbidden} of {len(steps.tokens)} keys are masked: −∞ is added to their scores, so "
            "that their weights become exactly 0. Masked keys are hatched in the heatmap."
        )
    else:
        sentences.append(f"No key is masked, so this query may attend to all {len(steps.tokens)} keys.")
    sentences.append(steps.bias_note)
    return " ".join(sentences)


def _weight_and_value(steps: AttentionStepsResult, key: int, heatmaps: dict[str, Heatmap]) -> None:
    """Draw the steps that compute the attention weight (softmax) and the weighted value vector."""
    titles = step_titles(steps)
    key_name = _name(steps.tokens[key])
    with _step(
        titles["weights"],
        [
            "The exponential of each score is divided by the sum of the exponentials over all keys: scores "
            "become weights from 0 to 1 that sum to 1."
        ],
        "Attention weight",
        _number(steps.weights[key]),
        f"{_number(steps.exponentials[key])} ÷ {_number(steps.exponential_sum)}. The largest score is first "
        "subtracted from all scores, which does not change the weights.",
    ):
        heatmap(heatmaps["weights"], key="steps-weights")
    with _step(
        titles["value"],
        [
            f"{key_name} also has a value vector v, a third learned projection. The value vector is "
            "multiplied by the weight."
        ],
        "Norm of weight × v",
        _number(steps.weighted_lengths[key]),
        f"{_number(steps.weights[key])} × {_number(steps.value_lengths[key])}, the norm of v",
    ):
        heatmap(heatmaps["value"], key="steps-value")


def _sum_values(steps: AttentionStepsResult, heatmaps: dict[str, Heatmap]) -> None:
    """Draw the last step: the sum of the weighted values of all keys."""
    query_name = _name(steps.tokens[steps.query])
    with _step(
        step_titles(steps)["sum"],
        [
            f"The weighted values of all keys are summed, which gives the head's output for {query_name}. "
            "In the heatmap, keys are sorted by weight."
        ],
        "Norm of the output",
        _number(steps.output_length),
        f"sum of {len(steps.tokens)} weighted value vectors",
    ):
        heatmap(heatmaps["sum"], key="steps-sum")


def _check(steps: AttentionStepsResult, dtype: str, heatmaps: dict[str, Heatmap]) -> None:
    """Draw the output of the last step, the output of the model itself, and their largest difference."""
    with (
        st.container(border=True, key="check"),
        _step(
            "Check against the model",
            [
                "The upper row is the output of the model's own attention for this head and query. The "
                "lower row is the result of the last step."
            ],
            "Largest absolute difference",
            f"{steps.difference:.1e}",
            f"At this magnitude, adjacent {dtype} numbers differ by {steps.spacing:.1e}.",
        ),
    ):
        heatmap(heatmaps["check"], key="steps-check")


def _exports(steps: AttentionStepsResult, key: int) -> None:
    """Draw the Export menu, with the table of all keys and the vectors of the selected key."""
    question = steps.question
    stem = f"steps-layer{question.layer + 1}-head{question.head + 1}-query{steps.query}"
    vectors = steps.showing(key=key).table()
    export(
        steps,
        stem,
        [
            (
                f"Query, key and product vectors for key {key}, {form.upper()}",
                f"{stem}-key{key}.{form}",
                partial(files.to_bytes, vectors, form),
            )
            for form in files.FORMATS
        ],
    )


def render() -> None:
    """Draw the Steps page."""
    blocks.heading(
        "Steps",
        "See how a single attention weight is computed. Choose a head, a query and a key to follow "
        "every step, from the vectors of the tokens to the head's output.",
    )
    traced = workbench.trace_request()
    with st.container(horizontal=True, gap="medium"):
        trace = workbench.choose_trace(traced)
        st.space("stretch")
        menu = st.container(width="content")
    blocks.truncation_notice(trace)
    outputs = shared_cache.answers.of(head_outputs, trace)
    layer, head = _choose_head(trace)
    left, right = st.columns(2, gap="large")
    with left:
        query = _choose_token(trace, "query", "Query token", default_query(trace))
    steps = AttentionSteps(layer - 1, head - 1, query).of(trace, outputs)
    with right:
        key = _choose_token(trace, "key", "Key token", steps.strongest)
    with menu:
        _exports(steps, key)
    summary = (
        f"In layer {layer}, head {head}, {_name(trace.tokens[query])} attends to {_name(trace.tokens[key])} "
        f"with a weight of **{_number(steps.weights[key])}**"
    )
    if key == steps.strongest:
        st.markdown(f"{summary}, the largest weight of this query.")
    else:
        strongest, weight = _name(trace.tokens[steps.strongest]), _number(steps.weights[steps.strongest])
        st.markdown(f"{summary}. The largest weight of this query, {weight}, is on {strongest}.")
    with st.container(key="steps"):
        heatmaps = step_heatmaps(steps, key)
        _query_and_key(steps, key, heatmaps)
        _scale_and_mask(steps, key, heatmaps)
        _weight_and_value(steps, key, heatmaps)
        _sum_values(steps, heatmaps)
        _check(steps, traced.checkpoint.description.dtype, heatmaps)
    numbers(steps.frame(), "Numbers: all keys")
    numbers(steps.vectors(key), "Numbers: the vectors")
    blocks.caveat(
        "Each heatmap of vectors has its own color range, shown below it, which does not depend on the "
        "key. Individual dimensions of q, k and v rarely have a meaning. A weight shows from which "
        "token a head reads, not how much the model's output depends on that token: the outputs of all "
        "heads still pass through the layer's output projection."
    )
