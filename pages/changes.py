"""Changes: two models on the same text, such as one before and after it was trained further."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.comparison.head_change import HeadChange
from bert_probe.analyses.comparison.parameter_change import ParameterChange
from bert_probe.analyses.comparison.vector_change import VectorChange
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.changes import matches, parts, second


def text_of(a: Checkpoint) -> Trace:
    """The text that both read, as A read it."""
    now = workbench.request()
    traces = workbench.traced(a, now.texts, now.truncate)
    return workbench.chosen_text(
        workbench.TracedRequest(now, a, traces[0], traces[1] if len(traces) > 1 else None)
    )


def compared(a: Trace, b: Trace, words: bool) -> None:
    """What both made of the text, then the models themselves."""
    changed = shared_cache.answers.of(ParameterChange().of, a.checkpoint, b.checkpoint)
    heads = parts.asked(lambda: shared_cache.answers.of(HeadChange(words).of, a, b))
    vectors = parts.asked(lambda: shared_cache.answers.of(VectorChange(words).of, a, b))
    with st.container(key="finding"):
        said = [one.finding for one in (heads, vectors, changed) if not isinstance(one, UnavailableError)]
        st.markdown(state.plain(" ".join(said), 1000))
    parts.heads(heads)
    parts.vectors(vectors, a.checkpoint)
    parts.answers(a, b.checkpoint)
    parts.parameters(changed)
    parts.alikeness(a.checkpoint, b.checkpoint)
    matches.part(a, b, start=False)


def main() -> None:
    """The page."""
    blocks.heading(
        "Changes",
        "Two models on the same text, such as one before and after it was trained further: what became of "
        "its heads, vectors, answers and parameters?",
    )
    second.leave()
    a = workbench.checkpoint()
    named = second.field()
    if named is None:
        second.missing(a)
        return
    b = second.opened(named)
    if b is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        trace = text_of(a)
        read = (trace.encoding.text, trace.encoding.pair)
        other = workbench.traced(b, [read], workbench.request().truncate)[0]
        apart = matches.apart(trace, other)
        words = apart is None and state.switch(
            "words",
            "Whole words",
            False,
            "Merges the pieces of a word: attention summed over a key's pieces, averaged over a query's; "
            "vectors by their mean.",
        )
    blocks.truncation_notice(trace)
    try:
        if apart is not None:
            matches.instead(apart, trace, other)
        else:
            compared(trace, other, words)
    except SelectionError as error:
        second.refused(error, "These two models cannot be compared")


main()
