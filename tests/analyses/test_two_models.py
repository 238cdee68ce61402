"""Test changes between two models: hand-computed cases, parity with raw transformers, and invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe import AnswerChange, HeadChange, LayerSimilarity, ParameterChange, VectorChange
from bert_probe.analyses.comparison.model_change import BOTH, ONLY_A, ONLY_B, OTHER_SHAPE
from bert_probe.errors import SelectionError, UnavailableError, WeightsError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from bert_probe.text.words import word_lens
from bert_probe.views import pictures
from tests.helpers import families, in_memory
from tests.helpers.changed import changed_checkpoint, changed_folder, save_changed_copy
from tests.helpers.exactness import assert_exact
from tests.helpers.families import PAIR, TEXT
from tests.helpers.folders import change_config, change_weights, copy
from tests.helpers.raw import Raw

Folders = Callable[[str], Path]
Opened = Callable[[str], Checkpoint]
SENTENCES = families.SENTENCES[:4]


def double_after(checkpoint: Checkpoint) -> Checkpoint:
    """Return a copy of a float64 checkpoint with changed weights, also in float64."""
    other = changed_checkpoint(checkpoint)
    keep_float64(other.model)
    return other


# ---------------------------------------------------------------- parity with raw transformers


@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet"])
def test_heads_vectors_and_parameters_agree_with_raw_transformers(
    name: str, double_family: Opened, family_folder: Folders
) -> None:
    folder = family_folder(name)
    checkpoint = double_family(name)
    a, b = checkpoint.trace(TEXT), double_after(checkpoint).trace(TEXT)
    raw = [Raw(item, "float64") for item in (folder, changed_folder(folder))]
    item, two = (side.run(a.encoding) for side in raw)
    heads = HeadChange().of(a, b)
    expected = np.zeros(heads.total_variation.shape)
    for layer, head in np.ndindex(expected.shape):
        rows = zip(item.attentions[layer][0, head], two.attentions[layer][0, head], strict=True)
        expected[layer, head] = np.mean([float((p - q).abs().sum()) / 2 for p, q in rows])
    assert_exact(heads.total_variation, expected)
    assert heads.total_variation.max() > 0.01
    assert expected[heads.strongest] == expected.max()

    cosines = [
        torch.cosine_similarity(x[0], y[0], dim=-1).numpy()
        for x, y in zip(item.hidden_states, two.hidden_states, strict=True)
    ]
    moved = VectorChange().of(a, b)
    assert_exact(1 - moved.moved, cosines)
    assert_exact(moved.mean, 1 - np.mean(cosines, axis=1))
    assert moved.moved.max() > 0.001

    result = ParameterChange().of(checkpoint, changed_checkpoint(checkpoint))
    theirs = dict(raw[1].model.named_parameters())
    for row, (parameter, own) in zip(result.tensors, raw[0].model.named_parameters(), strict=True):
        assert (row.parameter.name, row.there) == (parameter, BOTH)
        expected_change = float((theirs[parameter] - own).detach().norm() / own.detach().norm())
        assert_exact(np.float64(row.relative), expected_change, parameter)
    full = [
        torch.cat([parameter.detach().flatten() for parameter in side.model.parameters()]) for side in raw
    ]
    assert_exact(np.float64(result.relative()), float((full[1] - full[0]).norm() / full[0].norm()))


def test_words_are_merged_before_they_are_compared(double_family: Opened) -> None:
    checkpoint = double_family("bert")
    a, b = checkpoint.trace("engineers crossing"), double_after(checkpoint).trace("engineers crossing")
    lens = word_lens(a)
    assert len(lens.units) < len(a.tokens)
    p, q = (lens.merge(item.attention(1, 2)) for item in (a, b))
    assert_exact(HeadChange(words=True).of(a, b).total_variation[1, 2], np.abs(p - q).sum(axis=1).mean() / 2)
    x, y = (lens.average(item.vectors(2)) for item in (a, b))
    cosines = (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    result = VectorChange(words=True).of(a, b)
    assert_exact(1 - result.moved[2], cosines)
    assert list(result.table().index) == list(map(str, lens.units))


def test_head_change_equals_hand_computation(family: Opened) -> None:
    checkpoint = family(
        "longformer"
    )  # The trace of this family stores attention weights, which can be replaced.
    a, b = checkpoint.trace("w"), changed_checkpoint(checkpoint).trace("w")
    assert len(a.tokens) == 3
    item = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]], np.float32)
    two = np.array([[0.2, 0.2, 0.6], [0.1, 0.1, 0.8], [0.9, 0.1, 0.0]], np.float32)
    a, b = (
        replace(trace, weights=(np.stack([rows, item, item, two]),) * 3)
        for trace, rows in ((a, item), (b, two))
    )
    # The absolute differences of the three rows sum to 0.8, 0 and 1.
    # Total variation is half of each sum, averaged over the rows.
    np.testing.assert_allclose(HeadChange().of(a, b).total_variation, [[0.3, 0, 0, 0]] * 3, atol=1e-7)
    # Ties go to the first layer.
    assert "Head 1.1 changed most: total variation 0.3" in HeadChange().of(a, b).finding


# ---------------------------------------------------------------- one model


def assert_no_difference(a: Checkpoint, b: Checkpoint, text: str, pair: str | None = None) -> None:
    """Assert that every difference is exactly 0."""
    item, two = a.trace(text), b.trace(text)
    assert item is not two
    heads, vectors = HeadChange().of(item, two), VectorChange().of(item, two)
    assert not heads.total_variation.any()
    assert not vectors.moved.any()
    assert (heads.finding, vectors.finding) == ("No head changed.", "No vector changed direction.")
    parameters = ParameterChange().of(a, b)
    assert {(row.there, row.change, row.relative) for row in parameters.tensors} == {(BOTH, 0.0, 0.0)}
    assert (parameters.relative(), parameters.finding) == (0.0, "No parameter changed.")
    answers = AnswerChange().of(a.trace(text, pair), b.trace(text, pair))
    assert not answers.difference.any()
    assert answers.finding in (
        "No prediction changed.",
        f"The cosine of the two texts changed from {answers.a[0]:.3g} to {answers.a[0]:.3g}.",
    )
    layers = LayerSimilarity().of(a, b, SENTENCES)
    assert np.diagonal(layers.cka).tolist() == [1.0] * len(layers.cka)
    assert layers.finding == "No layer changed: CKA is 1 for all layers."


def test_same_checkpoint_twice_has_zero_change(minilm: Checkpoint) -> None:
    assert_no_difference(minilm, bert_probe.load(), TEXT, PAIR)


def test_same_files_under_two_names_have_zero_change(
    trained_folder: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder = trained_folder("bert", "fill-mask")
    elsewhere = bert_probe.load(copy(folder, tmp_path / "elsewhere"))
    assert_no_difference(bert_probe.load(folder), elsewhere, f"{TEXT} [MASK]")


def test_same_weights_with_other_settings_are_different_model(
    family_folder: Folders, family: Opened, tmp_path: Path
) -> None:
    folder = copy(family_folder("bert"), tmp_path / "relu")
    change_config(folder, hidden_act="relu")
    a, b = family("bert"), bert_probe.load(folder)
    assert a.description.weights_sha256 == b.description.weights_sha256
    assert HeadChange().of(a.trace(TEXT), b.trace(TEXT)).total_variation.max() > 0.001
    assert not any(row.change for row in ParameterChange().of(a, b).tensors)
    assert LayerSimilarity().of(a, b, SENTENCES).cka[3, 3] < 1


def test_changed_folder_is_different_model(family_folder: Folders, tmp_path: Path) -> None:
    folder = copy(family_folder("bert"), tmp_path / "trained")
    before = bert_probe.load(folder)
    change_weights(folder, lambda weights: {name: part * 1.5 for name, part in weights.items()})
    result = ParameterChange().of(before, bert_probe.load(folder))
    assert {round(row.relative, 6) for row in result.tensors} == {0.5}
    provenance = result.provenance
    assert provenance["model"] == provenance["other_model"]["model"] == str(folder)
    assert provenance["weights_sha256"] != provenance["other_model"]["weights_sha256"]


def test_in_memory_model_is_compared_before_and_after_training_step(family_folder: Folders) -> None:
    model, untouched = (in_memory.load_for_training(family_folder("bert")) for _ in range(2))
    tokenizer = in_memory.tokenizer_of(family_folder("bert"))
    a = bert_probe.wrap(model, tokenizer).trace(TEXT)
    in_memory.train_step(model, a.encoding)
    parameters = ParameterChange().of(*(bert_probe.wrap(item, tokenizer) for item in (untouched, model)))
    expected = [
        float((changed - original).detach().double().norm())
        for changed, original in zip(model.parameters(), untouched.parameters(), strict=True)
    ]
    assert [row.change for row in parameters.tensors] == pytest.approx(expected)
    assert max(expected) > 0
    b = bert_probe.wrap(model, tokenizer).trace(TEXT)
    result = HeadChange().of(a, b)
    assert result.total_variation.max() > 0
    assert "other = bert_probe.wrap(other_model, tokenizer)" in result.python
    assert result.shell.startswith("# ")


# ---------------------------------------------------------------- models of different sizes


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return a model with the tokenizer of the family "bert", but more layers, heads and dimensions."""
    folder = tmp_path_factory.mktemp("larger")
    families.build("bert", folder, num_hidden_layers=4, num_attention_heads=6, hidden_size=48)
    return bert_probe.load(folder)


def test_different_sizes_raise_clear_errors(family: Opened, larger: Checkpoint) -> None:
    a, b = family("bert").trace(TEXT), larger.trace(TEXT)
    with pytest.raises(
        UnavailableError, match="A has 3 layers of 4 heads, B has 4 layers of 6 heads, so heads"
    ):
        HeadChange().of(a, b)
    with pytest.raises(UnavailableError, match="3 layers of size 32, B has 4 of size 48, so vectors"):
        VectorChange().of(a, b)
    result = LayerSimilarity().of(family("bert"), larger, SENTENCES)
    assert result.cka.shape == (4, 5)
    assert ((result.cka > 0) & (result.cka < 1)).all()
    assert result.finding.startswith("The last layer of A is most similar to layer ")


def test_parameters_of_equal_name_and_shape_are_compared_and_others_listed(
    family: Opened, larger: Checkpoint
) -> None:
    result = ParameterChange().of(family("bert"), larger)
    present = {row.parameter.name: row for row in result.tensors}
    assert present["encoder.layer.0.intermediate.dense.bias"].there == BOTH
    assert present["embeddings.word_embeddings.weight"].there == OTHER_SHAPE
    assert present["encoder.layer.3.output.dense.bias"].there == ONLY_B
    back = ParameterChange().of(larger, family("bert"))
    assert {row.there for row in back.tensors} == {BOTH, OTHER_SHAPE, ONLY_A}
    assert len(back.tensors) == len(result.tensors)
    assert len(result.compared) + len(result.others) == len(result.tensors)
    table = result.table()
    assert table["relative"].isna().tolist() == [row.there != BOTH for row in result.tensors]
    assert result.metadata["not_compared"] == len(result.others)


def test_relative_change_of_zero_tensor_is_nan(family_folder: Folders, tmp_path: Path) -> None:
    name = "encoder.layer.0.output.dense.bias"
    folder = copy(family_folder("bert"), tmp_path / "zeros")
    change_weights(folder, lambda weights: weights | {name: torch.zeros_like(weights[name])})
    zeros = bert_probe.load(folder)
    rows = {row.parameter.name: row for row in ParameterChange().of(zeros, bert_probe.load(folder)).tensors}
    assert rows[name].relative == 0
    result = ParameterChange().of(zeros, bert_probe.load(family_folder("bert")))
    row = next(row for row in result.tensors if row.parameter.name == name)
    assert row.norm == 0 < row.change
    assert np.isnan(row.relative)
    assert "No parameter" not in result.finding
    assert np.isfinite(result.relative())
    assert result.save(tmp_path / "found.json")


# ---------------------------------------------------------------- errors


def test_different_tokenizers_raise_error_with_first_difference(
    family: Opened, minilm: Checkpoint, tmp_path: Path, family_folder: Folders
) -> None:
    a, b = family("bert"), minilm
    message = "A has 120 tokens and B has 30,522; token id 1 is “\\[UNK\\]” in A, .* and “\\[unused0\\]” in B"
    for ask in (
        lambda: HeadChange().of(a.trace(TEXT), b.trace(TEXT)),
        lambda: VectorChange().of(a.trace(TEXT), b.trace(TEXT)),
        lambda: AnswerChange().of(a.trace(TEXT), b.trace(TEXT)),
        lambda: ParameterChange().of(a, b),
        lambda: LayerSimilarity().of(a, b, SENTENCES),
    ):
        with pytest.raises(SelectionError, match=message):
            ask()
    # Change the tokenizer so that it does not lowercase texts. The vocabulary does not change.
    folder = copy(family_folder("bert"), tmp_path / "cased")
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"lowercase": true', '"lowercase": false'))
    cased = bert_probe.load(folder)
    with pytest.raises(SelectionError, match="token 1 of this text is “almost” in A and “\\[UNK\\]” in B"):
        HeadChange().of(a.trace(TEXT), cased.trace(TEXT))
    with pytest.raises(SelectionError, match="token 1 of sentence 2 is “we” in A"):
        LayerSimilarity().of(a, cased, ["we had left", "We had left"])
    assert ParameterChange().of(a, cased).finding == "No parameter changed."


def test_different_or_truncated_texts_raise_error(
    family: Opened, family_folder: Folders, tmp_path: Path
) -> None:
    a = family("bert")
    with pytest.raises(SelectionError, match="read different texts"):
        HeadChange().of(a.trace("we left"), a.trace("we left it"))
    folder = copy(family_folder("bert"), tmp_path / "short")
    change_config(folder, max_position_embeddings=20)
    change_weights(
        folder,
        lambda weights: {
            name: part[:20].contiguous() if "position_embeddings" in name else part
            for name, part in weights.items()
        },
    )
    short = bert_probe.load(folder)
    long = "we had left " * 10
    with pytest.raises(SelectionError, match="A reads 32 tokens of this text, and B reads 20"):
        HeadChange().of(a.trace(long), short.trace(long, truncate=True))


def test_traces_without_model_raise_error(family: Opened) -> None:
    trace = family("bert").trace(TEXT)
    external = bert_probe.from_attention([trace.attention(layer) for layer in range(3)], trace.tokens)
    with pytest.raises(UnavailableError, match="needs the model that computed the attention"):
        HeadChange().of(external, external)


def test_nan_weights_raise_error(family_folder: Folders, tmp_path: Path) -> None:
    folder = copy(family_folder("bert"), tmp_path / "nan")
    change_weights(folder, lambda weights: {name: part * float("nan") for name, part in weights.items()})
    with pytest.raises(WeightsError):
        bert_probe.load(folder)


# ---------------------------------------------------------------- pictures


def test_heads_vectors_and_layers_have_charts(family: Opened) -> None:
    a, b = family("bert"), changed_checkpoint(family("bert"))
    traces = a.trace(TEXT), b.trace(TEXT)
    for result, shape in (
        (HeadChange().of(*traces), (3, 4)),
        (VectorChange().of(*traces), (len(traces[0].tokens), 4)),
        (LayerSimilarity().of(a, b, SENTENCES), (4, 4)),
    ):
        (sampled,) = pictures.heatmaps_of(result)
        assert sampled.values.shape == shape
        assert f"{a.description.name} → {b.description.name}" in pictures.page(result).title
    with pytest.raises(UnavailableError, match="ParameterChange has no visualization"):
        ParameterChange().of(a, b).show()


def test_small_changes_are_shown_in_hundredths(
    family: Opened, tmp_path: Path, family_folder: Folders
) -> None:
    a = family("bert")
    near = bert_probe.load(save_changed_copy(family_folder("bert"), tmp_path / "near", 0.001))
    for other, unit in ((near, ", hundredths"), (changed_checkpoint(a), "")):
        result = HeadChange().of(a.trace(TEXT), other.trace(TEXT))
        (sampled,) = pictures.heatmaps_of(result)
        assert sampled.drawing["value_name"] == f"total variation{unit}"
        factor = 100 if unit else 1
        assert np.array_equal(sampled.values, factor * result.total_variation)
        assert sampled.values.max() <= sampled.drawing["scale"].high
