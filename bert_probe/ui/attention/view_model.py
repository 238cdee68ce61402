"""The attention view of a page: questions, toolbar, footer and links for the current selection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal
from weakref import ref

import streamlit as st

from bert_probe.analyses.attention.attention import Attention, AttentionLong, Head
from bert_probe.analyses.attention.measures import AttentionMeasure, measures
from bert_probe.analyses.attention.measures import get_measure as measure_named
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Trace
from bert_probe.server.layers import LayerLink, labels
from bert_probe.ui import blocks, jobs
from bert_probe.ui.attention import selection_state
from bert_probe.ui.components.toolbar import toolbar
from bert_probe.views import head_view as views
from bert_probe.views.head_view import HeadViewData, ToolbarOptions
from bert_probe.views.page import CAVEAT, caption_of
from bert_probe.views.selection import Selection, VersionedSelection, to_address

ALL: Final = tuple(measures().values())
"""All measures."""
OF_HEADS: Final = tuple(measure for measure in ALL if measure.of_heads is not None)
"""Measures that are defined for each head."""

_LINK: Final = "layers"
"""Session key of the link from which the browser fetches layers."""


@dataclass(frozen=True, eq=False)
class ViewModel:
    """A text and its current selection.

    Attributes:
        trace: trace of the text.
        versioned: the selection with its revision.
    """

    trace: Trace
    versioned: VersionedSelection

    @classmethod
    def current(cls, trace: Trace, supported: Sequence[AttentionMeasure] = ALL) -> ViewModel:
        """Return the view of a trace; an unsupported measure is replaced with the first supported one."""
        versioned = selection_state.current(trace)
        if measure_named(versioned.value.measure) not in supported:
            versioned = replace(versioned, value=replace(versioned.value, measure=supported[0].name))
        return cls(trace, versioned)

    @property
    def selection(self) -> Selection:
        """The selection without its revision."""
        return self.versioned.value

    @property
    def data(self) -> HeadViewData:
        """The data that the view displays."""
        return HeadViewData.of(self.trace, self.selection, caption_of(self.trace))

    @property
    def measure(self) -> AttentionMeasure:
        """The selected attention measure."""
        return measure_named(self.selection.measure)

    def attention(self, head: Head, *, full_rows: bool = False) -> Attention:
        """Return the question for a head, from 0.

        Args:
            full_rows: whether to ignore the view's options: include special tokens, do not renormalize.
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
        """Return the question for several layers and heads, counted from 0; None selects all."""
        selection = self.selection
        specials, renormalize = (True, False) if full_rows else self.row_options
        return AttentionLong(
            layers, heads, selection.measure, selection.words, specials, renormalize, selection.residual
        )

    @property
    def row_options(self) -> tuple[bool, bool]:
        """Whether rows include special tokens, and whether to renormalize rows that do not sum to 1."""
        options = self.selection.options
        renormalize = options.renormalize and not (options.specials and self.measure.sums_to_one(self.trace))
        return options.specials, renormalize


def ensure_computed(model: ViewModel, layers: Sequence[int], *, start: bool = True) -> bool:
    """Return whether layers, from 0, are available; if not, compute them in a job.

    Args:
        start: whether to start without a click; otherwise a button is drawn first.

    Raises:
        ProbeError: the job failed.
    """
    trace, measure = model.trace, model.measure
    if not any(measure.takes_long(trace, layer) for layer in layers):
        return True

    def work(progress: Progress) -> bool:
        model.attention_long(list(layers)).of(trace, progress)
        return True  # not the result, which would keep the trace in memory as long as the job

    done = jobs.run(
        "measure" if start else "measure of all layers",
        (ref(trace), measure.name, tuple(layers)),  # the results are cached with this trace
        f"Compute {measure.label.lower()}" if start else "Compute all layers first",
        work,
        "layer passes",
        f"{len(layers) * len(trace.tokens):,} forward passes of one layer each. You can cancel at any time.",
        start=start,
    )
    return done is True


def layer_link(model: ViewModel) -> LayerLink:
    """Return the link from which the browser fetches layers and labels; it changes with the data."""
    link: LayerLink | None = st.session_state.get(_LINK)
    if link is None or not link.serves(model.data):
        link = st.session_state[_LINK] = LayerLink(model.data)
    return link


def labeled_data(model: ViewModel) -> HeadViewData:
    """Return the data with the labels of the heads, for a static page that cannot fetch them."""
    return replace(model.data, labels=labels(model.trace))


def url_options(selection: Selection, kind: Literal["lines", "model"]) -> dict[str, str]:
    """Return the display options of a selection for a view file."""
    options = {name: value for name, value in to_address(selection).items() if value is not None}
    return {"as": kind, **options}


def draw_toolbar(model: ViewModel, options: ToolbarOptions, key: str = "toolbar") -> None:
    """Draw the toolbar for a view without its own toolbar."""
    data = views.toolbar_data(
        model.versioned, options, key=selection_state.KEY, source=layer_link(model).address
    )
    toolbar(data, key=key, on_change=lambda: selection_state.receive_report(key, model.trace))


@contextmanager
def footer(model: ViewModel, caveat: str = CAVEAT, *, why: bool = True) -> Iterator[None]:
    """Draw the row below a view: the `with` body draws the exports, then the caveats are added.

    Args:
        why: whether to explain why the initial head was selected; the head view has its own explanation.
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
    if model.trace.caveat:
        blocks.caveat(model.trace.caveat)
