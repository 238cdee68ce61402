"""The part of Answer that shows what one number of the answer depends on, and whether that is so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from bert_probe.analyses.attribution.attribution import AttributionResult
from bert_probe.analyses.attribution.faithfulness import (
    INTERVAL,
    AttributionFaithfulness,
    AttributionFaithfulnessResult,
)
from bert_probe.analyses.attribution.head_attribution import HeadAttribution, HeadAttributionResult
from bert_probe.analyses.attribution.methods import methods
from bert_probe.analyses.attribution.similarity_attribution import (
    SimilarityAttribution,
    SimilarityAttributionResult,
)
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import ANSWERING, CLASSIFYING, COMPARING, LABELLING
from bert_probe.model.trace import Trace
from bert_probe.ui import blocks, figures, jobs, state
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.views.answers import of_checked, of_head_effects, of_input_contributions
from bert_probe.views.text import shown

AT_ONCE = 40
"""Tokens up to which nobody has to ask for it; it takes some two seconds."""
_PARTS = {"words": "Words", "heads": "Heads"}
_REMOVALS = {"": "As usual", "removed": "Left out", "masked": "Masked"}
_CAVEAT = (
    "Each row has the same total size, so that methods can be compared; one colour speaks for the answer, "
    "the other against it. A method is a way to ask, and none is the truth: what holds is what taking words "
    "away does, on this text alone; and a text that lacks some of its words is like none that was trained on."
)


def part(traces: Sequence[Trace], task: str, at: int | None = None) -> None:
    """Draw it.

    Args:
        traces: the text, or two that are read by themselves.
        at: the token that the answer is of.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.header("What does it depend on?", anchor=False)
        st.space("stretch")
        corner = st.container(width="content")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        which = state.pick("why", "Which of its words, or of the heads", _PARTS, "words")
        target = _target(traces[0], task)
        at = _place(traces[0]) if task == LABELLING else at
        if which == "words":
            words = state.switch("why_words", "Whole words", True, "Score words instead of their pieces.")
            removal = state.pick(
                "removal",
                "A word taken away is",
                _REMOVALS,
                "",
                "Left out of the text, or a mask in its place. As usual: a mask for an answer at a token.",
            )
    found: Result | None
    if which == "heads":
        found = _heads(traces, HeadAttribution(task, target, at))
    else:
        found = _tokens(traces, AttributionFaithfulness(task, target, at, words, removal or None))
    if found is not None:
        with corner:
            shown_there = (
                found.showing(rows="words") if isinstance(found, AttributionFaithfulnessResult) else found
            )
            export(shown_there, f"why-{which}-{task}", label="Export this part")
    if task == COMPARING:
        _input(traces)


def _target(trace: Trace, task: str) -> str | None:
    """The class, or the answer by its rank, that is asked about; of all else the likeliest."""
    if task == CLASSIFYING:
        labels = trace.checkpoint.outputs[task].labels
        options = {"": "The likeliest class"} | {label: shown(label) for label in labels}
    elif task == ANSWERING:
        options = {"": "The likeliest answer"} | {str(rank): f"Answer {rank}" for rank in range(2, 6)}
    else:
        return None
    with st.container(width=260):
        return state.choose("why_target", "Of what", options, "") or None


def _place(trace: Trace) -> int | None:
    """The token whose label is asked about."""
    options = {"": "The first label that is not O"}
    options |= {str(token.position): f"{token.position} {shown(token.display)}" for token in trace.tokens}
    with st.container(width=260):
        chosen = state.choose("why_at", "Token", options, "")
    return int(chosen) if chosen else None


def _found(
    key: str, asked: Any, traces: Sequence[Trace], label: str, unit: str, note: str, start: bool
) -> Any:
    """The answer to a question, of a job; None while there is none, or where it says why there cannot be."""
    try:
        return jobs.answered(key, asked.of, *traces, label=label, unit=unit, note=note, start=start)
    except ProbeError as error:
        st.info(state.plain(str(error), 400))
        return None


def _tokens(traces: Sequence[Trace], asked: AttributionFaithfulness) -> AttributionFaithfulnessResult | None:
    found: AttributionFaithfulnessResult | None = _found(
        "why",
        asked,
        traces,
        "Ask six methods, and check them",
        "parts",
        "The model runs some hundred times, batched. You can cancel at any time.",
        start=len(traces[0].tokens) <= AT_ONCE,
    )
    if found is None:
        return None
    one = next(iter(found.explanations.values()))
    st.markdown(f"The **{state.plain(one.number)}** is {one.value:.4f}. {_finding(found)}")
    heatmap(of_checked(found), key="why_picture")
    blocks.caveat(_CAVEAT)
    _check(found)
    _single(found)
    return found


def _finding(found: AttributionFaithfulnessResult) -> str:
    """Which method foretells best, and what it names."""
    best = found.explanations[found.best]
    fall, chance = found.effects[found.best][0], found.random[:, 0]
    low, high = np.percentile(chance, INTERVAL)
    place = int(np.nanargmax(np.where([unit.special for unit in best.units], np.nan, best.scores)))
    word, label = state.plain(shown(best.units[place].display)), methods()[found.best].label
    # With few words a random order is often the best there is, but for the last digits.
    more = fall > high and not np.isclose(fall, high)
    than = "more than by chance" if more else "no more than by chance"
    doubt = "" if more else ": none of the methods that foretell does better than a guess on this text"
    return (
        f"“{word}” speaks for it most, says {label}, which foretells best here what leaving words out does: "
        f"without the words it names first the number falls by {fall:.3f} on average, {than} "
        f"({low:.3f} to {high:.3f} in random orders){doubt}."
    )


def _check(found: AttributionFaithfulnessResult) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.subheader("Are they right?", anchor=False)
        st.space("stretch")
        export(found, f"why-check-{found.question.task}", label="Export the check")
    st.markdown(
        ":gray[Take away the words that a method names first, a tenth, a fifth and half of them, and let the "
        "model answer again. The more the number falls, the better the method named them. Then keep these "
        "words alone: the less it falls, the better (DeYoung et al. 2020).]"
    )
    table = found.table().iloc[:, :4]
    names = [*(methods()[name].label for name in found.explanations), "Random orders"]
    st.dataframe(
        pd.DataFrame(
            {
                "Method": names,
                "Falls without": table["comprehensiveness"],
                "Falls with these alone": table["sufficiency"],
                "Foretells single words": table["foretold"],
            }
        ),
        hide_index=True,
        width="stretch",
        placeholder="–",
        column_config={
            "Falls without": st.column_config.NumberColumn(
                format="%.4f", help="Comprehensiveness: more is better."
            ),
            "Falls with these alone": st.column_config.NumberColumn(
                format="%.4f", help="Sufficiency: less is better."
            ),
            "Foretells single words": st.column_config.NumberColumn(
                format="%.2f",
                help="Spearman's rank correlation of the scores with what leaving out each word alone does; "
                "1: the same order. Leave one out is that measurement itself.",
            ),
        },
        alt="What taking away the words does that each method names",
    )
    if "attention" in found.explanations:
        attention, best = (found.effects[name][0] for name in ("attention", found.best))
        st.markdown(
            f"**Attention, measured:** without the words that it names first the number falls by "
            f"{attention:.4f}; without those of {methods()[found.best].label} by {best:.4f}, in random "
            f"order by {found.random[:, 0].mean():.4f}."
        )
    for name, why in found.refused.items():
        st.caption(f"{methods()[name].label} is not to be had: {state.plain(why, 300)}")


def _single(found: AttributionFaithfulnessResult) -> None:
    """One method by itself, in its own numbers."""
    st.subheader("One method by itself", anchor=False)
    options = {name: methods()[name].label for name in found.explanations}
    usual = found.best
    name = state.pick("why_method", "Method", options, usual)
    one = found.explanations[name]
    st.caption(methods()[name].meaning)
    own = [unit for unit in one.units if not unit.special]
    scores = np.array([score for unit, score in zip(one.units, one.scores, strict=True) if not unit.special])
    figure = figures.signed_bars([shown(unit.display) for unit in own], scores, "score")
    st.plotly_chart(figure, width="stretch", config=figures.CONFIG, alt=f"Scores by {options[name]}")
    st.caption(_said(one))


def _said(one: AttributionResult) -> str:
    """What a method tells beside its scores."""
    said = one.said
    specials = np.nansum([score for unit, score in zip(one.units, one.scores, strict=True) if unit.special])
    parts = [f"Special tokens together: {specials:.4f}."] if specials else []
    if "steps" in said:
        share = "" if said["gap_share"] is None else f", {said['gap_share']:.2%} of the way"
        parts.append(
            f"Baseline: the {said['baseline']} token in place of every word, where the number is "
            f"{said['baseline_value']:.4f}; {said['steps']} steps; the scores miss the difference by "
            f"{said['gap']:.1e}{share}."
        )
    if "biases" in said:
        parts.append(
            f"The model's biases add {said['biases']:.4f}; scores and biases add up to the number, off by "
            f"{said['off']:.1e}."
        )
    return " ".join(parts)


def _heads(traces: Sequence[Trace], asked: HeadAttribution) -> HeadAttributionResult | None:
    found: HeadAttributionResult | None = _found(
        "why_heads",
        asked,
        traces,
        "Switch off each head",
        "heads and layers",
        "The model runs once for each head and each layer, batched. You can cancel at any time.",
        start=len(traces[0].tokens) <= AT_ONCE,
    )
    if found is None:
        return None
    st.markdown(_most(found))
    changes, importance = of_head_effects(found)
    heatmap(changes, key="why_heads_picture")
    layers = ", ".join(f"{layer + 1}: {change:+.3f}" for layer, change in enumerate(found.layers))
    st.caption(f"All heads of a layer off together, layer by layer: {layers}.")
    heatmap(importance, key="why_importance_picture")
    export(
        found.showing(show="importance"), f"why-importance-{found.question.task}", label="Export importance"
    )
    blocks.caveat(
        "Above, each head is switched off and the model runs again: an effect. Below, what one backward pass "
        "says of it (Michel et al. 2019). Their ranks correlate by "
        f"{found.agreement:.2f} here (Spearman). Heads stand in for each other, so that one may be missed "
        "only when another is off too."
    )
    return found


def _most(found: HeadAttributionResult) -> str:
    """The head without which the number changes most."""
    layer, head = np.unravel_index(int(np.abs(found.changes).argmax()), found.changes.shape)
    change = found.changes[layer, head]
    return (
        f"Without **layer {layer + 1}, head {head + 1}** the {state.plain(found.number)} goes from "
        f"{found.value:.4f} to {found.value + change:.4f}, the largest change of all heads."
    )


def _input(traces: Sequence[Trace]) -> None:
    """Pairs of words of the input."""
    st.subheader("Which words meet, from input to output?", anchor=False)
    found: SimilarityAttributionResult | None = _found(
        "why_alike",
        SimilarityAttribution(),
        traces,
        "Follow both texts to the input",
        "steps",
        "The pairs above are of vectors after all layers, each of which has seen its whole text. This "
        "follows them down to the words themselves (integrated Jacobians, Moeller et al. 2023); it takes "
        "some seconds for short sentences. You can cancel at any time.",
        start=False,
    )
    if found is None:
        return
    heatmap(of_input_contributions(found), key="why_alike_picture")
    st.markdown(
        f"**Check:** the cells add up to {found.contributions.sum():.4f}; the texts of nothing but the "
        f"{found.baseline} token, from which both ways begin, have {found.reference:.4f} in the cosine, "
        f"which belongs to no pair of words. Together they miss {found.cosine:.4f} by {found.off:.1e}."
    )
    export(found, "why-alike", label="Export pairs")
