"""What is drawn: the view that all parts of the page share, of the text that is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal
from weakref import ref

import streamlit as st

from bert_probe.analyses.attention.attention import Attention, AttentionLong, Head
from bert_probe.analyses.attention.measures import AttentionMeasure, measures
from bert_probe.analyses.attention.measures import measure as measure_named
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Trace
from bert_probe.server.layers import LayerLink, labels
from bert_probe.ui import blocks, jobs
from bert_probe.ui.attention import shown
from bert_probe.ui.components.toolbar import toolbar
from bert_probe.views import toolbar as views
from bert_probe.views.head_view import HeadViewData
from bert_probe.views.page import CAVEAT, caption_of
from bert_probe.views.toolbar import ToolbarOptions
from bert_probe.views.view import VersionedView, View, to_address

ALL: Final = tuple(measures().values())
"""Every measure there is."""
OF_HEADS: Final = tuple(one for one in ALL if one.of_heads is not None)
"""Those that tell heads apart."""

_LINK: Final = "layers"
"""Session key of the link to the layers of what is drawn."""


@dataclass(frozen=True, eq=False)
class ViewModel:
    """What a reader sees of a text.

    Attributes:
        trace: of the text that is shown.
        shown: what a reader looks at; `view` is the view itself.
    """

    trace: Trace
    shown: VersionedView

    @classmethod
    def now(cls, trace: Trace, offered: Sequence[AttentionMeasure] = ALL) -> ViewModel:
        """What is to be drawn; a measure that is not offered gives way to the first one."""
        found = shown.now(trace)
        if measure_named(found.view.measure) not in offered:
            found = replace(found, view=replace(found.view, measure=offered[0].name))
        return cls(trace, found)

    @property
    def view(self) -> View:
        """The view itself."""
        return self.shown.view

    @property
    def picture(self) -> HeadViewData:
        """The numbers that the view is of."""
        return HeadViewData.of(self.trace, self.view, caption_of(self.trace))

    @property
    def what(self) -> AttentionMeasure:
        """The measure itself."""
        return measure_named(self.view.measure)

    def one(self, head: Head, *, whole: bool = False) -> Attention:
        """What is asked of a head, from 0; ``whole`` whatever the reader hides."""
        view = self.view
        specials, renormalise = (True, False) if whole else self.rows
        return Attention(view.layer - 1, head, view.measure, view.words, specials, renormalise, view.residual)

    def all(
        self,
        layers: Sequence[int] | None = None,
        heads: Sequence[Head] | None = None,
        *,
        whole: bool = False,
    ) -> AttentionLong:
        """What is asked of several."""
        view = self.view
        specials, renormalise = (True, False) if whole else self.rows
        return AttentionLong(layers, heads, view.measure, view.words, specials, renormalise, view.residual)

    @property
    def rows(self) -> tuple[bool, bool]:
        """Whether rows hold special tokens, and are divided by their sums; those that sum to 1 are not."""
        options = self.view.options
        again = options.renormalise and not (options.specials and self.what.shared_out(self.trace))
        return options.specials, again


def computed(drawn: ViewModel, layers: Sequence[int], *, start: bool = True) -> bool:
    """Whether these layers, from 0, can be drawn at once; until then, the work that takes long.

    Args:
        start: begin at once; otherwise a button is drawn first.

    Raises:
        ProbeError: what the work raised.
    """
    trace, what = drawn.trace, drawn.what
    if not any(what.takes_long(trace, layer) for layer in layers):
        return True

    def work(report: Progress) -> bool:
        drawn.all(list(layers)).of(trace, report)
        return True  # nothing that would hold the trace for as long as the session has the job

    done = jobs.run(
        "measure" if start else "measure of all layers",
        (ref(trace), what.name, tuple(layers)),  # what is computed is kept with this very trace
        f"Compute {what.label.lower()}" if start else "Compute all layers first",
        work,
        "runs of a layer",
        f"{len(layers) * len(trace.tokens):,} runs of a layer. You can cancel at any time.",
        start=start,
    )
    return done is True


def link(drawn: ViewModel) -> LayerLink:
    """Where the browser fetches layers, and what heads do; the same as long as the numbers are."""
    held: LayerLink | None = st.session_state.get(_LINK)
    if held is None or not held.leads_to(drawn.picture):
        held = st.session_state[_LINK] = LayerLink(drawn.picture)
    return held


def labelled(drawn: ViewModel) -> HeadViewData:
    """The picture with what heads do, for where nothing can be fetched later."""
    return replace(drawn.picture, labels=labels(drawn.trace))


def as_drawn(view: View, kind: Literal["lines", "model"]) -> dict[str, str]:
    """How a view is drawn, for a view file."""
    said = {name: value for name, value in to_address(view).items() if value is not None}
    return {"as": kind, **said}


def choose(drawn: ViewModel, offer: ToolbarOptions, key: str = "toolbar") -> None:
    """The toolbar above a picture that has none of its own."""
    data = views.described(drawn.shown, offer, key=shown.KEY, source=link(drawn).address)
    toolbar(data, key=key, on_change=lambda: shown.report(key, drawn.trace))


@contextmanager
def foot(drawn: ViewModel, said: str = CAVEAT, *, why: bool = True) -> Iterator[None]:
    """Beneath a picture: the exports, drawn meanwhile, and beside them what it does not mean.

    Args:
        why: say why a head is shown that nobody chose; the head view says it itself.
    """
    with st.container(horizontal=True, gap="medium"):
        yield
        with st.container():
            _caveats(drawn, said, why)


def _caveats(drawn: ViewModel, said: str, why: bool) -> None:
    reason = shown.reason(drawn.trace, drawn.view) if why else None
    if reason is not None and reason.place == (drawn.view.layer, drawn.view.series):
        said = f"Layer {reason.layer}, head {reason.head + 1} stands out: it {reason.text}. {said}"
    usual = drawn.what.name == View.measure
    blocks.caveat(said if usual else f"{drawn.what.meaning} {drawn.what.caveat(drawn.trace)} {said}")
    if drawn.trace.caveat:
        blocks.caveat(drawn.trace.caveat)
