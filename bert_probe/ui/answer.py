"""The Answer page: the predictions of the model's task head for a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from bert_probe.analyses.outputs.fill_mask import FillMask, FillMaskResult, default_position, mask_position
from bert_probe.analyses.outputs.find_answer import FindAnswer, FindAnswerResult
from bert_probe.analyses.outputs.prediction import (
    AGGREGATIONS,
    CERTAINTY,
    ClassifyText,
    ClassifyTextResult,
    LabelTokens,
    NextSentence,
    PredictionResult,
)
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity, SentenceSimilarityResult
from bert_probe.core.field_types import WordList
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.outputs import unused_head_note
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import attribution, blocks, figures, lens, state, workbench
from bert_probe.ui.blocks import TASK_LABELS
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.sentences import choose_dimensions, choose_prompt, show_calibration
from bert_probe.views.contributions import sentence_similarity_heatmap
from bert_probe.views.palette import Scale
from bert_probe.views.text import shorten

MAX_BARS = 20
_LABEL_NOTE = "The authors of the checkpoint chose the label names and defined their meaning."


def render() -> None:
    """Draw the Answer page."""
    blocks.heading(
        "Answer",
        "What the model predicts for your text: masked words, classes, labels, answers or a similarity, "
        "depending on the tasks that it was trained for.",
    )
    checkpoint, request = workbench.checkpoint(), workbench.request()
    tasks = checkpoint.tasks
    if not tasks:
        workbench.trace_request()
        note = unused_head_note(checkpoint)
        reason = f"has no usable task head ({note.rstrip('.')})" if note else "has no trained task head"
        st.info(
            state.escape(f"{checkpoint.description.name} {reason}, so it makes no predictions.")
            + " Under Model and length, choose a checkpoint that was fine-tuned for a task."
        )
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        task = state.segmented_control(
            "task",
            "Task",
            {task: TASK_LABELS[task] for task in tasks},
            tasks[0],
            "Tasks for which this model has a trained task head.",
        )
        st.space("stretch")
        menu = st.container(width="content")
    draw = {
        "fill-mask": _fill_mask,
        "text-classification": _classify_text,
        "token-classification": _label_tokens,
        "question-answering": _find_answer,
        "next-sentence-prediction": _next_sentence,
        "sentence-similarity": _similarity,
    }[task]
    result = draw(checkpoint, request)
    if result is not None:
        with menu:
            export(result, f"answer-{task}")


def _bars(names: Sequence[str], result: Any, title: str, maximum: float | None = 1.0) -> None:
    """Draw probabilities as bars, or logits if `maximum` is None."""
    values = result.logits if maximum is None else result.probabilities
    figure = figures.class_bars(
        names[:MAX_BARS],
        values[:MAX_BARS],
        result.logits[:MAX_BARS],
        "value" if maximum is None else "probability",
        maximum,
    )
    blocks.chart(figure, title)


def _numbers(result: PredictionResult, title: str) -> None:
    """Draw the notes and the table of a prediction."""
    for note in result.notes:
        st.caption(state.escape(note, 400))
    frame = result.table()
    blocks.table(
        frame,
        title,
        column_config={
            name: st.column_config.NumberColumn(name, format="%.4g")
            for name in ("probability", "logit", "score")
        },
    )


def _choose_trace(checkpoint: Checkpoint, request: workbench.Request) -> Trace:
    """Return the trace of the text. If there are two separate texts, let the user select one of them."""
    traces = workbench.trace_texts(checkpoint, request.texts, request.truncate)
    second = traces[1] if len(traces) > 1 else None
    trace = workbench.choose_trace(workbench.TracedRequest(request, checkpoint, traces[0], second))
    blocks.truncation_notice(trace)
    return trace


def _fill_mask(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult:
    """Draw the predictions for a masked word, and a token strip in which the user selects that word."""
    trace = _choose_trace(checkpoint, request)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=240):
            top = int(
                state.segmented_control(
                    "top", "Words", {"5": "5", "10": "10", "20": "20"}, "5", "Number of predictions per mask."
                )
            )
        with st.container(width=360):
            text = state.text_input(
                "targets", "Target words", "Separate words with commas; leave empty for all words"
            )
    targets = WordList().read("targets", text, trace)
    default = default_position(trace)
    st.markdown("Click a word to mask it, or type the mask token in your text")
    first = state.token_position("mask", trace.tokens, default)
    clicked = blocks.token_strip(trace, f"masks_{len(trace.tokens)}", "Words that can be masked", first)
    position = first if clicked is None else clicked
    state.remember("mask", None if position == default else str(position))
    question = FillMask(top, targets, mask_position(trace, position))
    result: FillMaskResult = shared_cache.checked_answer(question, trace)
    scale = Scale.from_zero(result.probabilities, 0.0)
    for number, mask in enumerate(result.masks[: lens.MAX_MASKS]):
        predictions = result.at(number)
        title = f"Predictions for token {mask.position}"
        masked = f", in place of {state.escape(result.hidden)}" if result.hidden else ""
        st.markdown(f"**{title}**{masked}")
        _bars([shorten(token) for token in predictions.tokens], predictions, title, scale.high)
    if len(result.masks) > lens.MAX_MASKS:
        st.caption(
            f"The first {lens.MAX_MASKS} of {len(result.masks):,} masks are shown. The table and the export "
            "contain all masks."
        )
    _numbers(result, "Predictions for each mask, with rank, probability and logit")
    blocks.caveat(
        "The probabilities of all vocabulary entries sum to 1. The probabilities reflect the texts on "
        f"which the model was trained. {CERTAINTY}"
    )
    attribution.part([trace], result.question.task, at=position)
    lens.part(trace, FillMask.task, result.question.mask, request.truncate)
    return result


def _classify_text(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult:
    """Draw the probabilities of the classes as bars."""
    trace = _choose_trace(checkpoint, request)
    result: ClassifyTextResult = shared_cache.answers.of(ClassifyText().of, trace)
    notes = {
        "single_label_classification": "This is single-label classification: the probabilities of all "
        "classes sum to 1.",
        "multi_label_classification": "This is multi-label classification: any number of labels can apply.",
        "regression": "This is a regression model: the output is a number, not a probability.",
    }
    if result.scores is not None:
        st.metric(
            f"Score ({state.escape(shorten(result.labels[0]))})",
            f"{result.scores[0]:.4f}",
            help="The score of the cross-encoder, equal to the output of CrossEncoder.predict.",
        )
    st.markdown(notes[result.problem])
    _bars(
        [shorten(label) for label in result.labels],
        result,
        "Classes",
        None if result.problem == "regression" else 1.0,
    )
    if len(result.labels) > MAX_BARS:
        st.caption(
            f"The {MAX_BARS} most probable of {len(result.labels):,} classes. The table lists all classes."
        )
    _numbers(result, "All classes with probability and logit")
    blocks.caveat(f"{CERTAINTY} {_LABEL_NOTE}")
    attribution.part([trace], result.question.task)
    lens.part(trace, result.question.task)
    return result


def _label_tokens(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult:
    """Draw the text with labeled spans in color."""
    texts = [(text, None) for text in (request.a, request.b) if text.strip()] or [(request.a, None)]
    traces = workbench.trace_texts(checkpoint, texts, request.truncate)
    trace = traces[0]
    sides = {"a": "Sentence A", "b": "Sentence B"}
    if len(traces) > 1 and state.segmented_control("of", "Text", sides, "a") == "b":
        trace = traces[1]
    blocks.truncation_notice(trace)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        options = {name: name.capitalize() for name in AGGREGATIONS}
        aggregation = state.segmented_control(
            "aggregation", "Aggregation", options, "none", "How tokens are merged into words and spans."
        )
        outside = state.toggle("outside", "Label O", False, "Include tokens that do not belong to any span.")
    st.caption(AGGREGATIONS[aggregation])
    result = shared_cache.answers.of(LabelTokens(aggregation, outside).of, trace)
    colours = blocks.span_colors(result.kinds)
    spans = [
        blocks.HighlightSpan(span.start, span.end, span.label, colours[span.kind]) for span in result.spans
    ]
    with st.container(border=True):
        st.markdown(blocks.highlight_markdown(trace.encoding.text, spans))
    if not result.spans:
        st.info("All tokens have the label O.")
    _numbers(result, "Spans of the text with label and probability")
    blocks.caveat(f"{CERTAINTY} {_LABEL_NOTE}")
    attribution.part([trace], result.question.task)
    lens.part(trace, result.question.task)
    return result


def _find_answer(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult | None:
    """Draw the context with the answers highlighted."""
    if not request.b.strip():
        st.info("Sentence A is the question. Write the context as sentence B under Your text, and press Run.")
        return None
    (trace,) = workbench.trace_texts(checkpoint, [(request.a, request.b)], True)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=240):
            counts = {"1": "1", "3": "3", "5": "5", "10": "10"}
            top = int(
                state.segmented_control(
                    "top",
                    "Answers",
                    counts,
                    "5",
                    "Number of answers to show. The answers do not overlap.",
                )
            )
        no_answer = state.toggle(
            "no_answer",
            "No answer",
            False,
            "Include the first token as an answer. Some models predict the first token if the context does "
            "not contain the answer.",
        )
    result: FindAnswerResult = shared_cache.checked_answer(FindAnswer(top, no_answer=no_answer), trace)
    spans = [
        blocks.HighlightSpan(
            answer.start, answer.end or answer.start, str(rank), blocks.COLOURS[0 if rank == 1 else 1]
        )
        for rank, answer in enumerate(result.answers, start=1)
        if answer.start is not None
    ]
    st.markdown(f"**{state.escape(request.a, 1_000)}**")
    with st.container(border=True):
        st.markdown(blocks.highlight_markdown(result.context, spans))
    _numbers(result, "Answers with position and probability")
    blocks.caveat(
        "The probability of an answer is the product of the probabilities of its start token and its "
        "end token. Both are softmax probabilities over the tokens of the context and, with **No answer**, "
        "the first token. A long context is read in windows, each with its own softmax. Some answer always "
        "ranks first, "
        f"even if the context does not contain the answer. {CERTAINTY}"
    )
    attribution.part([trace], result.question.task)
    return result


def _next_sentence(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult | None:
    """Draw the probability that sentence B follows sentence A, and vice versa."""
    if not request.b.strip():
        st.info("Next-sentence prediction needs two texts. Write sentence B under Your text, and press Run.")
        return None
    both = [(request.a, request.b), (request.b, request.a)]
    traces = workbench.trace_texts(checkpoint, both, request.truncate)
    blocks.truncation_notice(traces[0])
    results = [shared_cache.answers.of(NextSentence().of, trace) for trace in traces]
    columns = st.columns(2, gap="large")
    for column, order, result in zip(columns, ("A, then B", "B, then A"), results, strict=True):
        with column:
            st.markdown(f"**{order}**")
            _bars(
                ["next", "not next"], result, f"Probability that the second text follows the first ({order})"
            )
            _numbers(result, order)
    blocks.caveat(
        "The head was trained to distinguish the next sentence of a text from a sentence of another "
        "text (Devlin et al. 2019), so it may rely on the topic alone. The export contains only the "
        f"result for the order “A, then B”. {CERTAINTY}"
    )
    attribution.part(traces[:1], results[0].question.task)
    return results[0]


_SCORE_HELP = {
    "cosine": "A value of 1 means that the vectors have the same direction, and 0 that the vectors are "
    "orthogonal.",
    "dot": "The dot product of the two vectors, which also depends on their norms.",
    "euclidean": "0 means that the vectors are equal; more negative values mean larger differences.",
    "manhattan": "0 means that the vectors are equal; more negative values mean larger differences.",
}


def _similarity(checkpoint: Checkpoint, request: workbench.Request) -> PredictionResult | None:
    """Draw the similarity score of sentences A and B, and the contribution of each pair of tokens."""
    texts = [(text, None) for text in (request.a, request.b) if text.strip()] or [(request.a, None)]
    traces = workbench.trace_texts(checkpoint, texts, request.truncate)
    if len(traces) < 2:
        st.info("Sentence similarity needs two texts. Write sentence B under Your text, and press Run.")
        return None
    prompt = pair_prompt = dimensions = None
    if checkpoint.sentence_model is not None:
        with st.container(horizontal=True, gap="large"):
            prompt = choose_prompt(checkpoint, "prompt", "Prompt of A")
            pair_prompt = choose_prompt(checkpoint, "pair_prompt", "Prompt of B")
            dimensions = choose_dimensions(checkpoint, "vector_dimensions")
    question = SentenceSimilarity("contributions", prompt, pair_prompt, dimensions)
    result: SentenceSimilarityResult = shared_cache.answers.of(question.of, *traces)
    with st.container(horizontal=True, gap="large"):
        name = result.recipe.score_name
        st.metric(
            result.recipe.score_title, f"{result.score:.4f}", help=_SCORE_HELP[result.recipe.similarity]
        )
        if not result.not_a_sum:
            st.metric(
                "Contribution of special tokens",
                f"{result.specials_share:.4f}",
                help=f"Sum of the contributions to the {name} of token pairs with at least one special "
                "token, such as [CLS] or [SEP].",
            )
    show_calibration(checkpoint, result, result.score)
    st.caption(f"Sentence embedding of this checkpoint: {state.escape(str(result.recipe))}.")
    if result.pair_recipe != result.recipe:
        st.caption(f"Sentence embedding of text B: {state.escape(str(result.pair_recipe))}.")
    if checkpoint.sentence_model is not None and not checkpoint.sentence_model.is_sparse:
        with st.expander("Score by number of dimensions"):
            blocks.table(result.scores_by_dimension, f"{name} of the vectors truncated to fewer dimensions")
    if result.not_a_sum:
        st.caption(
            f"{result.not_a_sum} The attribution to input words below covers the complete score, and "
            "states the difference between its sum and the score."
            if result.recipe.similarity in ("cosine", "dot")
            else result.not_a_sum
        )
        attribution.part(traces, question.task, similarity=question)
        return result.showing(show="score")
    heatmap(sentence_similarity_heatmap(result), key="contributions")
    st.markdown(
        f"**Check:** the sum of all {result.contributions.size:,} cells equals the {name} "
        f"{blocks.up_to(result.off)}."
    )
    blocks.caveat(
        f"The vector of a text is a sum of contributions of its token vectors, so the {name} is a sum over "
        "token pairs. These are last-layer vectors, each of which depends on its whole text, so a cell shows "
        f"how much a token pair contributes to the {name}, not which input word caused "
        "the contribution."
    )
    attribution.part(traces, question.task, similarity=question)
    return result
