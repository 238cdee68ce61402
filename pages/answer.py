"""Answer: what the model's trained output head makes of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from bert_probe.analyses.outputs.classify_text import ClassifyText, ClassifyTextResult
from bert_probe.analyses.outputs.fill_mask import FillMask, FillMaskResult, to_mask, usual_word
from bert_probe.analyses.outputs.find_answer import FindAnswer
from bert_probe.analyses.outputs.label_tokens import AGGREGATIONS, LabelTokens
from bert_probe.analyses.outputs.next_sentence import NextSentence
from bert_probe.analyses.outputs.prediction import CERTAINTY, PredictionResult
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity, SentenceSimilarityResult
from bert_probe.core.field_types_of_words import WordList
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import attribution, blocks, figures, highlight, lens, state, workbench
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.tasks import TASKS
from bert_probe.views.answers import of_contributions
from bert_probe.views.scale import Scale
from bert_probe.views.text import shown

MOST_BARS = 20
ALL_BUT = "The names of labels are the checkpoint's own; what they mean is for those who trained it to say."


def bars(names: Sequence[str], found: Any, title: str, most: float | None = 1.0) -> None:
    """Probabilities as bars; logits where there are none."""
    values = found.logits if most is None else found.probabilities
    figure = figures.class_bars(
        names[:MOST_BARS],
        values[:MOST_BARS],
        found.logits[:MOST_BARS],
        "value" if most is None else "probability",
        most,
    )
    st.plotly_chart(figure, width="stretch", config=figures.CONFIG, alt=title)


def numbers(found: PredictionResult, title: str) -> None:
    """The table, and what a reader of it should know."""
    for note in found.notes:
        st.caption(state.plain(note, 400))
    frame = found.table()
    st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * len(frame), 420),
        placeholder="–",
        column_config={
            name: st.column_config.NumberColumn(name, format="%.4g") for name in ("probability", "logit")
        },
        alt=title,
    )


def second_text_needed(what: str) -> None:
    """Say that there is one text, and two are asked about."""
    st.info(f"{what} Write sentence B under Your text, and run.")


def which_text(checkpoint: Checkpoint, request: workbench.Request) -> Trace:
    """The text to look at, of two where they are read by themselves."""
    traces = workbench.traced(checkpoint, request.texts, request.truncate)
    second = traces[1] if len(traces) > 1 else None
    trace = workbench.chosen_text(workbench.TracedRequest(request, checkpoint, traces[0], second))
    blocks.truncation_notice(trace)
    return trace


def fill_mask(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult:
    """Words for a mask, which is set by choosing a word."""
    trace = which_text(checkpoint, request)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=240):
            top = int(
                state.pick("top", "Words", {"5": "5", "10": "10", "20": "20"}, "5", "How many to show.")
            )
        with st.container(width=360):
            written = state.words("targets", "Only these words", "With commas between; empty for all")
    targets = WordList().read("targets", written, trace)
    usual = usual_word(trace)
    st.markdown("Choose a word to mask it, or write a mask into the text")
    first = state.token("mask", trace.tokens, usual)
    clicked = blocks.token_strip(trace, f"masks_{len(trace.tokens)}", "Words that can be masked", first)
    position = first if clicked is None else clicked
    state.remember("mask", None if position == usual else str(position))
    found: FillMaskResult = shared_cache.answers.of(
        FillMask(top, targets, to_mask(trace, position)).of, trace
    )
    scale = Scale.from_zero(found.probabilities, 0.0)
    for number, mask in enumerate(found.masks):
        of = found.at(number)
        title = f"Words at token {mask.position}"
        st.markdown(f"**{title}**" + (f", in place of {state.plain(found.hidden)}" if found.hidden else ""))
        bars([shown(token) for token in of.tokens], of, title, scale.high)
    numbers(found, "Words for each mask, with rank, probability and logit")
    blocks.caveat(
        "All words of the vocabulary share out a probability of 1, as they would in the texts that the model "
        f"was trained on. {CERTAINTY}"
    )
    attribution.part([trace], found.question.task, at=position)
    lens.part(trace, FillMask.task, found.question.mask, request.truncate)
    return found


def text_classes(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult:
    """Classes as bars."""
    trace = which_text(checkpoint, request)
    found: ClassifyTextResult = shared_cache.answers.of(ClassifyText().of, trace)
    about = {
        "single_label_classification": "One of these classes; the probabilities sum to 1.",
        "multi_label_classification": "Each class by itself: any number of them may be true.",
        "regression": "What the head gives is the answer, a number and no probability.",
    }
    st.markdown(about[found.problem])
    bars(
        [shown(label) for label in found.labels],
        found,
        "Classes",
        None if found.problem == "regression" else 1.0,
    )
    if len(found.labels) > MOST_BARS:
        st.caption(f"The likeliest {MOST_BARS} of {len(found.labels):,}; the table has all.")
    numbers(found, "All classes with probability and logit")
    blocks.caveat(f"{CERTAINTY} {ALL_BUT}")
    attribution.part([trace], found.question.task)
    lens.part(trace, found.question.task)
    return found


def token_labels(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult:
    """Labels as coloured parts of the text."""
    texts = [(text, None) for text in (request.a, request.b) if text.strip()] or [(request.a, None)]
    traces = workbench.traced(checkpoint, texts, request.truncate)
    trace = traces[0]
    if len(traces) > 1 and state.pick("of", "Text", {"a": "Sentence A", "b": "Sentence B"}, "a") == "b":
        trace = traces[1]
    blocks.truncation_notice(trace)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        options = {name: name.capitalize() for name in AGGREGATIONS}
        how = state.pick("aggregation", "Words and neighbours", options, "none", "What becomes of tokens.")
        outside = state.switch("outside", "Label O", False, "Keep what belongs to nothing as well.")
    st.caption(AGGREGATIONS[how])
    found = shared_cache.answers.of(LabelTokens(how, outside).of, trace)
    colours = highlight.colours(found.kinds)
    marks = [
        highlight.HighlightSpan(one.start, one.end, one.label, colours[one.kind])
        for one in found.parts_of_text
    ]
    with st.container(border=True):
        st.markdown(highlight.markdown(trace.encoding.text, marks))
    if not found.parts_of_text:
        st.info("No token has a label but O.")
    numbers(found, "Parts of the text with label and probability")
    blocks.caveat(f"{CERTAINTY} {ALL_BUT}")
    attribution.part([trace], found.question.task)
    lens.part(trace, found.question.task)
    return found


def answers(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult | None:
    """Answers marked in the text."""
    if not request.b.strip():
        second_text_needed("Sentence A is the question; the text to look in is missing.")
        return None
    (trace,) = workbench.traced(checkpoint, [(request.a, request.b)], True)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=240):
            counts = {"1": "1", "3": "3", "5": "5", "10": "10"}
            top = int(state.pick("top", "Answers", counts, "5", "Likeliest first; none overlaps another."))
        nothing = state.switch(
            "no_answer", "No answer", False, "Let the first token take part, where some models point."
        )
    found = shared_cache.answers.of(FindAnswer(top, no_answer=nothing).of, trace)
    marks = [
        highlight.HighlightSpan(
            answer.start, answer.end or answer.start, str(rank), highlight.COLOURS[0 if rank == 1 else 1]
        )
        for rank, answer in enumerate(found.answers, start=1)
        if answer.start is not None
    ]
    st.markdown(f"**{state.plain(request.a, 1_000)}**")
    with st.container(border=True):
        st.markdown(highlight.markdown(found.context, marks))
    numbers(found, "Answers with place and probability")
    blocks.caveat(
        "A probability is the softmax of the first token times that of the last, among the tokens of the "
        f"text: some part is always likeliest, also where the text holds no answer. {CERTAINTY}"
    )
    attribution.part([trace], found.question.task)
    return found


def next_sentence(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult | None:
    """Whether B follows A, and A follows B."""
    if not request.b.strip():
        second_text_needed("Whether one text follows another is asked of two.")
        return None
    both = [(request.a, request.b), (request.b, request.a)]
    traces = workbench.traced(checkpoint, both, request.truncate)
    blocks.truncation_notice(traces[0])
    found = [shared_cache.answers.of(NextSentence().of, trace) for trace in traces]
    for column, order, one in zip(st.columns(2, gap="large"), ("A, then B", "B, then A"), found, strict=True):
        with column:
            st.markdown(f"**{order}**")
            bars(["next", "not next"], one, f"Whether the second text follows: {order}")
            numbers(one, order)
    blocks.caveat(
        "The head was trained to tell the next sentence of a text from one of another text (Devlin et al. "
        f"2019), which the subject alone may give away. Exported is A, then B. {CERTAINTY}"
    )
    attribution.part(traces[:1], found[0].question.task)
    return found[0]


def similarity(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult | None:
    """The cosine of A and B, and what each pair of tokens adds to it."""
    texts = [(text, None) for text in (request.a, request.b) if text.strip()] or [(request.a, None)]
    traces = workbench.traced(checkpoint, texts, request.truncate)
    if len(traces) < 2:
        second_text_needed("How alike two texts are is asked of two.")
        return None
    found: SentenceSimilarityResult = shared_cache.answers.of(SentenceSimilarity("contributions").of, *traces)
    with st.container(horizontal=True, gap="large"):
        st.metric("Cosine", f"{found.cosine:.4f}", help="1: the same direction; 0: nothing in common.")
        if found.adds_up:
            st.metric(
                "Special tokens' share",
                f"{found.specials_share:.4f}",
                help="What pairs with a special token, [CLS] or [SEP], add to the cosine.",
            )
    st.caption(f"Each text is one vector, as the checkpoint was trained: {state.plain(str(found.recipe))}.")
    if not found.adds_up:
        st.caption("The vector is not the mean of the tokens, so the cosine is no sum over pairs of them.")
        attribution.part(traces, found.question.task)
        return found.showing(show="cosine")
    heatmap(of_contributions(found), key="contributions")
    st.markdown(
        f"**Check:** all {found.contributions.size:,} cells add up to the cosine, off by {found.off:.1e}."
    )
    blocks.caveat(
        "The vector of a text is the mean of its tokens, so the cosine is exactly a sum over pairs of them. "
        "These are tokens after all layers, each of which has seen its whole text: a cell says where the "
        "cosine is added up, not which word caused it."
    )
    attribution.part(traces, found.question.task)
    return found


DRAWN = {
    "fill-mask": fill_mask,
    "text-classification": text_classes,
    "token-classification": token_labels,
    "question-answering": answers,
    "next-sentence-prediction": next_sentence,
    "sentence-similarity": similarity,
}


def main() -> None:
    """The page."""
    blocks.heading(
        "Answer",
        "On top of the encoder many models have an output head, trained to answer one question: which word "
        "stands here, which class, which label, which part of a text. This is what this model answers.",
    )
    checkpoint, request = workbench.checkpoint(), workbench.request()
    tasks = checkpoint.tasks
    if not tasks:
        workbench.study()
        st.info(
            f"{state.plain(checkpoint.description.name)} has no trained output head: it is an encoder alone, "
            "and none is made up. Choose a checkpoint that was trained for a task under Model and length."
        )
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        task = state.pick(
            "task", "Task", {task: TASKS[task] for task in tasks}, tasks[0], "What it was trained for."
        )
        st.space("stretch")
        menu = st.container(width="content")
    found = DRAWN[task](checkpoint, request)
    if found is not None:
        with menu:
            export(found, f"answer-{task}")


main()
