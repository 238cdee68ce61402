"""How a measure is spread over all rows: every head at a glance, one in full, and the rows behind a bar."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
import streamlit as st

from bert_probe.corpus.head_rows import HeadExamples, HeadExamplesResult
from bert_probe.corpus.head_summary import QUANTILES, HeadStatistics
from bert_probe.corpus.histograms import HeadHistograms, HeadHistogramsResult
from bert_probe.corpus.store import Store
from bert_probe.runtime import shared_cache as shared
from bert_probe.ui import blocks, jobs, state
from bert_probe.ui import figures as plotly
from bert_probe.ui.components.model_view import model_view
from bert_probe.ui.corpus import figures, heads, rows
from bert_probe.ui.export import export
from bert_probe.ui.heads.shared import choose_measure
from bert_probe.views import histograms
from bert_probe.views.measures import MEASURES
from bert_probe.views.model_view import HeadThumbnail

ORDERS: Final = {
    "typical": "Most typical",
    "extreme": "Most extreme",
    "highest": "Highest",
    "lowest": "Lowest",
}
TOP: Final = 50
"""Rows that are listed."""

_BIN = "corpus_bin"


def part(corpus: Store) -> None:
    """Draw it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        measure, about = choose_measure()
        found = shared.answers.of(HeadHistograms(measure).of, corpus)
        st.space("stretch")
        export(found, f"corpus-{measure}", label="Export heads")
    st.markdown(f":gray[{state.plain(about.meaning)}]")
    head = heads.chosen_head(corpus) or _usual_head(found)
    picture(corpus, found, head)
    st.header(f"Layer {head[0] + 1}, head {head[1] + 1}", anchor=False)
    one_head(corpus, found, head)


def _usual_head(found: HeadHistogramsResult) -> tuple[int, int]:
    """The one that does most of it."""
    means = found.statistics.means
    layer, head = np.unravel_index(int(np.argmax(means)), means.shape)
    return int(layer), int(head)


def _open(head: HeadThumbnail) -> None:
    heads.remember(head.layer, head.head)
    _choose_bin(None)


def _choose_bin(number: int | None) -> None:
    state.remember(_BIN, None if number is None else str(number))
    st.session_state.pop(_BIN, None)


def picture(corpus: Store, found: HeadHistogramsResult, head: tuple[int, int]) -> None:
    """Every head, and the same as numbers."""
    measure, told = found.question.measure, found.statistics
    about = MEASURES[measure]
    payload = histograms.payload(
        told.bins,
        found.edges,
        {"mean": told.means, "spread": np.nan_to_num(told.deviations), "highest": told.most},
        key="corpus_heads",
        caption=f"{about.title}, over {told.count:,} rows",
        source=f"{corpus.folder.name}, read by {corpus.manifest['model']['model']}",
        axis=about.name,
        chosen=head,
    )
    model_view(payload, told.means.shape, key="corpus_heads", on_open=_open)
    blocks.caveat(
        "A small histogram a head, all on the same scales: how many of the rows have which value. Bars above "
        "the scale are cut off at the edge. Each row counts the same, however long it is."
    )
    with st.expander("As a table"):
        st.dataframe(
            _table(found),
            hide_index=True,
            width="stretch",
            height=320,
            column_config={
                name: st.column_config.NumberColumn(format="%.4f")
                for name in ("mean", "low", "high", "least", "most")
            },
            alt=f"{about.title}: mean over all rows, its interval, least and most",
        )
        st.caption("Low and high: the 95 % interval of the mean, by Student's t.")


def _table(found: HeadHistogramsResult) -> pd.DataFrame:
    told = found.statistics
    layer, head = np.indices(told.means.shape)
    columns: dict[str, Any] = {
        "layer": layer + 1,
        "head": head + 1,
        "mean": told.means,
        "low": told.lows,
        "high": told.highs,
    }
    columns |= {"least": told.least, "most": told.most}
    frame = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    return frame.sort_values("mean", ascending=False, kind="stable")


def one_head(corpus: Store, found: HeadHistogramsResult, head: tuple[int, int]) -> None:
    """Its histogram in full, and the rows."""
    measure = found.question.measure
    counts = found.statistics.bins[head]
    chosen = _chosen_bin(counts)
    asked = HeadStatistics(measure, (head,))
    summary = jobs.answered(
        "corpus quantiles", asked.of, corpus, label="Compute the quantiles", unit="parts", start=True
    )
    quantiles = [] if summary is None else summary.quantiles[0, 0].tolist()
    place = st.empty()
    if quantiles:
        told = [f"{share:.0%} **{value:.4f}**" for share, value in zip(QUANTILES, quantiles, strict=True)]
        place.markdown(f"Mean **{found.statistics.means[head]:.4f}**. Quantiles: {' · '.join(told)}")
    event: Any = st.plotly_chart(
        figures.histogram(
            counts,
            found.edges,
            MEASURES[measure].name,
            quantiles,
            chosen,
        ),
        width="stretch",
        config=plotly.CONFIG,
        key=f"corpus_histogram {measure} {head} {chosen}",
        on_select="rerun",
        selection_mode="points",
        alt=f"How many rows have which {MEASURES[measure].name}, with its quantiles marked",
    )
    points = event.selection.points if event else []
    if points:
        _choose_bin(int(points[0]["x"] - 0.5) + 1)
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        which = state.pick(
            "corpus_rows",
            "Rows",
            ORDERS,
            "typical",
            "Typical is nearest to the median, extreme farthest from it.",
        )
        number = _pick_bin(counts, found.edges)
        place = st.container(width="content")
    listed = _rows(corpus, HeadExamples(head, measure, which, TOP, number))
    if listed is not None:
        with place:
            export(listed, "corpus-rows", label="Export rows")
        _show(corpus, listed, head)


def _chosen_bin(counts: Any) -> int | None:
    """From 0, as far as the address names one that holds rows."""
    held = st.session_state.get(_BIN) or state.address().get(_BIN) or ""
    number = int(held) if held.isascii() and held.isdigit() and len(held) < 4 else 0
    return number - 1 if 1 <= number <= len(counts) and counts[number - 1] else None


def _pick_bin(counts: Any, edges: Any) -> int | None:
    """One of those that hold rows, from 1; None for all rows."""
    options = {"": f"All {int(counts.sum()):,} rows"} | {
        str(one + 1): f"{edges[one]:.4g} to {edges[one + 1]:.4g}: {int(counts[one]):,} rows"
        for one in np.flatnonzero(counts).tolist()
    }
    with st.container(width=300):
        chosen = state.choose(_BIN, "Bar", options, "", labelled=True)
    return int(chosen) if chosen else None


def _rows(corpus: Store, asked: HeadExamples) -> HeadExamplesResult | None:
    return jobs.answered("corpus rows", asked.of, corpus, label="Find the rows", unit="parts", start=True)


def _show(corpus: Store, found: HeadExamplesResult, head: tuple[int, int]) -> None:
    st.caption(
        f"{len(found.sentences):,} of {found.among:,} rows; the median of all is {found.median:.4f}. "
        "Choose one to read it and to open it."
    )
    frame = found.frame()[["row", "value", "text", "file", "line"]]
    at = rows.listed(frame, f"corpus_listed {found.question!r}", "Rows with their value", ["value"])
    if at is not None:
        shown = rows.of_attention(corpus, head)
        name = MEASURES[found.question.measure].name
        rows.detail(corpus, found.sentences[at], {"attention": shown}, f"{name} **{found.values[at]:.4f}**")
