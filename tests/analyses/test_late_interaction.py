"""Test late interaction: parity of token vectors and MaxSim with sentence-transformers, and contributions."""

from __future__ import annotations

import json
import re
import shutil
import string
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import bert_probe
from bert_probe import Search, SearchExplanation
from bert_probe.analyses.retrieval import late_interaction
from bert_probe.analyses.retrieval.late_interaction import (
    TokenVectors,
    document_config,
    encode_documents,
    encode_tokens,
    maxsim,
    query_config,
)
from bert_probe.errors import (
    CheckpointError,
    OutOfMemoryError,
    SelectionError,
    TextError,
    UnavailableError,
)
from bert_probe.model import lengths, preflight
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from bert_probe.model.late_interaction import open_multi_vector_model
from bert_probe.model.lengths import MAX_TOKENS
from tests.helpers import families, multi_vector_models, sentence_models
from tests.helpers.exactness import assert_exact, expect_raw
from tests.helpers.gate import prove_unless

QUERY = "Where does the river lead?"
DOCUMENTS = [*families.SENTENCES, "a boat", "night, " * 8, "A Boat!"]


@pytest.fixture(scope="module")
def layout_folder(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return a factory that maps a layout to the folder of its checkpoint, which is saved on first use.

    Tests must not change the folder.
    """
    root = tmp_path_factory.mktemp("multi-vector")

    def folder(name: str) -> Path:
        path = root / name.replace(" ", "-").replace(",", "")
        if not path.exists():
            family = multi_vector_models.LAYOUTS[name].family
            multi_vector_models.save(name, family_folder(family), path)
        return path

    return folder


@cache
def _double(folder: Path) -> Checkpoint:
    checkpoint = bert_probe.load(folder, dtype="float64")
    keep_float64(checkpoint.model)
    return checkpoint


def _vectors(checkpoint: Checkpoint) -> list[np.ndarray]:
    """Return the token vectors of each query and each document, shape [token, size]."""
    queries = [encode_tokens(checkpoint, query_config(checkpoint), text).vectors for text in DOCUMENTS]
    documents = encode_documents(checkpoint, document_config(checkpoint), DOCUMENTS, False, str)
    return [*queries, *(documents.vectors[first:last] for first, last in documents.spans)]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    "name",
    prove_unless(
        {
            "expanded",
            "expanded to a minimum",
            "not expanded",
            "decoder",
            "PyLate",
            "PyLate without expansion",
        },
        multi_vector_models.LAYOUTS,
    ),
)
def test_vectors_equal_multi_vector_encoder(name: str, layout_folder: Callable[[str], Path]) -> None:
    folder = layout_folder(name)
    checkpoint = _double(folder)
    assert checkpoint.multi_vector_error is None
    model = multi_vector_models.reference(folder, "float64")
    # Queries are encoded one at a time, so that no padding is involved.
    queries = [model.encode_query(text, convert_to_numpy=True) for text in DOCUMENTS]
    expected = [*queries, *model.encode_document(DOCUMENTS, convert_to_numpy=True)]
    vectors = _vectors(checkpoint)
    assert [len(text) for text in vectors] == [len(text) for text in expected]
    assert_exact(np.concatenate(vectors), np.concatenate(expected))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", ["expanded to a minimum", "not expanded"])
def test_special_tokens_are_not_lowercased(
    name: str, layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = _changed(layout_folder(name), tmp_path / "changed", TRANSFORMER, do_lower_case=True)
    special = bert_probe.load(folder).tokenizer.mask_token
    checkpoint, model = _double(folder), multi_vector_models.reference(folder, "float64")
    text = f"A MASKED {special} word {special.upper()} HERE"
    vectors = encode_tokens(checkpoint, query_config(checkpoint), text).vectors
    assert_exact(vectors, model.encode_query(text, convert_to_numpy=True))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", ["PyLate", "PyLate, early version"])
def test_vectors_are_those_that_pylate_describes(name: str, layout_folder: Callable[[str], Path]) -> None:
    """Compare with a copy of the steps of `ColBERT.tokenize` and `ColBERT.encode` in PyLate 1.6.0.

    PyLate itself cannot be called: it requires older versions of transformers and sentence-transformers.
    """
    folder = layout_folder(name)
    checkpoint = _double(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    keep_float64(model)
    for is_query, config in ((True, query_config(checkpoint)), (False, document_config(checkpoint))):
        for text in DOCUMENTS:
            expected = _pylate_vectors(folder, model, text, is_query)
            assert_exact(encode_tokens(checkpoint, config, text).vectors, expected)


def _pylate_vectors(folder: Path, model: Any, text: str, is_query: bool) -> np.ndarray:
    options = json.loads((folder / "config_sentence_transformers.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    side = "query" if is_query else "document"
    length, marker = options[f"{side}_length"], tokenizer.get_vocab()[options[f"{side}_prefix"]]
    ids = tokenizer(text, truncation=True, max_length=length - 1)["input_ids"]
    ids = [ids[0], marker, *ids[1:]]
    attention = [1] * len(ids)
    if is_query:
        missing = length - len(ids)
        ids += [tokenizer.mask_token_id] * missing
        attention += [int(options["attend_to_expansion_tokens"])] * missing
    with torch.inference_mode():
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([attention])}
        states = model(**inputs).last_hidden_state[0].numpy()
    weights = load_file(folder / "1_Dense" / "model.safetensors")["linear.weight"].double().numpy()
    vectors: np.ndarray = states @ weights.T
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # PyLate maps skiplist words outside the vocabulary to [UNK]; BERT's vocabulary contains all of them.
    skipped = {tokenizer.get_vocab()[word] for word in string.punctuation if word in tokenizer.get_vocab()}
    return vectors if is_query else vectors[[token not in skipped for token in ids]]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "name", prove_unless({"expanded", "not expanded", "PyLate"}, multi_vector_models.LAYOUTS)
)
def test_scores_equal_multi_vector_encoder(name: str, layout_folder: Callable[[str], Path]) -> None:
    folder = layout_folder(name)
    model = multi_vector_models.reference(folder)
    vectors = model.encode_document(DOCUMENTS)
    expected = model.similarity(model.encode_query([QUERY]), vectors)[0].double().numpy()
    exact = _scores(multi_vector_models.reference(folder, "float64"))
    has_vectors = np.array([len(document) > 0 for document in vectors])
    result = Search(QUERY, ("late-interaction",)).of(bert_probe.load(folder), DOCUMENTS)
    scores = result.scores["late-interaction"]
    assert scores.dtype == np.float32
    assert np.isnan(scores).tolist() == (~has_vectors).tolist()
    expect_raw(expected[has_vectors], exact[has_vectors]).check(scores[has_vectors])
    assert result.notes == ()


def _scores(model: Any) -> np.ndarray:
    """Return the float64 scores of a `MultiVectorEncoder`, whose own function rounds them to float32."""
    query = model.encode_query(QUERY, convert_to_numpy=True)
    scores = [
        (query @ document.T).max(axis=1).sum() if len(document) else np.nan
        for document in model.encode_document(DOCUMENTS, convert_to_numpy=True)
    ]
    return np.array(scores) / (len(query) if model.similarity_fn_name == "meanmaxsim" else 1)


def test_maxsim_by_hand() -> None:
    """The query is {(1, 0), (0, 1)}; the documents are {(1, 0), (.6, .8)}, {(0, −1)} and an empty one."""
    query = np.array([[1.0, 0.0], [0.0, 1.0]])
    vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]])
    documents = TokenVectors(vectors, np.array([[0, 2], [2, 3], [3, 3], [0, 2]]), (0,) * 4)
    assert maxsim(query, documents).tolist()[:2] == [1.0 + 0.8, 0.0 - 1.0]
    assert np.isnan(maxsim(query, documents)[2])
    assert maxsim(query, documents)[3] == 1.8
    assert maxsim(query, documents, "meanmaxsim").tolist()[:2] == [0.9, -0.5]
    with pytest.raises(TextError, match="No token of the query"):
        maxsim(query[:0], documents)


def test_blocks_do_not_change_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    lengths = [3, 0, 40, 1, 7, 0, 2]
    ends = np.cumsum(lengths)
    spans = np.stack([ends - lengths, ends], axis=1)
    documents = TokenVectors(random.normal(size=(ends[-1], 5)), spans, (0,) * 7)
    query = random.normal(size=(4, 5))
    scores = maxsim(query, documents)
    expected = [(query @ documents.vectors[a:b].T).max(axis=1).sum() if b > a else np.nan for a, b in spans]
    np.testing.assert_allclose(scores, expected, atol=1e-12)
    for numbers in (1, 4 * 8, 4 * 41):
        monkeypatch.setattr(late_interaction, "_BLOCK_NUMBERS", numbers)
        np.testing.assert_array_equal(maxsim(query, documents), scores)


TRAINED = ("expanded", "expanded to a minimum", "not expanded", "decoder", "PyLate")


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", prove_unless({"built-in", "expanded", "decoder"}, ["built-in", *TRAINED]))
def test_matches_add_up_to_the_score(
    name: str, minilm: Checkpoint, layout_folder: Callable[[str], Path]
) -> None:
    checkpoint = minilm if name == "built-in" else bert_probe.load(layout_folder(name))
    options = {"scorer": "late-interaction"}
    for fields in ({}, {} if name == "built-in" else {"prompt": "none", "document_prompt": "query"}):
        result = Search(QUERY, ("late-interaction",), **fields).of(checkpoint, DOCUMENTS)
        for index in (0, 3):
            explained = SearchExplanation(QUERY, str(index + 1), str(index + 2), **options, **fields).of(
                checkpoint, DOCUMENTS
            )
            assert explained.off < 1e-10
            scores = result.scores["late-interaction"][[index, index + 1]]
            np.testing.assert_allclose(explained.scores, scores, atol=1e-4)
            assert explained.by_query["difference"].sum() == pytest.approx(explained.difference, abs=1e-10)
            _check_matches(explained)


def _check_matches(explained: Any) -> None:
    """Assert that the table of best matches equals the maxima over the similarities of all token pairs."""
    table = explained.table()
    for document, part in zip(explained.explained, explained.contributions, strict=True):
        rows = table[table["document"] == document.id]
        assert rows["contribution"].sum() == pytest.approx(part.score, abs=1e-10)
        text, tokens = part.document.encoding.text, part.document.encoding.tokens
        for row, similarities in zip(rows.itertuples(), part.similarities, strict=True):
            assert row.similarity == similarities.max()
            assert row.token == tokens[row.position].display
            span = slice(tokens[row.position].start, tokens[row.position].end)
            assert (
                text[span].strip() in row.word if tokens[row.position].start is not None else row.word == ""
            )
        assert part.of_document.sum() == pytest.approx(part.score, abs=1e-10)


@pytest.mark.prove
def test_another_model_compares_its_last_hidden_states(minilm: Checkpoint) -> None:
    """A model without multi-vector files uses L2-normalized hidden states of all tokens except special ones.

    The result notes that the model was not trained for late interaction.
    """
    query, *documents = [QUERY, *DOCUMENTS]

    def vectors(text: str) -> np.ndarray:
        states = minilm.trace(text).vectors(-1)[1:-1].astype(np.float64)
        unit: np.ndarray = states / np.linalg.norm(states, axis=1, keepdims=True)
        return unit

    expected = [(vectors(query) @ vectors(text).T).max(axis=1).sum() for text in documents]
    result = Search(QUERY, ("late-interaction", "bm25")).of(minilm, DOCUMENTS)
    np.testing.assert_allclose(result.scores["late-interaction"], expected, atol=1e-4)
    assert result.notes == (late_interaction.UNTRAINED,)
    assert result.provenance["facts"]["notes"] == [late_interaction.UNTRAINED]
    explained = SearchExplanation(QUERY, scorer="late-interaction").of(minilm, DOCUMENTS)
    assert explained.provenance["facts"]["notes"] == [late_interaction.UNTRAINED]


def test_the_prompt_of_another_model_has_no_vectors(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    sentence_models.save("prompts", family_folder("bert"), tmp_path / "model")
    checkpoint = bert_probe.load(tmp_path / "model")
    result = SearchExplanation("a boat", scorer="late-interaction").of(checkpoint, ["the wide river"])
    (part,) = result.contributions
    assert isinstance(part, late_interaction.TokenMatches)
    assert part.query.encoding.text == "where is: a boat"
    assert [*part.query.tokens] == ["a", "boat"]
    assert part.query.encoding.text[part.query.tokens[0].start :] == "a boat"


def test_the_checkpoint_is_an_ordinary_encoder_elsewhere(layout_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(layout_folder("PyLate"))
    assert checkpoint.tasks == ()
    trace = checkpoint.trace("[Q] Where is the river?")
    assert trace.tokens[1].id == checkpoint.tokenizer.convert_tokens_to_ids("[Q] ")
    assert bert_probe.Attention(0, 0).of(trace).table().shape[0] == len(trace.tokens)
    with pytest.raises(UnavailableError, match="Use Search with the scorer late-interaction"):
        Search(QUERY).of(checkpoint, DOCUMENTS)
    with pytest.raises(SelectionError, match="Omit dimensions"):
        Search(QUERY, ("late-interaction",), dimensions=8).of(checkpoint, DOCUMENTS)
    with pytest.raises(SelectionError, match=r"has no prompt 'title'\. Its prompts: query, document"):
        Search(QUERY, ("late-interaction",), prompt="title").of(checkpoint, DOCUMENTS)


def test_documents_are_encoded_once_and_equal_documents_share_vectors(
    layout_folder: Callable[[str], Path],
) -> None:
    checkpoint = bert_probe.load(layout_folder("expanded"))
    question = Search(QUERY, ("late-interaction",))
    calls: list[tuple[int, int]] = []
    index = question.index(checkpoint, DOCUMENTS, progress=lambda *call: calls.append(call))
    # "a boat" and "A Boat!" differ only in "!", which has no vector, so their token vectors are stored once.
    distinct = len(DOCUMENTS) - 1
    assert calls[0] == (0, distinct + 1)
    assert calls[-1] == (distinct + 1, distinct + 1)
    again = question.of(checkpoint, index)
    assert again.table().equals(question.of(checkpoint, DOCUMENTS).table())
    with pytest.raises(SelectionError, match="indexed with other options"):
        Search(QUERY, ("late-interaction",), document_prompt="none").of(checkpoint, index)
    assert index.tokens is not None
    assert index.nbytes > index.tokens.vectors.nbytes


def test_too_many_vectors_are_refused_before_they_are_allocated(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "free_memory", lambda: 1_000)
    with pytest.raises(OutOfMemoryError, match=r"Storing the vectors of 2 tokens .* Use fewer documents"):
        Search(QUERY, ("late-interaction",)).index(minilm, ["a boat"])
    monkeypatch.setattr(lengths, "_task_bytes", 1_000)
    with pytest.raises(UnavailableError, match=r"The vectors of 2 tokens need .* but this server allows"):
        Search(QUERY, ("late-interaction",)).index(minilm, ["a boat"])


def _changed(folder: Path, target: Path, name: str, **settings: Any) -> Path:
    """Copy a checkpoint, change settings in the copy's JSON file `name`, and return the copy's folder."""
    shutil.copytree(folder, target)
    content = json.loads((target / name).read_text())
    (target / name).write_text(json.dumps(content | settings))
    return target


TRANSFORMER = "sentence_bert_config.json"
EXPANSION = {"strategy": "fixed", "attend": False, "length": 14}


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        (TRANSFORMER, {"query_expansion": {"strategy": "double", "length": 3}}, "only the strategies fixed"),
        (TRANSFORMER, {"query_expansion": EXPANSION | {"length": 0}}, "must be a positive integer"),
        (TRANSFORMER, {"query_expansion": EXPANSION | {"length": 999}}, "reads at most 160"),
        (TRANSFORMER, {"query_length": 5}, "query_length is 5, but must be at least 14, the length"),
        (TRANSFORMER, {"query_expansion": EXPANSION | {"token": "zebra"}}, "does not contain zebra"),
        (TRANSFORMER, {"processing_kwargs": {"text": {}}}, "sets processing_kwargs"),
        (TRANSFORMER, {"modality_config": {"message": {}}}, "is supported|chat template"),
        ("2_MultiVectorMask/config.json", {"skiplist_words": "x"}, "skiplist_words must be a list"),
        ("1_Dense/config.json", {"in_features": 99}, "expects vectors of 99 dimensions"),
        ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "Dense of a late-interaction"),
        ("config_sentence_transformers.json", {"prompts": 3}, "must map prompt names to strings"),
    ],
)
def test_unsupported_files_raise_one_sentence(
    file: str, settings: dict[str, Any], message: str, layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = _changed(layout_folder("expanded"), tmp_path / "changed", file, **settings)
    encoder = bert_probe.load(layout_folder("expanded"))
    model, error = open_multi_vector_model(folder, encoder.description, encoder.tokenizer, encoder.model)
    assert model is None
    assert re.search(message, str(error))


def test_expanded_queries_are_limited(layout_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """The limit is the checkpoint's maximum length or, if it has none, the largest supported length."""
    folder = layout_folder("expanded to a minimum")
    encoder = bert_probe.load(folder)
    short = _changed(folder, tmp_path / "short", TRANSFORMER, max_seq_length=12)
    model, _ = open_multi_vector_model(short, encoder.description, encoder.tokenizer, encoder.model)
    assert model is not None
    assert model.query.max_tokens == model.document.max_tokens == 12
    unlimited = replace(encoder.description, max_tokens=None)
    settings = {"query_expansion": {"strategy": "min", "attend": True, "length": 10**9}}
    long = _changed(folder, tmp_path / "long", TRANSFORMER, **settings)
    model, error = open_multi_vector_model(long, unlimited, encoder.tokenizer, encoder.model)
    assert model is None
    assert f"expanded to 1,000,000,000 tokens, but the model reads at most {MAX_TOKENS:,}" in str(error)


def test_a_late_interaction_model_with_an_unsupported_module_is_not_replaced(
    layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = _changed(layout_folder("expanded"), tmp_path / "changed", TRANSFORMER, query_length=5)
    checkpoint = bert_probe.load(folder)
    with pytest.raises(CheckpointError, match="query_length is 5"):
        Search(QUERY, ("late-interaction",)).of(checkpoint, DOCUMENTS)
