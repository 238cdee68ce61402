"""The Attention page: attention as lines, thumbnails, a matrix, rollout, and the BertViz views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal
from weakref import ref

import pandas as pd
import streamlit as st

from bert_probe.analyses.attention.attention import (
    Attention,
    AttentionLong,
    AttentionResult,
    Head,
    TokenRollout,
)
from bert_probe.analyses.attention.contacts import predicts_contacts
from bert_probe.analyses.attention.heads import Heads
from bert_probe.analyses.attention.measures import AttentionMeasure, measures
from bert_probe.analyses.attention.measures import get_measure as measure_named
from bert_probe.analyses.attention.measures.rollout import MEASURE as ROLLOUT
from bert_probe.errors import ProbeError, TooLongError
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.server import bertviz_frames
from bert_probe.server.sessions import LayerLink
from bert_probe.ui import blocks, jobs, selection_state, state, workbench
from bert_probe.ui.components import head_view as head_view_component
from bert_probe.ui.components import heatmap, toolbar
from bert_probe.ui.components import model_view as model_view_component
from bert_probe.ui.contacts import draw_contacts
from bert_probe.ui.export import export, long_table_zip
from bert_probe.views import head_view as head_views
from bert_probe.views import heatmaps, pictures
from bert_probe.views import model_view as model_views
from bert_probe.views.head_view import HeadViewData, ToolbarOptions
from bert_probe.views.page import CAVEAT
from bert_probe.views.payload import pack
from bert_probe.views.selection import RESIDUALS, Selection, VersionedSelection, to_address

ALL: Final = tuple(measures().values())
"""All attention measures."""
OF_HEADS: Final = tuple(measure for measure in ALL if measure.of_heads is not None)
"""Attention measures that are defined for each head."""

_LINK: Final = "layers"
"""Session key of the `LayerLink` from which the browser fetches the attention of each layer."""


@dataclass(frozen=True, eq=False)
class ViewModel:
    """The trace of a text and the current attention selection, from which the attention views are drawn.

    Attributes:
        trace: trace of the text.
        versioned: the selection with its revision.
    """

    trace: Trace
    versioned: VersionedSelection

    @classmethod
    def current(cls, trace: Trace, supported: Sequence[AttentionMeasure] = ALL) -> ViewModel:
        """Return the view model of a trace. The first supported measure replaces an unsupported one."""
        versioned = selection_state.current(trace)
        if measure_named(versioned.value.measure) not in supported:
            versioned = replace(versioned, value=replace(versioned.value, measure=supported[0].name))
        return cls(trace, versioned)

    @property
    def selection(self) -> Selection:
        """The current attention selection, without the number that counts its changes."""
        return self.versioned.value

    @property
    def data(self) -> HeadViewData:
        """The tokens and attention that the view displays."""
        return HeadViewData.of(self.trace, self.selection)

    @property
    def measure(self) -> AttentionMeasure:
        """The selected attention measure."""
        return measure_named(self.selection.measure)

    def attention(self, head: Head, *, full_rows: bool = False) -> Attention:
        """Return the `Attention` question for one head of the selected layer.

        Args:
            head: number of the head, from 0, or "mean".
            full_rows: whether to include special tokens and not renormalize, regardless of the view's
                options.
        """
        selection = self.selection
        specials, renormalize = (True, False) if full_rows else self.row_options
        return Attention(
            selection.layer - 1,
            head,
            selection.measure,
            selection.words,
            specials,
            renormalize,
            selection.residual,
        )

    def attention_long(
        self,
        layers: Sequence[int] | None = None,
        heads: Sequence[Head] | None = None,
        *,
        full_rows: bool = False,
    ) -> AttentionLong:
        """Return the `AttentionLong` question for layers and heads, counted from 0. None selects all."""
        selection = self.selection
        specials, renormalize = (True, False) if full_rows else self.row_options
        return AttentionLong(
            layers, heads, selection.measure, selection.words, specials, renormalize, selection.residual
        )

    @property
    def row_options(self) -> tuple[bool, bool]:
        """Two flags: include special tokens in rows, and renormalize rows that do not sum to 1."""
        options = self.selection.options
        renormalize = options.renormalize and not (options.specials and self.measure.sums_to_one(self.trace))
        return options.specials, renormalize


def ensure_computed(model: ViewModel, layers: Sequence[int], *, start: bool = True) -> bool:
    """Return whether the measure is available for all `layers`. If not, compute the measure in a job.

    Args:
        model: the view, which determines the text and the measure.
        layers: indices of the layers, from 0.
        start: whether to start without a click; otherwise a button is drawn first.

    Raises:
        ProbeError: the job failed.
    """
    trace, measure = model.trace, model.measure
    if not any(measure.takes_long(trace, layer) for layer in layers):
        return True

    def work(progress: Progress) -> bool:
        model.attention_long(list(layers)).of(trace, progress)
        return True  # do not return the result, because the job would keep its trace in memory

    done = jobs.run(
        "measure" if start else "measure of all layers",
        # These inputs identify the job. Its results are cached with the trace.
        (ref(trace), measure.name, tuple(layers)),
        f"Compute {measure.label.lower()}" if start else "Compute all layers first",
        work,
        "layer passes",
        f"This analysis runs {len(layers) * len(trace.tokens):,} forward passes through one layer each. "
        "You can cancel at any time.",
        start=start,
    )
    return done is True


def layer_link(model: ViewModel) -> LayerLink:
    """Return the link from which the browser fetches layers and labels; changed data gets a new link."""
    link: LayerLink | None = st.session_state.get(_LINK)
    if link is None or not link.serves(model.data):
        link = st.session_state[_LINK] = LayerLink(model.data)
    return link


def attention_page(model: ViewModel, kind: Literal["lines", "model"]) -> bytes:
    """Return the current view as an HTML page, from results that are cached for all sessions."""
    page = pictures.attention_page(kind, model.trace, model.selection, shared_cache.answers.of)
    return page.html().encode()


def display_options(selection: Selection, kind: Literal["lines", "model"]) -> dict[str, str]:
    """Return the display options of a selection, as stored in a view file."""
    options = {name: value for name, value in to_address(selection).items() if value is not None}
    return {"as": kind, **options}


def draw_toolbar(model: ViewModel, options: ToolbarOptions, key: str = "toolbar") -> None:
    """Draw the toolbar above a view that does not contain its own toolbar."""
    data = head_views.initial_state(
        model.trace,
        model.versioned,
        key=selection_state.KEY,
        options=options,
        source=layer_link(model).address,
    )
    toolbar(data, key=key, on_change=lambda: selection_state.receive_report(key, model.trace))


@contextmanager
def footer(model: ViewModel, caveat: str = CAVEAT, *, why: bool = True) -> Iterator[None]:
    """Draw the row below a view. The `with` body draws the export menu, and the caveats follow it.

    Args:
        model: the view above the row.
        caveat: sentences about the limits of the view, drawn after the caveats of the measure.
        why: whether to state why the initial attention head was selected; the head view explains this itself.
    """
    with st.container(horizontal=True, gap="medium"):
        yield
        with st.container():
            _caveats(model, caveat, why)


def _caveats(model: ViewModel, caveat: str, why: bool) -> None:
    reason = selection_state.reason(model.trace, model.selection) if why else None
    if reason is not None and reason.place == (model.selection.layer, model.selection.series):
        caveat = f"Layer {reason.layer}, head {reason.head + 1} stands out: it {reason.text}. {caveat}"
    if model.measure.name != Selection.measure:
        caveat = f"{model.measure.meaning} {model.measure.caveat(model.trace)} {caveat}"
    blocks.caveat(caveat)
    if model.trace.note:
        blocks.caveat(model.trace.note)


VIEWS = {
    "heads": "Head view",
    "model": "Model view",
    "heatmap": "Heatmap",
    "table": "Table",
    "rollout": "Rollout",
    "head-view": "BertViz head view",
    "model-view": "BertViz model view",
}
HEAD_VIEW, MODEL_VIEW = "head_view", "model_view"
"""Component keys of the head view and the model view."""
CONTACTS = {"contacts": "Contacts"}
"""The additional view for sequences with one token per residue, and for models with a contact head."""
_WEIGHTS_ONLY = ALL[:1]
"""The measures that the BertViz views support: attention weights only."""
_DIRECTIONS = {"from": "From this token", "into": "Into this token"}


def render() -> None:
    """Draw the Attention page."""
    row = blocks.compact_heading(
        "Attention",
        "In every layer and head, each token (the query) distributes a weight of 1 over all tokens (the "
        "keys). Choose a view, a layer and heads. A bold head number means that the head has a label, such "
        "as previous token.",
    )
    traced = workbench.trace_request()
    with row:
        views = VIEWS | CONTACTS if _has_contacts(traced.a) else VIEWS
        view = state.segmented_control("show", "View", views, "heads")
        trace = workbench.choose_trace(traced)
    blocks.truncation_notice(trace)
    _draw(view, trace)


@st.fragment
def _draw(view: str, trace: Trace) -> None:
    """Draw the selected view as a fragment, so that its widgets rerun only the view."""
    draw_view: dict[str, Callable[[Trace], None]] = {
        "heads": head_view,
        "model": model_view,
        "heatmap": partial(grid, as_table=False),
        "table": partial(grid, as_table=True),
        "rollout": rollout,
        "contacts": draw_contacts,
        "head-view": bertviz_head_view,
        "model-view": bertviz_model_view,
    }
    try:
        draw_view[view](trace)
    except ProbeError as error:
        blocks.error_box(error)
    state.publish()


def _has_contacts(trace: Trace) -> bool:
    return predicts_contacts(trace) or any(token.residue is not None for token in trace.tokens)


# ---------------------------------------------------------------- BertViz


def bertviz_head_view(trace: Trace) -> None:
    """Draw BertViz's head view in an iframe."""
    model = ViewModel.current(trace, _WEIGHTS_ONLY)
    selection = model.selection
    draw_toolbar(model, ToolbarOptions.of(trace, selection, (), several=True, specials=False))
    heads = None if selection.series == "mean" else [*selection.series]
    try:
        frame = bertviz_frames.head_view(trace, selection.layer - 1, heads, blocks.is_dark())
    except TooLongError as error:
        _too_long(error)
        return
    if heads is None:
        st.caption("BertViz shows individual heads, not their mean, so all heads of the layer are selected.")
    _frame(frame)


def bertviz_model_view(trace: Trace) -> None:
    """Draw BertViz's model view in an iframe."""
    try:
        frame = bertviz_frames.model_view(trace, blocks.is_dark())
    except TooLongError as error:
        _too_long(error)
        return
    _frame(frame)


def _frame(frame: bertviz_frames.BertVizFrame) -> None:
    st.iframe(frame.url, height=frame.height, alt=frame.title)
    blocks.caveat(frame.caption)


def _too_long(error: TooLongError) -> None:
    with st.container(border=True):
        st.header("Text too long for BertViz", anchor=False)
        st.text(str(error))


# ---------------------------------------------------------------- heatmap and table


def grid(trace: Trace, as_table: bool) -> None:
    """Draw the attention matrix of a head, or of the mean, as a heatmap or as a table."""
    model = ViewModel.current(trace)
    more = ("renormalize",) if as_table else ("renormalize", "root")
    draw_toolbar(model, ToolbarOptions.of(trace, model.selection, more, ALL, words=True))
    if not ensure_computed(model, [model.selection.layer - 1]):
        return
    result = shared_cache.answers.of(model.attention(model.selection.head).of, trace)
    if as_table:
        _table(result)
        title = f"{heatmaps.attention_title(result)}. "
    else:
        heatmap(heatmaps.attention_heatmap(result, model.selection.options.root), key="attention_matrix")
        title = ""  # no title, because the heatmap has its own title
    with footer(model, f"{title}{_row_sums(model, result)} {CAVEAT}"):
        _grid_exports(model, result)


def _grid_exports(model: ViewModel, result: AttentionResult) -> None:
    layer, head = result.question.layer + 1, result.question.head
    number = "mean" if head == "mean" else str(int(head) + 1)

    def long_table(csv_safe: bool) -> bytes:
        return long_table_zip(model.attention_long().of(model.trace), "attention", csv_safe)

    export(
        result,
        f"attention-layer{layer}-head{number}",
        [("All layers and heads (CSV, long format)", "attention-all.zip", long_table)],
        ready=lambda: ensure_computed(model, range(model.trace.layers), start=False),
    )


def _table(result: AttentionResult) -> None:
    """Draw the attention matrix as a table of numbers, with the sum of each row."""
    frame = pd.DataFrame(
        result.weights,
        index=pd.Index(blocks.unique_names(result.queries), name="query ↓ · key →"),
        columns=blocks.unique_names(result.keys),
    )
    frame.insert(0, "row sum", result.row_sums)
    blocks.table(
        frame,
        "Attention matrix, one row per query token",
        max_height=640,
        show_index=True,
        column_config={str(name): _column(str(name)) for name in frame},
    )


def _column(name: str) -> Any:
    """Return the configuration of a number column, with limited width if its name is long."""
    return st.column_config.NumberColumn(format="%.4f", width="medium" if len(name) > 24 else None)


def _row_sums(model: ViewModel, result: AttentionResult) -> str:
    """Return a sentence that states whether the attention rows sum to 1."""
    question = result.question
    if not model.measure.sums_to_one(model.trace) and not question.renormalize:
        return "This measure is not a distribution, so the rows do not sum to 1."
    if question.specials and not question.renormalize:
        return "Each row sums to 1. The columns need not sum to 1."
    if question.specials:
        return "Each row was divided by its sum, so the rows sum to 1."
    if question.renormalize:
        return "Special tokens are hidden, and each row was renormalized, so the rows sum to 1 again."
    sums = result.row_sums
    return (
        f"Special tokens are hidden, so the rows sum to between {sums.min():.2f} and {sums.max():.2f}. The "
        "remaining weight is on the special tokens."
    )


# ---------------------------------------------------------------- head view


def head_view(trace: Trace) -> None:
    """Draw attention as lines between tokens. The component's own toolbar works without the server."""
    model = ViewModel.current(trace)
    selection, layer = model.selection, model.selection.layer - 1
    options = ToolbarOptions.of(trace, selection, head_views.OVERFLOW_OPTIONS, ALL, several=True, words=True)
    if model.measure.takes_long(trace, layer):
        # The component, which contains a toolbar, is not drawn until the measure is computed.
        draw_toolbar(model, options, "waiting")
        if not ensure_computed(model, [layer]):
            return
    initial = head_views.initial_state(
        trace,
        model.versioned,
        key=selection_state.KEY,
        options=options,
        source=layer_link(model).address,
        reason=selection_state.reason(trace, selection),
    )
    ask = shared_cache.answers.of
    data = (
        head_views.payload(model.data, layer, key=selection_state.KEY, state=initial, ask=ask)
        if _needs_layer()
        else pack(initial, {})
    )
    head_view_component(
        data, key=HEAD_VIEW, on_change=lambda: selection_state.receive_report(HEAD_VIEW, trace)
    )
    with footer(model, why=False):
        _head_view_exports(model)


def _needs_layer() -> bool:
    """Return whether the server must send the layer, because the browser has none or could not fetch it."""
    component: Any = st.session_state.get(HEAD_VIEW)
    report = component.get(selection_state.REPORT) if isinstance(component, Mapping) else None
    return component is None or (isinstance(report, Mapping) and report.get("lost") is True)


def _head_view_exports(model: ViewModel) -> None:
    """Draw the export menu, with full attention rows of the selected heads and the view as an HTML page."""
    selection = model.selection
    series = selection.series if selection.head != "mean" else "mean"
    heads: list[Head] = ["mean"] if series == "mean" else [*series]
    name = ".".join("mean" if head == "mean" else str(head + 1) for head in heads)
    question = (
        model.attention(heads[0], full_rows=True)
        if len(heads) == 1
        else model.attention_long([selection.layer - 1], heads, full_rows=True)
    )
    export(
        question.of(model.trace),
        f"attention-layer{selection.layer}-head{name}",
        [
            (
                "Interactive page (HTML)",
                "head-view.html",
                lambda _: attention_page(model, "lines"),
            )
        ],
        "All weights of the selected heads at full precision, including those that the view hides.",
        ready=lambda: ensure_computed(model, range(model.trace.layers), start=False),
        display=display_options(selection, "lines"),
    )


# ---------------------------------------------------------------- model view
def model_view(trace: Trace) -> None:
    """Draw thumbnails of all heads of all layers; a click opens a head in the head view."""
    model = ViewModel.current(trace, OF_HEADS)
    selection = model.selection
    draw_toolbar(
        model, ToolbarOptions.of(trace, selection, (), OF_HEADS, several=True, specials=False, words=True)
    )
    profiles = shared_cache.answers.of(Heads(selection.words).of, trace)
    data = model_views.trace_payload(
        trace,
        profiles,
        key=MODEL_VIEW,
        words=selection.words,
        measure=selection.measure,
        chosen=(selection.layer, selection.series),
    )
    if model_view_component(data, (trace.layers, trace.heads), key=MODEL_VIEW, on_open=_open_head):
        st.rerun()  # rerun the page, not only this fragment, because the view has changed

    with footer(
        model,
        "Each thumbnail is one head: rows are queries, columns are keys. In long texts, each pixel "
        "covers several tokens and shows the largest of their weights. A label describes where a head "
        "attends on this text, not the function of the head. The export contains the measures for "
        "sorting heads. To export the weights, use the Heatmap view.",
    ):
        export(
            profiles,
            "heads",
            [("Interactive page (HTML)", "model-view.html", lambda _: attention_page(model, "model"))],
            display=display_options(selection, "model"),
        )


def _open_head(head: model_views.HeadThumbnail) -> None:
    """Open a head in the head view. Streamlit runs this callback before the script."""
    st.session_state["show"] = "heads"
    selection_state.show_head(head.layer + 1, (head.head,))


# ---------------------------------------------------------------- rollout


def rollout(trace: Trace) -> None:
    """Draw the rollout of the selected token, layer by layer."""
    default = min(1, len(trace.tokens) - 1)
    with st.container(horizontal=True, horizontal_alignment="distribute", gap="small", key="following"):
        with st.container(width="content"):
            direction = state.segmented_control("direction_of", "Direction", _DIRECTIONS, "from")
        with st.container(width="stretch"):
            token = blocks.token_strip(trace, "rollout_token", "Token to follow", default, row=True)
        with st.popover("More"):
            residual = _residual_share()
    result = TokenRollout(default if token is None else token, direction, residual=residual).of(trace)
    heatmap(heatmaps.token_rollout_heatmap(result), key="rollout")
    with st.container(horizontal=True, gap="medium"):
        export(result, "rollout")
        with st.container():
            blocks.caveat(f"{ROLLOUT.meaning} {_rollout_note(trace, direction)}")


def _rollout_note(trace: Trace, direction: str) -> str:
    if direction == "from":
        return (
            "Each row is a layer. Each cell shows which share of a token's vector after this layer comes "
            "from the selected token. The cells of a layer do not sum to 1."
        )
    if trace.caveat:
        return (
            "Each row is a layer. Each cell shows how much a token contributes to the selected token up to "
            f"this layer. {trace.caveat}"
        )
    return (
        "Each row is a layer. Each cell shows which share of the selected token's vector after this layer "
        "comes from a token. The cells of a layer sum to 1."
    )


def _residual_share() -> float:
    """Draw a slider for the share of the residual connection in rollout."""
    state.prepare("residual", RESIDUALS, Selection.residual, lambda share: f"{share:g}")
    share: float = st.select_slider(
        "Residual share",
        RESIDUALS,
        key="residual",
        persist_state="session",
        help="The share of each token's vector that is assumed to pass through a layer unchanged, along the "
        "residual connection. Abnar and Zuidema (2020) use one half.",
    )
    return share
