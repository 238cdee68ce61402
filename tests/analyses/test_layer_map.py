"""Test token maps: hand-computed cases, parity with scikit-learn and with hidden states, and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from bert_probe import CorpusTokenMap, TokenMap
from bert_probe.analyses.vectors import token_map
from bert_probe.analyses.vectors.token_map import BASES, Planes, planes
from bert_probe.errors import EmptyTextError, ShapeError, TextError, UnavailableError
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.labeled_texts import parse_labeled_texts
from tests.helpers.command_line import bert_probe as command

TEXTS = ("A small boat crosses the wide river.", "Nobody can read a map at night.", "It sinks.")
ROUNDED = 2 * np.finfo(np.float32).eps
"""Tolerance for map coordinates in float32, relative to the largest absolute coordinate."""

# Vectors of two layers, each of shape [token, dimension]. The vectors of a layer are 4 apart along the first
# axis. The layers are 2 apart along the second axis.
BY_HAND = [np.array([[0.0, 0, 7], [4, 0, 7]]), np.array([[0.0, 2, 7], [4, 2, 7]])]


def two_planes(basis: str) -> Planes:
    return planes(BY_HAND, basis)


def test_shared_mean_of_layers_equals_hand_computation() -> None:
    result = two_planes("shared")
    # Relative to the mean (2, 1, 7), all vectors are at ±2 along the first axis and at ±1 along the second.
    # The ratio of the variances is therefore 16 to 4.
    np.testing.assert_allclose(result.points, [[[-2, -1], [2, -1]], [[-2, 1], [2, 1]]], atol=1e-12)
    assert result.explained == pytest.approx((0.8, 0.2), abs=1e-12)
    np.testing.assert_allclose(result.by_layer, [[1, 0], [1, 0]], atol=1e-12)


@pytest.mark.parametrize("basis", ["centred", "own"])
def test_centered_layers_coincide(basis: str) -> None:
    result = two_planes(basis)
    np.testing.assert_allclose(result.points, [[[-2, 0], [2, 0]]] * 2, atol=1e-12)
    assert result.explained == (None if basis == "own" else (1, 0))
    line = np.outer([-1.3, 0.2, 1.1], np.random.default_rng(1).normal(size=9))
    result = planes([line, 2 * line], basis)
    assert result.points[:, :, 0].all()
    assert not result.points[:, :, 1].any(), "a component without variance is 0, not a rounding error"


def test_map_of_all_layers_equals_scikit_learn() -> None:
    states = list(np.random.default_rng(0).normal(size=(3, 40, 7)) * np.arange(1, 8) + [[[1]], [[5]], [[9]]])
    means = [state.mean(axis=0) for state in states]
    value = {
        "shared": np.concatenate(states),
        "centred": np.concatenate([state - mean for state, mean in zip(states, means, strict=True)]),
    }
    for basis, rows in value.items():
        pca = PCA(2, svd_solver="full")
        expected = pca.fit_transform(rows).reshape(3, 40, 2)
        result = planes(states, basis)
        signs = np.sign((expected * result.points).sum(axis=(0, 1)))
        maximum = ROUNDED * np.abs(expected).max()
        np.testing.assert_allclose(result.points, expected * signs, rtol=0, atol=maximum)
        np.testing.assert_allclose(result.explained, pca.explained_variance_ratio_, rtol=1e-12)
        largest = np.abs(pca.components_).argmax(axis=1)
        assert (signs == np.sign(pca.components_[[0, 1], largest])).all(), "the largest loading is positive"
        within = [(own**2).sum(axis=0) for own in expected - expected.mean(axis=1, keepdims=True)]
        total = [((state - mean) ** 2).sum() for state, mean in zip(states, means, strict=True)]
        np.testing.assert_allclose(result.by_layer, np.array(within) / np.array(total)[:, None], rtol=1e-9)
    own = planes(states, "own")
    for layer, state in enumerate(states):
        pca = PCA(2, svd_solver="full")
        expected = np.abs(pca.fit_transform(state))
        np.testing.assert_allclose(np.abs(own.points[layer]), expected, atol=ROUNDED * expected.max(), rtol=0)
        np.testing.assert_allclose(own.by_layer[layer], pca.explained_variance_ratio_, rtol=1e-12)


@pytest.mark.parametrize("basis", BASES)
def test_invalid_vectors_raise(basis: str) -> None:
    equal = np.full((3, 4), 2.5)
    for states, sentence in (
        ([equal, equal], "All vectors are equal"),
        ([np.full((3, 4), np.nan), equal], "contains NaN or infinite values"),
        ([np.ones((3, 4)), np.ones((3, 5))], "hidden size of this model differs"),
    ):
        with pytest.raises(UnavailableError, match=sentence):
            planes(states, basis)
    if basis == "shared":
        apart = planes([np.zeros((1, 4)), np.eye(4)[:1]], basis)
        np.testing.assert_allclose(apart.points[:, 0], [[-0.5, 0], [0.5, 0]], atol=1e-12)
        assert np.isnan(apart.by_layer).all(), "one token has no variance of its own"
    with pytest.raises(ShapeError, match="points must have shape"):
        Planes(np.zeros((2, 3)), None, np.zeros((2, 2)))


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_points_equal_projected_hidden_states(name: str, double_family: Callable[[str], Checkpoint]) -> None:
    checkpoint = double_family(name)
    value = checkpoint.tokenizer(TEXTS[0], return_tensors="pt")
    with torch.inference_mode():
        states = checkpoint.model(**value, output_hidden_states=True).hidden_states
    rows = torch.cat([state[0] for state in states]).numpy()
    expected = PCA(2, svd_solver="full").fit_transform(rows)
    result = TokenMap(specials=True).of(checkpoint.trace(TEXTS[0]))
    points = result.table()[["x", "y"]].to_numpy()
    maximum = ROUNDED * np.abs(expected).max()
    np.testing.assert_allclose(np.abs(points), np.abs(expected), rtol=0, atol=maximum)
    assert result.table()["token"].tolist() == [
        str(token) for token in checkpoint.trace(TEXTS[0]).tokens
    ] * len(states)


def test_file_and_trace_of_text_give_same_map(double_family: Callable[[str], Checkpoint]) -> None:
    checkpoint = double_family("bert")
    for words in (False, True):
        item = TokenMap(words=words).of(checkpoint.trace(TEXTS[0]))
        many = CorpusTokenMap(words=words).of(checkpoint, ["", TEXTS[0], " "])
        assert item.marks == many.marks
        np.testing.assert_allclose(item.planes.points, many.planes.points, rtol=0, atol=1e-5)
        assert not any(mark.name.startswith("[") for mark in item.marks)
    unhappy = checkpoint.trace("unhappiest boats")
    pieces = TokenMap().of(unhappy)
    assert len(pieces.marks) > 2
    assert [mark.name for mark in TokenMap(words=True).of(unhappy).marks] == ["unhappiest", "boats"]


def test_points_do_not_depend_on_text_order(double_family: Callable[[str], Checkpoint]) -> None:
    checkpoint = double_family("bert")
    first = CorpusTokenMap(words=True).of(checkpoint, TEXTS).table()
    again = CorpusTokenMap(words=True).of(checkpoint, TEXTS[::-1]).table()
    again["text"] = 4 - again["text"]
    sides = [item.sort_values(["layer", "text", "position"], ignore_index=True) for item in (first, again)]
    assert sides[0].drop(columns=["x", "y"]).equals(sides[1].drop(columns=["x", "y"]))
    np.testing.assert_allclose(sides[0][["x", "y"]], sides[1][["x", "y"]], rtol=0, atol=1e-5)


def test_groups_are_labels_or_segments(double_family: Callable[[str], Checkpoint]) -> None:
    checkpoint = double_family("bert")
    rows = parse_labeled_texts(
        b"text_a,text_b,labels\nIt sinks,A boat,b|a\nNobody reads,A map,\n", "rows.csv"
    )
    result = CorpusTokenMap().of(checkpoint, rows)
    assert result.part_names == ("a | b", "no label")
    assert result.texts == (("It sinks", "A boat"), ("Nobody reads", "A map"))
    assert result.table().groupby("text")["part"].unique().explode().tolist() == ["a | b", "no label"]
    pair = TokenMap().of(checkpoint.trace(TEXTS[2], TEXTS[1]))
    assert {mark.part for mark in pair.marks} == {0, 1}
    assert pair.table()["part"].unique().tolist() == ["A", "B"]
    assert "part" not in TokenMap().of(checkpoint.trace(TEXTS[2]), checkpoint.trace(TEXTS[1])).table()


def test_selected_points_of_layer_equal_rows_of_table(double_family: Callable[[str], Checkpoint]) -> None:
    result = TokenMap().of(double_family("bert").trace(TEXTS[0]))
    table = result.table()
    few = result.some([3, 1], 2)
    full = table[table["layer"] == 2].reset_index(drop=True).loc[[3, 1]].reset_index(drop=True)
    assert few.equals(full)
    assert len(result.some([0])) == result.layers + 1
    assert few.attrs == table.attrs


def test_unreadable_or_too_many_texts_raise_before_the_model_runs(
    double_family: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = double_family("bert")
    ask = CorpusTokenMap().of
    with pytest.raises(EmptyTextError, match="There is no text"):
        ask(checkpoint, [" "])
    with pytest.raises(TextError, match=r"Line 2: .* tokens, but this model accepts"):
        ask(checkpoint, ["One", "word " * 5000])
    with pytest.raises(TextError, match="Pass a list of texts"):
        ask(checkpoint, "One text")

    def refused(*_args: object, **_more: object) -> None:
        raise AssertionError("the model runs")

    monkeypatch.setattr(token_map, "forward", refused)
    monkeypatch.setattr(token_map, "MAX_BYTES", 1000)
    with pytest.raises(
        TextError, match=r"The vectors of \d+ tokens in \d layers need .* MB, but the limit is"
    ):
        ask(checkpoint, TEXTS)
    monkeypatch.undo()
    monkeypatch.setattr(token_map, "forward", refused)
    monkeypatch.setattr(lengths, "_task_bytes", 1000)
    with pytest.raises(TextError, match=r"layers need .* MB, but the limit is 0 MB"):
        ask(checkpoint, TEXTS)


def test_map_can_be_canceled(
    double_family: Callable[[str], Checkpoint],
) -> None:
    result: list[tuple[int, int]] = []
    CorpusTokenMap().of(double_family("bert"), TEXTS, progress=lambda *update: result.append(update))
    assert result[0] == (0, 3)
    assert result.count((3, 3)) > 1, "progress restarts for each layer that is laid out"

    def end(done: int, total: int) -> None:
        if done == total:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        CorpusTokenMap().of(double_family("bert"), TEXTS, progress=end)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["map"], "Missing argument 'TEXT_A'"),
        (["corpus-map"], "Pass a FILE of sentences, or a table of labeled texts with --labeled"),
        (
            ["corpus-map", "texts.txt", "--labeled", "texts.txt"],
            "FILE and --labeled cannot be combined. Omit one of the two.",
        ),
        (
            ["corpus-map", "--labeled", "texts.txt", "--column", "text"],
            "--column applies to FILE only. Omit --column.",
        ),
        (["map", "text", "--column", "text"], "No such option '--column'"),
        (["corpus-map", "texts.txt", "--pair", "text"], "No such option '--pair'"),
        (
            ["map", "text", "other", "--pair", "third"],
            "TEXT_B and --pair cannot be combined. Omit one of the two.",
        ),
        (["map", "text", "--basis", "some"], "'some' is not one of"),
    ],
)
def test_command_rejects_conflicting_options(
    words: list[str], message: str, minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("One\nTwo\n", encoding="utf-8")
    assert message in command(*words, built_in=minilm).refusal


def test_map_has_shared_mean_and_explained_variance(minilm: Checkpoint) -> None:
    result = TokenMap().of(minilm.trace(TEXTS[0]))
    facts = result.provenance["facts"]
    assert sum(facts["explained_variance"]) < 1
    assert len(facts["explained_variance_by_layer"]) == 7
    assert isinstance(
        TokenMap().of(minilm.trace("boat")).metadata["explained_variance_by_layer"][0][0], type(None)
    )
