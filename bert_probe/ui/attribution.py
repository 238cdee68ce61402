"""The Attribution section of the Answer page: which words and heads an answer depends on."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from bert_probe.analyses.attribution.attribution import (
    AttributionResult,
    SimilarityAttribution,
    SimilarityAttributionResult,
)
from bert_probe.analyses.attribution.faithfulness import (
    INTERVAL,
    AttributionFaithfulness,
    AttributionFaithfulnessResult,
)
from bert_probe.analyses.attribution.head_attribution import HeadAttribution, HeadAttributionResult
from bert_probe.analyses.attribution.methods import methods
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.analyses.vectors.pooling import SCORES
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import (
    QUESTION_ANSWERING,
    SENTENCE_SIMILARITY,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
)
from bert_probe.model.trace import Trace
from bert_probe.ui import blocks, figures, jobs, state
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export
from bert_probe.views.contributions import similarity_attribution_heatmap
from bert_probe.views.heatmaps import (
    attribution_heatmap,
    head_attribution_heatmaps,
)
from bert_probe.views.text import shorten

MAX_TOKENS_AT_ONCE = 40
"""Maximum number of tokens for which attribution starts without a click. It then takes about two seconds."""
_PARTS = {"words": "Words", "heads": "Heads"}
_REMOVALS = {"": "Default", "removed": "Deleted", "masked": "Masked"}
_CAVEAT = (
    "Each row is scaled to the same total, so that methods can be compared. One color marks words that "
    "support the answer; the other color marks words that oppose it. Methods disagree, and none is the "
    "ground truth. Faithfulness is measured on this text only, and texts from which words were removed "
    "differ from the model's training data."
)


def part(
    traces: Sequence[Trace],
    task: str,
    at: int | None = None,
    similarity: SentenceSimilarity | None = None,
) -> None:
    """Draw the attribution section of the Answer page.

    Args:
        traces: trace of the text, or traces of two separate texts.
        task: the task whose prediction is explained.
        at: position of the token whose prediction is explained, if any. For token classification, a selector
            is drawn instead.
        similarity: the question whose score is explained, for two separate texts.
    """
    pair_options = {} if similarity is None else _pair_options(similarity)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.header("Attribution: what does the prediction depend on?", anchor=False)
        st.space("stretch")
        corner = st.container(width="content")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        inputs = state.segmented_control("attribution", "Attribute to", _PARTS, "words")
        target = _choose_target(traces[0], task)
        at = _choose_token(traces[0]) if task == TOKEN_CLASSIFICATION else at
        if inputs == "words":
            words = state.toggle(
                "attribution_words", "Whole words", True, "Score whole words instead of subword tokens."
            )
            removal = state.segmented_control(
                "removal",
                "Word removal",
                _REMOVALS,
                "",
                "Deleted: the word is removed from the text. Masked: the word is replaced by the mask "
                "token. By default, words are masked if the prediction concerns a single token, and "
                "deleted otherwise.",
            )
    result: Result | None
    if inputs == "heads":
        result = _heads(traces, HeadAttribution(task, target, at, **pair_options))
    else:
        question = AttributionFaithfulness(
            task=task, target=target, at=at, words=words, removal=removal or None, **pair_options
        )
        result = _tokens(traces, question)
    if result is not None:
        with corner:
            exported = (
                result.showing(rows="words") if isinstance(result, AttributionFaithfulnessResult) else result
            )
            export(exported, f"attribution-{inputs}-{task}", label="Export attribution")
    if task == SENTENCE_SIMILARITY:
        show_input_pairs(traces, SimilarityAttribution(**pair_options))


def _pair_options(similarity: SentenceSimilarity) -> dict[str, Any]:
    """Return the prompts and the number of dimensions of a similarity question, as keyword arguments."""
    names = ("prompt", "pair_prompt", "dimensions")
    return {name: getattr(similarity, name) for name in names}


def _choose_target(trace: Trace, task: str) -> str | None:
    """Draw a selector for the class or answer to explain; return None for the most probable one."""
    if task == TEXT_CLASSIFICATION:
        labels = trace.checkpoint.outputs[task].labels
        options = {"": "Most probable class"} | {label: shorten(label) for label in labels}
    elif task == QUESTION_ANSWERING:
        options = {"": "Most probable answer"} | {str(rank): f"Answer {rank}" for rank in range(2, 6)}
    else:
        return None
    with st.container(width=260):
        return state.selectbox("attribution_target", "Target", options, "") or None


def _choose_token(trace: Trace) -> int | None:
    """Draw a selector for the token whose label is explained; return None for the default."""
    options = {"": "First token with a label other than O"}
    options |= {str(token.position): f"{token.position} {shorten(token.display)}" for token in trace.tokens}
    with st.container(width=260):
        position = state.selectbox("attribution_at", "Token", options, "")
    return int(position) if position else None


def _answer(
    key: str,
    question: Any,
    traces: Sequence[Trace],
    label: str,
    activity: str,
    unit: str,
    note: str,
    start: bool,
) -> Any:
    """Run a question as a job and return its result, or None if it is unfinished or an error was drawn."""
    try:
        return jobs.answer(
            key, question.of, *traces, label=label, unit=unit, note=note, activity=activity, start=start
        )
    except ProbeError as error:
        st.info(state.escape(str(error), 400))
        return None


def _tokens(
    traces: Sequence[Trace], question: AttributionFaithfulness
) -> AttributionFaithfulnessResult | None:
    result: AttributionFaithfulnessResult | None = _answer(
        "attribution faithfulness",
        question,
        traces,
        "Run all attribution methods",
        "Computing attributions",
        "",
        "This analysis runs a few hundred forward passes in batches. You can cancel at any time.",
        start=len(traces[0].tokens) <= MAX_TOKENS_AT_ONCE,
    )
    if result is None:
        return None
    explanation = next(iter(result.explanations.values()))
    st.markdown(f"The **{state.escape(explanation.number)}** is {explanation.value:.4f}. {_summary(result)}")
    heatmap(attribution_heatmap([*result.explanations.values()]), key="faithfulness_picture")
    blocks.caveat(_CAVEAT)
    _faithfulness(result)
    _single_method(result)
    return result


def _summary(result: AttributionFaithfulnessResult) -> str:
    """Return a sentence about the most faithful method and the word to which it gives the largest score."""
    best = result.explanations[result.best]
    drop, random_drops = result.effects[result.best][0], result.random[:, 0]
    low, high = np.percentile(random_drops, INTERVAL)
    index = int(np.nanargmax(np.where([unit.special for unit in best.units], np.nan, best.scores)))
    word, label = state.escape(shorten(best.units[index].display)), methods()[result.best].label
    # isclose: with few words, random orders often give the drop of the best order, up to rounding.
    is_better = drop > high and not np.isclose(drop, high)
    comparison = f"{'' if is_better else 'not '}more than removing words in random order"
    doubt = "" if is_better else ". On this text, no compared method is better than a random order"
    effect = f"{drop:.3f} on average, {comparison} ({low:.3f} to {high:.3f})".replace("-", "−")
    left_out = ""
    if result.best != "leave-one-out":
        left_out = " Leave one out is not compared, because its scores are effects of removing words, too."
    return (
        f"“{word}” has the largest score by {label}, the most faithful method on this text: removing the "
        f"words with the highest scores lowers the output by {effect}{doubt}.{left_out}"
    )


def _faithfulness(result: AttributionFaithfulnessResult) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.subheader("Faithfulness of the methods", anchor=False)
        st.space("stretch")
        export(result, f"faithfulness-{result.question.task}", label="Export faithfulness")
    st.markdown(
        ":gray[Comprehensiveness: how much the output drops on average when the 10%, 20% and 50% of "
        "words with the highest scores are removed; larger is better. Sufficiency: how much the output "
        "drops when only these words are kept; smaller is better (DeYoung et al. 2020).]"
    )
    table = result.table().iloc[:, :4]
    names = [*(methods()[name].label for name in result.explanations), "Random orders"]
    blocks.table(
        pd.DataFrame(
            {
                "Method": names,
                "Comprehensiveness": table["comprehensiveness"],
                "Sufficiency": table["sufficiency"],
                "Correlation with leave-one-out": table["loo_correlation"],
            }
        ),
        "Faithfulness of each attribution method",
        column_config={
            "Comprehensiveness": st.column_config.NumberColumn(
                format="%.4f",
                help="How much the output drops when the top words are removed; larger is better.",
            ),
            "Sufficiency": st.column_config.NumberColumn(
                format="%.4f",
                help="How much the output drops when only the top words are kept; smaller is better.",
            ),
            "Correlation with leave-one-out": st.column_config.NumberColumn(
                format="%.2f",
                help="Spearman's rank correlation of the scores with the effect of removing each word alone. "
                "The leave-one-out scores are equal to these effects, so their correlation is 1.",
            ),
        },
    )
    if "attention" in result.explanations:
        drops = {
            f"the top words by {methods()[name].label}": result.effects[name][0]
            for name in ("attention", result.best)
        }
        drops["random words"] = result.random[:, 0].mean()
        sentences = [
            f"Removing {words} lowers the output by {drop:.4f}.".replace(" -", " −")
            for words, drop in drops.items()
        ]
        st.markdown(f"**Attention as an explanation:** {' '.join(sentences)}")
    for name, reason in result.refused.items():
        st.caption(f"{methods()[name].label} is unavailable: {state.escape(reason, 300)}")


def _single_method(result: AttributionFaithfulnessResult) -> None:
    """Draw the scores of one method on their own scale."""
    st.subheader("Scores of one method", anchor=False)
    options = {name: methods()[name].label for name in result.explanations}
    name = state.segmented_control("attribution_method", "Method", options, result.best)
    explanation = result.explanations[name]
    st.caption(methods()[name].meaning)
    units = [unit for unit in explanation.units if not unit.special]
    scores = np.array(
        [score for unit, score in zip(explanation.units, explanation.scores, strict=True) if not unit.special]
    )
    figure = figures.signed_bars([shorten(unit.display) for unit in units], scores, "score")
    blocks.chart(figure, f"Scores by {options[name]}")
    st.caption(_details(explanation))


def _details(explanation: AttributionResult) -> str:
    """Describe the special tokens, the baseline and the completeness error of a method."""
    details = explanation.said
    units = zip(explanation.units, explanation.scores, strict=True)
    specials = np.nansum([score for unit, score in units if unit.special])
    parts = [f"Sum of the scores of special tokens: {specials:.4f}."] if specials else []
    if "steps" in details:
        share = "" if details["gap_share"] is None else f", {details['gap_share']:.2%} of the output change"
        parts.append(
            f"The baseline replaces every word with {details['baseline']}, which gives an output of "
            f"{details['baseline_value']:.4f}. The completeness error after {details['steps']} integration "
            f"steps is {details['gap']:.1e}{share}."
        )
    if "biases" in details:
        parts.append(
            f"The model's biases contribute {details['biases']:.4f}. Scores and biases sum to the "
            f"explained output (difference: {details['off']:.1e})."
        )
    return " ".join(parts)


def _heads(traces: Sequence[Trace], question: HeadAttribution) -> HeadAttributionResult | None:
    result: HeadAttributionResult | None = _answer(
        "head attribution",
        question,
        traces,
        "Ablate each head",
        "Ablating",
        "heads and layers",
        "This analysis runs one forward pass for each head and each layer, in batches. You can cancel "
        "at any time.",
        start=len(traces[0].tokens) <= MAX_TOKENS_AT_ONCE,
    )
    if result is None:
        return None
    layer, head = np.unravel_index(int(np.abs(result.changes).argmax()), result.changes.shape)
    st.markdown(
        f"Without **layer {layer + 1}, head {head + 1}**, the {state.escape(result.number)} changes from "
        f"{result.value:.4f} to {result.value + result.changes[layer, head]:.4f}, a larger change than "
        "for any other head."
    )
    changes, importance = head_attribution_heatmaps(result)
    heatmap(changes, key="head_attribution_picture")
    layers = ", ".join(f"{layer + 1}: {change:+.3f}" for layer, change in enumerate(result.layers))
    st.caption(
        f"Change of the {state.escape(result.number)} when all heads of a layer are ablated, by layer: "
        f"{layers}."
    )
    heatmap(importance, key="head_importance_picture")
    export(
        result.showing(show="importance"),
        f"head-importance-{result.question.task}",
        label="Export importance",
    )
    correlation = "undefined" if isnan(result.agreement) else f"{result.agreement:.2f}"
    blocks.caveat(
        "The first heatmap shows the effect of ablating each head. The second heatmap estimates "
        "this effect from one backward pass (Michel et al. 2019). Spearman's rank correlation of "
        f"this estimate with the absolute effect is {correlation}. Heads compensate for each other, so the "
        "effect of one head may become visible only when another head is also ablated."
    )
    return result


def show_input_pairs(traces: Sequence[Trace], question: SimilarityAttribution) -> None:
    """Draw how much each pair of input words contributes to the similarity of two texts."""
    st.subheader("Similarity attributed to pairs of input words", anchor=False)
    result: SimilarityAttributionResult | None = _answer(
        "similarity attribution",
        question,
        traces,
        "Attribute to input words",
        "Attributing the similarity",
        "tokens × steps",
        "The heatmap above compares last-layer vectors, each of which depends on the whole text. This "
        "analysis attributes the similarity to the input embeddings (integrated Jacobians, Moeller et "
        "al. 2023). The analysis takes a few seconds for short sentences. You can cancel at any time.",
        start=False,
    )
    if result is None:
        return
    heatmap(similarity_attribution_heatmap(result), key="similarity_attribution_picture")
    st.markdown(
        f"**Check:** the cells sum to {result.contributions.sum():.4f}. The reference texts, which consist "
        f"of {result.baseline} only, contribute {result.reference:.4f}, which is not attributed to any pair "
        "of words. The sum of the cells and the contribution of the reference texts differs from the "
        f"{SCORES[result.similarity]} {result.score:.4f} by {result.off:.1e}."
    )
    export(result, "similarity-attribution", label="Export pairs")
