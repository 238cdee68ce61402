"""Test linear CKA: hand-computed cases, parity with Gram matrices and raw transformers, and invariants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_probe import LayerSimilarity
from bert_probe.analyses.comparison import model_similarity
from bert_probe.analyses.comparison.model_similarity import linear_cka
from bert_probe.errors import ShapeError, TextError, TooLongError, UnavailableError
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from tests.helpers import families
from tests.helpers.changed import changed_checkpoint, changed_folder
from tests.helpers.exactness import assert_exact
from tests.helpers.gate import examples
from tests.helpers.raw import Raw

Opened = Callable[[str], Checkpoint]
SENTENCES = families.SENTENCES[:5]


def test_cka_equals_hand_computation() -> None:
    # In one dimension, CKA is the squared correlation. The correlation of (1, -1, 0) and (1, 0, -1) is ½.
    assert linear_cka(np.array([[4.0], [2.0], [3.0]]), np.array([[1.0], [0.0], [-1.0]])) == pytest.approx(
        0.25
    )
    # XᵀX = 2 I has the Frobenius norm √8, YᵀY = 2, and YᵀX = (2, 0) has the squared norm 4.
    x = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert linear_cka(x, x[:, :1]) == pytest.approx(4 / (8**0.5 * 2))
    assert linear_cka(x[:, :1], x[:, 1:]) == 0


def by_examples(x: np.ndarray, y: np.ndarray) -> float:
    """Return CKA from the doubly centered Gram matrices [example, example]."""
    centre = np.eye(len(x)) - 1 / len(x)
    k, m = (centre @ (item @ item.T) @ centre for item in (x, y))
    return float((k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum()))


@given(st.integers(0, 10_000), st.integers(3, 12), st.integers(1, 5), st.integers(1, 5))
@settings(deadline=None, max_examples=examples(40))
def test_cka_is_invariant_to_rotation_and_scale(seed: int, examples: int, wide: int, narrow: int) -> None:
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(examples, wide)), random.normal(size=(examples, narrow))
    value = linear_cka(x, y)
    assert_exact(np.float64(value), by_examples(x, y))
    assert 0 <= value <= 1
    turn, _ = np.linalg.qr(random.normal(size=(wide, wide)))
    for other in (x @ turn, x * 1e-150, x * -3e140, x + random.normal(size=wide), x[:, ::-1]):
        assert_exact(np.float64(linear_cka(other, y)), value)
    order = random.permutation(examples)
    assert_exact(np.float64(linear_cka(x[order], y[order])), value)
    assert_exact(np.float64(linear_cka(y, x)), value)
    assert linear_cka(x, x) == 1
    assert_exact(np.float64(linear_cka(x, x @ turn * 7)), 1)


def test_constant_rows_are_nan_and_unequal_shapes_raise() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3))
    assert np.isnan(linear_cka(x, np.full((4, 2), 0.1)))
    with pytest.raises(ShapeError, match="must be matrices with the same number of rows"):
        linear_cka(x, x[:3])


def test_layer_similarity_equals_raw_models(
    double_family: Opened, family_folder: Callable[[str], Path]
) -> None:
    a = double_family("bert")
    b = changed_checkpoint(a)
    keep_float64(b.model)
    states = []
    for side, folder in ((a, family_folder("bert")), (b, changed_folder(family_folder("bert")))):
        raw = Raw(folder, "float64")
        outputs = [(raw.run(side.encode(text)).hidden_states, side.encode(text)) for text in SENTENCES]
        states.append(
            [
                np.concatenate(
                    [
                        hidden[layer][0][[not token.special for token in read.tokens]].numpy()
                        for hidden, read in outputs
                    ]
                )
                for layer in range(4)
            ]
        )
    result = LayerSimilarity().of(a, b, SENTENCES)
    assert_exact(result.cka, [[by_examples(x, y) for y in states[1]] for x in states[0]])
    assert result.examples == len(states[0][0])
    assert result.cka.max() < 1
    table = result.table()
    assert list(table) == ["layer_a", "layer_b", "cka"]
    assert table["cka"].tolist() == result.cka.ravel().tolist()
    assert result.finding.startswith(f"Layer {np.diagonal(result.cka).argmin()} changed most")


def test_tokens_are_sampled_by_the_seed(family: Opened) -> None:
    a, b = family("bert"), changed_checkpoint(family("bert"))
    few = [LayerSimilarity(examples=20, seed=seed).of(a, b, SENTENCES) for seed in (0, 0, 1)]
    assert [item.examples for item in few] == [20, 20, 20]
    assert np.array_equal(few[0].cka, few[1].cka)
    assert not np.allclose(few[0].cka, few[2].cka)
    assert np.array_equal(LayerSimilarity(examples=20).of(a, a, SENTENCES).cka.diagonal(), np.ones(4))


def test_progress_is_reported_and_can_cancel(family: Opened) -> None:
    a, b = family("bert"), changed_checkpoint(family("bert"))
    observed: list[tuple[int, int]] = []
    LayerSimilarity().of(a, b, SENTENCES, progress=lambda done, total: observed.append((done, total)))
    assert observed[-1] == (2 * len(SENTENCES) + 16, 2 * len(SENTENCES) + 16)

    class StopError(Exception):
        pass

    def stop(done: int, _total: int) -> None:
        if done > 2 * len(SENTENCES):
            raise StopError

    with pytest.raises(StopError):
        LayerSimilarity().of(a, b, SENTENCES, progress=stop)


def test_incomparable_texts_raise_errors(family: Opened) -> None:
    a, b = family("bert"), changed_checkpoint(family("bert"))
    with pytest.raises(TextError, match="have only one"):
        LayerSimilarity().of(a, b, ["we"])
    with pytest.raises(TextError, match="no sentence"):
        LayerSimilarity().of(a, b, [" "])
    long = "we had left " * 60
    with pytest.raises(TooLongError, match="Line 2"):
        LayerSimilarity().of(a, b, ["we left", long])
    result = LayerSimilarity().of(a, b, ["we left", long], truncate=True)
    assert result.provenance["tokens_dropped"] == 182 - 160


def test_memory_is_reserved_and_limited_on_public_server(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float64 vectors of 20 tokens after 7 layers, of one model if both are the same."""
    size = 8 * 20 * 7 * 384
    sizes: list[int] = []

    @contextmanager
    def reserve(size: int, *_texts: str) -> Iterator[None]:
        sizes.append(size)
        yield

    monkeypatch.setattr(model_similarity, "reserved_memory", reserve)
    question = LayerSimilarity(examples=20)
    sentences = [f"The boat crosses the {word}" for word in ("river", "sea", "lake", "bay", "sound")]
    monkeypatch.setattr(lengths, "_task_bytes", size)
    assert question.of(minilm, minilm, sentences).examples == 20
    assert sizes == [size]
    monkeypatch.setattr(lengths, "_task_bytes", size - 1)
    with pytest.raises(UnavailableError, match=r"20 tokens need 0 MB, but this server allows 0 MB\. Use"):
        question.of(minilm, minilm, sentences)
