"""Test changes in predictions between two models: parity with raw transformers for every task, and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe import AnswerChange, SentenceSimilarity
from bert_probe.analyses.comparison.answer_change import KEY_COLUMNS, AnswerChangeResult
from bert_probe.analyses.outputs import find_answer
from bert_probe.errors import ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.from_model import keep_float64
from tests.helpers import trained
from tests.helpers.changed import changed_checkpoint, changed_folder
from tests.helpers.exactness import assert_exact
from tests.helpers.folders import change_config, copy
from tests.helpers.trained import LABELS

TrainedFolder = Callable[[str, str], Path]
Trained = Callable[[str, str], Checkpoint]
TEXT, PAIR = "we had left the [MASK] at night [MASK]", "the wide river led to a boat"
LABEL_NAMES = list(LABELS.values())


class Both:
    """A tiny float64 BERT with a task head, a copy with changed weights, and raw outputs of both models."""

    def __init__(self, task: str, checkpoint: Checkpoint, folder: Path) -> None:
        self.task, self.folders = task, (folder, changed_folder(folder))
        self.checkpoints = checkpoint, changed_checkpoint(checkpoint)
        keep_float64(self.checkpoints[1].model)

    def ask(self, text: str, pair: str | None = None, **options: Any) -> AnswerChangeResult:
        return AnswerChange(**options).of(*(checkpoint.trace(text, pair) for checkpoint in self.checkpoints))

    def raw(self, encoding: Encoding) -> list[Any]:
        probabilities = []
        for folder in self.folders:
            model = trained.model_class("bert", self.task).from_pretrained(folder, dtype=torch.float64).eval()
            inputs = {name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()}
            with torch.inference_mode():
                probabilities.append(model(**inputs))
        return probabilities


@pytest.fixture
def both(double_trained_on: Trained, trained_folder: TrainedFolder) -> Callable[[str], Both]:
    """Return a factory that maps a task to the original and the changed model."""
    return lambda task: Both(task, double_trained_on("bert", task), trained_folder("bert", task))


def softmax(logits: torch.Tensor) -> np.ndarray:
    shares: np.ndarray = torch.softmax(logits, dim=-1).numpy()
    return shares


def test_fill_mask_equals_both_models(both: Callable[[str], Both]) -> None:
    two = both("fill-mask")
    result = two.ask(TEXT, top=4)
    encoding = two.checkpoints[0].encode(TEXT)
    item, other = (softmax(raw.logits[0]) for raw in two.raw(encoding))
    vocabulary = two.checkpoints[0].tokenizer.get_vocab()
    table = result.table()
    assert list(table) == ["position", "token", "a", "b", "difference"]
    masks = [token.position for token in encoding.tokens if token == "[MASK]"]
    assert len(masks) == 2
    assert sorted(set(table["position"])) == masks
    places = list(zip(table["position"], [vocabulary[token] for token in table["token"]], strict=True))
    assert_exact(result.a, [item[place] for place in places])
    assert_exact(result.b, [other[place] for place in places])
    for mask in masks:
        expected = {(mask, int(word)) for side in (item, other) for word in np.argsort(-side[mask])[:4]}
        assert {place for place in places if place[0] == mask} == expected
        # A's most probable prediction comes first.
        assert places[[place[0] for place in places].index(mask)][1] == item[mask].argmax()
    assert np.abs(result.difference).max() > 0.001
    assert "changed most: probability" in result.finding
    masked = two.ask("we had left the river", mask="river")
    assert (masked.question.task, masked.question.mask) == ("fill-mask", 5)
    assert {key[0] for key in masked.keys} == {5}


def padded_copy(source: Path, folder: Path, top: float | None = None, others: float | None = None) -> int:
    """Save a model whose word matrix has seven more rows; return the number of rows of the original.

    Args:
        top, others: output bias of the third additional row, and of the other additional rows.
    """
    copy(source, folder)
    model = trained.model_class("bert", "fill-mask").from_pretrained(source)
    size: int = model.config.vocab_size
    model.resize_token_embeddings(size + 7, mean_resizing=False)
    bias = model.get_output_embeddings().bias.data
    if others is not None:
        bias[size:] = others
    if top is not None:
        bias[size + 2] = top
    model.save_pretrained(folder)
    return size


def test_word_id_that_the_tokenizer_does_not_have(trained_folder: TrainedFolder, tmp_path: Path) -> None:
    """Word matrices are often padded to a multiple of 8 or 64 rows."""
    folder = tmp_path / "padded"
    size = padded_copy(trained_folder("bert", "fill-mask"), folder, top=100.0)
    trace = bert_probe.load(folder, dtype="float64").trace(TEXT)
    result = AnswerChange(top=2).of(trace, trace)
    assert {key[1] for key in result.keys if key[1].startswith("[ID")} == {f"[ID {size + 2}]"}
    assert result.a.max() == pytest.approx(1)
    assert (result.a == result.b).all()


def test_row_of_one_word_matrix_is_nan_in_the_other(trained_folder: TrainedFolder, tmp_path: Path) -> None:
    """Two models with the same tokenizer may pad their word matrices to different sizes."""
    source, padded = trained_folder("bert", "fill-mask"), tmp_path / "padded"
    size = padded_copy(source, padded, top=5.0, others=-1e9)
    model_class = trained.model_class("bert", "fill-mask")
    traces = [bert_probe.load(folder, dtype="float64").trace(TEXT) for folder in (source, padded)]
    small, large = (
        softmax(
            model_class.from_pretrained(folder, dtype=torch.float64)
            .eval()(**{name: torch.tensor(ids)[None] for name, ids in traces[0].encoding.inputs.items()})
            .logits[0]
            .detach()
        )
        for folder in (source, padded)
    )
    forward, backward = AnswerChange(top=2).of(*traces), AnswerChange(top=2).of(*reversed(traces))
    vocabulary = traces[0].checkpoint.tokenizer.get_vocab() | {f"[ID {size + 2}]": size + 2}
    for result, of_small, of_large in ((forward, forward.a, forward.b), (backward, backward.b, backward.a)):
        places = [(position, vocabulary[token]) for position, token in result.keys]
        assert sum(place[1] == size + 2 for place in places) == 2  # one for each mask
        assert_exact(of_large, [large[place] for place in places])
        is_common = np.array([token_id < size for _, token_id in places])
        assert_exact(of_small[is_common], [small[place] for place in places if place[1] < size])
        assert np.isnan(of_small[~is_common]).all()
    assert "[ID" not in forward.finding
    assert forward.save(tmp_path / "found.json")


def test_only_padding_differs(trained_folder: TrainedFolder, tmp_path: Path) -> None:
    source, padded = trained_folder("bert", "fill-mask"), tmp_path / "padded"
    size = padded_copy(source, padded, others=-1e9)
    traces = (bert_probe.load(folder, dtype="float64").trace(TEXT) for folder in (source, padded))
    result = AnswerChange(top=size + 7).of(*traces)
    assert np.isnan(result.a).sum() == 2 * 7  # 7 rows for each mask
    assert result.finding == (
        "The word matrices have different numbers of rows; no other prediction changed."
    )


def test_text_classification_equals_both_models(both: Callable[[str], Both]) -> None:
    two = both("text-classification")
    result = two.ask(TEXT, PAIR)
    item, other = (softmax(raw.logits[0]) for raw in two.raw(two.checkpoints[0].encode(TEXT, PAIR)))
    places = [LABEL_NAMES.index(key[0]) for key in result.keys]
    assert places == list(np.argsort(-item))
    assert_exact(result.a, item[places])
    assert_exact(result.b, other[places])


def test_token_classification_equals_both_models(both: Callable[[str], Both]) -> None:
    two = both("token-classification")
    result = two.ask(TEXT)
    encoding = two.checkpoints[0].encode(TEXT)
    item, other = (softmax(raw.logits[0]) for raw in two.raw(encoding))
    places = [(key[0], LABEL_NAMES.index(key[2])) for key in result.keys]
    assert_exact(result.a, [item[place] for place in places])
    assert_exact(result.b, [other[place] for place in places])
    expected = [
        (token.position, int(label))
        for token in encoding.tokens
        if not token.special
        for label in dict.fromkeys([item[token.position].argmax(), other[token.position].argmax()])
    ]
    assert places == expected
    assert result.names[0] == f"we (1): {result.keys[0][2]}"


def test_question_answering_equals_both_models(both: Callable[[str], Both]) -> None:
    two = both("question-answering")
    result = two.ask("where", PAIR, top=3)
    encoding = two.checkpoints[0].encode("where", PAIR)
    own = [token for token in encoding.tokens if token.segment == 1 and not token.special]
    places = [token.position for token in own]
    for numbers, raw in zip((result.a, result.b), two.raw(encoding), strict=True):
        starts, ends = softmax(raw.start_logits[0, places]), softmax(raw.end_logits[0, places])
        begins, stops = [token.start for token in own], [token.end for token in own]
        expected = [starts[begins.index(key[0])] * ends[stops.index(key[1])] for key in result.keys]
        assert_exact(numbers, expected)
    assert [key[2] for key in result.keys] == [PAIR[key[0] : key[1]] for key in result.keys]
    assert list(result.table()) == ["start", "end", "text", "a", "b", "difference"]


def test_next_sentence_prediction_equals_both_models(both: Callable[[str], Both]) -> None:
    two = both("next-sentence-prediction")
    result = two.ask(TEXT, PAIR)
    raw = two.raw(two.checkpoints[0].encode(TEXT, PAIR))
    assert_exact(np.array([result.a, result.b]), [softmax(item.logits[0]) for item in raw])
    assert [key[0] for key in result.keys] == ["next", "not next"]


def test_similarity_needs_a_pair(minilm: Checkpoint, tmp_path: Path) -> None:
    folder = copy(Path(str(minilm.folder)), tmp_path / "max")
    change_config(folder / "1_Pooling", pooling_mode_mean_tokens=False, pooling_mode_max_tokens=True)
    other = bert_probe.load(folder)
    a, b = minilm.trace("we left", "they stayed"), other.trace("we left", "they stayed")
    result = AnswerChange().of(a, b)
    alone = [item.traces(["we left", "they stayed"]) for item in (minilm, other)]
    assert result.kind == "cosine"
    # The two models have the same weights but different pooling.
    expected = [SentenceSimilarity().of(*traces).score for traces in alone]
    np.testing.assert_allclose([result.a[0], result.b[0]], expected, atol=1e-6)
    assert abs(result.difference[0]) > 0.01
    assert list(result.table()) == ["a", "b", "difference"]
    with pytest.raises(TextError, match="needs two texts"):
        AnswerChange().of(minilm.trace("we left"), other.trace("we left"))


def test_task_of_one_model_raises_unavailable_error(
    trained_on: Trained, family: Callable[[str], Checkpoint]
) -> None:
    filling, labelling = (trained_on("bert", task) for task in ("fill-mask", "token-classification"))
    traces = filling.trace(TEXT), labelling.trace(TEXT)
    with pytest.raises(UnavailableError, match="no common task: A has fill-mask, B has token-classification"):
        AnswerChange().of(*traces)
    with pytest.raises(UnavailableError, match="no trained head for token-classification"):
        AnswerChange("token-classification").of(*traces)
    with pytest.raises(UnavailableError, match="A has no trained head, B has no trained head"):
        AnswerChange().of(family("bert").trace(TEXT), changed_checkpoint(family("bert")).trace(TEXT))


def test_regression_is_not_compared_with_probabilities(trained_folder: TrainedFolder, tmp_path: Path) -> None:
    folder = trained_folder("bert", "text-classification")
    value = copy(folder, tmp_path / "value")
    change_config(value, problem_type="regression")
    a, b = bert_probe.load(folder), bert_probe.load(value)
    with pytest.raises(UnavailableError, match="A predicts a probability and B a value"):
        AnswerChange().of(a.trace(TEXT), b.trace(TEXT))
    result = AnswerChange().of(b.trace(TEXT), bert_probe.load(value).trace(TEXT))
    assert (result.kind, result.metadata) == ("value", {"numbers": "value"})
    assert not result.difference.any()


def test_class_of_one_model_is_nan_in_the_other(trained_folder: TrainedFolder, tmp_path: Path) -> None:
    folder = trained_folder("bert", "text-classification")
    renamed = copy(folder, tmp_path / "renamed")
    change_config(renamed, id2label={str(place): f"{name}?" for place, name in LABELS.items()})
    result = AnswerChange().of(*(bert_probe.load(item).trace(TEXT) for item in (folder, renamed)))
    assert len(result.keys) == 2 * len(LABELS)
    assert np.isnan(result.b[:5]).all()
    assert np.isnan(result.a[5:]).all()
    assert result.finding == "The models have different labels."
    assert result.save(tmp_path / "found.json")


def test_key_columns_match_the_task() -> None:
    assert KEY_COLUMNS.keys() == set(trained.CLASSES) | {"sentence-similarity"}


def test_inconsistent_shapes_raise_shape_error(both: Callable[[str], Both]) -> None:
    result = both("next-sentence-prediction").ask(TEXT, PAIR)
    with pytest.raises(ShapeError):
        AnswerChangeResult(result.question, result.inputs, result.kind, result.keys, result.a[:1], result.b)
    assert not math.isnan(result.a[0])


def test_limits_of_question_answering_apply_to_both_models(
    both: Callable[[str], Both], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = [checkpoint.trace(PAIR, TEXT) for checkpoint in both("question-answering").checkpoints]
    AnswerChange().check_limits(*traces)
    monkeypatch.setattr(find_answer, "MAX_SPANS", 20)
    with pytest.raises(UnavailableError, match="spans, but the app computes at most 20"):
        AnswerChange().check_limits(*traces)
    masked = [checkpoint.trace("a [MASK] boat") for checkpoint in both("fill-mask").checkpoints]
    AnswerChange().check_limits(*masked)
