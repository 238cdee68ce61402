"""One example of every question with its inputs, for tests that run over all questions."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from bert_probe.analyses.attention.attention import Attention, AttentionLong, TokenRollout
from bert_probe.analyses.attention.contacts import Contacts
from bert_probe.analyses.attention.find_heads import FindHeads
from bert_probe.analyses.attention.head_confidence import HeadConfidence
from bert_probe.analyses.attention.head_means import HeadMeans
from bert_probe.analyses.attention.heads import Heads
from bert_probe.analyses.attention.steps import AttentionSteps
from bert_probe.analyses.attribution.activation_patching import ActivationPatching
from bert_probe.analyses.attribution.attribution import Attribution, SimilarityAttribution
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulness, FaithfulnessSummary
from bert_probe.analyses.attribution.head_ablation import HeadAblation, HeadAblationSweep
from bert_probe.analyses.attribution.head_attribution import HeadAttribution, HeadPruning
from bert_probe.analyses.comparison.answer_change import AnswerChange
from bert_probe.analyses.comparison.minimal_pair import MinimalPair, MinimalPairRow
from bert_probe.analyses.comparison.model_change import HeadChange, ParameterChange, VectorChange
from bert_probe.analyses.comparison.model_similarity import HeadMatches, LayerSimilarity
from bert_probe.analyses.evaluation.label_evaluation import LabelEvaluation
from bert_probe.analyses.evaluation.retrieval_evaluation import RetrievalEvaluation
from bert_probe.analyses.evaluation.similarity_evaluation import SimilarityEvaluation
from bert_probe.analyses.evaluation.vector_comparison import DimensionCurve
from bert_probe.analyses.highlights.highlights import Highlights
from bert_probe.analyses.outputs.evaluate import Evaluate
from bert_probe.analyses.outputs.fill_mask import EvaluateMasks, FillMask
from bert_probe.analyses.outputs.find_answer import FindAnswer
from bert_probe.analyses.outputs.lens import Lens
from bert_probe.analyses.outputs.prediction import ClassifyText, LabelTokens, NextSentence
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.analyses.outputs.tuned_lens import TuneLens
from bert_probe.analyses.probing.probe import Probe
from bert_probe.analyses.probing.relations import Relations
from bert_probe.analyses.probing.structural_probe import StructuralProbe
from bert_probe.analyses.retrieval.calibration import SimilarityCalibration
from bert_probe.analyses.retrieval.chunked_search import ChunkedSearch
from bert_probe.analyses.retrieval.position_effect import PositionEffect
from bert_probe.analyses.retrieval.rank_swap import RankSwap
from bert_probe.analyses.retrieval.search import Search
from bert_probe.analyses.retrieval.search_explanation import SearchExplanation
from bert_probe.analyses.retrieval.threshold import ScoreThreshold
from bert_probe.analyses.retrieval.truncation_audit import TruncationAudit
from bert_probe.analyses.vectors.embedding import Embedding, HiddenStates, Pooler
from bert_probe.analyses.vectors.padding import PaddingEffect
from bert_probe.analyses.vectors.sentences import SentenceMap, Sentences
from bert_probe.analyses.vectors.similarity import Similarity, SimilarityBaseline
from bert_probe.analyses.vectors.token_map import CorpusTokenMap, TokenMap
from bert_probe.analyses.vectors.word_in_context import WordInContext
from bert_probe.analyses.vocabulary.tokens import Fertility, FertilityChange, Tokens
from bert_probe.analyses.vocabulary.vocabulary import Neighbors, Vocabulary
from bert_probe.analyses.weights.parameters import Parameters
from bert_probe.analyses.weights.positions import Positions
from bert_probe.core.question import Question
from bert_probe.corpus.vector_files import parse_vectors
from bert_probe.corpus.vector_search import VectorSearch
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.documents import Document, parse_documents
from bert_probe.text.labeled_texts import parse_labeled_texts
from bert_probe.text.retrieval_data import parse_judgments
from bert_probe.text.tagged_sentences import parse_tagged_sentences
from tests.helpers import treebank
from tests.helpers.changed import changed_checkpoint

TEXT = "The unhappiest boats cross the wide river at night."
OTHER = "The unhappiest boats cross the wide valley at dawn."
LABELED = ("O\tA small boat crosses the river.", "B-LOC\tNobody can read.\tA map at night.")
TABLE = "text_a,text_b,label\nA small boat.,It sinks.,O\nNobody reads.,A map.,B-LOC\nOne boat.,It sinks.,O\n"
PAIRS = (
    "text_a,text_b,label\nTwo boats.,Boats sail.,4\nNight.,At noon.,1.5\nA map.,Maps.,3\nRome.,A boat.,2\n"
)
QUERIES = '{"_id": "q1", "text": "Where are the boats?"}\n{"_id": "q2", "text": "A map"}\n'
JUDGMENTS = "query-id\tcorpus-id\tscore\nq1\td0\t1\nq1\td7\t2\nq2\td3\t1\n"
CLASS_TEXTS = "text,label\n" + "".join(
    f"{text},{label}\n"
    for label, texts in (
        ("boat", ("Two boats sail.", "A boat sinks.", "The ship is old.", "Boats cross the sea.")),
        ("food", ("He cooks rice.", "Bread and soup.", "A red apple.", "She eats fish.")),
    )
    for text in texts
)
TAGGED = "Anna B-PER\nsinks O\n\nRome B-LOC\nsleeps O\n"
SENTENCES = (TEXT, OTHER, "A small boat crosses the river.", "Nobody can read a map at night.")


DOCUMENTS = (
    Document("Two boats\ncross the river.", "d7", "Boats"),
    *(Document(text, f"d{number}") for number, text in enumerate(SENTENCES)),
)


VECTORS = "".join(
    json.dumps(
        {"id": document.id, "text": document.text, "vector": [(index * step) % 7 - 3.5 for step in range(16)]}
    )
    + "\n"
    for index, document in enumerate(DOCUMENTS, 1)
)
TWO_SENTENCES = (Document(f"{TEXT} {OTHER}", "d1", "Boats"), Document("A map. It is wide.", "d2"))


def one_trace(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (checkpoint.trace(TEXT),)


def two_traces(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint.trace(TEXT), checkpoint.trace(OTHER)


def a_pair(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (checkpoint.trace(TEXT, OTHER),)


def a_masked_trace(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (checkpoint.trace(TEXT.replace("river", "[MASK]"), OTHER.replace("valley", "[MASK]")),)


def a_long_pair(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (
        checkpoint.trace(TEXT, " ".join([*SENTENCES, *SENTENCES, *SENTENCES, *SENTENCES]), truncate=True),
    )


def some_traces(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (checkpoint.traces(SENTENCES[:3]),)


def river_twice(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (checkpoint.traces([SENTENCES[0], SENTENCES[2]]),)


def river_and_boat(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint.trace(SENTENCES[0]), checkpoint.trace(SENTENCES[0].replace("wide", "small"))


def two_pairs(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return tuple(checkpoint.trace(OTHER, trace.encoding.text) for trace in river_and_boat(checkpoint))


def the_model(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (checkpoint,)


def before_and_after(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, changed_checkpoint(checkpoint)


def one_text_in_both(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return tuple(model.trace(TEXT) for model in before_and_after(checkpoint))


def a_pair_in_both(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return tuple(model.trace(TEXT, f"--{OTHER}") for model in before_and_after(checkpoint))


def some_documents(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, DOCUMENTS


def some_vectors(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, parse_vectors(VECTORS.encode(), "vectors.jsonl")


def two_sentences_each(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, TWO_SENTENCES


def scored_pairs(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, parse_labeled_texts(PAIRS.encode(), "pairs.csv")


def judged_queries(checkpoint: Checkpoint) -> tuple[Any, ...]:
    queries = parse_documents(io.BytesIO(QUERIES.encode()), "queries.jsonl")
    documents = parse_documents(
        io.BytesIO("".join(f"{document.line}\n" for document in DOCUMENTS).encode()), "documents.jsonl"
    )
    return checkpoint, documents, queries, parse_judgments(JUDGMENTS.encode(), "judgments.tsv")


def class_texts(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, parse_labeled_texts(CLASS_TEXTS.encode(), "texts.csv", "classes")


def sentences_in_both(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return *before_and_after(checkpoint), SENTENCES


def labeled_texts(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, LABELED


def a_table(checkpoint: Checkpoint) -> tuple[Any, ...]:
    rows = parse_labeled_texts(TABLE.encode(), "labeled.csv", "classes")
    return checkpoint, rows, rows


def one_table(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return a_table(checkpoint)[:2]


def tagged_sentences(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, parse_tagged_sentences(TAGGED.encode(), "tagged.conll")


def many_sentences(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, SENTENCES


def two_treebanks(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, treebank.SAILING, treebank.SLEEPING


def tagged_words(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, treebank.TAGGED


@dataclass(frozen=True)
class QuestionExample:
    """A question with example inputs, and another value for each of its fields.

    Attributes:
        question: the question.
        inputs: function from a checkpoint to the positional arguments of `question.of`.
        other_values: for every field, a value that differs from the question's.
        idle: fields that do not affect the table of this example, and are therefore omitted from its
            provenance.
        trained: task of the tiny BERT that the example uses as its model; "" for the built-in model.
        file: lines of the file that the Python and shell snippets read; empty if they read no file.
        files: additional files that the snippets read, by name.
    """

    question: Question
    inputs: Callable[[Checkpoint], tuple[Any, ...]]
    other_values: dict[str, Any] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    trained: str = ""
    file: tuple[str, ...] = SENTENCES
    files: dict[str, str] = field(default_factory=dict)


_ABLATE = {"heads": [(1, 1)], "replacement": "mean", "show": "tokens", "specials": True}
_SHARED = {"measure": "value-norm", "words": True, "specials": False, "renormalize": True, "residual": 0.25}
_OTHER_ANSWERS = {"top": 2, "longest": 3, "overlap": 5, "no_answer": True}
_OTHER_LENS = {
    "task": "text-classification",
    "top": 2,
    "targets": ["wide"],
    "mask": "wide",
    "tuned": "a lens.safetensors",
    "show": "entropy",
}
_OTHER_VOCABULARY = {
    "search": "a",
    "match": "prefix",
    "case": True,
    "kind": "word",
    "script": "Latin",
    "show": "scripts",
}
_OTHER_PROMPT = {"prompt": "none", "dimensions": 8}
_OTHER_PROMPTS = _OTHER_PROMPT | {"pair_prompt": "none"}
_OTHER_NUMBER = {"task": "token-classification", "target": "B-LOC", "at": "wide"}
_OTHER_WAY = {"words": True, "removal": "masked", "baseline": "unknown"}
_OTHER_CHECK = {**_OTHER_WAY, "orders": 4, "seed": 2}
_DOCUMENT_FILE = {"documents.jsonl": "".join(f"{document.line}\n" for document in DOCUMENTS)}
_OTHER_VECTOR = {"prompt": "query", "dimensions": 16}
_OTHER_SENTENCES = {"pooling": "cls", "show": "vectors", "order": "given", "count": 2, **_OTHER_VECTOR}

EXAMPLES = (
    QuestionExample(Attention(layer=2, head=3), one_trace, {"layer": 4, "head": "mean", **_SHARED}),
    QuestionExample(
        Attention(layer=2, measure="rollout", words=True, residual=0.25, specials=False),
        one_trace,
        {"layer": 4, "head": 2, **_SHARED, "words": False, "specials": True, "residual": 0.5},
    ),
    QuestionExample(AttentionLong([1, 2], [0]), one_trace, {"layers": [3], "heads": [1], **_SHARED}),
    QuestionExample(
        Contacts(layer=2, head=3, separation=2, top="all"),
        one_trace,
        {"method": "attention", "layer": 4, "head": "mean", "separation": 3, "top": "L/5"},
    ),
    QuestionExample(Similarity(), two_traces, {"layer": 2, "specials": True}),
    QuestionExample(Similarity(0, specials=True), one_trace, {"layer": -1, "specials": False}),
    QuestionExample(Similarity(3), a_pair, {"layer": 2, "specials": True}),
    QuestionExample(SimilarityBaseline(), the_model),
    QuestionExample(MinimalPair(), two_traces, {"words": True, "show": "moved", "by": "jensen_shannon"}),
    QuestionExample(
        MinimalPair(words=True, show="moved", by="jensen_shannon"),
        two_traces,
        {"words": False, "show": "heads", "by": "total_variation"},
    ),
    QuestionExample(
        MinimalPair(by="jensen_shannon"),
        two_traces,
        {"words": True, "show": "moved", "by": "total_variation"},
    ),
    QuestionExample(MinimalPairRow(), two_traces, {"token": "boats", "layer": 2, "head": 3, "words": True}),
    QuestionExample(
        MinimalPairRow("unhappiest", layer=3, head=5, words=True),
        two_traces,
        {"token": 3, "layer": 2, "head": "mean", "words": False},
    ),
    QuestionExample(
        ActivationPatching(), two_traces, {**_OTHER_PROMPT, **_OTHER_NUMBER, "component": "heads"}
    ),
    QuestionExample(
        ActivationPatching("heads"), two_traces, {**_OTHER_PROMPT, **_OTHER_NUMBER, "component": "tokens"}
    ),
    QuestionExample(
        ActivationPatching("heads", target="B-LOC", at="river"),
        river_and_boat,
        {**_OTHER_PROMPT, "component": "tokens", "task": "fill-mask", "target": "O", "at": "wide"},
        trained="token-classification",
    ),
    QuestionExample(
        ActivationPatching(target="2"),
        two_pairs,
        {**_OTHER_PROMPT, "component": "heads", "task": "question-answering", "target": "1", "at": "wide"},
        trained="question-answering",
    ),
    QuestionExample(
        ActivationPatching("heads", "next-sentence-prediction"),
        two_pairs,
        {**_OTHER_PROMPT, **_OTHER_NUMBER, "component": "tokens"},
        trained="next-sentence-prediction",
    ),
    QuestionExample(WordInContext(["river"]), river_twice, {"words": ["river", "boat"], "layer": 2}),
    QuestionExample(
        WordInContext(["river", "valley", "Boat"], layer=2), some_traces, {"words": ["river"], "layer": None}
    ),
    QuestionExample(
        TokenRollout("river"), one_trace, {"token": 3, "direction": "into", "words": True, "residual": 0.25}
    ),
    QuestionExample(Tokens(), one_trace),
    QuestionExample(Highlights(), two_traces, trained="text-classification"),
    QuestionExample(AttentionSteps(2, 3, "river"), one_trace, {"layer": 4, "head": 5, "query": 3, "key": 2}),
    QuestionExample(AttentionSteps(key="wide"), one_trace, {"layer": 4, "head": 5, "query": 3, "key": None}),
    QuestionExample(Embedding("river"), one_trace, {"token": 2}),
    QuestionExample(Embedding(), one_trace, {"token": 2}),
    QuestionExample(Pooler(), one_trace),
    QuestionExample(HiddenStates(0), one_trace, {"layer": 2, "which": "cls"}),
    QuestionExample(HiddenStates(which="pooler"), one_trace, {"layer": 6, "which": "tokens"}),
    QuestionExample(Parameters(), the_model, {"columns": "main"}),
    QuestionExample(Parameters("main"), the_model, {"columns": "all"}),
    QuestionExample(
        Vocabulary("^.$", "regex", case=True, script="Greek", show="kinds"),
        the_model,
        {**_OTHER_VOCABULARY, "case": False, "kind": "digits"},
    ),
    QuestionExample(Neighbors("river", 3), the_model, {"token": "boat", "count": 4}),
    QuestionExample(Fertility(), a_pair),
    QuestionExample(FertilityChange(), one_text_in_both, trained="fill-mask"),
    QuestionExample(Positions("spectrum"), the_model, {"show": "distance"}),
    QuestionExample(PaddingEffect(), some_traces, {"show": "differences"}),
    QuestionExample(Heads(), one_trace, {"words": True}),
    QuestionExample(HeadConfidence(), one_trace, {"specials": True}),
    QuestionExample(
        HeadMeans(words=True, resamples=20, seed=3),
        many_sentences,
        {"words": False, "confidence": 0.5, "resamples": 30, "seed": 4},
    ),
    QuestionExample(FindHeads([("river", "boats")]), one_trace, {"pairs": [("boats", "river")]}),
    QuestionExample(FindHeads([("The", "river"), (3, 1)]), one_trace, {"pairs": [("The", "river"), (3, 2)]}),
    QuestionExample(HeadAblation([(2, 3)]), one_trace, _ABLATE),
    QuestionExample(
        HeadAblation([(2, 3), (4, -1)], "mean", show="set"),
        one_trace,
        {**_ABLATE, "replacement": "zero", "show": "tokens"},
    ),
    QuestionExample(
        HeadAblation([(0, 1)], show="difference", specials=True),
        one_trace,
        {**_ABLATE, "show": "after", "specials": False},
    ),
    QuestionExample(HeadAblationSweep(), one_trace, {"replacement": "mean"}),
    QuestionExample(
        TokenMap(words=True, basis="centred"),
        two_traces,
        {"words": False, "specials": True, "basis": "shared"},
    ),
    QuestionExample(
        CorpusTokenMap(words=True), many_sentences, {"words": False, "specials": True, "basis": "own"}
    ),
    QuestionExample(
        CorpusTokenMap(specials=True, basis="own"),
        one_table,
        {"words": True, "specials": False, "basis": "shared"},
        files={"rows.csv": TABLE},
    ),
    QuestionExample(
        DimensionCurve("model", prompt="none"), many_sentences, {"pooling": "cls", "prompt": None}
    ),
    QuestionExample(
        SimilarityCalibration("model", prompt="none", dimensions=32, pair_prompt="none"),
        many_sentences,
        {"pooling": "cls", "prompt": None, "dimensions": None, "pair_prompt": None},
    ),
    QuestionExample(
        RankSwap("Where are the boats?", "d2", max_words=2, document_prompt="none", dimensions=32),
        some_documents,
        {
            "query": "--who",
            "document": "d1",
            "against": "d7",
            "scorer": "bm25",
            "max_words": 1,
            "prompt": "none",
            "document_prompt": None,
            "dimensions": None,
        },
        files={"documents.jsonl": "".join(f"{document.line}\n" for document in DOCUMENTS)},
    ),
    QuestionExample(
        ScoreThreshold(positive_from=2, dimensions=32),
        scored_pairs,
        {
            "precision": 0.5,
            "positive_from": 3,
            "pooling": "model",
            "prompt": "none",
            "pair_prompt": "none",
            "dimensions": None,
            "show": "pairs",
        },
        files={"pairs.csv": PAIRS},
    ),
    QuestionExample(
        RetrievalEvaluation(("bi-encoder", "bm25"), dimensions=32, document_prompt="none"),
        judged_queries,
        {
            "scorers": ["bm25", "bi-encoder"],
            "candidates": 7,
            "prompt": "none",
            "document_prompt": None,
            "dimensions": None,
            "curve": True,
            "show": "failures",
        },
        files={
            "documents.jsonl": "".join(f"{document.line}\n" for document in DOCUMENTS),
            "queries.jsonl": QUERIES,
            "judgments.tsv": JUDGMENTS,
        },
    ),
    QuestionExample(
        LabelEvaluation(folds=3, dimensions=32),
        class_texts,
        {
            "pooling": "cls",
            "prompt": "none",
            "dimensions": None,
            "folds": 2,
            "regularization": 0.5,
            "curve": True,
            "show": "texts",
        },
        files={"texts.csv": CLASS_TEXTS},
    ),
    QuestionExample(
        SimilarityEvaluation(dimensions=32),
        scored_pairs,
        {
            "pooling": "cls",
            "prompt": "none",
            "pair_prompt": "none",
            "dimensions": None,
            "curve": True,
            "show": "pairs",
        },
        files={"pairs.csv": PAIRS},
    ),
    QuestionExample(
        SearchExplanation("Where are the boats?", "d2", document_prompt="none", dimensions=32),
        some_documents,
        {
            "query": "--who",
            "document": "d1",
            "against": "d7",
            "scorer": "late-interaction",
            "prompt": "none",
            "document_prompt": None,
            "dimensions": None,
        },
        files=_DOCUMENT_FILE,
    ),
    QuestionExample(
        Search("Where are the boats?", ("late-interaction", "bm25")),
        some_documents,
        {
            "query": "--who",
            "scorers": ["bi-encoder"],
            "candidates": 3,
            "count": 2,
            "prompt": "none",
            "document_prompt": "none",
            "dimensions": 32,
        },
        files={"documents.jsonl": "".join(f"{document.line}\n" for document in DOCUMENTS)},
    ),
    QuestionExample(
        Search("Where are the boats?", ("bm25", "bi-encoder"), dimensions=64, document_prompt="none"),
        some_documents,
        {
            "query": "--who",
            "scorers": ["bi-encoder"],
            "candidates": 3,
            "count": 2,
            "prompt": "none",
            "document_prompt": None,
            "dimensions": 32,
        },
        files=_DOCUMENT_FILE,
    ),
    QuestionExample(
        VectorSearch("Where are the boats?", 3, dimensions=16, document_prompt="none"),
        some_vectors,
        {"query": "--who", "count": 2, "prompt": "none", "document_prompt": None, "dimensions": 32},
        files={"vectors.jsonl": VECTORS},
    ),
    QuestionExample(
        TruncationAudit(8, show="lost"),
        some_documents,
        {"limit": 9, "document_prompt": "none", "show": "limits"},
        files=_DOCUMENT_FILE,
    ),
    QuestionExample(
        PositionEffect("Where are the boats?", positions=2, document_prompt="none"),
        two_sentences_each,
        {
            "query": "--who",
            "passage": "A bridge.",
            "positions": 3,
            "prompt": "none",
            "document_prompt": None,
            "dimensions": 32,
            "show": "documents",
        },
        files={"documents.jsonl": "".join(f"{document.line}\n" for document in TWO_SENTENCES)},
    ),
    QuestionExample(
        ChunkedSearch("Where are the boats?", size=5, prompt="none"),
        some_documents,
        {
            "query": "--who",
            "size": 6,
            "by": "late",
            "count": 2,
            "prompt": None,
            "document_prompt": "none",
            "dimensions": 32,
        },
        files=_DOCUMENT_FILE,
    ),
    QuestionExample(Sentences(), many_sentences, {**_OTHER_SENTENCES, "order": "tree"}, idle=("count",)),
    QuestionExample(
        Sentences("model", "vectors", "tree", prompt="none", dimensions=8),
        many_sentences,
        {**_OTHER_SENTENCES, "show": "scores"},
        idle=("count",),
    ),
    QuestionExample(
        Sentences("max", "nearest", count=3), many_sentences, {**_OTHER_SENTENCES, "order": "tree"}
    ),
    QuestionExample(
        Relations(show="all"),
        two_treebanks,
        {"universal": True, "show": "best"},
        files={"chosen.conllu": treebank.SAILING_FILE, "reported.conllu": treebank.SLEEPING_FILE},
    ),
    QuestionExample(
        Relations(universal=True),
        two_treebanks,
        {"universal": False, "show": "all"},
        files={"chosen.conllu": treebank.SAILING_FILE, "reported.conllu": treebank.SLEEPING_FILE},
    ),
    QuestionExample(
        Probe(layers=[0, -1], confidence=0.9, seed=2),
        tagged_words,
        {"label": "genre", "pooling": "cls", "layers": [1], "confidence": 0.5, "seed": 3},
        files={"data.conll": treebank.TAGGED_FILE},
    ),
    QuestionExample(
        Probe(label="genre"),
        two_treebanks,
        {"label": None, "pooling": "cls", "layers": [1], "confidence": 0.5, "seed": 3},
        files={"data.conllu": treebank.SAILING_FILE, "held_out.conllu": treebank.SLEEPING_FILE},
    ),
    QuestionExample(
        Probe(pooling="cls", layers=[2]),
        a_table,
        {"label": "genre", "pooling": "mean", "layers": [1], "confidence": 0.5, "seed": 3},
        files={"data.csv": TABLE, "held_out.csv": TABLE},
    ),
    QuestionExample(
        StructuralProbe(rank=3, layers=[-1], seed=2),
        two_treebanks,
        {"rank": 4, "layers": [1], "seed": 3},
        files={"data.conllu": treebank.SAILING_FILE, "held_out.conllu": treebank.SLEEPING_FILE},
    ),
    QuestionExample(
        SentenceMap(), many_sentences, {"method": "tsne", "pooling": "cls", "min_cluster": 3, **_OTHER_VECTOR}
    ),
    QuestionExample(
        SentenceMap("tsne", "model", min_cluster=2),
        many_sentences,
        {"method": "umap", "pooling": "mean", "min_cluster": 4, **_OTHER_VECTOR},
    ),
    QuestionExample(
        FillMask(mask="river", top=3),
        one_trace,
        {"top": 4, "targets": ["night", ","], "mask": "wide"},
        trained="fill-mask",
    ),
    QuestionExample(
        FillMask(targets=["night", ",", "a\\,b"]),
        a_masked_trace,
        {"top": 2, "targets": ["night"], "mask": 3},
        trained="fill-mask",
    ),
    QuestionExample(Lens(mask="river", top=3), one_trace, _OTHER_LENS, trained="fill-mask"),
    QuestionExample(
        Lens("fill-mask", targets=["night", ","], show="entropy"),
        a_masked_trace,
        {**_OTHER_LENS, "targets": ["night"], "show": "answers", "mask": 3},
        trained="fill-mask",
    ),
    QuestionExample(
        TuneLens(steps=2, seed=3, held_out=0.5),
        many_sentences,
        {"steps": 3, "seed": 1, "held_out": 0.25},
        trained="fill-mask",
    ),
    QuestionExample(
        EvaluateMasks(seed=3, show="masks"),
        many_sentences,
        {"seed": 1, "show": "measures"},
        trained="fill-mask",
    ),
    QuestionExample(ClassifyText(), a_pair, {"top": 2}, trained="text-classification"),
    QuestionExample(
        LabelTokens("first", outside=True),
        one_trace,
        {"aggregation": "max", "outside": False},
        trained="token-classification",
    ),
    QuestionExample(FindAnswer(), a_pair, _OTHER_ANSWERS, trained="question-answering"),
    QuestionExample(
        FindAnswer(3, longest=2, overlap=4, no_answer=True),
        a_long_pair,
        {**_OTHER_ANSWERS, "no_answer": False},
        trained="question-answering",
    ),
    QuestionExample(NextSentence(), a_pair, trained="next-sentence-prediction"),
    QuestionExample(
        SentenceSimilarity(), two_traces, {"show": "contributions", "pair_prompt": "query", **_OTHER_VECTOR}
    ),
    QuestionExample(
        SentenceSimilarity("contributions", pair_prompt="none", dimensions=32),
        two_traces,
        {"show": "dimensions", "pair_prompt": "query", **_OTHER_VECTOR},
    ),
    QuestionExample(
        Attribution(method="decompx"),
        two_traces,
        {**_OTHER_PROMPTS, **_OTHER_NUMBER, **_OTHER_WAY, "method": "attention"},
    ),
    QuestionExample(
        Attribution("token-classification", "B-PER", "river", words=True, removal="masked"),
        one_trace,
        {
            **_OTHER_PROMPTS,
            **_OTHER_NUMBER,
            **_OTHER_WAY,
            "task": None,
            "method": "attention",
            "words": False,
            "removal": None,
        },
        trained="token-classification",
    ),
    QuestionExample(
        Attribution(target="2", method="integrated-gradients", baseline="mask"),
        a_pair,
        {**_OTHER_PROMPTS, **_OTHER_NUMBER, **_OTHER_WAY, "method": "attention"},
        trained="question-answering",
    ),
    QuestionExample(
        AttributionFaithfulness(at="river", target="night", orders=3, seed=1),
        one_trace,
        {**_OTHER_PROMPTS, **_OTHER_NUMBER, **_OTHER_CHECK, "rows": "words"},
        trained="fill-mask",
    ),
    QuestionExample(
        AttributionFaithfulness(words=True, removal="masked", baseline="unknown", orders=2, rows="words"),
        one_trace,
        {
            **_OTHER_PROMPTS,
            **_OTHER_NUMBER,
            **_OTHER_CHECK,
            "words": False,
            "removal": None,
            "baseline": "mask",
            "rows": "methods",
        },
        trained="text-classification",
    ),
    QuestionExample(
        HeadAttribution(),
        a_pair,
        {**_OTHER_PROMPTS, **_OTHER_NUMBER, "replacement": "mean", "show": "layers"},
        trained="text-classification",
    ),
    QuestionExample(
        HeadAttribution(replacement="mean", show="importance"),
        a_pair,
        {**_OTHER_PROMPTS, **_OTHER_NUMBER, "replacement": "zero", "show": "layers"},
        trained="next-sentence-prediction",
    ),
    QuestionExample(
        SimilarityAttribution(steps=3, prompt="none", dimensions=32),
        two_traces,
        {"baseline": "mask", "steps": 2, "prompt": None, "pair_prompt": "none", "dimensions": None},
    ),
    QuestionExample(
        FaithfulnessSummary(orders=2),
        many_sentences,
        {**_OTHER_PROMPTS, **_OTHER_CHECK, "task": "token-classification", "target": "B-LOC"},
        trained="text-classification",
    ),
    QuestionExample(HeadChange(), one_text_in_both, {"words": True}, trained="fill-mask"),
    QuestionExample(HeadChange(words=True), a_pair_in_both, {"words": False}, trained="question-answering"),
    QuestionExample(HeadMatches(), one_text_in_both, {"show": "all"}, trained="fill-mask"),
    QuestionExample(VectorChange(), one_text_in_both, {"words": True}, trained="fill-mask"),
    QuestionExample(ParameterChange(), before_and_after, trained="fill-mask"),
    QuestionExample(
        AnswerChange(mask="river"),
        one_text_in_both,
        {"task": "fill-mask", "top": 2, "mask": 3},
        trained="fill-mask",
    ),
    QuestionExample(
        AnswerChange("question-answering", top=2),
        a_pair_in_both,
        {"task": None, "top": 3, "mask": 3},
        trained="question-answering",
    ),
    QuestionExample(
        LayerSimilarity(examples=8), sentences_in_both, {"examples": 9, "seed": 1}, trained="fill-mask"
    ),
    QuestionExample(
        HeadPruning(parts=3, seed=1),
        labeled_texts,
        {"parts": 2, "seed": 2},
        trained="text-classification",
        file=LABELED,
    ),
    QuestionExample(
        Evaluate(),
        a_table,
        {"show": "texts"},
        trained="text-classification",
        files={"rows.csv": TABLE, "training.csv": TABLE},
    ),
    QuestionExample(
        Evaluate("classes"),
        tagged_sentences,
        {"show": "wrong"},
        trained="token-classification",
        files={"rows.conll": TAGGED},
    ),
)


def covering(examples: tuple[QuestionExample, ...]) -> tuple[QuestionExample, ...]:
    """Return examples that cover each type of field and each kind of file.

    The selection is greedy: the next example is the one that adds the most.
    """
    covered = [_covered(example) for example in examples]
    missing = set[str | tuple[str, ...]]().union(*covered)
    selection = []
    while missing:
        best = max(range(len(examples)), key=lambda number: len(covered[number] & missing))
        missing -= covered[best]
        selection.append(examples[best])
    return tuple(selection)


def _covered(example: QuestionExample) -> set[str | tuple[str, ...]]:
    """Return the kind of model, the extensions of the files and the types of the fields that are set."""
    set_fields = [
        field for field in fields(example.question) if getattr(example.question, field.name) != field.default
    ]
    return {
        "head" if example.trained else "built-in model",
        tuple(sorted(name.rpartition(".")[2] for name in example.files)),
        *(str(field.type) for field in set_fields),
    }
