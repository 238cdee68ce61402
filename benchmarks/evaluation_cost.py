"""Measure the time of retrieval evaluation relative to sentence-transformers, with equal metrics.

The environment variable RETRIEVAL_DATA is the path of a folder in BEIR layout, such as Cranfield. If it is
not set, documents and queries are generated.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator, Mapping

from sentence_transformers import SentenceTransformer

import bert_probe
from benchmarks.pairs import Line, paired
from benchmarks.trace_cost import text_of
from bert_probe.analyses.evaluation.measures import MEASURES
from bert_probe.text.documents import Document, DocumentList, as_documents
from bert_probe.text.retrieval_data import Judgments

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

DOCUMENTS, QUERIES = 200, 80  # counts for which a run takes a few seconds
TARGET = 1.15


def data() -> tuple[str, DocumentList, DocumentList, Judgments]:
    """Return name, documents, queries and judgments of the data in RETRIEVAL_DATA, or of generated texts."""
    folder = os.environ.get("RETRIEVAL_DATA")
    if folder:
        documents, queries, judgments = bert_probe.read_retrieval_data(folder, skip_broken=True)
        selected = DocumentList(documents[:DOCUMENTS])
        ids = {document.id for document in selected}
        grades: Mapping[str, Mapping[str, int]] = {
            query: {document: grade for document, grade in judged.items() if document in ids}
            for query, judged in judgments.grades.items()
        }
        return (
            folder.rstrip("/").rpartition("/")[2],
            selected,
            DocumentList(queries[:QUERIES]),
            Judgments.of(grades),
        )
    rng = random.Random(0)
    texts = [Document(f"{n} {text_of(rng.choice((60, 120, 160, 200)))}", f"d{n}") for n in range(DOCUMENTS)]
    questions = [Document(f"{number} {text_of(12)}", f"q{number}") for number in range(QUERIES)]
    grades = {f"q{n}": {f"d{rng.randrange(DOCUMENTS)}": 1 for _ in range(3)} for n in range(QUERIES)}
    return "sample texts", as_documents(texts), as_documents(questions), Judgments.of(grades)


def lines() -> Iterator[Line]:
    checkpoint = bert_probe.load()
    rival = SentenceTransformer(str(checkpoint.folder), device=checkpoint.description.device)
    name, documents, queries, judgments = data()
    relevant = {
        query: {document for document, grade in judged.items() if grade > 0}
        for query, judged in judgments.grades.items()
    }
    judged = {query.id: str(query) for query in queries if relevant.get(query.id)}

    def ours() -> dict[str, float]:
        result = bert_probe.RetrievalEvaluation().of(checkpoint, documents, queries, judgments, truncate=True)
        return dict(zip(MEASURES, result.systems[0].values.mean(axis=0).tolist(), strict=True))

    def theirs() -> dict[str, float]:
        evaluator = InformationRetrievalEvaluator(
            judged,  # type: ignore[arg-type]  # any value of its union
            {document.id: str(document) for document in documents},
            {query: relevant[query] for query in judged},
            precision_recall_at_k=[10, 100],
            map_at_k=[1000],
            write_csv=False,
        )
        values = evaluator(rival)
        keys = ("cosine_ndcg@10", "cosine_recall@10", "cosine_recall@100", "cosine_mrr@10", "cosine_map@1000")
        return {measure: float(values[key]) for measure, key in zip(MEASURES, keys, strict=True)}

    first, second = ours(), theirs()
    off = max(abs(first[measure] - second[measure]) for measure in MEASURES)
    if off > 1e-4:  # documents with nearly equal scores may swap ranks
        raise RuntimeError(f"The metrics differ by {off:.2g}, so the run times cannot be compared.")
    timed = paired(ours, theirs, min_rounds=4, warm_ups=0)  # no warm-up, as both have run already
    low, high = timed.spread
    yield Line(
        f"Evaluation of {len(judged):,} queries and {len(documents):,} documents ({name}), all-MiniLM-L6-v2",
        f"InformationRetrievalEvaluator; same nDCG@10, recall, MRR and MAP up to {off:.0e}",
        f"{timed.ratio:.3f} × (quartiles {low:.3f} to {high:.3f}; {len(timed.ours)} pairs)",
        f"at most {TARGET:.2f} ×",
        timed.ratio <= TARGET,
    )
