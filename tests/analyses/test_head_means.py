"""Profiles over many sentences: the means, the bootstrap, and sentences that cannot be read."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bert_probe
from bert_probe.analyses import head_means as many
from bert_probe.analyses.head_means import ProfileMeans, profile_sentences
from bert_probe.analyses.head_measures import MEASURES
from bert_probe.analyses.heads import head_labels, head_profiles
from bert_probe.cli.main import main
from bert_probe.errors import EmptyTextError, SelectionError, TextError, TooLongError
from bert_probe.text.sentence_files import sentences_of
from tests.helpers.exactness import assert_exact

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
def means(minilm: bert_probe.Checkpoint) -> ProfileMeans:
    return profile_sentences(minilm, SENTENCES, resamples=200, seed=3)


@pytest.fixture(scope="module")
def singly(minilm: bert_probe.Checkpoint) -> dict[str, np.ndarray]:
    """Measures of each sentence by itself, [sentence, layer, head]: the reference."""
    each = [head_profiles(minilm.trace(text)).values for text in TEXTS]
    return {name: np.stack([values[name] for values in each]) for name in MEASURES}


@pytest.mark.parametrize("words", [False, True])
def test_one_sentence_is_its_own_mean_without_any_width(minilm: bert_probe.Checkpoint, words: bool) -> None:
    expected = head_profiles(minilm.trace(TEXTS[1]), words)
    got = profile_sentences(minilm, [TEXTS[1]], words)
    for name in MEASURES:
        for values in (got.mean, got.low, got.high):
            np.testing.assert_array_equal(values[name], expected.values[name])
    assert got.labels == expected.labels
    assert (got.sentences, got.words) == (1, words)


def test_the_mean_counts_each_sentence_once_however_long(
    means: ProfileMeans, singly: dict[str, np.ndarray]
) -> None:
    for name in MEASURES:
        expected = sum(singly[name]) / len(TEXTS)
        np.testing.assert_allclose(means.mean[name], expected, atol=1e-6)
    # "No." has no word of several pieces: its 0 counts, as a query without such a key does.
    assert singly["same_word"][-1].max() == 0
    assert means.mean["same_word"].max() > 0
    assert means.labels == head_labels(means.mean)
    assert means.sentences == len(TEXTS)


def test_the_interval_is_the_percentile_bootstrap(double_minilm: bert_probe.Checkpoint) -> None:
    means = profile_sentences(double_minilm, SENTENCES, resamples=200, seed=3)
    singly = {
        name: np.stack([head_profiles(double_minilm.trace(text)).values[name] for text in TEXTS])
        for name in ("previous", "entropy_bits", "mean_distance")
    }
    generator = np.random.default_rng(3)
    drawn = [generator.integers(len(TEXTS), size=len(TEXTS)) for _ in range(200)]
    for name, values in singly.items():
        resampled = np.stack([values[rows].mean(axis=0) for rows in drawn])
        assert_exact(means.low[name], np.quantile(resampled, 0.025, axis=0))
        assert_exact(means.high[name], np.quantile(resampled, 0.975, axis=0))
        assert (means.low[name] <= means.mean[name]).all()
        assert (means.mean[name] <= means.high[name]).all()


def test_an_interval_by_hand() -> None:
    """Of the sentences 0 and 1, a mean is 0, ½ or 1 with chances ¼, ½, ¼."""
    values = np.array([0.0, 1.0]).reshape(2, 1, 1, 1)
    low, high = many._interval(values, 0.6, 4000, 0, lambda: None)
    assert (low.item(), high.item()) == (0, 1)  # 20 and 80 in 100: within the outer quarters
    low, high = many._interval(values, 0.4, 4000, 0, lambda: None)
    assert (low.item(), high.item()) == (0.5, 0.5)  # 30 and 70 in 100: within the middle half


def test_less_confidence_is_a_narrower_interval(minilm: bert_probe.Checkpoint, means: ProfileMeans) -> None:
    half = profile_sentences(minilm, SENTENCES, resamples=200, seed=3, confidence=0.5)
    for name in MEASURES:
        assert (half.low[name] >= means.low[name]).all()
        assert (half.high[name] <= means.high[name]).all()


def test_the_order_of_the_sentences_does_not_move_the_mean(
    minilm: bert_probe.Checkpoint, means: ProfileMeans
) -> None:
    other = profile_sentences(minilm, SENTENCES[::-1], resamples=10)
    for name in MEASURES:
        np.testing.assert_allclose(other.mean[name], means.mean[name], atol=1e-6)


def test_the_same_seed_gives_the_same_numbers(minilm: bert_probe.Checkpoint, means: ProfileMeans) -> None:
    again = profile_sentences(minilm, SENTENCES, resamples=200, seed=3)
    other = profile_sentences(minilm, SENTENCES, resamples=200, seed=4)
    for name in MEASURES:
        np.testing.assert_array_equal(again.low[name], means.low[name])
    assert any((other.low[name] != means.low[name]).any() for name in MEASURES)


def test_a_family_without_padding_or_queries_is_profiled_too(
    family: Callable[[str], bert_probe.Checkpoint],
) -> None:
    for name in ("mpnet", "modernbert"):
        checkpoint = family(name)
        got = profile_sentences(checkpoint, ["we left the ground", "we left"], resamples=5)
        each = [head_profiles(checkpoint.trace(text)).values for text in ("we left the ground", "we left")]
        for measure in MEASURES:
            expected = (each[0][measure] + each[1][measure]) / 2
            np.testing.assert_allclose(got.mean[measure], expected, atol=1e-5)


def test_progress_is_reported_and_what_it_raises_ends_the_work(
    minilm: bert_probe.Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "BATCH_TOKENS", 40)
    seen: list[tuple[int, int]] = []
    profile_sentences(minilm, SENTENCES, resamples=10, report=lambda *given: seen.append(given))
    assert seen[0] == (0, 4)
    assert seen[-1] == (4, 4)
    assert seen == sorted(seen)
    assert len(seen) > 3

    def stop(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        profile_sentences(minilm, SENTENCES, report=stop)


def test_traces_are_dropped_as_they_are_profiled(
    minilm: bert_probe.Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    original = bert_probe.Checkpoint.trace_encodings

    def counted(self: bert_probe.Checkpoint, encodings: list[bert_probe.Encoding]) -> list[bert_probe.Trace]:
        sizes.append(len(encodings) * max(map(len, encodings)))
        return original(self, encodings)

    monkeypatch.setattr(bert_probe.Checkpoint, "trace_encodings", counted)
    profile_sentences(minilm, ["we left the ground"] * 700, resamples=1)
    assert len(sizes) > 1
    assert max(sizes) <= many.BATCH_TOKENS


@pytest.mark.parametrize(
    ("sentences", "kind", "sentence"),
    [
        ([], EmptyTextError, "There is no sentence"),
        (["", "  "], EmptyTextError, "There is no sentence"),
        (["", "we left", "word " * 600], TooLongError, "Line 3: 602 tokens; this model accepts 512"),
        (["we left", "\u200b"], EmptyTextError, "Line 2: "),
        (["we", "\ud800"], TextError, "Line 2: Character 0"),
        (["we", 3], TextError, "Line 2: A text must be a string"),
        ("we left", TextError, "Give a list"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(
    minilm: bert_probe.Checkpoint, sentences: list[str], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        profile_sentences(minilm, sentences)


def test_a_long_sentence_is_cut_if_asked_and_said(minilm: bert_probe.Checkpoint) -> None:
    got = profile_sentences(minilm, ["word " * 600, "we"], truncate=True, resamples=1)
    assert got.tokens_dropped == 90


@pytest.mark.parametrize("options", [{"confidence": 1.0}, {"confidence": 0}, {"resamples": 0}])
def test_a_bootstrap_that_cannot_be_is_refused(
    minilm: bert_probe.Checkpoint, options: dict[str, float]
) -> None:
    with pytest.raises(SelectionError):
        profile_sentences(minilm, ["we"], **options)  # type: ignore[arg-type]


def test_a_sentence_of_a_file_is_named_by_its_line_there(minilm: bert_probe.Checkpoint) -> None:
    sentences = sentences_of(f"we left\n\n \n{'word ' * 600}\n".encode(), "a.txt")
    with pytest.raises(TooLongError, match="Line 4: 602 tokens; this model accepts 512"):
        profile_sentences(minilm, sentences)


def test_the_table_holds_the_means_their_ends_and_where_they_come_from(
    minilm: bert_probe.Checkpoint, means: ProfileMeans
) -> None:
    frame = bert_probe.profile_means_table(means, minilm)
    measured = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
    assert list(frame) == ["layer", "head", *measured, "label"]
    row = frame.iloc[14]
    assert (row["layer"], row["head"], row["label"]) == (2, 3, means.labels[1][2])
    assert row["next"] == means.mean["next"][1, 2]
    assert row["next_low"] == means.low["next"][1, 2]
    assert row["next_high"] == means.high["next"][1, 2]
    about = frame.attrs["provenance"]
    assert "text" not in about
    expected = hashlib.sha256("".join(f"{text}\n" for text in TEXTS).encode()).hexdigest()
    assert about["view"] == {
        "table": "heads over sentences",
        "sentences": 4,
        "tokens_dropped": 0,
        "words": False,
        "confidence": 0.95,
        "resamples": 200,
        "seed": 3,
        "sentences_sha256": expected,
    }


def command(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return (stopped.value.code, *capfd.readouterr())


def test_the_command_line_profiles_a_file(
    minilm: bert_probe.Checkpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES), encoding="utf-8")
    code, out, err = command(capfd, "heads", "--file", str(path))
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    expected = profile_sentences(minilm, SENTENCES)
    assert len(rows) == 72
    assert float(rows[14]["next_high"]) == pytest.approx(expected.high["next"][1, 2], abs=1e-6)


def test_the_command_line_refuses_what_does_not_go_together(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text("we left\n" + "word " * 600, encoding="utf-8")
    for arguments, sentence in (
        (("heads",), "Give a TEXT, or sentences with --file"),
        (("heads", "we left", "--file", str(path)), "one of the two"),
        (("heads", "--pair", "b", "--file", str(path)), "--pair goes with a TEXT"),
        (("heads", "--file", str(path)), "Line 2: 602 tokens"),
        (("heads", "--file", str(tmp_path / "none.txt")), "does not exist"),
        (("heads", "--file", str(tmp_path)), "is a directory"),
    ):
        code, out, err = command(capfd, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert sentence in err
