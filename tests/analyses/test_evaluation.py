"""Test evaluations: parity with raw transformers, hand-computed metrics, and errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bert_probe import Evaluate, load, read_labeled_texts, read_tagged_sentences
from bert_probe.analyses.outputs import evaluate, head_predictions
from bert_probe.analyses.outputs.evaluate import EvaluateResult
from bert_probe.analyses.outputs.head_predictions import label_type
from bert_probe.errors import (
    EmptyTextError,
    OutOfMemoryError,
    SelectionError,
    TextError,
    TooLongError,
    UnavailableError,
)
from bert_probe.model import preflight
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from bert_probe.model.progress import Cancelled
from bert_probe.text.datasets import everyday_topics
from bert_probe.text.labeled_texts import LabeledText, LabeledTexts, parse_labeled_texts
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences
from tests.helpers import trained
from tests.helpers.exactness import assert_exact
from tests.helpers.families import PAIR, SENTENCES
from tests.helpers.memory import measure_peak

Folders = Callable[[str, str], Path]
Trained = Callable[[str, str], Checkpoint]

NAMES = list(trained.LABELS.values())
FAMILIES = ("bert", "roberta")
CLASSES, WORDS = "text-classification", "token-classification"


def classed(*rows: tuple[str, str], pair: str | None = None) -> LabeledTexts:
    return LabeledTexts.of(
        "classes", [LabeledText(text, pair, label, line) for line, (text, label) in enumerate(rows, 2)]
    )


def raw(folder: Path, kind: Any) -> tuple[Any, Any]:
    """Return the float64 model that transformers loads from a folder, and its tokenizer.

    Args:
        kind: class of the model, such as `AutoModelForTokenClassification`.
    """
    model = kind.from_pretrained(folder, dtype=torch.float64).eval()
    keep_float64(model)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


# Predictions


@pytest.mark.parametrize("name", FAMILIES)
def test_predictions_of_texts_equal_raw_model(
    name: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    rows = classed(*((text, NAMES[position % 5]) for position, text in enumerate(SENTENCES)), pair=PAIR)
    result = Evaluate().of(double_trained_on(name, CLASSES), rows)
    model, tokenizer = raw(trained_folder(name, CLASSES), transformers.AutoModelForSequenceClassification)
    with torch.inference_mode():
        logits = [model(**tokenizer(text, PAIR, return_tensors="pt")).logits[0] for text in SENTENCES]
    shares = torch.stack(logits).softmax(-1).numpy()
    assert result.predicted.tolist() == shares.argmax(-1).tolist()
    assert_exact(result.certainty, shares.max(-1))
    assert result.true.tolist() == [position % 5 for position in range(len(SENTENCES))]


@pytest.mark.parametrize("name", FAMILIES)
def test_words_are_predicted_at_their_first_token(
    name: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    words = [text.split() for text in SENTENCES[:6]]
    content = "\n\n".join("\n".join(f"{word} O" for word in sentence) for sentence in words)
    sentences = parse_tagged_sentences(content.encode(), "a.conll")
    result = Evaluate().of(double_trained_on(name, WORDS), sentences)
    model, tokenizer = raw(trained_folder(name, WORDS), transformers.AutoModelForTokenClassification)
    answers, shares = [], []
    for sentence in sentences:
        inputs = tokenizer(sentence.text, return_offsets_mapping=True, return_tensors="pt")
        offsets = inputs.pop("offset_mapping")[0].tolist()
        with torch.inference_mode():
            logits = model(**inputs).logits[0].softmax(-1).numpy()
        for start, _ in sentence.spans:
            # The first token of a word may include the space before the word.
            position = next(place for place, (low, high) in enumerate(offsets) if low <= start < high)
            answers.append(int(logits[position].argmax()))
            shares.append(logits[position].max())
    assert result.predicted.tolist() == answers
    assert_exact(result.certainty, shares)
    assert result.texts == tuple(word for sentence in sentences for word in sentence.words)


def test_multilabel_and_regression_equal_raw_model(tmp_path: Path) -> None:
    folder = trained.build("bert", CLASSES, tmp_path / "several", problem_type="multi_label_classification")
    model, tokenizer = raw(folder, transformers.AutoModelForSequenceClassification)
    rows = LabeledTexts.of(
        "several",
        [LabeledText(SENTENCES[0], None, ("B-PER", "O"), 2), LabeledText(SENTENCES[1], None, (), 3)],
    )
    result = Evaluate().of(load(folder, dtype="float64"), rows)
    inputs = tokenizer(list(SENTENCES[:2]), padding=True, return_tensors="pt")
    with torch.inference_mode():
        shares = model(**inputs).logits.sigmoid().numpy()
    assert (result.predicted == (shares >= 0.5)).all()
    assert_exact(result.certainty, np.maximum(shares, 1 - shares).min(-1))
    assert result.true.tolist() == [[True, True, False, False, False], [False] * 5]
    folder = trained.build(
        "bert", CLASSES, tmp_path / "number", problem_type="regression", id2label={0: "stars"}
    )
    model, _ = raw(folder, transformers.AutoModelForSequenceClassification)
    rows = LabeledTexts.of("number", [LabeledText(text, None, 0.5, 2) for text in SENTENCES[:2]])
    result = Evaluate("texts").of(load(folder, dtype="float64"), rows)
    with torch.inference_mode():
        assert_exact(result.predicted, model(**inputs).logits[:, 0].numpy())
    assert list(result.table()) == ["line", "text", "true", "predicted"]
    assert math.isnan(result.measures["pearson"]), "the labels are the same for both"
    with pytest.raises(SelectionError, match="A regression head has no classes"):
        result.showing(show="classes").table()
    with pytest.raises(SelectionError, match="labels are of type number"):
        result.showing(show="confusion").table()


# Metrics by hand


def test_wilson_interval_equals_hand_computation() -> None:
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3: 81 of 263 and 0 of 20.
    assert [round(end, 4) for end in head_predictions.wilson_interval(81, 263)] == [0.2553, 0.3662]
    assert [round(end, 4) for end in head_predictions.wilson_interval(0, 20)] == [0.0, 0.1611]


def test_class_metrics_equal_hand_computation() -> None:
    true, predicted = np.array([0, 0, 0, 1, 1, 3]), np.array([0, 0, 1, 1, 0, 0])
    # Classes 0, 1 and 3 have the precision 2/4, 1/2 and 0, and the recall 2/3, 1/2 and 0.
    # Class 2 does not occur.
    result = head_predictions.score_classes(true, predicted)
    assert result["accuracy"] == 3 / 6
    assert result["macro_f1"] == pytest.approx((4 / 7 + 1 / 2 + 0) / 3)
    table = head_predictions.class_report(true, predicted, ["a", "b", "c", "d"])
    assert table["precision"].tolist() == [1 / 2, 1 / 2, 0, 0]
    assert table["recall"].tolist() == [2 / 3, 1 / 2, 0, 0]
    assert table["f1"].tolist() == pytest.approx([4 / 7, 1 / 2, 0, 0])
    assert table["count"].tolist() == [3, 2, 0, 1]
    counts = head_predictions.confusion(true, predicted, 4)
    assert counts.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_multilabel_metrics_equal_hand_computation() -> None:
    true = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]], dtype=bool)
    predicted = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=bool)
    result = head_predictions.score_multilabel(true, predicted)
    assert result["subset_accuracy"] == 1 / 3
    assert result["micro_f1"] == pytest.approx(2 / 3)  # 2 correct labels, 3 predicted, 3 actual
    assert result["macro_f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)  # macro average without the third label
    assert head_predictions.score_multilabel(true[2:], true[2:])["macro_f1"] == 0.0


def test_regression_metrics_equal_hand_computation() -> None:
    result = head_predictions.score_numbers(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    assert result == pytest.approx({"mse": 2 / 3, "mae": 2 / 3, "pearson": 0.5, "spearman": 0.5})
    result = head_predictions.score_numbers(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 30.0]))
    assert result["spearman"] == pytest.approx(1.0)
    assert result["pearson"] < 1
    # Their mean differs from 0.1 by rounding.
    varied, constant = np.array([1.0, 2.0, 3.0]), np.full(3, 0.1)
    for true, predicted in ((constant, varied), (varied, constant), (constant, constant)):
        result = head_predictions.score_numbers(true, predicted)
        assert math.isnan(result["pearson"])
        assert math.isnan(result["spearman"])


def test_entity_metrics_equal_hand_computation() -> None:
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    predicted = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "B-PER"]]
    # The predicted entities are PER (too short), LOC, LOC and PER (spurious).
    # 2 of the 4 predicted entities are correct, and 2 of the 3 true entities are predicted.
    result = head_predictions.score_tags(true, predicted)
    assert result["accuracy"] == 4 / 6
    assert result["entity_precision"] == 2 / 4
    assert result["entity_recall"] == pytest.approx(2 / 3)
    table = head_predictions.entity_report(true, predicted).set_index("label")
    assert table.loc["LOC", ["precision", "recall", "f1", "count"]].tolist() == [1, 1, 1, 2]
    assert table.loc["PER", ["precision", "recall", "f1", "count"]].tolist() == [0, 0, 0, 1]
    assert table.loc["all", "count"] == 3
    assert list(head_predictions.score_tags([["NOUN"]], [["VERB"]])) == ["accuracy"]


def test_the_bag_of_words_is_bounded_and_can_be_canceled(monkeypatch: pytest.MonkeyPatch) -> None:
    """In scikit-learn, an array of labels would use as much memory per label as the longest label."""
    long = "x" * 100_000
    training = classed(*((f"text {number}", long if number % 2 else "b") for number in range(200)))
    with measure_peak() as peak:
        result = evaluate.predict_labels(training, training.rows[:2])
        assert peak() < 20e6
    assert result["bag_of_words"] == ["b", long]
    with pytest.raises(Cancelled):
        evaluate.predict_labels(training, training.rows, cancel)
    monkeypatch.setattr(preflight, "free_memory", lambda: 10_000)
    with pytest.raises(OutOfMemoryError, match="The bag of words needs about"):
        evaluate.predict_labels(training, training.rows)


def cancel(*_: int) -> None:
    raise Cancelled


def test_baselines_use_training_rows_only() -> None:
    training = classed(
        ("red wine", "wine"),
        ("old red wine", "wine"),
        ("a green boat", "boat"),
        ("blue boat", "boat"),
        ("old red wine", "wine"),
    )
    rows = classed(("green boat", "boat"), ("red wine", "wine")).rows
    result = evaluate.predict_labels(training, rows)
    assert result == {"most_frequent": ["wine", "wine"], "bag_of_words": ["boat", "wine"]}
    alone = evaluate.predict_labels(classed(("one", "b"), ("two", "a")), rows)
    assert alone["most_frequent"] == ["a", "a"], "ties go to the first label in alphabetical order"
    assert "bag_of_words" not in evaluate.predict_labels(classed(("one", "a")), rows)
    several = LabeledTexts.of(
        "several",
        [LabeledText("red wine", None, ("all", "wine"), 2), LabeledText("a boat", None, ("all", "boat"), 3)],
    )
    result = evaluate.predict_labels(several, rows)
    assert result["bag_of_words"] == [("all", "boat"), ("all", "wine")]
    numbers = LabeledTexts.of(
        "number", [LabeledText("red wine", None, 1.0, 2), LabeledText("a boat", None, 3.0, 3)]
    )
    result = evaluate.predict_labels(numbers, rows)
    assert result["mean"] == [2.0, 2.0]
    assert result["bag_of_words"][0] > 2 > result["bag_of_words"][1]
    tagged = parse_tagged_sentences(b"the D\nboat N\n\nboat N\nboat V\nsinks V\n\n", "a.conll")
    result = evaluate.predict_tags(tagged, [["boat", "the", "new"]])
    assert result == {"most_frequent": [["N", "N", "N"]], "by_word": [["N", "D", "N"]]}


# Complete evaluations


@pytest.fixture(scope="module")
def evaluation(trained_on: Trained) -> EvaluateResult:
    """Return an evaluation of an untrained classification head, with baselines."""
    rows = classed(*((text, NAMES[position % 3]) for position, text in enumerate(SENTENCES)))
    return Evaluate().of(trained_on("bert", CLASSES), rows, rows)


def test_tables_of_one_evaluation_agree(evaluation: EvaluateResult) -> None:
    measures = dict(evaluation.table().to_numpy().tolist())
    texts = evaluation.showing(show="texts").table()
    confusion = evaluation.showing(show="confusion").table()
    assert measures["accuracy"] == texts["right"].mean() == np.trace(confusion) / len(SENTENCES)
    assert measures["accuracy_low"] <= measures["accuracy"] <= measures["accuracy_high"]
    assert measures["most_frequent_accuracy"] == 3 / 7
    assert measures["bag_of_words_accuracy"] == evaluation.baselines["bag_of_words"]
    assert measures["texts"] == confusion.to_numpy().sum() == len(SENTENCES)
    uncertain = evaluation.showing(show="uncertain").table()
    assert uncertain["probability"].is_monotonic_increasing
    assert sorted(uncertain["line"]) == texts["line"].tolist()
    wrong = evaluation.showing(show="wrong").table()
    assert wrong["probability"].is_monotonic_decreasing
    assert not wrong["right"].any()
    assert len(wrong) == (~texts["right"]).sum()
    classes = evaluation.showing(show="classes").table()
    assert classes["count"].tolist() == confusion.sum(axis=1).tolist()
    for row, column in np.argwhere(evaluation.confusion):
        result = evaluation.listed(evaluation.where(row, column))
        assert set(result["true"]) == {NAMES[row]}
        assert set(result["predicted"]) == {NAMES[column]}
        assert len(result) == evaluation.confusion[row, column]


def test_invalid_rows_raise_errors_with_lines(trained_on: Trained, minilm: Checkpoint) -> None:
    head, labeller = trained_on("bert", CLASSES), trained_on("bert", WORDS)
    with pytest.raises(EmptyTextError, match="no labeled texts"):
        Evaluate().of(head, classed())
    with pytest.raises(EmptyTextError, match="no labeled texts"):
        Evaluate().of(labeller, [])
    unknown = classed(("One", "O"), ("Two", "<b>x</b>"), ("Three", "B-ORG"))
    with pytest.raises(
        TextError,
        match=r"line 3: <b>x</b> is not a label of .*; line 4: B-ORG .* The labels of the model are O",
    ):
        Evaluate().of(head, unknown)
    sentence = TaggedSentence(("a",), ("NOUN",), (), (), "a", ((0, 1),), {}, 7)
    with pytest.raises(TextError, match="line 7: NOUN is not a label"):
        Evaluate().of(labeller, [sentence])
    with pytest.raises(UnavailableError, match="no trained head for text-classification"):
        Evaluate().of(minilm, classed(("One", "O")))
    with pytest.raises(UnavailableError, match="no trained head for token-classification"):
        Evaluate().of(head, [sentence])
    with pytest.raises(UnavailableError, match=r"of type number, but the head of .* predicts classes"):
        Evaluate().of(head, LabeledTexts.of("number", [LabeledText("One", None, 1.0, 2)]))
    with pytest.raises(TextError, match="training rows have labels of type number"):
        Evaluate().of(
            head, classed(("One", "O")), LabeledTexts.of("number", [LabeledText("One", None, 1.0, 2)])
        )
    with pytest.raises(TextError, match="removes every word"):
        Evaluate().of(labeller, [TaggedSentence(("\u200b",), ("O",), (), (), "a", ((1, 1),), {}, 7)])


def test_long_texts_need_truncate(trained_on: Trained) -> None:
    head, labeller = trained_on("bert", CLASSES), trained_on("bert", WORDS)
    rows = classed(("One", "O"), ("a " * 600, "O"))
    with pytest.raises(TooLongError, match="Line 3: The text has 602 tokens"):
        Evaluate().of(head, rows)
    result = Evaluate().of(head, rows, truncate=True)
    assert result.provenance["tokens_dropped"] > 0
    words = parse_tagged_sentences(b"a O\n" * 600, "a.conll")
    with pytest.raises(TooLongError, match="Line 1: The text has 602 tokens"):
        Evaluate().of(labeller, words)
    result = Evaluate().of(labeller, words, words, truncate=True)
    assert len(result.texts) == 600 - result.provenance["tokens_dropped"]
    assert result.baselines == {"most_frequent": 1.0, "by_word": 1.0}


def test_nan_logits_raise_unavailable_error(tmp_path: Path) -> None:
    checkpoint = load(trained.build("bert", CLASSES, tmp_path))
    with torch.no_grad():
        checkpoint.outputs[CLASSES].model.classifier.bias[1] = math.nan
    with pytest.raises(UnavailableError, match="not finite for line 2"):
        Evaluate().of(checkpoint, classed(("One", "O")))


def test_each_head_has_its_label_type(trained_on: Trained, minilm: Checkpoint) -> None:
    assert label_type(trained_on("bert", CLASSES)) == "classes"
    assert label_type(trained_on("bert", WORDS)) == "tags"
    with pytest.raises(UnavailableError, match="no trained head for text-classification"):
        label_type(minilm)


def test_progress_is_reported(trained_on: Trained) -> None:
    reports: list[tuple[int, int]] = []
    Evaluate().of(
        trained_on("bert", CLASSES),
        classed(("One", "O"), ("Two", "O")),
        progress=lambda done, total: reports.append((done, total)),
    )
    assert reports == [(0, 2), (2, 2)]


def test_evaluation_reads_files_of_both_readers(tmp_path: Path) -> None:
    """Reading a file by its path gives the same data as parsing its bytes, so snippets reproduce a result."""
    table, words = tmp_path / "a.csv", tmp_path / "a.conll"
    table.write_text("text,label\nOne,O\n", encoding="utf-8")
    words.write_text("One\tO\n", encoding="utf-8")
    assert (
        read_labeled_texts(table, "classes").digest == parse_labeled_texts(table.read_bytes(), "a.csv").digest
    )
    assert read_tagged_sentences(words) == parse_tagged_sentences(words.read_bytes(), "a.conll")


def test_example_data_can_be_used_for_training() -> None:
    rows = everyday_topics()
    counts = Counter(row.label for row in rows.rows)
    assert len(counts) == 6
    assert set(counts.values()) == {50}
    assert len({row.text.casefold() for row in rows.rows}) == len(rows.rows)
    assert max(len(row.text) for row in rows.rows) < 80
