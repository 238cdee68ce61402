"""The part of Answer that shows what the output head makes of each layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.outputs.lens import CAVEAT, Lens, LensResult
from bert_probe.errors import UnavailableError, WeightsError
from bert_probe.model.checkpoint import CLASSIFYING, FILLING, LABELLING
from bert_probe.model.trace import Array, Trace
from bert_probe.runtime import shared_cache
from bert_probe.text.truncation import truncate_text
from bert_probe.ui import blocks, figures, state, tuned_lens
from bert_probe.ui.export import export
from bert_probe.views.palette import HEADS
from bert_probe.views.text import shown

_CURVES = {"probability": "Probability", "rank": "Rank", "entropy": "Entropy"}
_MOST_CURVES = 8
_MOST_TOKENS = 60
"""Rows of a picture of tokens; it would be long, and slow."""
_FADING = [[0, "rgba(99,91,228,0)"], [1, "rgba(99,91,228,0.7)"]]
"""From any paper to the accent, so that text in the theme's ink is readable on all of it."""


def part(trace: Trace, task: str, word: int | str | None = None, truncate: bool = False) -> None:
    """Draw it.

    Args:
        word: the token whose word is masked, if any.
        truncate: cut lines that are too long for a tuned lens to learn from.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.header("From which layer on?", anchor=False)
        st.space("stretch")
        corner = st.container(width="content")
    choosers, pictures = (
        st.container(horizontal=True, vertical_alignment="bottom", gap="medium"),
        st.container(),
    )
    # Before what it changes is drawn, though it stands below.
    kept = tuned_lens.training(trace.checkpoint, truncate) if task == FILLING else None
    with choosers:
        tuned = tuned_lens.choose(kept)
    try:
        found: LensResult = shared_cache.answers.of(Lens(task, mask=word, tuned=tuned).of, trace)
    except (UnavailableError, WeightsError) as error:
        st.info(state.plain(str(error), 400))
        return
    with corner:
        export(found, f"lens-{task}", label="Export this part")
    by, shared = "probability", not np.isnan(found.probabilities).all()  # a number has no rank
    if task != LABELLING and shared:
        with choosers:
            by = state.pick("lens_by", "Curves", _CURVES, "probability")
    with pictures:
        if task == FILLING:
            _masks(trace, found, by)
            if kept is not None and tuned is not None:
                tuned_lens.losses(kept[1], kept[0])
        elif task == CLASSIFYING:
            everything = shared_cache.answers.of(
                Lens(task, top=len(trace.checkpoint.outputs[task].labels)).of, trace
            )
            st.markdown(_said(everything, 0))
            _curves(everything, 0, by)
        else:
            _tokens(found, "label")
        blocks.caveat(
            f"{CAVEAT} Layer 0 is the output of the embeddings; the last layer is the model's answer "
            "(nostalgebraist 2020, “logit lens”)."
        )


def _masks(trace: Trace, found: LensResult, by: str) -> None:
    """Each mask, and beneath them all tokens where the mask is for the question."""
    for number in range(len(found.places)):
        _mask(found, _followed(trace, found, number), number, by)
    asked = found.question
    if asked.mask is not None:
        plain = "" if asked.tuned is None else ", by the plain lens: the tuned one has learned at masks alone"
        st.markdown(f"**The same at every token**, of which the model has read each here{plain}.")
        _tokens(shared_cache.answers.of(Lens(asked.task, top=1).of, trace), "word")


def _followed(trace: Trace, found: LensResult, number: int) -> LensResult:
    """The same for the words that the last layer likes best, at every layer."""
    asked = found.question
    words = found.names[-1][number]
    followed: LensResult = shared_cache.answers.of(
        Lens(asked.task, targets=words, mask=asked.mask, tuned=asked.tuned).of, trace
    )
    return followed


def _mask(found: LensResult, followed: LensResult, number: int, by: str) -> None:
    mask = found.places[number]
    st.markdown(f"**Token {mask.position}.** {_said(found, number)}")
    _curves(followed, number, by)
    layers, count = found.ids.shape[0], found.ids.shape[2]
    _grid(
        [[shown(name) for name in found.names[layer][number]] for layer in range(layers)],
        found.probabilities[:, number],
        [str(layer) for layer in range(layers)],
        [str(rank + 1) for rank in range(count)],
        ("layer", "rank"),
        f"The likeliest words of each layer at token {mask.position}",
    )


def _tokens(found: LensResult, what: str) -> None:
    """The likeliest word or label of every token in every layer."""
    layers, places = found.ids.shape[0], found.places[:_MOST_TOKENS]
    if len(places) < len(found.places):
        st.caption(f"The first {_MOST_TOKENS} of {len(found.places):,} tokens; the files have all.")
    _grid(
        [[shown(found.names[layer][place][0]) for layer in range(layers)] for place in range(len(places))],
        found.probabilities[:, : len(places), 0].T,
        blocks.labels(places),
        [str(layer) for layer in range(layers)],
        ("token", "layer"),
        f"The likeliest {what} of each token in each layer",
    )


def _said(found: LensResult, number: int) -> str:
    """From which layer on the last layer's answer is the likeliest."""
    name, layer = state.plain(shown(found.names[-1][number][0])), int(found.settled[number])
    last = len(found.ids) - 1
    if layer == last:
        return f"Only the last layer, {last}, puts **{name}** first."
    return f"**{name}** is first from layer {layer} on, of {last}."


def _curves(found: LensResult, number: int, by: str) -> None:
    """What the last layer puts first, by layer: probability, of a number the number itself, or rank; or how
    undecided each layer is."""
    figure = go.Figure()
    values, axis, name = found.probabilities, "probability", "Probability by layer"
    if np.isnan(values).all():
        values, axis = found.logits, "value"
    if by == "rank":
        values, axis, name = found.ranks, "rank", "Rank by layer"
    if by == "entropy":
        _line(figure, found.entropy[:, number], "entropy", HEADS[0])
        axis, name = "bits", "Entropy by layer"
    else:
        last = {int(one): place for place, one in enumerate(found.ids[-1, number])}
        for one in list(last)[:_MOST_CURVES]:
            each = [
                row[int(np.flatnonzero(ids == one)[0])]
                for row, ids in zip(values[:, number], found.ids[:, number], strict=True)
            ]
            named = figures.as_text(shown(found.names[-1][number][last[one]]))
            _line(figure, each, named, HEADS[last[one] % len(HEADS)])
    # The first rank is the best, and most of what happens is among the first few.
    ranked = {"type": "log", "autorange": "reversed"} if by == "rank" else {"rangemode": "tozero"}
    figure.update_layout(
        height=300,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        xaxis={"title": "layer", "dtick": max(1, len(found.ids) // 12), "zeroline": False},
        yaxis={"title": axis, **ranked},
        legend={"orientation": "v", "x": 1.01, "y": 1},
        hovermode="closest",
    )
    st.plotly_chart(figure, width="stretch", config=figures.CONFIG, alt=name)


def _line(figure: go.Figure, values: Sequence[float] | Array, name: str, colour: str) -> None:
    """A point a layer, from 0."""
    figure.add_scatter(
        x=list(range(len(values))),
        y=values,
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2.5},
        hovertemplate=f"layer %{{x}}: %{{y:.4~g}}<extra>{name}</extra>",
    )


def _grid(
    names: Sequence[Sequence[str]],
    shares: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    axes: tuple[str, str],
    title: str,
) -> None:
    """Names in cells, [row, column], the likelier the darker."""
    places = np.indices(shares.shape)
    cells = [figures.as_text(name) for row in names for name in row]
    short = [figures.as_text(truncate_text(name, 14)) for row in names for name in row]
    figure = go.Figure()
    figure.add_heatmap(
        z=np.sqrt(shares),
        zmin=0,
        zmax=1,
        colorscale=_FADING,
        xgap=2,
        ygap=2,
        showscale=False,
        hoverinfo="skip",
    )
    # Written by itself, in the theme's ink: in the cells it would take a colour that fits a white page.
    figure.add_scatter(
        x=places[1].ravel(),
        y=places[0].ravel(),
        mode="text",
        text=short,
        textfont={"color": figures.ink(blocks.dark())},
        customdata=np.array([cells, [f"{share:.4f}" for share in shares.ravel()]]).T,
        hovertemplate=f"{axes[0]} %{{y}}, {axes[1]} %{{x}}: "
        "%{customdata[0]}, %{customdata[1]}<extra></extra>",
    )
    ticks = {"showgrid": False, "zeroline": False}
    figure.update_layout(
        height=70 + 30 * len(rows),
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        xaxis={**ticks, "title": axes[1], "tickvals": list(range(len(columns))), "ticktext": list(columns)},
        yaxis={
            **ticks,
            "title": axes[0],
            "tickvals": list(range(len(rows))),
            "ticktext": [figures.as_text(row) for row in rows],
            "range": [len(rows) - 0.5, -0.5],
        },
        showlegend=False,
    )
    st.markdown(f"**{title}** · the stronger the colour, the likelier", help="Colours go by the square root.")
    st.plotly_chart(figure, width="stretch", config=figures.CONFIG, alt=title)
