"""The overview's cards: what was found in a text, each with its picture and a link to the view behind it."""

from __future__ import annotations

from typing import Final

import streamlit as st

from bert_probe.analyses.overview import Finding, TextOverview, forms, look
from bert_probe.analyses.usual import Usual, usual
from bert_probe.model.progress import Report, part_of
from bert_probe.views import small
from bert_probe.web import blocks, jobs, places, state, store
from bert_probe.web.export import export
from bert_probe.web.serve import OF_ATTENTION
from bert_probe.web.workbench import Study

PATIENCE: Final = 0.05
"""Seconds that the first picture waits for what is usual, which is there if it was measured before."""
_OWN: Final = {
    "tokens": frozenset(("of",)),
    "attention": OF_ATTENTION | {"of"},
    "embeddings": frozenset(("of", "part", "vector_layer")),
    "similarity": frozenset(("vector_layer", "similarity_show", "similarity_specials")),
    "answer": frozenset(("task", "of")),
}
"""Of each page that is linked to, what a link chooses; all else in the address stays as it is."""


def draw(study: Study) -> None:
    """All of it: in the order of the kinds at first, ranked once it is known what is usual in the model."""
    traces = [study.a] if study.b is None else [study.a, study.b]
    found: TextOverview = store.answers.of(look, *traces)
    cards, waiting = st.container(key="findings", gap="small"), st.container()
    with waiting:
        numbers = _usual(study)
    if numbers is not None:
        found = found.ranked(numbers)
    with cards:
        if not found.findings:
            st.info("Nothing in this text stands out. Write a sentence or two.")
        for number, finding in enumerate(found.findings):
            _card(finding, number)
    if numbers is not None:
        _foot(found)


def _usual(study: Study) -> Usual | None:
    """The numbers of the shipped sentences, measured once for each model; None while they are."""
    wanted = forms(study.a, study.b)

    def work(report: Report) -> Usual:
        parts = [
            store.answers.of(usual, study.checkpoint, form, report=part_of(report, number, len(wanted)))
            for number, form in enumerate(wanted)
        ]
        return parts[0] if len(parts) == 1 else parts[0] | parts[1]

    return jobs.run(
        "usual",
        (study.checkpoint.cause, *wanted),
        "Compare with the shipped sentences",
        work,
        "shipped sentences",
        start=True,
        about=lambda: "How unusual is each of these? This model reads the shipped sentences.",
        patience=PATIENCE,
    )


def _card(finding: Finding, number: int) -> None:
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
                places.page(finding.page), label=f"{_label(finding)} →", query_params=_address(finding)
            )


def _address(finding: Finding) -> dict[str, str]:
    """All parameters that the page will have then: one that it would write anew is one step back too many."""
    own = _OWN[finding.page]
    kept = {name: value for name, value in state.address().items() if name not in own}
    return {**kept, **finding.choices}


def _label(finding: Finding) -> str:
    """The page, and what is to be seen there."""
    chosen = [
        f"{name.removeprefix('vector_')} {finding.choices[name]}"
        for name in ("layer", "head", "vector_layer")
        if finding.choices.get(name, "mean") != "mean"
    ]
    return " · ".join([finding.page.title(), ", ".join(chosen)] if chosen else [finding.page.title()])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _foot(found: TextOverview) -> None:
    assert found.tokens is not None  # it is ranked
    export(found, "overview")
    blocks.caveat(
        "The most unusual comes first: each number is compared with the same number of the short English "
        f"sentences shipped with the package, of {found.tokens[0]} to {found.tokens[1]} tokens, read by the "
        "same model. Another kind of text, or a longer one, may differ from them by that alone. Attention "
        "says where a head reads from, not what the model's output depends on (Jain and Wallace 2019)."
    )
