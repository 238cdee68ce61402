"""Test sentence vectors of a store: parity with sentence-transformers, and search and health of a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe import IngestConfig, Search, VectorSearch
from bert_probe.analyses.retrieval.calibration import reference_sentences
from bert_probe.analyses.vectors.similarity import scores
from bert_probe.corpus import store as stores
from bert_probe.corpus.build import build_corpus, verify_corpus
from bert_probe.corpus.inputs import sentence_pooling
from bert_probe.corpus.store import Store, open_corpus
from bert_probe.corpus.vector_files import make_vector_set
from bert_probe.errors import SelectionError, StoreError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers import sentence_models
from tests.helpers.command_line import bert_probe as run
from tests.helpers.families import LONG, SENTENCES
from tests.helpers.gate import prove_unless

KEEP = ("sentence_vectors",)
TEXTS = (*SENTENCES, "We sailed", "IT SANK", LONG[:200])
LAYOUTS = (
    "prompts optional",
    "no prompt pooled, joined",
    "dense",
    "lowercase",
    "limit",
    "router",
    "truncated",
)
"""Layouts with prompts, changed texts, a maximum length, other sizes, or separate modules for documents."""
HELP = (
    "How to reset your password",
    "The ferry leaves at dawn",
    "We cannot open your account",
    "Soup and bread. " * 199 + "Soup",
    "A map of the old town",
    "Log in with a code",
)


def build(checkpoint: Checkpoint, texts: tuple[str, ...], folder: Path, question: IngestConfig) -> Store:
    folder.parent.mkdir(exist_ok=True)
    file = folder.with_name(f"{folder.name}.txt")
    file.write_text("\n".join(texts), "utf-8")
    return build_corpus(checkpoint, question, [file], folder, shard_rows=4)


@pytest.fixture(scope="module")
def store(minilm: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store of MiniLM with sentence vectors; its fourth text is longer than the model reads."""
    return build(
        minilm, HELP, tmp_path_factory.mktemp("help") / "help", IngestConfig(keep=KEEP, truncate=True)
    )


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("layout", prove_unless(("no prompt pooled, joined", "router"), LAYOUTS))
def test_vectors_equal_those_of_sentence_transformers(
    layout: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    family = sentence_models.LAYOUTS[layout].family
    folder = sentence_models.save(layout, family_folder(family), tmp_path / "model")
    reference = sentence_models.reference(folder, "float64")
    expected = reference.encode_document([*TEXTS])
    checkpoint = bert_probe.load(str(folder), dtype="float64")
    built = build(checkpoint, TEXTS, tmp_path / "a", IngestConfig(keep=("profiles", "vectors", *KEEP)))
    vectors = bert_probe.read_vectors(built.folder)
    np.testing.assert_array_equal(vectors.vectors, expected.astype(np.float32).reshape(len(TEXTS), -1))
    assert vectors.texts == TEXTS
    assert verify_corpus(built.folder).differences == ()


def test_vectors_of_float32_and_float16(
    minilm: Checkpoint, double_minilm: Checkpoint, store: Store, tmp_path: Path
) -> None:
    """The error is that of the model in float32; a stored float16 is rounded to 11 bits."""
    exact = bert_probe.Sentences("model").of(double_minilm, HELP).vectors
    own_error = np.abs(bert_probe.Sentences("model").of(minilm, HELP).vectors - exact).max()
    vectors = bert_probe.read_vectors(store.folder)
    assert np.abs(vectors.vectors - exact).max() <= 4 * max(own_error, 2.0**-24)
    assert vectors.dropped is not None
    encoding = minilm.encode(HELP[3], truncate=True)
    assert vectors.dropped.tolist() == [0, 0, 0, len(encoding) + encoding.dropped - 256, 0, 0]
    half = build(minilm, HELP[:2], tmp_path / "half", IngestConfig(keep=KEEP, dtype="float16"))
    np.testing.assert_allclose(
        bert_probe.read_vectors(half.folder).vectors, exact[:2], rtol=2**-11, atol=1e-6
    )


def test_ranking_equals_brute_force_and_search(minilm: Checkpoint, store: Store) -> None:
    vectors = bert_probe.read_vectors(store.folder)
    result = VectorSearch("I forgot my password", 4).of(minilm, vectors)
    query = bert_probe.Sentences("model").of(minilm, ["I forgot my password"]).vectors
    values = scores(query.astype(np.float64), vectors.vectors.astype(np.float64), "cosine")[0]
    order = np.argsort(-values, kind="stable")[:4]
    assert [int(document.id) - 1 for document in result.documents] == order.tolist()
    np.testing.assert_allclose(result.scores, values[order], rtol=0, atol=1e-12)
    assert result.notes == (), "the model and the pooling are those of the store"
    expected = Search("I forgot my password").of(minilm, store.documents, True).frame()
    assert result.frame()["text"].tolist() == expected["text"].tolist()[:4]
    np.testing.assert_allclose(result.scores, expected["score"][:4], atol=1e-6)


def test_other_model_or_pooling_is_refused(
    minilm: Checkpoint, family: Callable[[str], Checkpoint], store: Store, tmp_path: Path
) -> None:
    vectors = bert_probe.read_vectors(store.folder)
    with pytest.raises(
        SelectionError, match=r"were computed with .* but .* has the digest .* Choose the mod"
    ):
        VectorSearch("a boat").of(family("bert"), vectors)
    with pytest.raises(SelectionError, match=r"were pooled differently .* dimensions is 64 instead of None"):
        VectorSearch("a boat", dimensions=64).of(minilm, vectors)
    origin = replace(vectors.origin, modules_sha256="0") if vectors.origin else None
    with pytest.raises(SelectionError, match="the files of the model's modules differ"):
        VectorSearch("a boat").of(minilm, replace(vectors, origin=origin))
    tokens = build(minilm, HELP[:3], tmp_path / "tokens", IngestConfig(keep=("vectors",)))
    note = VectorSearch("a boat").of(minilm, bert_probe.read_vectors(tokens.folder)).notes[0]
    assert "tokens has no sentence vectors (--keep sentence_vectors). The means of its token vectors" in note
    bare = build(minilm, HELP[:3], tmp_path / "bare", IngestConfig(keep=("profiles",)))
    with pytest.raises(
        UnavailableError, match=r"bare has no vectors. Build the store with --keep profiles,sentence_"
    ):
        bert_probe.read_vectors(bare.folder)


@pytest.mark.parametrize("prompt", ["", "the old bridge in the rain and the wide river at night: "])
def test_health_calibrates_with_the_prompt_of_the_vectors(
    prompt: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The vectors of a store are those of documents; the vectors of a file may be those of texts."""
    folder = sentence_models.save("prompts", family_folder("bert"), tmp_path / "model")
    settings = folder / "config_sentence_transformers.json"
    config = json.loads(settings.read_text())
    config["prompts"]["document"] = prompt
    settings.write_text(json.dumps(config))
    reference = sentence_models.reference(folder, "float32")
    checkpoint = bert_probe.load(str(folder))
    texts = tuple(f"{text} {number}" for number in range(3) for text in SENTENCES)
    built = build(checkpoint, texts, tmp_path / "a", IngestConfig(keep=KEEP))
    encoded = make_vector_set("a.npz", reference.encode([*texts]), texts=texts)
    for vectors, encode in (
        (bert_probe.read_vectors(built.folder), reference.encode_document),
        (encoded, reference.encode),
    ):
        result = bert_probe.CorpusHealth(2).of(vectors, checkpoint)
        rows = encode([*reference_sentences()]).astype(np.float64)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = (rows @ rows.T)[np.triu_indices(len(rows), k=1)]
        assert result.threshold == pytest.approx(1 - (1 - np.percentile(cosines, 99.9)) / 4, abs=1e-5)
    with pytest.raises(SelectionError, match=r"not those of .* with the pooling cls: for the text of row"):
        bert_probe.CorpusHealth(2, pooling="cls").of(encoded, checkpoint)


def test_sparse_vectors_are_refused(minilm: Checkpoint) -> None:
    assert minilm.sentence_model is not None
    model = replace(minilm.sentence_model, modes=("splade_max",))
    sparse: Any = SimpleNamespace(sentence_model=model, description=minilm.description)
    with pytest.raises(UnavailableError, match="computes sparse vectors, which a store cannot keep"):
        sentence_pooling(sparse)


def test_damaged_tables_are_reported(minilm: Checkpoint, tmp_path: Path) -> None:
    built = build(minilm, HELP[:3], tmp_path / "a", IngestConfig(keep=KEEP))
    file = built.folder / "sentence_vectors" / "00000.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (difference,) = verify_corpus(built.folder).differences
    assert (difference.file, difference.problem[:11]) == ("sentence_vectors/00000.arrow", "was changed")
    with pytest.raises(StoreError, match="was changed"):
        bert_probe.read_vectors(built.folder)
    manifest = json.loads((built.folder / "manifest.json").read_text())
    for value, message in ((None, "does not describe"), ({"size": 0}, "sentence_vectors.size = '0'")):
        changed = manifest | {"sentence_vectors": value}
        (built.folder / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(StoreError, match=message):
            open_corpus(built.folder)


def test_store_without_the_new_key_opens(minilm: Checkpoint, tmp_path: Path) -> None:
    built = build(minilm, HELP[:1], tmp_path / "a", IngestConfig(keep=("vectors",)))
    manifest = json.loads((built.folder / "manifest.json").read_text())
    del manifest["sentence_vectors"]
    (built.folder / "manifest.json").write_text(json.dumps(manifest))
    assert open_corpus(built.folder).rows == 1


@pytest.mark.prove
def test_commands_use_a_store(
    store: Store, minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.folder.parent)
    words = ("search", "I forgot my password", "--documents", "help", "--count", "2")
    answer = run(*words, built_in=minilm)
    assert answer.err == ""
    assert [record["text"] for record in answer.records] == [HELP[0], HELP[2]]
    by_words = run(*words, "--scorers", "bm25", built_in=minilm)
    assert by_words.records[0]["text"] == HELP[0], "other scorers read the texts"
    health = run("corpus", "health", "help", "--neighbors", "2", "--show", "rows")
    expected = bert_probe.CorpusHealth(2, show="rows").of(bert_probe.read_vectors("help")).frame()
    assert [record["text"] for record in health.records] == list(HELP)
    nearest = [float(record["nearest_cosine"]) for record in health.records]
    assert nearest == pytest.approx(list(expected["nearest_cosine"]))
    assert health.err == ""
    build(minilm, HELP[:3], tmp_path / "bare", IngestConfig(keep=("profiles",)))
    other = run("search", "password", "--documents", str(tmp_path / "bare"), "--count", "1", built_in=minilm)
    assert "bare has no sentence vectors, so its 3 texts are encoded for this search." in other.err
    assert f",{HELP[0]}\n" in other.text.splitlines(keepends=True)[1]
    monkeypatch.setattr(stores, "MAX_SENTENCES", 2)
    refusal = run("search", "password", "--documents", str(tmp_path / "bare"), built_in=minilm).err
    assert "has 3 sentences, but a search without stored vectors supports at most 2." in refusal
    assert "Build the store with --keep sentence_vectors" in refusal
