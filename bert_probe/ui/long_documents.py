"""The part of the Search page about long documents: lengths, chunks, and positions."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.retrieval.chunked_search import METHODS, ChunkedSearch, ChunkedSearchResult
from bert_probe.analyses.retrieval.position_effect import PositionEffect
from bert_probe.analyses.retrieval.search import Search
from bert_probe.analyses.retrieval.truncation_audit import TruncationAudit, TruncationAuditResult
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.documents import Document
from bert_probe.ui import blocks, figures, jobs, state
from bert_probe.ui.export import export

_VIEWS = {"lengths": "Lengths", "chunks": "Chunks", "positions": "Positions"}
_SIZES = {"32": "32", "64": "64", "128": "128", "256": "256"}
_ORDERS = {"chunk": "Best chunk", "late": "Late chunking", "whole": "Whole document"}
_SHOWN = ("whole", "chunk", "late")
"""Rankings in the table on the page. The exported table has all of `METHODS`."""


def render(question: Search, checkpoint: Checkpoint, documents: tuple[Document, ...], truncate: bool) -> None:
    """Draw the selected view of the documents' lengths, chunks or positions."""
    st.header("Long documents", anchor=False)
    view = state.segmented_control(
        "long_view",
        "Show",
        _VIEWS,
        "lengths",
        "Lengths: the text that the model does not read. Chunks: the ranking by the best chunk of each "
        "document. Positions: how much the score depends on each part of a document.",
    )
    try:
        if view == "lengths":
            _lengths(TruncationAudit(document_prompt=question.document_prompt), checkpoint, documents)
        elif view == "chunks":
            _chunks(question, checkpoint, documents, truncate)
        else:
            _positions(question, checkpoint, documents)
    except ProbeError as error:
        blocks.error_box(error)


def _lengths(question: TruncationAudit, checkpoint: Checkpoint, documents: tuple[Document, ...]) -> None:
    result: TruncationAuditResult | None = jobs.answer(
        "document lengths",
        question.of,
        checkpoint,
        documents,
        label="Count the tokens",
        unit="documents",
        activity="Tokenizing",
        start=True,
    )
    if result is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.markdown(result.finding)
        export(result, "truncation-audit", label="Export the lengths")
    blocks.chart(
        figures.length_histogram(result.lengths, result.limit),
        f"Histogram of the number of tokens of the documents, with the limit of {result.limit:,} marked",
    )
    if result.truncated:
        blocks.table(
            result.showing(show="lost").frame().drop(columns="characters_read"),
            "Documents that are not read completely, with the text that is lost",
            max_height=300,
            column_config={"lost": st.column_config.TextColumn("text that is not read", width="large")},
        )
        with st.expander("Losses with other limits"):
            percent = st.column_config.NumberColumn(format="%.1f%%")
            blocks.table(
                result.limits,
                "Documents and tokens that are lost, by limit",
                column_config={"percent_of_documents": percent, "percent_of_tokens": percent},
            )
            blocks.caveat("A larger limit needs a model that was trained with it. Chunks avoid the limit.")


def _chunks(search: Search, checkpoint: Checkpoint, documents: tuple[Document, ...], truncate: bool) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        size = state.segmented_control(
            "chunk_size",
            "Tokens per chunk",
            _SIZES,
            "64",
            "Maximum number of tokens. A chunk consists of complete sentences if they fit.",
        )
        by = state.segmented_control(
            "chunks_by",
            "Rank by",
            _ORDERS,
            "chunk",
            "Best chunk: each chunk is read separately. Late chunking: the tokens of a chunk are read within "
            "the document, then pooled (Günther et al. 2024).",
        )
    question = ChunkedSearch(
        search.query,
        int(size),
        "chunk",
        search.count,
        prompt=search.prompt,
        document_prompt=search.document_prompt,
        dimensions=search.dimensions,
    )
    result: ChunkedSearchResult | None = jobs.answer(
        "chunks",
        question.of,
        checkpoint,
        documents,
        truncate,
        label="Rank by chunks",
        unit="texts",
        note="Reads every document as a whole and in chunks.",
        activity="Encoding",
    )
    if result is None:
        return
    result = result.showing(by=by)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.markdown(
            f"{len(documents):,} documents have **{len(result.chunks):,} chunks** of at most {size} tokens. "
            + _agreement(result)
        )
        export(result, "chunked-search", label="Export the chunks")
    names = [name for name in _SHOWN if name in result.scores]
    columns = [
        "rank",
        "document",
        "chunks",
        *(f"{name}_{part}" for name in names for part in ("score", "rank")),
    ]
    blocks.table(
        result.frame()[[*columns, "text"]],
        "The best documents by their chunks, with the text of the best chunk",
        max_height=390,
        column_config={
            **{f"{name}_score": st.column_config.NumberColumn(format="%.4f") for name in names},
            "text": st.column_config.TextColumn("best chunk", width="large"),
        },
    )
    if result.late is None:
        blocks.caveat(
            f"Late chunking pools the tokens of a chunk by their mean. This checkpoint uses {result.recipe}."
        )
    blocks.caveat(
        " ".join(f"{name}: {METHODS[name][0].lower()}{METHODS[name][1:]}" for name in names)
        + " A document with many chunks is more likely to have a high best score."
    )


def _agreement(result: ChunkedSearchResult) -> str:
    pair = next(pair for pair in result.agreement if (pair.a, pair.b) == ("whole", "chunk"))
    return (
        f"The ranking by the best chunk shares **{pair.overlap} of its first {pair.max_overlap}** documents "
        "with the ranking by whole documents."
    )


def _positions(search: Search, checkpoint: Checkpoint, documents: tuple[Document, ...]) -> None:
    compared = state.segmented_control(
        "position_compared",
        "Compare with",
        {"query": "Query", "document": "Whole document"},
        "query",
        "Sentences are removed from a document. Its vector is then compared with the query, or with the "
        "vector of the complete document.",
    )
    question = PositionEffect(
        search.query if compared == "query" else None,
        prompt=search.prompt if compared == "query" else None,
        document_prompt=search.document_prompt,
        dimensions=search.dimensions,
    )
    result = jobs.answer(
        "positions",
        question.of,
        checkpoint,
        documents,
        label="Remove sentences",
        unit="texts",
        note="Reads each document about ten times, without one part each time.",
        activity="Encoding",
    )
    if result is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.markdown(result.finding)
        export(result, "position-effect", label="Export the positions")
    blocks.chart(
        figures.position_curve(result.curve, result.recipe.score_name),
        f"Mean change of the {result.recipe.score_name} by the position of the sentences that are removed",
    )
    left_out = result.metadata["documents_left_out"]
    blocks.caveat(
        f"Points are means over documents, bars 95% bootstrap intervals. {left_out:,} documents with only "
        "one sentence, or longer than the model reads, are left out. Sentences at the start often state the "
        "topic, so a larger change does not prove that the model favors the start."
    )
