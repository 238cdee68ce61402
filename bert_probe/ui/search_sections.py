"""Sections of the Search page.

Score thresholds, words that swap the ranks of two documents, long documents, and rankings of stored vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import streamlit as st

from bert_probe.analyses.retrieval.chunked_search import METHODS, ChunkedSearch, ChunkedSearchResult
from bert_probe.analyses.retrieval.position_effect import PositionEffect
from bert_probe.analyses.retrieval.rank_swap import RankSwap, RankSwapResult, SwapSteps
from bert_probe.analyses.retrieval.search import IndexedDocuments, Search
from bert_probe.analyses.retrieval.search_explanation import (
    SearchExplanation,
    SearchExplanationResult,
    TokenContributions,
)
from bert_probe.analyses.retrieval.threshold import ScoreThreshold, ScoreThresholdResult
from bert_probe.analyses.retrieval.truncation_audit import TruncationAudit, TruncationAuditResult
from bert_probe.corpus.vector_files import VectorSet
from bert_probe.corpus.vector_search import VectorSearch, VectorSearchResult
from bert_probe.errors import ProbeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.text.documents import Document, DocumentList
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.ui import blocks, figures, jobs, labeled_inputs, sentence_input, state
from bert_probe.ui.export import export
from bert_probe.views.text import percentage, shorten

_TARGETS = {"f1": "Largest F1", "precision": "Required precision"}
_MEASURE_NAMES = {"f1": "F1", "average_precision": "average precision"}


def show_threshold(checkpoint: Checkpoint, question: ScoreThreshold, truncate: bool) -> None:
    """Draw an uploader for labeled pairs, and the threshold that separates matches from other pairs.

    Args:
        question: question with the pooling, the prompts and the dimensions of the search.
    """
    label = "Choose a match threshold from labeled pairs"
    with st.expander(label, expanded="threshold_file" in st.session_state):
        file = sentence_input.upload_file(
            "threshold",
            "A table with the columns text_a, text_b and label",
            ["csv", "tsv", "jsonl"],
            "The column text_a is a query and text_b a document; label is 1 if the two match and 0 if "
            f"not, or a graded relevance. UTF-8, {sentence_input.upload_note()}",
            partial(labeled_inputs.read_evaluation_file, "pairs"),
        )
        if file is None:
            return
        try:
            if isinstance(file.rows, ProbeError):
                raise file.rows.with_traceback(None)  # frames of earlier runs would stay in memory
            _show_threshold_result(checkpoint, _choose_target(question, file.rows), file.rows, truncate)
        except ProbeError as error:
            blocks.error_box(error, "Choose another file, or change the options above.")


def _choose_target(question: ScoreThreshold, pairs: LabeledTexts) -> ScoreThreshold:
    """Draw selectors for the criterion and, if the labels are graded, for the lowest label of a match."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        target = state.segmented_control(
            "threshold_target",
            "Criterion",
            _TARGETS,
            "f1",
            "F1 is the harmonic mean of precision and recall. With a required precision, the lowest "
            "threshold that reaches this precision has the highest recall.",
        )
        if target == "precision":
            minimum, key = labeled_inputs.MIN_PRECISION, labeled_inputs.PRECISION
            value = st.number_input("Precision", minimum, 1.0, 0.9, 0.05, key=key, width=140)
            question = replace(question, precision=float(value))
        labels = labeled_inputs.grades(pairs)
        if labels is not None:
            value = st.number_input(
                "Minimum label of a match",
                float(labels.min()),
                float(labels.max()),
                float(np.median(labels)),
                key=labeled_inputs.positive_from_key(labels),
                width=220,
            )
            question = replace(question, positive_from=float(value))
    return question


def _show_threshold_result(
    checkpoint: Checkpoint, question: ScoreThreshold, pairs: LabeledTexts, truncate: bool
) -> None:
    result: ScoreThresholdResult | None = jobs.answer(
        "score threshold",
        question.of,
        checkpoint,
        pairs,
        truncate,
        label="Score the pairs",
        unit="texts",
        activity="Encoding",
        start=True,
    )
    if result is None:
        return
    name, measures = result.recipe.score_name, result.measures
    st.markdown(
        f"Pairs with a {name} of at least **{measures['threshold']:.4f}** are predicted to match. Of the "
        f"{len(result.scores):,} pairs, {int(result.positive.sum()):,} are labeled as matches. Precision "
        f"**{measures['precision']:.3f}**, recall **{measures['recall']:.3f}**, F1 "
        f"**{measures['f1']:.3f}**."
    )
    blocks.chart(
        figures.threshold_histograms(
            result.scores, result.positive, result.threshold, result.bootstrap.interval("threshold"), name
        ),
        f"Histograms of the {name} of matching and non-matching pairs, with the threshold marked",
    )
    table = result.table()
    table["measure"] = [_MEASURE_NAMES.get(measure, shorten(measure)) for measure in table["measure"]]
    blocks.table(
        table,
        "Threshold, precision, recall, F1 and average precision with 95% intervals",
        column_config={
            key: st.column_config.NumberColumn(label, format="%.4f")
            for key, label in {"value": "value", "low": "95% from", "high": "to"}.items()
        },
    )
    blocks.caveat(
        "The threshold is chosen on these pairs, so predictions for new pairs will be somewhat worse. "
        f"The intervals come from {result.metadata['resamples']:,} resamples of the pairs, each with its "
        "own threshold."
    )
    pairs_table = result.showing(show="pairs")
    with st.container(horizontal=True):
        export(
            result,
            "threshold",
            label="Export the threshold",
            caption="The table above.",
            data={"pairs": pairs},
        )
        export(
            pairs_table,
            "threshold-pairs",
            label="Export the pairs",
            caption="Each pair with its score and the prediction.",
            data={"pairs": pairs},
        )


def show_swap(checkpoint: Checkpoint, index: IndexedDocuments, question: RankSwap, truncate: bool) -> None:
    """Draw a button that finds the words that swap the ranks of two documents, and the result."""
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.subheader("Which words would change the order?", anchor=False)
        menu = st.container(width="content")
    result: RankSwapResult | None = jobs.answer(
        "rank swap",
        question.of,
        checkpoint,
        index,
        truncate,
        label="Find words that change the order",
        unit="texts",
        note="Words are removed from the first document, and words of the second one are added to the query. "
        "Each changed text is scored again.",
        activity="Scoring",
    )
    if result is None:
        return
    with menu:
        export(result, "search-swap", label="Export the steps", caption="Each step with its scores and text.")
    a, b = (f"document {state.escape(result.documents[position].id)}" for position in result.pair)
    for name, steps in result.changes.items():
        _show_steps(name, steps, a, b, result.question.max_words)
    blocks.caveat(
        "Each step selects the word that lowers the margin between the scores of the two documents most. If "
        "a single word is enough, the search finds this word. A set of several words is not always the "
        "smallest set."
    )


def _show_steps(name: str, steps: SwapSteps, a: str, b: str, limit: int) -> None:
    """Draw the result of removing words from document A, or of adding words to the query, step by step.

    Args:
        name: "remove" for words of A, "add" for words added to the query.
        a: name of document A, which originally ranks above B.
        b: name of document B.
        limit: maximum number of words.
    """
    words = ", ".join(f"**{state.escape(shorten(word))}**" for word in steps.words)
    first, second = (f"{score:.4f}" for score in steps.verified)
    if name == "remove":
        success = f"Without {words}, {b} ranks above {a} (scores {second} and {first})."
        action = f"whose removal from {a} makes {b} rank higher"
    else:
        success = f"With {words} added to the query, {b} ranks above {a} (scores {second} and {first})."
        action = f"of {b} whose addition to the query makes {b} rank above {a}"
    counted = "one word" if limit == 1 else f"at most {limit} words"
    failure = f"No set of {counted} was found {action}."
    remark = ""
    if steps.is_smallest:
        remark = " This is the smallest set." if len(steps.words) == 1 else " No single word is enough."
    elif not steps.is_complete:
        remark = f" {steps.candidates:,} of {steps.count:,} words were tested."
    st.markdown((success if steps.is_swapped else failure) + remark)
    if not steps.words:
        return
    table = steps.frame().drop(columns="text")
    table["word"] = ["(unchanged)", *map(shorten, steps.words)]
    numbers = {"score_a": a, "score_b": b, "margin": "margin"}
    blocks.table(
        table.drop(columns="step"),
        "Scores after each removed word" if name == "remove" else "Scores after each added word",
        column_config={
            key: st.column_config.NumberColumn(label, format="%.4f") for key, label in numbers.items()
        },
    )
    with st.expander("The changed document" if name == "remove" else "The changed query"):
        st.text(steps.texts[-1])


_VIEWS = {"lengths": "Lengths", "chunks": "Chunks", "positions": "Positions"}
_SIZES = {"32": "32", "64": "64", "128": "128", "256": "256"}
_ORDERS = {"chunk": "Best chunk", "late": "Late chunking", "whole": "Whole document"}
_SHOWN = ("whole", "chunk", "late")
"""Methods whose scores and ranks are shown on the page. The exported table contains all `METHODS`."""


def show_long_documents(
    question: Search, checkpoint: Checkpoint, documents: tuple[Document, ...], truncate: bool
) -> None:
    """Draw the "Long documents" section: lengths, chunks, or the effect of the position of a sentence."""
    st.header("Long documents", anchor=False)
    view = state.segmented_control(
        "long_view",
        "Show",
        _VIEWS,
        "lengths",
        "Lengths: the text beyond the model's maximum length. Chunks: the ranking by the best chunk of "
        "each document. Positions: how much the score depends on each part of a document.",
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
            "Truncated documents, with the text that is not read",
            max_height=300,
            column_config={"lost": st.column_config.TextColumn("text that is not read", width="large")},
        )
        with st.container(horizontal=True):
            lost, limits = (result.showing(show=show) for show in ("lost", "limits"))
            export(lost, "text-not-read", label="Export the text that is not read")
            export(limits, "losses-by-limit", label="Export the truncation by limit")
        with st.expander("Truncation at other maximum lengths (in tokens)"):
            percent = st.column_config.NumberColumn(format="%.1f%%")
            blocks.table(
                result.limits,
                "Truncated documents and truncated tokens by limit",
                column_config={"percent_of_documents": percent, "percent_of_tokens": percent},
            )
            blocks.caveat(
                "To read longer documents, use a model that was trained with a larger token limit, or rank "
                "the documents by chunks."
            )


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
        note="This analysis encodes every document as a whole and in chunks.",
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
        + " A document with many chunks is more likely to have a chunk with a high score."
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
        "Sentences are removed from a document. The vector of the shortened document is then compared with "
        "the vector of the query, or with the vector of the complete document.",
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
        note="This analysis encodes each document about ten times, each time without one part.",
        activity="Encoding",
    )
    if result is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.markdown(result.finding)
        export(result, "position-effect", label="Export the positions")
    blocks.chart(
        figures.position_curve(result.curve, result.recipe.score_name),
        f"Mean change of the {result.recipe.score_name} by the position of the removed sentences",
    )
    left_out = result.metadata["documents_left_out"]
    blocks.caveat(
        "Points are means over documents, and bars are 95% bootstrap intervals. Documents that have only one "
        f"sentence or exceed the maximum length of the model are excluded: {left_out:,} in total. Sentences "
        "at the start often state the topic, so a larger change does not prove that the model "
        "favors the start."
    )


def show_ranking(
    search: Search,
    checkpoint: Checkpoint,
    vectors: VectorSet,
    truncate: bool,
    show_tokens: Callable[[TokenContributions, str, float], None],
    show_links: Callable[[str, Document], None],
) -> None:
    """Draw the ranking of documents with stored vectors, and explain the score of the selected document.

    Args:
        show_tokens: function that draws the contributions of tokens; its arguments are the contributions, a
            widget key and the largest contribution.
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
                "For this explanation, the text is encoded with the model of the app, which gives a "
                f"{part.score_name} of {part.score:.4f}. The contributions below sum to this score, not to "
                "the score of the stored vector."
            )
            show_tokens(part, "vector_contributions", explanation.largest)
        show_links(search.query, document)


def _table(result: VectorSearchResult) -> int:
    """Draw the ranking; return the rank of the selected document, counted from 0."""
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
                format="%.1f%%", help="Percentage of random pairs of vectors with a lower score."
            ),
            "text": st.column_config.TextColumn(width="large"),
        },
    )
    st.caption("Select a row to explain its score.")
    return next(iter(blocks.selected_rows(event, frame)), 0)


def _score(result: VectorSearchResult, rank: int) -> None:
    """Draw a document's score in a histogram of the scores of random pairs of vectors."""
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
        f"Histogram of the {name} of random pairs of vectors, with the document marked",
    )
    if not document:
        blocks.caveat("The file has no text for this document, so its score cannot be split into tokens.")


def _explain(search: Search, checkpoint: Checkpoint, document: Document) -> SearchExplanationResult | None:
    """Return the contributions to a document's score. If unavailable, draw the reason and return None."""
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
