"""The Search page for documents that are vectors: uploaded, or in a folder configured at startup."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from bert_probe.analyses.retrieval.search import Search
from bert_probe.analyses.retrieval.search_explanation import (
    SearchExplanation,
    SearchExplanationResult,
    TokenContributions,
)
from bert_probe.corpus.vector_files import VectorSet
from bert_probe.corpus.vector_search import VectorSearch, VectorSearchResult
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.text.documents import Document, DocumentList
from bert_probe.ui import blocks, figures, jobs, state
from bert_probe.ui.export import export
from bert_probe.views.text import percentage


def show_ranking(
    search: Search,
    checkpoint: Checkpoint,
    vectors: VectorSet,
    truncate: bool,
    show_tokens: Callable[[TokenContributions, str, float], None],
    show_links: Callable[[str, Document], None],
) -> None:
    """Draw the best documents, and the score of a selected document.

    Args:
        show_tokens: function that draws the contributions of tokens; its arguments are a widget key and the
            largest contribution.
        show_links: function that draws links to other pages for a query and a document.
    """
    question = VectorSearch(
        search.query,
        search.count,
        prompt=search.prompt,
        document_prompt=search.document_prompt,
        dimensions=search.dimensions,
    )
    index = jobs.answer(
        "vector index",
        VectorSearch("-", document_prompt=search.document_prompt, dimensions=search.dimensions).index,
        checkpoint,
        vectors,
        label="Index the vectors",
        unit="vectors",
        activity="Indexing",
        start=True,
    )
    if index is None:
        return
    result: VectorSearchResult = shared_cache.answers.of(question.of, checkpoint, index, truncate)
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Ranking", anchor=False)
        export(result, "search")
    for note in result.notes:
        show = st.warning if result.is_same_model is False else blocks.caveat
        show(note)
    rank = _table(result)
    _score(result, rank)
    document = result.documents[rank]
    if document:
        explanation = _explain(search, checkpoint, document)
        part = None if explanation is None else explanation.contributions[0]
        if explanation is not None and isinstance(part, TokenContributions):
            blocks.caveat(
                f"The vector of the text is computed with this model; its {part.score_name} is "
                f"{part.score:.4f}. The contributions below are parts of it, not of the stored vector."
            )
            show_tokens(part, "vector_contributions", explanation.largest)
        show_links(search.query, document)


def _table(result: VectorSearchResult) -> int:
    """Draw the ranking; return the rank of the selected document, from 0."""
    frame = result.table()
    if not any(frame["text"]):
        frame = frame.drop(columns="text")
    event = blocks.table(
        frame,
        "The best documents, with their scores",
        max_height=390,
        key=f"vector_table {result.question!r} {result.inputs.sentences['vectors_sha256']}",
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "rank": st.column_config.NumberColumn(width="small"),
            "document": st.column_config.TextColumn(width="small"),
            "score": st.column_config.NumberColumn(format="%.4f"),
            "percentile": st.column_config.NumberColumn(
                format="%.1f%%", help="Percentage of random pairs of the vectors with a lower score."
            ),
            "text": st.column_config.TextColumn(width="large"),
        },
    )
    st.caption("Select a row to explain its score.")
    return next((row for row in event.selection.rows if row < len(frame)), 0)


def _score(result: VectorSearchResult, rank: int) -> None:
    """Draw a document's score next to the scores of random pairs of vectors."""
    document = result.documents[rank]
    st.header("Why this document?", anchor=False)
    pairs, name = result.pair_scores, result.recipe.score_name
    if pairs is None:
        return
    st.markdown(
        f"The {name} of document {state.escape(document.id, 100)} is **{result.scores[rank]:.4f}**, higher "
        f"than **{percentage(result.percentile(rank))}** of random pairs of the vectors."
    )
    blocks.chart(
        figures.score_histogram(
            pairs,
            {f"document {document.id}": float(result.scores[rank])},
            name,
            "random pairs of the vectors",
        ),
        f"Histogram of the {name} of random pairs of the vectors, with the document marked",
    )
    if not document:
        blocks.caveat("The file has no text for this document, so its score cannot be split into tokens.")


def _explain(search: Search, checkpoint: Checkpoint, document: Document) -> SearchExplanationResult | None:
    """Return the parts of a text's score. If they are unavailable, draw the reason and return None."""
    question = SearchExplanation(
        search.query,
        document.id,
        prompt=search.prompt,
        document_prompt=search.document_prompt,
        dimensions=search.dimensions,
    )
    try:
        explanation: SearchExplanationResult = shared_cache.answers.of(
            question.of, checkpoint, DocumentList([document]), True
        )
    except UnavailableError as error:
        st.caption(state.escape(str(error), 1000))
        return None
    return explanation
