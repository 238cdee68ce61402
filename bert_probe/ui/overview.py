"""The overview's cards: what was found in a text, each with its picture and a link to the view behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import streamlit as st

from bert_probe.analyses.highlights.highlights import Highlight, HighlightsResult, forms, look
from bert_probe.analyses.highlights.reference import Form, ReferenceNumbers, usual
from bert_probe.model.progress import Progress, no_progress, part_of
from bert_probe.runtime import shared_cache
from bert_probe.server import paths
from bert_probe.server.asgi import OF_ATTENTION
from bert_probe.ui import blocks, jobs, state
from bert_probe.ui.export import export
from bert_probe.ui.workbench import TracedRequest
from bert_probe.views import small

_OWN: Final = {
    "tokens": frozenset(("of",)),
    "attention": OF_ATTENTION | {"of"},
    "embeddings": frozenset(("of", "part", "vector_layer")),
    "similarity": frozenset(("vector_layer", "similarity_show", "similarity_specials")),
    "answer": frozenset(("task", "of")),
}
"""Of each page that is linked to, what a link chooses; all else in the address stays as it is."""


def draw(study: TracedRequest) -> None:
    """All of it: what is quick at first, in the order of the kinds; ranked once it is known what is usual."""
    wanted = forms(study.a, study.b)
    known = all(shared_cache.answers.has(usual, study.checkpoint, form) for form in wanted)
    found: HighlightsResult = shared_cache.answers.of(look, study.a, study.b, quick=not known)
    if known:
        found = found.ranked(_measured(study, wanted))
    with st.container(key="findings", gap="small"):
        if not found.findings:
            st.info("Nothing in this text stands out. Write a sentence or two.")
        for number, finding in enumerate(found.findings):
            _card(finding, number)
    if known:
        _foot(found)
    else:
        _measure(study, wanted)


def _measured(
    study: TracedRequest, wanted: Sequence[Form], report: Progress = no_progress
) -> ReferenceNumbers:
    """The numbers of the shipped sentences, measured once for each model."""
    parts = [
        shared_cache.answers.of(usual, study.checkpoint, form, report=part_of(report, number, len(wanted)))
        for number, form in enumerate(wanted)
    ]
    return parts[0] if len(parts) == 1 else parts[0] | parts[1]


def _measure(study: TracedRequest, wanted: Sequence[Form]) -> None:
    """Measure them, and draw the page anew."""
    done = jobs.run(
        "usual",
        (study.checkpoint.cause, *wanted),
        "Compare with the shipped sentences",
        lambda report: _measured(study, wanted, report),
        "shipped sentences",
        start=True,
        about=lambda: "How unusual is each of these? This model reads the shipped sentences.",
    )
    if done is not None:
        st.rerun()


def _card(finding: Highlight, number: int) -> None:
    with st.container(key=f"finding_{number}", horizontal=True, gap="medium", border=True):
        st.image(
            small.svg(finding.picture, blocks.dark()),
            width=small.WIDTH,
            alt=small.described(finding.picture),
        )
        with st.container(gap="small"):
            st.markdown(state.plain(finding.said, 1_000))
            if finding.of:
                st.caption(f"{finding.place} {_capital(finding.kind.measure)}: {finding.value:.4g}")
            st.page_link(
                paths.page(finding.page), label=f"{_label(finding)} →", query_params=_address(finding)
            )


def _address(finding: Highlight) -> dict[str, str]:
    """All parameters that the page will have then: one that it would write anew is one step back too many."""
    own = _OWN[finding.page]
    kept = {name: value for name, value in state.address().items() if name not in own}
    return {**kept, **finding.choices}


def _label(finding: Highlight) -> str:
    """The page, and what is to be seen there."""
    chosen = [
        f"{name.removeprefix('vector_')} {finding.choices[name]}"
        for name in ("layer", "head", "vector_layer")
        if finding.choices.get(name, "mean") != "mean"
    ]
    return " · ".join([finding.page.title(), ", ".join(chosen)] if chosen else [finding.page.title()])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _foot(found: HighlightsResult) -> None:
    assert found.tokens is not None  # it is ranked
    export(found, "overview")
    blocks.caveat(
        "The most unusual comes first: each number is compared with the same number of the short English "
        f"sentences shipped with the package, of {found.tokens[0]} to {found.tokens[1]} tokens, read by the "
        "same model. Another kind of text, or a longer one, may differ from them by that alone. Attention "
        "says where a head reads from, not what the model's output depends on (Jain and Wallace 2019)."
    )
