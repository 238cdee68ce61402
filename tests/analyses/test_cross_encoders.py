"""Test cross-encoders from sentence-transformers: scores equal those of `CrossEncoder.predict`."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import bert_probe
from bert_probe import ClassifyText, Search, SearchExplanation
from bert_probe.errors import UnavailableError
from bert_probe.model.from_model import keep_float64
from tests.helpers import families
from tests.helpers.exactness import assert_exact, expect_raw
from tests.helpers.gate import prove_unless
from tests.helpers.sentence_models import without_warnings

PAIRS = [(families.TEXT, families.PAIR), ("a boat", "the wide river"), ("light", "night " * 3)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a factory that maps a number of labels to the folder of a saved tiny classifier."""

    def folder(labels: int) -> Path:
        path = tmp_path_factory.mktemp("classifier")
        model = transformers.BertForSequenceClassification(families.config("bert", num_labels=labels))
        families.randomize(model, labels)
        model.save_pretrained(path)
        families.save_tokenizer("bert", path)
        return path

    return folder


def _cross_encoder(folder: Path, dtype: str = "float32", **options: Any) -> Any:
    with without_warnings():
        from sentence_transformers import CrossEncoder

        model = CrossEncoder(
            str(folder), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}, **options
        )
    if dtype == "float64":
        keep_float64(model.model)
    return model


def _predict(folder: Path) -> np.ndarray:
    """Return the scores of sentence-transformers in float64.

    sentence-transformers converts scores to float32 only for NumPy arrays, so this function requests a
    tensor.
    """
    model = _cross_encoder(folder, "float64")
    scores: np.ndarray = model.predict(PAIRS, convert_to_tensor=True).numpy()
    return scores


def _scores(folder: Path, dtype: str) -> np.ndarray:
    """Return the scores of all pairs, shape [pair, label]."""
    checkpoint = bert_probe.load(folder, dtype=dtype)
    if dtype == "float64":
        keep_float64(checkpoint.model)
    labels = checkpoint.outputs["text-classification"].labels
    rows = []
    for pair in PAIRS:
        table = ClassifyText().of(checkpoint.trace(*pair)).table().set_index("label")
        rows.append(table["score"].loc[list(labels)].to_numpy())
    return np.array(rows)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("activation", "labels"),
    prove_unless(
        {(None, 1), (None, 3), ("Sigmoid", 1), ("Softmax", 3)},
        product([None, "Identity", "Sigmoid", "Tanh", "Softmax"], [1, 3]),
    ),
)
def test_scores_equal_cross_encoder(
    labels: int, activation: str | None, classifier: Callable[[int], Path], tmp_path: Path
) -> None:
    function = {"activation_fn": getattr(torch.nn, activation)()} if activation else {}
    with without_warnings():
        _cross_encoder(classifier(labels), **function).save(str(tmp_path), create_model_card=False)
        exact = _predict(tmp_path).reshape(len(PAIRS), labels)
        expected = _cross_encoder(tmp_path).predict(PAIRS).reshape(len(PAIRS), labels)
    assert_exact(_scores(tmp_path, "float64"), exact)
    expect_raw(expected, exact).check(_scores(tmp_path, "float32"))
    assert bert_probe.load(tmp_path).tasks == ("text-classification",)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", ["sbert_ce_default_activation_function", "sentence_transformers"])
def test_score_of_older_files_equals_cross_encoder(name: str, classifier: Callable[[int], Path]) -> None:
    folder, path = classifier(1), "torch.nn.modules.activation.Tanh"
    config = json.loads((folder / "config.json").read_text())
    config[name] = {"activation_fn": path} if name == "sentence_transformers" else path
    (folder / "config.json").write_text(json.dumps(config))
    with without_warnings():
        exact = _predict(folder)[:, None]
    assert_exact(_scores(folder, "float64"), exact)
    logits = [ClassifyText().of(bert_probe.load(folder).trace(*pair)).logits for pair in PAIRS]
    np.testing.assert_allclose(np.tanh(logits), exact, atol=1e-4)


def test_classifier_without_declaration_has_no_score(classifier: Callable[[int], Path]) -> None:
    result = ClassifyText().of(bert_probe.load(classifier(3)).trace(*PAIRS[0]))
    assert result.scores is None
    assert list(result.table()) == ["label", "probability", "logit"]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("activation", ["os.system", "torch.nn.MultiheadAttention", "torch.load"])
def test_unknown_activation_gives_no_score_and_says_why(
    activation: str, classifier: Callable[[int], Path]
) -> None:
    folder = classifier(1)
    config = json.loads((folder / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": activation}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = bert_probe.load(folder)
    assert ClassifyText().of(checkpoint.trace(*PAIRS[0])).scores is None
    assert any(
        f"The cross-encoder has the activation {activation}" in note and "pooling" not in note
        for note in checkpoint.description.notes
    )


QUERY = "the wide river"
DOCUMENTS = [*families.SENTENCES, "a boat on the river", "night " * 200]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("activation", [None, "Tanh"])
def test_search_scores_equal_cross_encoder(
    activation: str | None, classifier: Callable[[int], Path], tmp_path: Path
) -> None:
    """A checkpoint that does not specify an activation uses sentence-transformers' default, Sigmoid."""
    folder = classifier(1)
    if activation is not None:
        with without_warnings():
            model = _cross_encoder(folder, activation_fn=getattr(torch.nn, activation)())
            model.save(str(tmp_path), create_model_card=False)
        folder = tmp_path
    pairs = [(QUERY, document) for document in DOCUMENTS]
    with without_warnings():
        exact = _cross_encoder(folder, "float64").predict(pairs, convert_to_tensor=True).numpy()
        expected = _cross_encoder(folder).predict(pairs)
    for dtype in ("float64", "float32"):
        checkpoint = bert_probe.load(folder, dtype=dtype)
        if dtype == "float64":
            keep_float64(checkpoint.model)
        result = Search(QUERY, ("cross-encoder",)).of(checkpoint, DOCUMENTS)
        scores = result.scores["cross-encoder"]
        if dtype == "float64":
            assert_exact(scores, exact)
        else:
            expect_raw(expected, exact).check(scores)
    assert result.notes == ()
    assert [bool(count) for count in result.dropped] == [False] * (len(DOCUMENTS) - 1) + [True]
    assert list(result.table()["document"]) == [
        str(index + 1) for index in np.argsort(-expected, kind="stable")
    ]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "scorers", [("cross-encoder",), ("cross-encoder", "bm25"), ("bm25", "cross-encoder")]
)
def test_only_the_candidates_have_a_score(
    scorers: tuple[str, ...], classifier: Callable[[int], Path]
) -> None:
    checkpoint = bert_probe.load(classifier(1))
    ranking = Search(QUERY, ("bm25",)).of(checkpoint, DOCUMENTS)
    best = sorted(ranking.order[:3])
    complete = Search(QUERY, ("cross-encoder",)).of(checkpoint, DOCUMENTS).scores["cross-encoder"]
    calls: list[tuple[int, int]] = []
    question = Search(QUERY, scorers, candidates=3)
    index = question.index(checkpoint, DOCUMENTS)
    result = question.of(checkpoint, index, progress=lambda *call: calls.append(call))
    scores = result.scores["cross-encoder"]
    assert np.flatnonzero(np.isfinite(scores)).tolist() == best
    np.testing.assert_allclose(scores[best], complete[best], rtol=1e-5)
    assert calls[-1] == (3, 3)
    (note,) = result.notes
    assert note == (
        f"The cross-encoder has scored only the top 3 documents of bm25; the other {len(DOCUMENTS) - 3} "
        "have no score."
    )
    if scorers[0] == "cross-encoder":
        table = result.table()
        assert table["score"].isna().tolist() == [False] * 3 + [True] * (len(DOCUMENTS) - 3)
        assert result.provenance["facts"]["notes"] == [note]
    for pair in result.agreement:
        first, second = (values[best] for values in result.scores.values())
        expected = np.corrcoef(np.argsort(np.argsort(first)), np.argsort(np.argsort(second)))[0, 1]
        assert pair.spearman == pytest.approx(expected)
        # The cross-encoder reranks the first 3 documents of BM25, so these are the first 3 of both.
        assert pair.about == {
            "scorers": [*scorers],
            "documents": 3,
            "spearman": pair.spearman,
            "overlap": 3,
            "overlap_of": 3,
        }
        assert set(result.disagreements(*scorers)) <= set(best)


def test_other_models_are_not_cross_encoders(minilm: Any, classifier: Callable[[int], Path]) -> None:
    question = Search(QUERY, ("cross-encoder",))
    with pytest.raises(UnavailableError, match="is not a cross-encoder: it has no text-classification head"):
        question.of(minilm, DOCUMENTS)
    with pytest.raises(UnavailableError, match="it has 3 labels, but a cross-encoder has one"):
        question.of(bert_probe.load(classifier(3)), DOCUMENTS)
    folder = classifier(1)
    settings = {"prompts": {"query": "where is: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(UnavailableError, match="prepends the prompt 'query' to each pair"):
        question.of(bert_probe.load(folder), DOCUMENTS)


def test_the_parts_of_a_cross_encoder_are_attributions(classifier: Callable[[int], Path]) -> None:
    checkpoint = bert_probe.load(classifier(1))
    with pytest.raises(UnavailableError, match="Compute attributions of the pair instead"):
        SearchExplanation(QUERY, scorer="cross-encoder").of(checkpoint, DOCUMENTS)


def _changed(folder: Path, name: str, **settings: Any) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | settings))


@pytest.mark.prove
@pytest.mark.parametrize("name", ["tokenizer_config.json", "sentence_bert_config.json"])
def test_limit_of_the_files_is_applied(name: str, classifier: Callable[[int], Path], tmp_path: Path) -> None:
    with without_warnings():
        _cross_encoder(classifier(1)).save(str(tmp_path), create_model_card=False)
        setting = "model_max_length" if name == "tokenizer_config.json" else "max_seq_length"
        _changed(tmp_path, name, **{setting: 12})
        model = _cross_encoder(tmp_path, "float64")
        pairs = [(QUERY, document) for document in DOCUMENTS]
        exact = model.predict(pairs, convert_to_tensor=True).numpy()
    assert model.max_seq_length == 12
    checkpoint = bert_probe.load(tmp_path, dtype="float64")
    keep_float64(checkpoint.model)
    result = Search(QUERY, ("cross-encoder",)).of(checkpoint, DOCUMENTS)
    assert_exact(result.scores["cross-encoder"], exact)
    long = 0
    for document, score in zip(DOCUMENTS, exact, strict=True):
        trace = checkpoint.trace(QUERY, document, truncate=True)
        prediction = ClassifyText().of(trace)
        if len(trace.encoding) <= 12:
            assert prediction.scores is not None
            assert_exact(prediction.scores[0], score)
            assert prediction.notes == ()
        else:
            long += 1
            assert prediction.scores is None
            assert "computed from at most 12 tokens" in prediction.notes[0]
            assert prediction.provenance["facts"] == {"notes": [*prediction.notes]}
    assert 0 < long < len(DOCUMENTS)


PROMPT = {"prompts": {"query": "where is: "}, "default_prompt_name": "query"}


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("config_sentence_transformers.json", PROMPT, "prepends the prompt 'query' to each pair"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "sets do_lower_case"),
        ("sentence_bert_config.json", {"processor_kwargs": {"truncation_side": "left"}}, "truncation_side"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "must be a positive integer"),
    ],
)
def test_settings_that_are_not_supported_give_no_score(
    name: str, settings: dict[str, Any], message: str, classifier: Callable[[int], Path], tmp_path: Path
) -> None:
    with without_warnings():
        _cross_encoder(classifier(1)).save(str(tmp_path), create_model_card=False)
    _changed(tmp_path, name, **settings)
    checkpoint = bert_probe.load(tmp_path)
    result = ClassifyText().of(checkpoint.trace(*PAIRS[0]))
    assert result.scores is None
    assert len(result.logits) == 1
    (note,) = checkpoint.description.notes
    assert note.startswith("The score of the cross-encoder is not shown.")
    assert message in note
    assert "pooling" not in note
    with pytest.raises(UnavailableError, match=message):
        Search(QUERY, ("cross-encoder",)).of(checkpoint, DOCUMENTS)
