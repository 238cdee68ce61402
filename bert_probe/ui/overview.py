"""The Overview page: the most unusual observations about a text, each with a thumbnail and a link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import streamlit as st

from bert_probe.analyses.highlights.highlights import (
    Highlight,
    HighlightsResult,
    ReferenceForm,
    ReferenceNumbers,
    find_highlights,
    measure_references,
    reference_forms,
)
from bert_probe.model.progress import Progress, no_progress, step_progress
from bert_probe.runtime import shared_cache
from bert_probe.server import paths
from bert_probe.server.asgi import ATTENTION_PARAMETERS
from bert_probe.ui import blocks, jobs, state, workbench
from bert_probe.ui.export import export
from bert_probe.ui.workbench import TracedRequest
from bert_probe.views import small

_OWN: Final = {
    "tokens": frozenset(("of",)),
    "attention": ATTENTION_PARAMETERS | {"of"},
    "embeddings": frozenset(("of", "part", "vector_layer")),
    "similarity": frozenset(("vector_layer", "similarity_show", "similarity_specials")),
    "answer": frozenset(("task", "of")),
}
"""Page → URL parameters that a link to the page sets or removes. All other parameters are kept."""


def render() -> None:
    """Draw the Overview page."""
    blocks.heading(
        "Overview",
        "The most unusual observations about your text, each with a thumbnail and a link to the page with "
        "the details.",
    )
    traced = workbench.trace_request()
    blocks.truncation_notice(traced.a)
    if traced.b is not None:
        blocks.truncation_notice(traced.b)
    _draw(traced)


def _draw(traced: TracedRequest) -> None:
    """Draw the observations about the text.

    Until the reference sentences are measured, draw only observations that are quick to compute. Then draw
    all observations, ranked.
    """
    pair_forms = reference_forms(traced.a, traced.b)
    is_measured = all(
        shared_cache.answers.has(measure_references, traced.checkpoint, form) for form in pair_forms
    )
    result: HighlightsResult = shared_cache.answers.of(
        find_highlights, traced.a, traced.b, quick=not is_measured
    )
    if is_measured:
        result = result.ranked(_reference_numbers(traced, pair_forms))
    above = st.container()
    with st.container(key="findings", gap="small"):
        if not result.findings:
            st.info("No unusual observations were found in this text. Try another one or two sentences.")
        for number, finding in enumerate(result.findings):
            _card(finding, number)
    if is_measured:
        _footer(result)
    else:
        with above:
            _measure_reference(traced, pair_forms)


def _reference_numbers(
    traced: TracedRequest, text_forms: Sequence[ReferenceForm], progress: Progress = no_progress
) -> ReferenceNumbers:
    """Return the measurements on the reference sentences, which are cached for each model."""
    parts = [
        shared_cache.answers.of(
            measure_references,
            traced.checkpoint,
            form,
            progress=step_progress(progress, number, len(text_forms)),
        )
        for number, form in enumerate(text_forms)
    ]
    return parts[0] if len(parts) == 1 else parts[0] | parts[1]


def _measure_reference(traced: TracedRequest, text_forms: Sequence[ReferenceForm]) -> None:
    """Measure the reference sentences in a job, then rerun the page."""
    done = jobs.run(
        "usual",
        (traced.checkpoint.cache_key, *text_forms),
        "Compare with the reference sentences",
        lambda progress: _reference_numbers(traced, text_forms, progress),
        "reference sentences",
        start=True,
        describe=lambda: (
            "The model reads the reference sentences to rank the observations. The order of the "
            "observations will change."
        ),
    )
    if done is not None:
        st.rerun()


def _card(finding: Highlight, number: int) -> None:
    with st.container(key=f"finding_{number}", horizontal=True, gap="medium", border=True):
        st.image(
            small.svg(finding.picture, blocks.is_dark()),
            width=small.WIDTH,
            alt=small.alt_text(finding.picture),
        )
        with st.container(gap="small"):
            st.markdown(state.escape(finding.said, 1_000))
            if finding.of:
                measure = finding.kind.measure
                st.caption(f"{finding.place} {measure[:1].upper()}{measure[1:]}: {finding.value:.4g}")
            # The link has all URL parameters of its page, so that opening it adds only one history entry.
            own, current = _OWN[finding.page], state.url_parameters()
            other = {name: value for name, value in current.items() if name not in own}
            st.page_link(
                paths.page_script(finding.page),
                label=f"{_label(finding)} →",
                query_params={**other, **finding.choices},
            )


def _label(finding: Highlight) -> str:
    """Return the label of a link: the name of the page, and the layer and head of the observation, if any."""
    parts = [
        f"{name.removeprefix('vector_')} {finding.choices[name]}"
        for name in ("layer", "head", "vector_layer")
        if finding.choices.get(name, "mean") != "mean"
    ]
    return " · ".join([finding.page.title(), ", ".join(parts)] if parts else [finding.page.title()])


def _footer(result: HighlightsResult) -> None:
    assert result.tokens is not None  # `_footer` is called only for ranked results, which have `tokens`
    export(result, "overview")
    blocks.caveat(
        "The most unusual observation comes first. Each value is compared with the values that the same "
        f"model gives for short English reference sentences of {result.tokens[0]} to {result.tokens[1]} "
        "tokens. A text of a different type or length may differ for that reason alone. Attention shows "
        "where a head reads from, not what the model's output depends on (Jain and Wallace 2019)."
    )
