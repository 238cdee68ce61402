"""Test linear probes of layers: parity of the fit with scikit-learn, and hand-computed cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from bert_probe import Probe, StructuralProbe
from bert_probe.analyses.probing import vectors
from bert_probe.analyses.probing.probe import (
    BLOCKS,
    ProbeSpace,
    _control,
    _rows,
    _task,
    fit,
    fit_online,
    log_probabilities,
)
from bert_probe.analyses.probing.vectors import EncodedTexts, LabeledData, encode_files, split_data
from bert_probe.core import files
from bert_probe.errors import EmptyTextError, SelectionError, TextError, TooLongError
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled, no_progress
from bert_probe.text.labeled_texts import LabeledText, LabeledTexts, parse_labeled_texts
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences
from tests.helpers.command_line import bert_probe
from tests.helpers.exactness import assert_repeatable
from tests.helpers.raw import Raw
from tests.helpers.treebank import SAILING, SLEEPING, TAGGED, TAGGED_FILE


def table(content: str) -> LabeledTexts:
    return parse_labeled_texts(content.encode(), "data.csv")


WEATHER = table(
    "text,label\n"
    + "".join(
        f"{noun} in the {word},{label}\n"
        for noun in ("Boats", "Sailors", "Dogs", "Maps", "Kings", "Cats")
        for word, label in (("rain", "wet"), ("desert", "dry"))
    )
)
PAIRS = table("text_a,text_b,label\nA boat sinks.,Nobody drowns.,a\nA map,of rivers and unmapped boats,b\n")
NOUNS = ("cat", "dog", "boat", "horse", "sailor", "child", "king")


def correlated_classes(rows: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors with correlated dimensions of different scales, and classes that depend on them."""
    generator = np.random.default_rng(1)
    mixed = generator.normal(size=(rows, 6)) @ generator.normal(size=(6, 6)) * 10.0 ** np.arange(-3, 3)
    scores = mixed / mixed.std(axis=0) @ generator.normal(size=(6, classes)) + generator.normal(
        size=(rows, classes)
    )
    return torch.from_numpy(mixed + 5), torch.from_numpy(scores.argmax(axis=1))


@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
def test_fit_equals_scikit_learn(penalty: float) -> None:
    inputs, classes = correlated_classes(90, 4)
    space = ProbeSpace.of(inputs, 4, penalty)
    rows = space.within(inputs)
    weights = fit(rows, classes, np.zeros((7, 4)), space.penalties, tolerance=1e-15)
    standard = (inputs - inputs.mean(dim=0)) / inputs.std(dim=0, correction=0)
    # The intercept is a column of ones, so scikit-learn penalizes the intercept, as the probe does.
    full = np.hstack([standard.numpy(), np.ones((90, 1))])
    theirs = LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-10, max_iter=10_000)
    expected = theirs.fit(full, classes).predict_proba(full)
    np.testing.assert_allclose(log_probabilities(rows, weights).exp(), expected, atol=1e-5)


@pytest.mark.parametrize("faint", [0.0, 1e-32])
def test_constant_dimension_is_ignored(faint: float) -> None:
    inputs, classes = correlated_classes(40, 3)
    inputs = inputs.float()
    alone = ProbeSpace.of(torch.cat([inputs[:, :2], inputs[:, 3:]], dim=1), 3)
    inputs[:, 2] *= faint
    space = ProbeSpace.of(inputs, 3)
    rows = space.within(inputs)
    assert torch.isfinite(rows).all()
    remaining = alone.within(torch.cat([inputs[:, :2], inputs[:, 3:]], dim=1))
    result, expected = (
        log_probabilities(part, fit(part, classes, np.zeros((part.shape[1], 3)), item.penalties)).exp()
        for part, item in ((rows, space), (remaining, alone))
    )
    torch.testing.assert_close(result, expected, rtol=0, atol=0.01)


def test_code_length_is_the_sum_over_blocks() -> None:
    inputs, classes = correlated_classes(300, 3)
    space = ProbeSpace.of(inputs, 3)
    rows = space.within(inputs)
    learned = fit_online(rows, classes, 3, space, lambda: None)
    ends = sorted({max(1, round(share * 300)) for share in BLOCKS})
    assert ends[0] == 1
    assert ends[-1] == 300
    bits = np.log2(3)
    for end, after in pairwise(ends):
        weights = fit(rows[:end], classes[:end], np.zeros((7, 3)), space.penalties)
        of_block = log_probabilities(rows[end:after], weights)
        bits -= sum(
            float(logs[label]) for logs, label in zip(of_block, classes[end:after], strict=True)
        ) / np.log(2)
    # The reference fits start from zeros, and `fit_online` starts from earlier weights. Both end near the
    # optimum, but not at the same point.
    assert learned.bits == pytest.approx(bits, rel=0.01)
    assert learned.bits < 300 * np.log2(3)


def test_word_vectors_are_token_means_at_every_layer(
    family_folder: Callable[[str], Path], double_family: Callable[[str], Checkpoint]
) -> None:
    checkpoint, raw = double_family("bert"), Raw(family_folder("bert"), "float64")
    part = EncodedTexts(SAILING, tuple(checkpoint.encode(item.text) for item in SAILING))
    pooled, sentences, words = vectors.pool_words(part)
    layers = range(4)
    passes = vectors.plan_passes(checkpoint, [pooled], layers)
    steps = vectors.StepCounter(no_progress, 1)
    for layer, (result,) in zip(
        layers, vectors.vectors_by_layer(checkpoint, [pooled], passes, steps), strict=True
    ):
        for row, (sentence, word) in enumerate(zip(sentences, words, strict=True)):
            encoding, (start, end) = part.encodings[sentence], SAILING[sentence].spans[word]
            states = raw.run(encoding).hidden_states[layer][0]
            pieces = [
                i
                for i, token in enumerate(encoding.tokens)
                if not token.special and start <= token.start < end
            ]
            torch.testing.assert_close(result[row], states[pieces].mean(dim=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_text_vectors_are_mean_or_first_token(
    family_folder: Callable[[str], Path], double_family: Callable[[str], Checkpoint], pooling: str
) -> None:
    checkpoint, raw = double_family("bert"), Raw(family_folder("bert"), "float64")
    (part,) = encode_files(checkpoint, {"data": PAIRS}, False, no_progress, tables=True)
    pooled = vectors.pool_sentences(part, pooling)
    passes = vectors.plan_passes(checkpoint, [pooled], range(4))
    by_layer = vectors.vectors_by_layer(checkpoint, [pooled], passes, vectors.StepCounter(no_progress, 1))
    for layer, (result,) in enumerate(by_layer):
        for vector, row in zip(result, PAIRS.rows, strict=True):
            states = raw.run(checkpoint.encode(row.text, row.pair)).hidden_states[layer][0]
            expected = states[0] if pooling == "cls" else states.mean(dim=0)
            torch.testing.assert_close(vector, expected, rtol=0, atol=1e-12)


@pytest.mark.prove
def test_result_does_not_depend_on_number_of_passes(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = Probe().of(minilm, TAGGED, SLEEPING)
    monkeypatch.setattr(lengths, "_task_bytes", 1)  # the limit of a public server
    pooled = vectors.PooledTokens((), (), np.zeros(0), 5)
    assert vectors.plan_passes(minilm, [pooled], range(3)).layers == ((0,), (1,), (2,))
    again = Probe().of(minilm, TAGGED, SLEEPING)
    np.testing.assert_array_equal(again.accuracies, once.accuracies)
    assert_repeatable(again.code_lengths, once.code_lengths)


def words(text: str) -> tuple[TaggedSentence, ...]:
    """Parse tagged sentences in the format "word/tag word/tag|…"."""
    return parse_tagged_sentences(
        text.replace(" ", "\n").replace("/", " ").replace("|", "\n\n").encode(), "a.conll"
    )


def test_baseline_and_interval_by_hand(minilm: Checkpoint) -> None:
    data = words("run/V fast/A|run/N far/A|run/N on/A")
    held_out = words("run/N run/V|run/N unseen/A|unseen/N far/A|far/Z run/N")
    result = Probe(layers=[1]).of(minilm, data, held_out)
    # The baseline predicts N for "run" and A for "far", and the most frequent tag, A, for unseen words.
    # The tag Z does not occur in the training data.
    assert result.baseline == 6 / 8 - 1 / 8 + 1 / 8 - 0 / 8 - 1 / 8
    assert result.counts == (6, 8)
    assert result.labels == ("A", "N", "V")
    assert result.low[0] <= result.accuracies[0] <= result.high[0] <= 7 / 8
    alone = Probe(layers=[1]).of(minilm, data, held_out[:1])
    assert alone.low == alone.high == alone.accuracies, "resampling a single sentence changes nothing"


def test_sentences_are_labeled_by_comments(minilm: Checkpoint) -> None:
    result = Probe("genre", seed=1).of(minilm, SAILING, SLEEPING)
    assert (result.labels, result.counts, result.baseline) == (("letter", "log"), (3, 2), 1.0)
    assert result.uniform_length == 3
    assert result.metadata["pooling"] == "mean"
    assert result.layers == tuple(range(7))


def test_control_task_keeps_random_label_of_each_text(minilm: Checkpoint) -> None:
    """In the control task, a text has the same random label in the training data and the held-out data.

    The random label of a held-out text that is not in the training data cannot be predicted.
    """
    again = Probe(layers=[0]).of(minilm, WEATHER, WEATHER)
    assert again.of_sentences
    assert (again.labels, again.counts, again.baseline) == (("dry", "wet"), (12, 12), 0.5)
    assert again.accuracies[0] == 1.0
    assert again.controls[0] > 0.8, "a linear map in 384 dimensions memorizes a dozen labels"
    rows = _rows(EncodedTexts(WEATHER.rows * 2, ("abc",) * 24), None, True, None)  # type: ignore[arg-type]
    task = _task(rows, rows)
    data, held_out = _control(task, [rows, rows], np.random.default_rng(0))
    assert torch.equal(data, held_out)
    assert torch.equal(data[:12], data[12:]), "one label for each distinct text"
    assert not torch.equal(data, task.data)
    assert {*data.tolist()} == {0, 1}


def encoded(rows: Sequence[LabeledText], tokens: Sequence[int]) -> EncodedTexts:
    """Return rows with encodings of one token each."""
    encodings = [SimpleNamespace(inputs={"input_ids": np.array([token])}) for token in tokens]
    return EncodedTexts(tuple(rows), tuple(encodings))  # type: ignore[arg-type]


def test_equal_texts_are_in_one_split() -> None:
    """Texts are equal if they differ only in case or spaces, or have the same tokens."""
    rows = [replace(row, line=line) for line, row in enumerate(WEATHER.rows * 4, 2)]
    for index in range(12, 24):
        rows[index] = replace(rows[index], text=f"  {rows[index].text.upper()}")
        rows[index + 12] = replace(rows[index + 12], text=f"other {index}")
    tokens = [index % 12 if index >= 24 else index for index in range(48)]
    for seed in range(5):
        learned, held_out = split_data([encoded(rows, tokens)], np.random.default_rng(seed))
        lines = [{row.line for row in part.sentences} for part in (learned, held_out)]
        assert not lines[0] & lines[1]
        assert lines[0] | lines[1] == {row.line for row in rows}
        weather = [{(line - 2) % 12 for line in part} for part in lines]
        assert not weather[0] & weather[1]
        assert len(held_out.sentences) == 8, "close to a fifth of 48 rows, in groups of 4"


def test_held_out_share_does_not_depend_on_the_number_of_copies() -> None:
    rows = encoded(WEATHER.rows * 40, range(480))
    training, held_out = split_data([rows], np.random.default_rng(0))
    assert (len(training.encodings), len(held_out.encodings)) == (400, 80), "2 of 12 texts"
    with pytest.raises(TextError, match="A single text cannot be split"):
        split_data([encoded(WEATHER.rows[:1] * 40, range(40))], np.random.default_rng(0))


def test_repeated_text_is_held_out_as_often_as_others() -> None:
    """A text of a tenth of the rows would be held out almost always if rows were drawn instead of texts."""
    texts = ["Good"] * 20 + [f"text {number}" for number in range(180)]
    rows = [replace(WEATHER.rows[0], text=text, line=line) for line, text in enumerate(texts)]
    counts = []
    for seed in range(200):
        _, held_out = split_data([encoded(rows, range(200))], np.random.default_rng(seed))
        assert abs(len(held_out.sentences) - 40) <= 10
        counts.append(sum(row.text == "Good" for row in held_out.sentences))
    assert {*counts} == {0, 20}
    assert 0.08 < np.mean(counts) / 20 < 0.3


def test_default_held_out_share_is_one_fifth(minilm: Checkpoint) -> None:
    data = TAGGED * 5
    result = Probe(layers=[-1]).of(minilm, data)
    assert result.layers == result.question.layers == (6,)
    assert sum(result.counts) == sum(len(item.words) for item in data)
    again = Probe(layers=[6]).of(minilm, data)
    assert again.table().equals(result.table())


def test_informative_layer_has_high_accuracy_and_low_control(minilm: Checkpoint) -> None:
    # A word always has the same tag, and no held-out noun occurs in the training data. The probe can predict
    # the tag of a held-out noun, but not the noun's random tag in the control task.
    data = words("|".join(f"the/D {noun}/N sleeps/V" for noun in NOUNS))
    held_out = words("|".join(f"the/D {noun}/N sleeps/V" for noun in ("queen", "ship", "bird")))
    result = Probe(layers=[0]).of(minilm, data, held_out)
    assert result.accuracies[0] > 0.85
    assert result.selectivities[0] == result.accuracies[0] - result.controls[0]
    assert result.code_lengths[0] < result.uniform_length
    assert result.compressions[0] == result.uniform_length / result.code_lengths[0]


def test_progress_can_cancel_a_fit(minilm: Checkpoint) -> None:
    observed = []

    def report(done: int, total: int) -> None:
        observed.append((done, total))
        if total and done >= 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        Probe(layers=[0]).of(minilm, TAGGED, SLEEPING, progress=report)
    assert observed[-1] == (2, 4)


BLANK = (replace(TAGGED[0], metadata=MappingProxyType({})),)


@pytest.mark.parametrize(
    ("question", "data", "held_out", "error", "message"),
    [
        (Probe(), (), None, EmptyTextError, "There is no sentence in data"),
        (Probe(), TAGGED[:1], None, TextError, "A single text cannot be split"),
        (Probe(), words("a/X b/X"), TAGGED, TextError, "Every label is X. Use data with at least two"),
        (Probe("genre"), TAGGED, SAILING, TextError, "line 1: this sentence has no comment “genre”"),
        (Probe(), words("|".join(f"a/{n}" for n in range(501))), TAGGED, TextError, "501 different labels"),
        (
            Probe(),
            TAGGED,
            words("\u200b/X"),
            EmptyTextError,
            "held_out, line 1: The text has no tokens, because",
        ),
        (Probe(), TAGGED, words("\u200b/X") * 0, EmptyTextError, "no sentence in held_out"),
        (Probe(layers=[7]), TAGGED, SAILING, SelectionError, "There is no layer 7"),
        (Probe(), WEATHER, TAGGED, TextError, "Use two files of the same type"),
        (Probe("genre"), WEATHER, None, SelectionError, "a table has no comments"),
        (Probe(pooling="cls"), TAGGED, None, SelectionError, "The vector of a word is always the mean"),
        (Probe(), table("text,label\na,0.5\nb,1\n"), None, TextError, "data has a number per text"),
        (StructuralProbe(), WEATHER, None, TextError, "must be tagged sentences from"),
        (
            Probe(),
            (replace(SAILING[0], text="go " * 600),),
            SAILING,
            TooLongError,
            "data, line 2: The text has 602 tokens",
        ),
    ],
)
def test_invalid_probe_raises_error(
    minilm: Checkpoint,
    question: Probe,
    data: LabeledData,
    held_out: LabeledData | None,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error) as refused:
        question.of(minilm, data, held_out)
    assert message in str(refused.value)
    with pytest.raises(SelectionError, match="must be between 0 and 1"):
        Probe(confidence=1.0)


@pytest.mark.prove
def test_command_equals_library(minilm: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "data.conll"
    file.write_text(TAGGED_FILE, encoding="utf-8")
    inputs = ["probe", str(file), "--held-out", str(file), "--layers", "0,last"]
    ended = bert_probe(*inputs, built_in=minilm)
    assert ended.text == files.to_csv(Probe(layers=[0, -1]).of(minilm, TAGGED, TAGGED).table())
    header = "layer,accuracy,low,high,baseline,control,selectivity,codelength"
    assert ended.text.splitlines()[0] == header
    file = file.with_suffix(".csv")
    file.write_text("text,label\n" + "".join(f"{row.text},{row.label}\n" for row in WEATHER.rows))
    ended = bert_probe("probe", str(file), "--pooling", "cls", "--layers", "1", built_in=minilm)
    assert ended.text == files.to_csv(Probe(pooling="cls", layers=[1]).of(minilm, WEATHER).table())
    reports = bert_probe("probe", str(tmp_path / "none.conll"), built_in=minilm).refusal
    assert "none.conll cannot be opened: No such file" in reports
