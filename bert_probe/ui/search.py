"""The Search page: rank documents by their similarity to a query, and explain each score."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from bert_probe.analyses.attribution.attribution import SimilarityAttribution
from bert_probe.analyses.retrieval.late_interaction import TokenMatches
from bert_probe.analyses.retrieval.rank_swap import RankSwap
from bert_probe.analyses.retrieval.scorers import QUERY_PROMPTS
from bert_probe.analyses.retrieval.search import (
    BI_ENCODER,
    BM25_SCORER,
    CROSS_ENCODER,
    LATE_INTERACTION,
    SCORERS,
    IndexedDocuments,
    Search,
    SearchResult,
)
from bert_probe.analyses.retrieval.search_explanation import (
    SearchExplanation,
    SearchExplanationResult,
    TermContributions,
    TokenContributions,
)
from bert_probe.analyses.retrieval.threshold import ScoreThreshold
from bert_probe.analyses.vectors.pooling import DOCUMENT_PROMPTS
from bert_probe.core import files
from bert_probe.core.inputs import DOCUMENTS_FILE
from bert_probe.corpus.vector_files import VectorSet
from bert_probe.errors import ProbeError, UnavailableError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.server import paths
from bert_probe.text.documents import Document, DocumentList
from bert_probe.ui import (
    attribution,
    blocks,
    figures,
    jobs,
    search_sections,
    sentence_input,
    state,
    url_texts,
    workbench,
)
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import ExtraDownload, export
from bert_probe.ui.search_sections import show_swap, show_threshold
from bert_probe.ui.sentences import choose_dimensions, choose_prompt
from bert_probe.views.contributions import (
    ShadedSpan,
    search_explanation_heatmap,
    shaded_text,
    token_matches_heatmap,
)
from bert_probe.views.text import percentage, shorten

MIN_PAIRS = 10
"""Minimum number of random document pairs for which the histogram of their scores is drawn."""
_SCORERS = {
    BI_ENCODER: "Bi-encoder",
    LATE_INTERACTION: "Late interaction",
    CROSS_ENCODER: "Cross-encoder",
    BM25_SCORER: "BM25",
}
_SCORER_HELP = {
    BI_ENCODER: "similarity of the query vector and the document vector",
    LATE_INTERACTION: "sum over query tokens of the maximum similarity to a document token (MaxSim)",
    CROSS_ENCODER: "reads query and document together, and reranks the top documents of another scorer",
    BM25_SCORER: "shared words, weighted by inverse document frequency; no model is needed",
}
_COUNTS = {"10": "10", "25": "25", "100": "100"}
_LINKS = ("compare", "attention", "similarity", "answer")
"""Pages that the links of each document open."""
_MAX_TITLE = 60


def render() -> None:
    """Draw the Search page."""
    blocks.heading(
        "Search",
        "Rank your documents by their similarity to a query. See which tokens contribute to each score, "
        "and whether the score is high.",
    )
    checkpoint, request = workbench.checkpoint(), workbench.request()
    try:
        query = sentence_input.choose_query()
        documents = sentence_input.choose_documents()
        if documents is None:
            # Ask for a file only if none is uploaded. Otherwise, a job is still reading the file's vectors.
            if st.session_state.get("documents_from") == "file" and "documents_file" not in st.session_state:
                st.info(
                    "Choose a file with one document per line, a table with a column named text, or vectors."
                )
        elif not query.strip():
            st.info("Type a query.")
        else:
            _search(_choose_question(checkpoint, query, documents), checkpoint, documents, request.truncate)
    except ProbeError as error:
        blocks.error_box(error, "Change the query or the documents above, or choose the example.")


def _choose_question(checkpoint: Checkpoint, query: str, documents: DocumentList | VectorSet) -> Search:
    """Draw selectors for the scorers (of texts), the number of rows, the prompts and the dimensions."""
    if isinstance(documents, VectorSet):
        with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
            return _choose_vectors(checkpoint, Search(query, count=_choose_count()))
    names = _available_scorers(checkpoint)
    help_text = " ".join(f"{_SCORERS[name]}: {_SCORER_HELP[name]}." for name in names)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        options = {name: _SCORERS[name] for name in names}
        first = state.segmented_control("search_scorers", "Rank by", options, names[0], help_text)
        second_options = {"none": "Nothing"} | {
            name: label for name, label in options.items() if name != first
        }
        second = state.segmented_control(
            "search_compare",
            "Compare with",
            second_options,
            "none",
            "A second scorer, whose scores and ranks are shown next to the scores and ranks of the "
            "first scorer.",
        )
        scorers = (first,) if second == "none" else (first, second)
        question = Search(query, scorers, count=_choose_count())
        uses_vectors = BI_ENCODER in scorers or LATE_INTERACTION in scorers
        return _choose_vectors(checkpoint, question) if uses_vectors else question


def _choose_count() -> int:
    return int(
        state.segmented_control("search_count", "Rows", _COUNTS, "10", "Number of documents in the table.")
    )


def _choose_vectors(checkpoint: Checkpoint, question: Search) -> Search:
    """Draw selectors for the prompts and the number of dimensions."""
    model = checkpoint.multi_vector_model
    names = None if model is None else tuple(name for name, text in model.prompts if text)
    if checkpoint.sentence_model is None and not names:
        return question
    pooling = "model" if model is None else LATE_INTERACTION
    labels = {"search_prompt": "Prompt of the query", "search_document_prompt": "Prompt of the documents"}
    prompts = [
        choose_prompt(checkpoint, key, label, pooling, defaults, names)
        for (key, label), defaults in zip(labels.items(), (QUERY_PROMPTS, DOCUMENT_PROMPTS), strict=True)
    ]
    has_dimensions = LATE_INTERACTION not in question.scorers
    dimensions = choose_dimensions(checkpoint, "search_dimensions") if has_dimensions else None
    return replace(question, prompt=prompts[0], document_prompt=prompts[1], dimensions=dimensions)


def _available_scorers(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the scorers that a checkpoint supports, starting with its default scorer."""
    head = checkpoint.outputs.get(TEXT_CLASSIFICATION)
    if head is not None and len(head.labels) == 1:
        return (CROSS_ENCODER, BM25_SCORER)
    if checkpoint.is_late_interaction:
        return (LATE_INTERACTION, BM25_SCORER)
    return (BI_ENCODER, LATE_INTERACTION, BM25_SCORER)


def _search(
    question: Search, checkpoint: Checkpoint, documents: DocumentList | VectorSet, truncate: bool
) -> None:
    if isinstance(documents, VectorSet):
        search_sections.show_ranking(question, checkpoint, documents, truncate, _tokens, _links)
        return
    index = _index(question, checkpoint, documents, truncate)
    result = None if index is None else _result(question, checkpoint, index, truncate)
    if index is None or result is None:
        return
    if checkpoint.sentence_model is None and BI_ENCODER in question.scorers:
        blocks.caveat(
            "This model does not declare a pooling. The vectors are means of the model's last hidden "
            "states, which were not trained for search."
        )
    for note in result.notes:
        blocks.caveat(note)
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Ranking", anchor=False)
        _export(result)
    _warn_of_truncation(result)
    selected = _table(result)
    _agreement(result)
    scorer = question.scorers[0]
    if len(question.scorers) > 1:
        scorers = {name: _SCORERS[name] for name in question.scorers}
        help_text = "The scorer whose score is explained below."
        scorer = state.segmented_control("search_explained", "Explain", scorers, scorer, help_text)
    _explanation(checkpoint, index, result, truncate, selected, scorer)
    if "bi-encoder" in question.scorers:
        search_sections.show_long_documents(question, checkpoint, documents, truncate)


def _result(
    question: Search, checkpoint: Checkpoint, index: IndexedDocuments, truncate: bool
) -> SearchResult | None:
    """Return the ranking. With a cross-encoder, a job scores the documents; return None until it is done."""
    if CROSS_ENCODER not in question.scorers:
        result: SearchResult = shared_cache.answers.of(question.of, checkpoint, index, truncate)
        return result
    return jobs.answer(
        "cross-encoder",
        question.of,
        checkpoint,
        index,
        truncate,
        label="Score the documents",
        unit="documents",
        activity="Scoring",
        start=True,
    )


def _index(
    question: Search, checkpoint: Checkpoint, documents: DocumentList, truncate: bool
) -> IndexedDocuments | None:
    """Encode the documents in a job, independent of the query; return None until the job is done."""
    encoding = tuple(name for name in (BI_ENCODER, LATE_INTERACTION) if name in question.scorers)
    recipe = replace(question, query="-", scorers=encoding or (BM25_SCORER,), count=1, prompt=None)
    return jobs.answer(
        "document vectors",
        recipe.index,
        checkpoint,
        documents,
        truncate,
        label="Encode the documents",
        unit="documents",
        activity="Encoding",
        start=True,
    )


def _export(result: SearchResult) -> None:
    """Draw the Export menu of the ranking, with a download of the documents."""

    def lines(_: bool) -> bytes:
        return "".join(f"{line}\n" for line in result.sentences).encode("utf-8", "surrogatepass")

    downloads: list[ExtraDownload] = [(f"{DOCUMENTS_FILE}, input of the code below", DOCUMENTS_FILE, lines)]
    if result.agreement:
        differences = partial(_differences_csv, result)
        downloads.append(("Documents with different ranks (CSV)", "rank-differences.csv", differences))
    export(result, "search", downloads)


def _differences_csv(result: SearchResult, csv_safe: bool) -> bytes:
    """Return a CSV table of the documents that the two scorers rank differently, largest difference first."""
    pair = result.agreement[0]
    return files.to_bytes(_rank_differences(result, pair.a, pair.b), "csv", csv_safe)


def _rank_differences(result: SearchResult, a: str, b: str, count: int | None = None) -> pd.DataFrame:
    """Return a table of the `count` documents with the largest rank differences; None for all documents."""
    order = result.disagreements(a, b)[:count]
    return pd.DataFrame(
        {
            "document": [result.documents[index].id for index in order],
            **{f"rank by {_SCORERS[name]}": result.ranks[name][order] for name in (a, b)},
            "text": [str(result.documents[index]) for index in order],
        }
    )


def _warn_of_truncation(result: SearchResult) -> None:
    truncated = result.truncated
    if truncated:
        st.warning(
            f"{len(truncated):,} of {len(result.documents):,} documents exceed the maximum length of the "
            "model. The tokens beyond the limit are not part of the document vectors; the column "
            "tokens_dropped counts these tokens.",
            icon=":material/content_cut:",
        )


def _table(result: SearchResult) -> tuple[int, ...]:
    """Draw the ranking; return the indices of the one or two selected documents, by default the first."""
    frame = result.table()
    if not any(frame["tokens_dropped"]):
        frame = frame.drop(columns="tokens_dropped")
    if not any(frame["title"]):
        frame = frame.drop(columns="title")
    config: dict[str, Any] = {
        f"{prefix}score": st.column_config.NumberColumn(format="%.4f")
        for prefix in ("", *(f"{name.replace('-', '_')}_" for name in SCORERS))
    }
    config |= {
        "rank": st.column_config.NumberColumn(width="small"),
        "document": st.column_config.TextColumn(width="small"),
        "percentile": st.column_config.NumberColumn(
            format="%.1f%%", help="Percentage of random pairs of your documents with a lower score."
        ),
        "text": st.column_config.TextColumn(width="large"),
    }
    event = blocks.table(
        frame,
        "The best documents, with their scores",
        max_height=390,
        key=f"search_table {result.question!r} {hash(result.documents)}",
        on_select="rerun",
        selection_mode="multi-row",
        column_config=config,
    )
    rows = blocks.selected_rows(event, frame)
    st.caption(
        "Select a row to explain its score, or two rows to compare them."
        if len(rows) < 3
        else f"{len(rows)} rows are selected; the first two selected rows are compared."
    )
    return tuple(int(result.order[row]) for row in (sorted(rows) or [0])[:2])


def _agreement(result: SearchResult) -> None:
    """Draw the rank agreement of two scorers, and the documents on which they disagree most."""
    for pair in result.agreement:
        correlation = "undefined" if pair.about["spearman"] is None else f"{pair.spearman:.2f}"
        st.markdown(
            f"{_SCORERS[pair.a]} and {_SCORERS[pair.b]} share **{pair.overlap} of their first "
            f"{pair.max_overlap} documents**. Spearman's rank correlation of the "
            f"{pair.documents:,} documents that both score is **{correlation}**."
        )
        if absent := result.without_match:
            blocks.caveat(
                f"{absent:,} documents contain no word of the query. BM25 gives these documents a score "
                "of 0 and keeps them in their original order."
            )
        table = _rank_differences(result, pair.a, pair.b, 10)
        if len(table):
            with st.expander("Documents with the largest rank differences"):
                blocks.table(table, "Documents with the largest rank differences", max_height=300)


def _explanation(
    checkpoint: Checkpoint,
    index: IndexedDocuments,
    result: SearchResult,
    truncate: bool,
    selected: tuple[int, ...],
    scorer: str,
) -> None:
    """Draw the scores of the selected documents, compared with random pairs, and explain each score."""
    documents = [result.documents[position] for position in selected]
    names = [_name(document) for document in documents]
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header(
            "Why this document?" if len(selected) == 1 else f"Why does {names[0]} rank above {names[1]}?",
            anchor=False,
        )
        menu = st.container(width="content")
    if scorer == BI_ENCODER:
        _calibration(result, selected, names)
        show_threshold(checkpoint, _threshold_question(checkpoint, result.question), truncate)
    question = SearchExplanation(
        result.question.query,
        documents[0].id,
        documents[1].id if len(documents) > 1 else None,
        scorer,
        prompt=result.question.prompt,
        document_prompt=result.question.document_prompt,
        dimensions=result.question.dimensions,
    )
    try:
        explanation = shared_cache.answers.of(question.of, checkpoint, index, truncate)
    except UnavailableError as error:
        st.caption(state.escape(str(error), 1000))
        if len(selected) > 1:
            _swap(checkpoint, index, result.question, documents, scorer, truncate)
        for document in documents:
            _links(result.question.query, document)
        return
    with menu:
        export(
            explanation,
            "search-explanation",
            caption="The contributions to the score. The Export menu of the ranking has the file "
            f"{DOCUMENTS_FILE}, which the code reads.",
            label="Export the explanation",
        )
    if len(selected) > 1:
        _difference(explanation, names)
        _swap(checkpoint, index, result.question, documents, scorer, truncate)
    parts = zip(names, documents, explanation.contributions, strict=True)
    for number, (name, document, part) in enumerate(parts):
        if len(selected) > 1:
            st.subheader(name, anchor=False)
        if isinstance(part, TokenContributions):
            _tokens(part, f"search_contributions_{number}", explanation.largest)
            if len(selected) == 1 and checkpoint.has_pooling:
                _attribution(checkpoint, result.question, document, truncate)
        elif isinstance(part, TokenMatches):
            _matches(part, f"search_matches_{number}", explanation.largest)
        else:
            _terms(part, document)
        _links(result.question.query, document)


def _attribution(checkpoint: Checkpoint, search: Search, document: Document, truncate: bool) -> None:
    """Draw a button that attributes the score to words of query and document, and the result."""
    pair = [(search.query, None), (str(document), None)]
    traces = workbench.trace_texts(checkpoint, pair, truncate or checkpoint.sentence_model is not None)
    threshold = _threshold_question(checkpoint, search)
    question = SimilarityAttribution(
        prompt=threshold.prompt, pair_prompt=threshold.pair_prompt, dimensions=search.dimensions
    )
    attribution.show_input_pairs(traces, question)


def _swap(
    checkpoint: Checkpoint,
    index: IndexedDocuments,
    search: Search,
    documents: list[Document],
    scorer: str,
    truncate: bool,
) -> None:
    """Draw the words whose removal or addition swaps the ranks of the two selected documents."""
    question = RankSwap(
        search.query,
        documents[0].id,
        documents[1].id,
        scorer,
        prompt=search.prompt,
        document_prompt=search.document_prompt,
        dimensions=search.dimensions,
    )
    show_swap(checkpoint, index, question, truncate)


def _name(document: Document) -> str:
    title = document.title
    title = state.escape(title if len(title) <= _MAX_TITLE else f"{title[: _MAX_TITLE - 1].rstrip()}…")
    return f"document {state.escape(document.id)}" + (f" ({title})" if title else "")


def _calibration(result: SearchResult, selected: tuple[int, ...], names: list[str]) -> None:
    """Draw a histogram of the scores of random document pairs, with the selected documents marked."""
    pair_scores = result.pair_scores
    if pair_scores is None or result.recipe is None:
        return
    if len(pair_scores) < MIN_PAIRS:
        blocks.caveat("There are too few documents to determine whether the score is high.")
        return
    scores, score_name = result.scores[BI_ENCODER], result.recipe.score_name
    for position, name in zip(selected, names, strict=True):
        st.markdown(
            f"The {score_name} of {name} is **{scores[position]:.4f}**, higher than "
            f"**{percentage(result.percentile(position))}** of random pairs of your documents."
        )
    st.markdown(
        f"For this query, half of your {len(scores):,} documents score below **{result.median:.4f}**, "
        f"and the best one scores {result.best:.4f}. A document is a good match if its score is far "
        "above this median, even if random pairs of documents often have higher scores."
    )
    marks = {f"document {result.documents[position].id}": float(scores[position]) for position in selected}
    blocks.chart(
        figures.score_histogram(pair_scores, marks, score_name),
        f"Histogram of the {score_name} of random pairs of documents, with the selected documents marked",
    )
    blocks.caveat(
        f"{len(pair_scores):,} random pairs of documents. Queries are often shorter than documents, which "
        "affects their scores. Use the percentage to compare documents in this ranking, not models."
    )


def _threshold_question(checkpoint: Checkpoint, search: Search) -> ScoreThreshold:
    """Return a question for a score threshold with the pooling, prompts and dimensions of the search."""
    model = checkpoint.sentence_model
    names = {} if model is None else dict(model.prompts)
    prompts = [
        prompt or next((name for name in defaults if name in names), None)
        for prompt, defaults in ((search.prompt, QUERY_PROMPTS), (search.document_prompt, DOCUMENT_PROMPTS))
    ]
    pooling = "mean" if model is None else "model"
    return ScoreThreshold(
        pooling=pooling, prompt=prompts[0], pair_prompt=prompts[1], dimensions=search.dimensions
    )


def _difference(explanation: SearchExplanationResult, names: list[str]) -> None:
    st.markdown(
        f"The scores differ by **{explanation.difference:+.4f}**. Each row is the contribution of a token or "
        "word of the query to this difference."
    )
    columns = {"contribution": "first", "against": "second", "match": "first_match"}
    table = explanation.by_query.rename(columns=columns | {"against_match": "second_match"})
    table = table.assign(term=[shorten(term) for term in table["term"]])
    blocks.table(
        table,
        f"Contribution of each query token or word to the scores of {names[0]} and {names[1]}",
        max_height=390,
        column_config={
            **{
                key: st.column_config.NumberColumn(name, format="%.4f")
                for key, name in zip(("first", "second", "difference"), (*names, "difference"), strict=True)
            },
            **{
                key: st.column_config.TextColumn(f"match in {name}")
                for key, name in zip(("first_match", "second_match"), names, strict=True)
            },
        },
    )


def _shaded_document(part: TokenContributions | TokenMatches, largest: float) -> None:
    """Draw the text of the document with each token shaded by its contribution.

    Args:
        part: contributions, or for late interaction the matches, of the document's tokens.
        largest: absolute contribution with the darkest shade.
    """
    spans = [
        ShadedSpan(token.start, token.end, float(value))
        for token, value in zip(part.document.tokens, part.of_document, strict=True)
        if token.start is not None and token.end is not None
    ]
    st.html(shaded_text(part.document.encoding.text, spans, largest))


def _tokens(part: TokenContributions, key: str, largest: float) -> None:
    """Draw the document shaded by its tokens' contributions, and a heatmap of token pair contributions."""
    _shaded_document(part, largest)
    blocks.caveat(
        "Purple tokens raise the score, and orange tokens lower the score; point at a token to see its "
        f"contribution. Special tokens contribute {part.specials_share:.4f} of {part.score:.4f}."
    )
    heatmap(search_explanation_heatmap(part), key=key)
    st.markdown(
        f"**Check:** the sum of all {part.values.size:,} cells equals the {part.score_name} "
        f"{blocks.up_to(part.off)}."
    )
    blocks.caveat(
        "A contribution belongs to the vector of a token in the last layer, which contains information "
        "from the whole text. The contribution does not show what the score would be without the token."
    )


def _matches(part: TokenMatches, key: str, largest: float) -> None:
    """Draw the document shaded by its matches, a heatmap of token similarities, and a table of matches."""
    _shaded_document(part, largest)
    blocks.caveat(
        "Shaded tokens are the best match of at least one query token; point at a token to see the sum "
        "of its similarities to these query tokens."
    )
    heatmap(token_matches_heatmap(part), key=key)
    st.markdown(
        f"**Check:** the {len(part.contributions):,} outlined maxima add up to the {part.score_name} of "
        f"**{part.score:.4f}**, up to a difference of {part.off:.1e}."
    )
    with st.expander("Best match of each token of the query"):
        blocks.table(
            part.frame(),
            "The best match of each token of the query",
            max_height=390,
            column_config={
                name: st.column_config.NumberColumn(format="%.4f") for name in ("similarity", "contribution")
            },
        )
    blocks.caveat(
        "A similarity compares two vectors of the last layer, each of which depends on the whole text. "
        "The similarity does not show what the score would be without the token."
    )


def _terms(part: TermContributions, document: Document) -> None:
    terms = part.terms
    if not len(terms):
        st.info(f"The query shares no term with document {document.id}.")
        return
    numbers = [name for name in terms if name in ("idf", "contribution", "query_weight", "document_weight")]
    blocks.table(
        terms,
        "Contribution of each term of the query to the score",
        max_height=390,
        column_config={name: st.column_config.NumberColumn(format="%.4f") for name in numbers},
    )
    st.markdown(
        f"**Check:** the contributions add up to **{part.score:.4f}**, up to a difference of {part.off:.1e}."
    )


def _links(query: str, document: Document) -> None:
    """Draw links that open other pages with the query as sentence A and the document as sentence B."""
    now = workbench.request()
    model = {name: value for name in ("model", "revision") if (value := getattr(now, name))}
    url = {"a": query, "b": str(document), **model, **({"truncate": "1"} if now.truncate else {})}
    if url_texts.length(url) > url_texts.MAX_LINK:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption("Query and document on other pages:", width="content")
        for page in _LINKS:
            st.page_link(paths.page_script(page), label=page.title(), query_params=url)
