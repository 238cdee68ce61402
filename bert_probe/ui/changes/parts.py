"""What changed from model A to model B, part by part; what cannot be had is a sentence, the rest stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.analyses.comparison.answer_change import AnswerChange, AnswerChangeResult, in_both
from bert_probe.analyses.comparison.head_change import HeadChangeResult
from bert_probe.analyses.comparison.layer_similarity import LayerSimilarity
from bert_probe.analyses.comparison.parameter_change import ParameterChangeResult
from bert_probe.analyses.comparison.vector_change import VectorChangeResult
from bert_probe.analyses.outputs.fill_mask import to_mask, usual_word
from bert_probe.analyses.outputs.prediction import CERTAINTY
from bert_probe.analyses.vectors.similarity_baseline import SimilarityBaseline
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.errors import ProbeError, UnavailableError
from bert_probe.model.checkpoint import ANSWERING, COMPARING, FILLING, FOLLOWING, LABELLING, Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, figures, jobs, sentence_input, state, workbench
from bert_probe.ui.changes import second
from bert_probe.ui.changes.figures import MOST_BARS, answer_bars, beside_unrelated, moved_curves
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.heads import many
from bert_probe.ui.parameters import changed_treemap
from bert_probe.ui.tasks import TASKS
from bert_probe.views.changes import of_alike_layers, of_changed_heads, of_changed_vectors

T = TypeVar("T")

_OF_TWO = (ANSWERING, FOLLOWING, COMPARING)
"""Tasks that read both sentences."""


def asked(ask: Callable[[], T]) -> T | UnavailableError:
    """An answer, or why there is none for these two models."""
    try:
        return ask()
    except UnavailableError as error:
        return error


def title(named: str) -> DeltaGenerator:
    """A part's title; its corner, where its files go, comes back."""
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header(named, anchor=False)
        return st.container(width="content")


def _not_to_be_had(error: ProbeError) -> None:
    st.info(state.plain(str(error), 600))


def heads(found: HeadChangeResult | UnavailableError) -> None:
    """How much every head changed, as a picture that leads to a head, and ranked."""
    corner = title("Which heads attend differently?")
    if isinstance(found, UnavailableError):
        _not_to_be_had(found)
        return
    with corner:
        export(found, "diff-heads", label="Export heads")
    with st.container(key="judged_heads"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        cell = heatmap(of_changed_heads(found), key="changed_heads")
        layer, head = (cell.row, cell.column) if cell is not None else found.strongest
        second.lead_to(layer + 1, head + 1)
    with right:
        st.dataframe(
            found.frame(),
            hide_index=True,
            width="stretch",
            height=380,
            column_config={
                "total_variation": st.column_config.NumberColumn("total variation", format="%.4f")
            },
            alt="Heads by total variation, most changed first",
        )
    blocks.caveat(
        "Total variation: the share of its attention that a token gives to other keys in B than in A, "
        "averaged over all tokens; 0 for the same rows, 1 for rows with nothing in common. A head that "
        "changed much need not matter for the output: attention is not an explanation by itself (Jain and "
        "Wallace 2019)."
    )


def vectors(found: VectorChangeResult | UnavailableError, a: Checkpoint) -> None:
    """How far the tokens' vectors turned, by layer and one by one."""
    corner = title("Which vectors turned?")
    if isinstance(found, UnavailableError):
        _not_to_be_had(found)
        return
    with corner:
        export(found, "diff-vectors", label="Export vectors")
    with st.container(key="judged_vectors"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        heatmap(of_changed_vectors(found), key="changed_vectors")
    with right:
        baseline = shared_cache.answers.of(SimilarityBaseline().of, a)
        st.markdown(beside_unrelated(found, baseline))
        st.plotly_chart(
            moved_curves(found, baseline),
            width="stretch",
            config=figures.CONFIG,
            alt="1 − cosine by layer: mean of the tokens, the farthest, and unrelated tokens of A",
        )
    blocks.caveat(
        "0: the same direction in both models; layer 0 is the output of the embeddings. A cosine has a "
        "baseline: judge it by how far unrelated tokens are apart, which in many models is little. Where B "
        "was not made of A, their dimensions mean different things and a cosine between the two says "
        "nothing; the alikeness of layers below does."
    )
    with st.expander("The same as a table"):
        units = blocks.named(found.units)
        layers = found.frame().columns
        st.dataframe(
            found.frame().set_axis(units, axis=0),
            width="stretch",
            height=min(38 + 35 * len(units), 640),
            column_config={name: st.column_config.NumberColumn(format="%.4f") for name in layers},
            alt="1 − cosine of each token's vectors, a column for each layer",
        )


def parameters(found: ParameterChangeResult) -> None:
    """The parameters by their change."""
    corner = title("Which parameters changed?")
    with corner:
        export(found, "diff-parameters", label="Export parameters")
    if found.compared:
        st.plotly_chart(
            changed_treemap(found, blocks.dark()),
            width="stretch",
            config=figures.CONFIG,
            alt="Parameters of A: area by number, colour by relative change",
        )
    others = (
        f"{len(found.others):,} tensors have no counterpart of that name and shape: grey here, and listed."
    )
    blocks.caveat(
        "Colour: ‖B − A‖ ÷ ‖A‖, the length of the change over the length of what was there; of each tensor, "
        "and of parts and layers as a whole. How much a parameter changed does not say what that does: some "
        "directions matter, others hardly. These are the encoder's; what an output head learned shows in the "
        "answers. " + (others if found.others else "")
    )
    with st.expander("Every tensor"):
        st.dataframe(
            found.frame().sort_values("relative", ascending=False, kind="stable"),
            hide_index=True,
            width="stretch",
            height=420,
            placeholder="–",
            column_config={
                "count": st.column_config.NumberColumn("count", format="localized"),
                "norm": st.column_config.NumberColumn("norm of A", format="%.4g"),
                "change": st.column_config.NumberColumn("norm of B − A", format="%.4g"),
                "relative": st.column_config.NumberColumn("relative change", format="percent"),
            },
            alt="Every tensor with its relative change, most changed first",
        )


def answers(a: Trace, b: Checkpoint) -> None:
    """What both answer, side by side."""
    corner = title("Do they answer differently?")
    tasks = asked(lambda: in_both(a.checkpoint, b))
    if isinstance(tasks, UnavailableError):
        _not_to_be_had(tasks)
        return
    task = state.pick("task", "Task", {task: TASKS[task] for task in tasks}, tasks[0], "What both can do.")
    if task in _OF_TWO and not workbench.request().b.strip():
        st.info("This is asked of two texts. Write sentence B under Your text, and run.")
        return
    try:
        found = _answered(a, b, task)
    except ProbeError as error:
        _not_to_be_had(error)
        return
    with corner:
        export(found, f"diff-{task}", label="Export answers")
    st.markdown(state.plain(found.finding, 400))
    left, right = st.columns([1, 1], gap="large")
    with left:
        st.plotly_chart(
            answer_bars(found), width="stretch", config=figures.CONFIG, alt="The answers of A and of B"
        )
        if len(found.keys) > MOST_BARS:
            st.caption(f"The first {MOST_BARS} of {len(found.keys):,}; the table has all.")
    with right:
        frame = found.frame()
        st.dataframe(
            frame,
            hide_index=True,
            width="stretch",
            height=min(38 + 35 * len(frame), 420),
            placeholder="–",
            column_config={
                name: st.column_config.NumberColumn(name, format="%.4f") for name in ("a", "b", "difference")
            },
            alt="Answers with the number of A, of B, and the difference",
        )
    blocks.caveat(
        f"What either model puts first, with the number that both give it. {CERTAINTY}"
        if found.kind == "probability"
        else "One number of each model."
    )


def _answered(a: Trace, b: Checkpoint, task: str) -> AnswerChangeResult:
    """The answers for the text that the task reads: both sentences, or the one that is looked at.

    Raises:
        ProbeError: what the question raises.
    """
    now = workbench.request()
    text: shared_cache.Text = (a.encoding.text, a.encoding.pair)
    if task in _OF_TWO:
        text = (now.a, now.b)
    elif task == LABELLING:
        text = (a.encoding.text, None)
    truncate = now.truncate or task == ANSWERING
    (one,), (two,) = (shared_cache.traces(model, [text], truncate) for model in (a.checkpoint, b))
    mask = None
    if task == FILLING:
        usual = usual_word(one)
        st.markdown("Choose a word to mask it, or write a mask into the text")
        first = state.token("mask", one.tokens, usual)
        clicked = blocks.token_strip(one, f"masks_{len(one.tokens)}", "Words that can be masked", first)
        position = first if clicked is None else clicked
        state.remember("mask", None if position == usual else str(position))
        mask = to_mask(one, position)
    found: AnswerChangeResult = shared_cache.answers.of(AnswerChange(task, mask=mask).of, one, two)
    return found


def alikeness(a: Checkpoint, b: Checkpoint) -> None:
    """How alike any two layers are over many sentences."""
    corner = title("How alike are their layers?")
    source = state.pick("sentences", "Sentences", many.SOURCES, "sample")
    truncate = workbench.request().truncate
    try:
        sentences = many.sentences_of_source(source)
        if not sentences:
            return
        sentence_input.check_number(sentences, many.MOST)
        found = jobs.answered(
            "alikeness of layers",
            LayerSimilarity().of,
            a,
            b,
            sentences,
            truncate,
            label="Compare all layers",
            unit="steps",
            note="Both models read every sentence. You can cancel at any time.",
        )
    except ProbeError as error:
        many.refusal(error)
        return
    if found is None:
        return
    with corner:
        lines = ("The sentences", SENTENCES_FILE, lambda _: "\n".join(sentences).encode())
        export(found, "diff-alikeness", [lines], label="Export layers", data={"sentences": sentences})
    st.markdown(state.plain(found.finding, 400))
    heatmap(of_alike_layers(found), key="alike_layers")
    blocks.caveat(
        f"Linear CKA over {found.examples:,} tokens (Kornblith et al. 2019): 1 where tokens that are alike "
        "in the one layer are alike in the other, whatever the dimensions mean, so models of any sizes can "
        "be compared. The few directions in which vectors vary most decide it, and few tokens make it too "
        "high: compare its values with each other rather than with 1."
    )
