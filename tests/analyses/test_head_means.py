"""Test head profiles over many sentences: means, bootstrap, and unreadable sentences."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import bert_probe
from bert_probe.analyses.attention import head_means
from bert_probe.analyses.attention.head_means import HeadMeans, HeadMeansResult
from bert_probe.analyses.attention.heads import MEASURES, Heads, head_labels
from bert_probe.cli.main import main
from bert_probe.errors import (
    EmptyTextError,
    SelectionError,
    ShapeError,
    TextError,
    TooLongError,
    UnavailableError,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.trace import Trace
from bert_probe.text.sentence_files import parse_sentences
from tests.helpers.exactness import assert_exact
from tests.helpers.opening import share_opened_models

SENTENCES = [
    "Almost before we knew it, we had left the ground.",
    "Mehdi loves Tallahassee.",
    "",
    "It rains, and it rains, and nobody in the unaffable town of Tallahassee minds that it rains.",
    "   ",
    "No.",
]
TEXTS = [text for text in SENTENCES if text.strip()]


@pytest.fixture(scope="module")
def means(double_minilm: Checkpoint) -> HeadMeansResult:
    return HeadMeans(resamples=200, seed=3).of(double_minilm, SENTENCES)


@pytest.fixture(scope="module")
def singly(double_minilm: Checkpoint) -> dict[str, np.ndarray]:
    """Return the measures of separately encoded sentences, shape [sentence, layer, head]."""
    each = [Heads().of(double_minilm.trace(text)).values for text in TEXTS]
    return {name: np.stack([values[name] for values in each]) for name in MEASURES}


@pytest.mark.parametrize("words", [False, True])
def test_interval_of_one_sentence_has_width_0(minilm: Checkpoint, words: bool) -> None:
    expected = Heads(words).of(minilm.trace(TEXTS[1]))
    result = HeadMeans(words).of(minilm, [TEXTS[1]])
    for name in MEASURES:
        for values in (result.mean, result.low, result.high):
            np.testing.assert_array_equal(values[name], expected.values[name])
    assert result.labels == expected.labels
    assert (result.sentences, result.question.words) == (1, words)


def test_sentences_are_weighted_equally(means: HeadMeansResult, singly: dict[str, np.ndarray]) -> None:
    for name in MEASURES:
        assert_exact(means.mean[name], sum(singly[name]) / len(TEXTS), name)
    # The last sentence, "No.", has no word of several tokens. Its value 0 is included in the mean.
    assert singly["same_word"][-1].max() == 0
    assert means.mean["same_word"].max() > 0
    assert means.labels == head_labels(means.mean)
    assert means.sentences == len(TEXTS)


def test_interval_equals_percentile_bootstrap(means: HeadMeansResult, singly: dict[str, np.ndarray]) -> None:
    generator = np.random.default_rng(3)
    samples = [generator.integers(len(TEXTS), size=len(TEXTS)) for _ in range(200)]
    for name in MEASURES:
        resampled = np.stack([singly[name][rows].mean(axis=0) for rows in samples])
        assert_exact(means.low[name], np.quantile(resampled, 0.025, axis=0), name)
        assert_exact(means.high[name], np.quantile(resampled, 0.975, axis=0), name)
        assert (means.low[name] <= means.mean[name]).all()
        assert (means.mean[name] <= means.high[name]).all()


def test_interval_equals_hand_computation() -> None:
    """The mean of two values drawn from 0 and 1 is 0, ½ or 1 with probabilities ¼, ½, ¼."""
    values = np.array([0.0, 1.0]).reshape(2, 1, 1, 1)
    low, high = HeadMeans(confidence=0.6, resamples=4000)._interval(values, lambda: None)
    assert (low.item(), high.item()) == (0, 1)  # The 20th and 80th percentiles lie in the outer quarters.
    low, high = HeadMeans(confidence=0.4, resamples=4000)._interval(values, lambda: None)
    assert (low.item(), high.item()) == (0.5, 0.5)  # The 30th and 70th percentiles lie in the middle half.


def test_lower_confidence_gives_narrower_interval(double_minilm: Checkpoint, means: HeadMeansResult) -> None:
    half = HeadMeans(resamples=200, seed=3, confidence=0.5).of(double_minilm, SENTENCES)
    for name in MEASURES:
        assert (half.low[name] >= means.low[name]).all()
        assert (half.high[name] <= means.high[name]).all()


def test_mean_does_not_depend_on_sentence_order(double_minilm: Checkpoint, means: HeadMeansResult) -> None:
    other = HeadMeans(resamples=10).of(double_minilm, SENTENCES[::-1])
    for name in MEASURES:
        assert_exact(other.mean[name], means.mean[name], name)


def test_seed_makes_interval_reproducible(double_minilm: Checkpoint, means: HeadMeansResult) -> None:
    again = HeadMeans(resamples=200, seed=3).of(double_minilm, SENTENCES)
    other = HeadMeans(resamples=200, seed=4).of(double_minilm, SENTENCES)
    for name in MEASURES:
        np.testing.assert_array_equal(again.low[name], means.low[name])
    assert any((other.low[name] != means.low[name]).any() for name in MEASURES)


@pytest.mark.parametrize("name", ["mpnet", "modernbert"])
def test_architecture_without_padding_or_queries_is_profiled(
    name: str, double_family: Callable[[str], Checkpoint]
) -> None:
    checkpoint = double_family(name)
    texts = ("we left the ground", "we left")
    result = HeadMeans(resamples=5).of(checkpoint, texts)
    each = [Heads().of(checkpoint.trace(text)).values for text in texts]
    for measure in MEASURES:
        assert_exact(result.mean[measure], (each[0][measure] + each[1][measure]) / 2, measure)


def test_progress_callback_can_cancel(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_means, "BATCH_TOKENS", 40)
    observed: list[tuple[int, int]] = []
    HeadMeans(resamples=10).of(minilm, SENTENCES, progress=lambda *update: observed.append(update))
    assert observed[0] == (0, 4)
    assert observed[-1] == (4, 4)
    assert observed == sorted(observed)
    assert len(observed) > 3

    def stop(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        HeadMeans().of(minilm, SENTENCES, progress=stop)


def test_model_that_changes_meanwhile_raises(
    family_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_means, "BATCH_TOKENS", 1)
    folder = family_folder("bert")
    model = AutoModel.from_pretrained(folder)
    checkpoint = bert_probe.wrap(model, AutoTokenizer.from_pretrained(folder))

    def learn(done: int, total: int) -> None:  # noqa: ARG001
        if done == 1:
            with torch.no_grad():
                model.encoder.layer[0].output.dense.bias += 1

    with pytest.raises(UnavailableError, match="its weights differ"):
        HeadMeans(resamples=1).of(checkpoint, ["we left", "the ground", "we"], progress=learn)


def test_bootstrap_can_be_canceled(minilm: Checkpoint) -> None:
    result: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        result.append((done, total))
        if result.count((2, 2)) == 4:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        HeadMeans(resamples=20_000).of(minilm, ["we", "left"], progress=stop)


@pytest.mark.prove
def test_traces_are_released_after_profiling(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    original = Checkpoint.trace_encodings

    def counted(self: Checkpoint, encodings: Sequence[Encoding]) -> list[Trace]:
        sizes.append(len(encodings) * max(map(len, encodings)))
        return original(self, encodings)

    monkeypatch.setattr(Checkpoint, "trace_encodings", counted)
    HeadMeans(resamples=1).of(minilm, ["we left the ground"] * 700)
    assert len(sizes) > 1
    assert max(sizes) <= head_means.BATCH_TOKENS


@pytest.mark.parametrize(
    ("sentences", "kind", "sentence"),
    [
        ([], EmptyTextError, "There is no sentence"),
        (["", "  "], EmptyTextError, "There is no sentence"),
        (
            ["", "we left", "word " * 600],
            TooLongError,
            "Line 3: The text has 602 tokens, but this model accepts at most 512",
        ),
        (["we left", "\u200b"], EmptyTextError, "Line 2: "),
        (["we", "\ud800"], TextError, "Line 2: Character 0"),
        (["we", 3], TextError, "Line 2: A text must be a string"),
        ("we left", TextError, "Pass a list"),
    ],
)
def test_unreadable_sentences_are_named_by_line(
    minilm: Checkpoint, sentences: list[str], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        HeadMeans().of(minilm, sentences)


def test_long_sentence_is_truncated_on_request(minilm: Checkpoint) -> None:
    result = HeadMeans(resamples=1).of(minilm, ["word " * 600, "we"], truncate=True)
    assert result.tokens_dropped == 90
    assert result.python.endswith("of(checkpoint, sentences, truncate=True).table()")
    assert "--truncate" in result.shell


@pytest.mark.parametrize(
    "options",
    [
        {"confidence": 1.0},
        {"confidence": 0},
        {"confidence": -0.5},
        {"confidence": float("nan")},
        {"confidence": "0.9"},
        {"resamples": 0},
        {"resamples": 1.5},
        {"seed": -1},
        {"words": 1},
    ],
)
def test_invalid_bootstrap_settings_raise(options: dict[str, float]) -> None:
    with pytest.raises(SelectionError):
        HeadMeans(**options)  # type: ignore[arg-type]


def test_invalid_sentence_of_file_is_named_by_its_line(minilm: Checkpoint) -> None:
    sentences = parse_sentences(f"we left\n\n \n{'word ' * 600}\n".encode(), "a.txt")
    with pytest.raises(
        TooLongError, match="Line 4: The text has 602 tokens, but this model accepts at most 512"
    ):
        HeadMeans().of(minilm, sentences)


def test_table_has_means_intervals_and_provenance(means: HeadMeansResult) -> None:
    frame = means.table()
    measured = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
    assert list(frame) == ["layer", "head", *measured, "label"]
    row = frame.iloc[14]
    assert (row["layer"], row["head"], row["label"]) == (2, 3, means.labels[1][2])
    assert row["next"] == means.mean["next"][1, 2]
    assert row["next_low"] == means.low["next"][1, 2]
    assert row["next_high"] == means.high["next"][1, 2]
    description = frame.attrs["provenance"]
    assert "text" not in description
    expected = hashlib.sha256("".join(f"{text}\n" for text in TEXTS).encode()).hexdigest()
    sentence = {name: description[name] for name in ("sentences", "sentences_sha256", "tokens_dropped")}
    assert sentence == {"sentences": 4, "sentences_sha256": expected, "tokens_dropped": 0}
    assert description["question"] == {
        "analysis": "head means",
        "words": False,
        "confidence": 0.95,
        "resamples": 200,
        "seed": 3,
    }


def test_measures_of_other_shapes_raise(means: HeadMeansResult) -> None:
    with pytest.raises(ShapeError, match="next must have shape"):
        replace(means, low={"next": means.low["next"][1:]})


def command(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with share_opened_models(), pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return (stopped.value.code, *capfd.readouterr())


def test_command_profiles_file(minilm: Checkpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES), encoding="utf-8")
    code, out, err = command(capfd, "head-means", str(path))
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    expected = HeadMeans().of(minilm, SENTENCES)
    assert len(rows) == 72
    assert float(rows[14]["next_high"]) == expected.high["next"][1, 2]


def test_command_line_rejects_conflicting_options(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text("we left\n\n" + "word " * 600, encoding="utf-8")
    for arguments, sentence in (
        (("head-means",), "Missing argument 'FILE'"),
        (("head-means", "we left", str(path)), "unexpected extra argument"),
        (("head-means", "--pair", "b", str(path)), "No such option '--pair'"),
        (("heads", "we left", "--seed", "1"), "No such option '--seed'"),
        (("head-means", str(path)), "Line 3: The text has 602 tokens"),
        (("head-means", str(path), "--confidence", "1"), "must be between 0 and 1"),
        (
            ("head-means", str(path), "--resamples", "many"),
            "resamples must be a number, not 'many'.",
        ),
        (("head-means", str(tmp_path / "none.txt")), "none.txt cannot be opened: No such file"),
        (("head-means", str(tmp_path)), "cannot be opened: Is a directory"),
    ):
        code, out, err = command(capfd, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert sentence in err
