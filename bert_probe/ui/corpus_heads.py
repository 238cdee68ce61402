"""The Heads section of the Corpus page: histograms of a measure over all rows, for each head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.corpus.heads import (
    QUANTILES,
    HeadExamples,
    HeadExamplesResult,
    HeadHistograms,
    HeadHistogramsResult,
    HeadStatistics,
)
from bert_probe.corpus.store import Store
from bert_probe.model.trace import Array
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, corpus_rows, figures, jobs, state
from bert_probe.ui.components import model_view
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, SECOND
from bert_probe.ui.head_measures import choose_measure
from bert_probe.views.measures import MEASURES
from bert_probe.views.model_view import HeadThumbnail, histogram_payload, histogram_span

_ORDERS: Final = {
    "typical": "Most typical",
    "extreme": "Most extreme",
    "highest": "Highest",
    "lowest": "Lowest",
}
_MAX_ROWS: Final = 50
"""Maximum number of example rows in the list."""
_TICKS: Final = 8
_BIN = "corpus_bin"


def part(corpus: Store) -> None:
    """Draw the Heads section of the Corpus page."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        measure, description = choose_measure()
        result = shared_cache.answers.of(HeadHistograms(measure).of, corpus)
        st.space("stretch")
        export(result, f"corpus-{measure}", label="Export heads")
    st.markdown(f":gray[{state.escape(description.meaning)}]")
    head = corpus_rows.head_of_url(corpus) or _default_head(result)
    _all_heads(corpus, result, head)
    st.header(f"Layer {head[0] + 1}, head {head[1] + 1}", anchor=False)
    _one_head(corpus, result, head)


def _default_head(result: HeadHistogramsResult) -> tuple[int, int]:
    """Return the layer and head with the largest mean of the measure."""
    means = result.statistics.means
    layer, head = np.unravel_index(int(np.argmax(means)), means.shape)
    return int(layer), int(head)


def _open(head: HeadThumbnail) -> None:
    corpus_rows.select_head(head.layer, head.head)
    _select_bin(None)


def _select_bin(number: int | None) -> None:
    state.remember(_BIN, None if number is None else str(number))
    st.session_state.pop(_BIN, None)


def _all_heads(corpus: Store, result: HeadHistogramsResult, head: tuple[int, int]) -> None:
    """Draw a small histogram for each head, and a table with the mean and range of each head."""
    statistics = result.statistics
    measure = MEASURES[result.question.measure]
    payload = histogram_payload(
        statistics.bins,
        result.edges,
        {
            "mean": statistics.means,
            "spread": np.nan_to_num(statistics.deviations),
            "highest": statistics.maxima,
        },
        key="corpus_heads",
        caption=f"{measure.title} over {statistics.count:,} rows",
        source=f"{corpus.folder.name}, encoded with {corpus.manifest['model']['model']}",
        axis=measure.name,
        chosen=head,
    )
    model_view(payload, statistics.means.shape, key="corpus_heads", on_open=_open)
    bins = histogram_span(statistics.bins, from_zero=True)
    low, high = result.edges[bins.start], result.edges[bins.stop]
    blocks.caveat(
        "The figure shows one histogram per head over all rows; all heads share the same axes. "
        f"Horizontal axis: {low:.3g} to {high:.3g}; vertical axis: share of rows. Bars that exceed the "
        "axis are clipped. All rows have the same weight, regardless of their length."
    )
    with st.expander("As a table"):
        blocks.table(
            _table(result),
            f"{measure.title}: mean over all rows, with confidence interval, minimum and maximum",
            max_height=320,
            column_config={
                name: st.column_config.NumberColumn(format="%.4f")
                for name in ("mean", "low", "high", "minimum", "maximum")
            },
        )
        st.caption(
            "The columns low and high are the bounds of the 95% confidence interval of the mean "
            "(Student's t)."
        )


def _table(result: HeadHistogramsResult) -> pd.DataFrame:
    statistics = result.statistics
    layer, head = np.indices(statistics.means.shape)
    columns: dict[str, Any] = {
        "layer": layer + 1,
        "head": head + 1,
        "mean": statistics.means,
        "low": statistics.lows,
        "high": statistics.highs,
        "minimum": statistics.minima,
        "maximum": statistics.maxima,
    }
    frame = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    return frame.sort_values("mean", ascending=False, kind="stable")


def _one_head(corpus: Store, result: HeadHistogramsResult, head: tuple[int, int]) -> None:
    """Draw the histogram of one head, and example rows."""
    measure = result.question.measure
    counts = result.statistics.bins[head]
    selected = _selected_bin(counts)
    summary = jobs.answer(
        "corpus quantiles",
        HeadStatistics(measure, (head,)).of,
        corpus,
        label="Compute quantiles",
        unit="shards",
        activity="Reading the store",
        start=True,
    )
    quantiles = [] if summary is None else summary.quantiles[0, 0].tolist()
    placeholder = st.empty()
    if quantiles:
        values = [f"{share:.0%} **{value:.4f}**" for share, value in zip(QUANTILES, quantiles, strict=True)]
        mean = result.statistics.means[head]
        placeholder.markdown(f"Mean **{mean:.4f}**. Quantiles: {' · '.join(values)}")
    event: Any = blocks.chart(
        histogram(counts, result.edges, MEASURES[measure].name, quantiles, selected),
        f"Histogram of {MEASURES[measure].name} over the rows, with quantiles",
        key=f"corpus_histogram {measure} {head} {selected}",
        on_select="rerun",
        selection_mode="points",
    )
    points = event.selection.points if event else []
    if points:
        _select_bin(int(points[0]["x"] - 0.5) + 1)
        st.rerun()
    with st.container(horizontal=True, gap="medium"):
        order = state.segmented_control(
            "corpus_rows",
            "Rows",
            _ORDERS,
            "typical",
            "Typical rows are closest to the median; extreme rows are farthest from the median.",
        )
        number = _choose_bin(counts, result.edges)
        corner = st.container(width="content")
    examples = jobs.answer(
        "head examples",
        HeadExamples(head, measure, order, _MAX_ROWS, number).of,
        corpus,
        label="Find rows",
        unit="shards",
        activity="Reading the store",
        start=True,
    )
    if examples is not None:
        with corner:
            export(examples, "corpus-rows", label="Export rows")
        _examples(corpus, examples, head)


def _selected_bin(counts: Any) -> int | None:
    """Return the index of the selected bin, or None if no valid, non-empty bin is selected."""
    text = st.session_state.get(_BIN) or state.url_parameters().get(_BIN) or ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
    return number - 1 if 1 <= number <= len(counts) and counts[number - 1] else None


def _choose_bin(counts: Any, edges: Any) -> int | None:
    """Draw a selector for a non-empty bin; return the bin number, from 1, or None for all rows."""
    options = {"": f"All {int(counts.sum()):,} rows"} | {
        str(index + 1): f"{edges[index]:.4g} to {edges[index + 1]:.4g}: {int(counts[index]):,} rows"
        for index in np.flatnonzero(counts).tolist()
    }
    with st.container(width=300):
        number = state.selectbox(_BIN, "Bin", options, "", show_label=True)
    return int(number) if number else None


def _examples(corpus: Store, examples: HeadExamplesResult, head: tuple[int, int]) -> None:
    st.caption(
        f"{len(examples.sentences):,} of {examples.among:,} rows; the median of all rows is "
        f"{examples.median:.4f}. Select a row to read it or open it on other pages."
    )
    frame = examples.frame()[["row", "value", "text", "file", "line"]]
    index = corpus_rows.choose_row(
        frame, f"corpus_listed {examples.question!r}", "Rows and their values", ["value"]
    )
    if index is not None:
        name = MEASURES[examples.question.measure].name
        corpus_rows.detail(
            corpus,
            examples.sentences[index],
            {"attention": corpus_rows.attention_parameters(corpus, head)},
            f"{name} **{examples.values[index]:.4f}**",
        )


def histogram(
    counts: Array,
    edges: Array,
    name: str,
    quantiles: Sequence[float] = (),
    selected: int | None = None,
) -> Any:
    """Return a histogram from the first to the last bin that contains rows.

    All bars are drawn with the same width, although the bins of distance measures are narrower for small
    distances, which are the most frequent.

    Args:
        counts: number of rows in each bin.
        edges: edges of the bins, one more than the number of bins.
        name: title of the value axis.
        quantiles: values to mark with vertical lines.
        selected: index of the highlighted bin.
    """
    nonempty = np.flatnonzero(counts)
    first, last = (int(nonempty[0]), int(nonempty[-1]) + 1) if len(nonempty) else (0, 1)
    bins = np.arange(first, last)
    figure = go.Figure(
        go.Bar(
            x=bins + 0.5,
            y=counts[first:last],
            width=1,
            customdata=[f"{edges[index]:.4g} to {edges[index + 1]:.4g}" for index in bins],
            marker={
                "color": [SECOND if index == selected else ACCENT for index in bins],
                "line": {"width": 0},
            },
            selected={"marker": {"opacity": 1}},
            unselected={"marker": {"opacity": 1}},
            hovertemplate="%{customdata}: %{y:,} rows<extra></extra>",
        )
    )
    for value in quantiles:
        x = float(np.interp(value, edges, np.arange(len(edges))))
        figure.add_vline(x=x, line={"color": SECOND, "width": 1, "dash": "dot"})
    ticks = np.unique(np.linspace(first, last, _TICKS).round().astype(int))
    figures.apply_layout(
        figure,
        260,
        bargap=0.04,
        xaxis={
            "title": name,
            "tickvals": ticks,
            "ticktext": [f"{edges[tick]:.3g}" for tick in ticks],
            "range": [first - 0.1, last + 0.1],
            "zeroline": False,
        },
        yaxis={"title": "rows", "zeroline": False},
        dragmode=False,
    )
    return figure
