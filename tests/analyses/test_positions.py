"""Test position encodings: parity with raw models, and hand-computed measures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_probe import AttentionSteps, Positions, load
from bert_probe.analyses.weights import positions
from bert_probe.analyses.weights.positions import (
    count_directions,
    mean_cosines,
    position_table,
    sinusoids,
    spectrum,
)
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.views import heatmaps
from tests.helpers.exactness import assert_exact
from tests.helpers.families import build

Family = Callable[[str], Checkpoint]

LEARNED = ("cosines", "distance", "spectrum", "table")


# ---------------------------------------------------------------- hand-computed cases


def test_sinusoids_equal_hand_computation() -> None:
    small = 1 / 10_000 ** (2 / 4)
    expected = [
        [0, 1, 0, 1],
        [np.sin(1), np.cos(1), np.sin(small), np.cos(small)],
        [np.sin(2), np.cos(2), np.sin(2 * small), np.cos(2 * small)],
    ]
    assert_exact(sinusoids(3, 4), np.array(expected))
    assert sinusoids(2, 3).shape == (2, 3)


def test_spectrum_equals_hand_computation() -> None:
    square = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    assert_exact(spectrum(square + 7), np.array([0.5, 0.5]))
    line = np.arange(5)[:, None] * np.array([1.0, 2, 3])
    assert_exact(spectrum(line), np.array([1.0, 0, 0]))
    assert spectrum(np.ones((3, 2))).tolist() == [0, 0]
    assert [
        count_directions(np.array([0.5, 0.4, 0.1])),
        count_directions(np.array([1.0, 0])),
        count_directions(np.array([0.6, 0.4])),
    ] == [
        2,
        1,
        2,
    ]


def test_mean_by_distance_equals_hand_computation() -> None:
    vectors = np.array([[1.0, 0], [0.6, 0.8], [0, 2]])
    assert_exact(mean_cosines(vectors), np.array([1, 0.7, 0]))


@pytest.mark.parametrize("block", [1, 20, 60, 100])
def test_mean_by_distance_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(10, 4))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = [np.diagonal(unit @ unit.T, distance).mean() for distance in range(10)]
    monkeypatch.setattr(positions, "_BLOCK_COSINES", block)
    assert_exact(mean_cosines(vectors), np.array(expected))


def test_cosine_of_sinusoids_is_mean_cosine_of_distance() -> None:
    table, frequencies = sinusoids(9, 6), 1 / 10_000 ** (np.arange(3) * 2 / 6)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    apart = np.arange(9)
    expected = np.cos((apart[:, None] - apart)[..., None] * frequencies).mean(axis=-1)
    assert_exact(unit @ unit.T, expected)


# ---------------------------------------------------------------- learned position embeddings


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "distilbert", "electra", "albert", "mpnet", "xlm-roberta"]
)
def test_learned_positions_equal_rows_added_by_model(name: str, family: Family) -> None:
    checkpoint = family(name)
    result = Positions().of(checkpoint)
    assert result.available[:4] == LEARNED
    rows: list[torch.Tensor] = []
    module = checkpoint.model.embeddings.position_embeddings
    hook = module.register_forward_hook(lambda _module, _args, output: rows.append(output.detach()))
    encoding = checkpoint.encode("A small boat crosses the wide river at night.")
    try:
        checkpoint.trace_encodings([encoding])
    finally:
        hook.remove()
    table = result.position_table
    assert len(table.vectors) == result.positions == checkpoint.description.max_tokens
    assert np.array_equal(table.vectors[: len(encoding)], rows[0].reshape(-1, table.vectors.shape[1]).numpy())
    assert result.sinusoids.shape == table.vectors.shape


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("bart", "embed_positions"),
        ("biogpt", "embed_positions"),
        ("blenderbot", "embed_positions"),
        ("clip_text_model", "embeddings.position_embedding"),
        ("gpt2", "wpe"),
        ("openai-gpt", "positions_embed"),
        ("opt", "decoder.embed_positions"),
    ],
)
def test_tables_with_other_names_equal_rows_added_by_model(name: str, path: str, tmp_path: Path) -> None:
    build(name, tmp_path)
    checkpoint = load(tmp_path)
    rows: list[torch.Tensor] = []
    module = checkpoint.model.get_submodule(path)
    hook = module.register_forward_hook(lambda _module, _args, output: rows.append(output.detach()))
    encoding = checkpoint.encode("A small boat crosses the wide river.")
    try:
        checkpoint.trace_encodings([encoding])
    finally:
        hook.remove()
    result = Positions().of(checkpoint)
    table = result.position_table.vectors
    assert result.available == LEARNED
    assert len(table) == result.positions == 160
    assert np.array_equal(table[: len(encoding)], rows[0].reshape(-1, table.shape[1]).numpy())


@pytest.mark.parametrize("name", ["t5", "switch_transformers"])
def test_bias_of_t5_equals_that_of_model(name: str, tmp_path: Path) -> None:
    build(name, tmp_path)
    checkpoint = load(tmp_path)
    result = Positions().of(checkpoint)
    assert result.available == ("bias",)
    assert result.bias is not None
    attention: list[Any] = []
    blocks = getattr(checkpoint.model, "encoder", checkpoint.model).block
    hook = (
        blocks[-1]
        .layer[0]
        .SelfAttention.register_forward_hook(
            lambda _module, _args, output: attention.append(output[1].detach())
        )
    )
    encoding = checkpoint.encode("A small boat crosses the wide river.")
    try:
        checkpoint.trace_encodings([encoding])
    finally:
        hook.remove()
    size = len(encoding)
    distances = np.arange(size)[None, :] - np.arange(size)[:, None] + result.positions - 1
    assert np.array_equal(result.bias.values[:, distances], attention[0][0, :, :size, :size].numpy())


@pytest.mark.parametrize("name", ["marian", "umt5"])
def test_fixed_positions_and_biases_of_single_layers_are_refused(name: str, tmp_path: Path) -> None:
    build(name, tmp_path)
    with pytest.raises(UnavailableError, match="that can be shown"):
        Positions().of(load(tmp_path))


def test_tables_of_built_in_model_equal_numpy(minilm: Checkpoint) -> None:
    result = Positions().of(minilm)
    assert result.question.show == "cosines"
    table = minilm.model.embeddings.position_embeddings.weight.detach().double()
    unit = (table / table.norm(dim=1, keepdim=True)).numpy()
    expected = unit @ unit.T
    np.testing.assert_allclose(result.table().to_numpy(), expected, rtol=0, atol=4e-7)
    centred = (table - table.mean(dim=0)).numpy()
    values = np.linalg.eigvalsh(centred.T @ centred)[::-1]
    spectra = result.showing(show="spectrum").table()
    assert spectra["direction"].tolist() == [*range(1, len(values) + 1)]
    np.testing.assert_allclose(spectra["learned"], values / values.sum(), rtol=0, atol=1e-12)
    assert spectra[["learned", "sinusoids"]].sum().tolist() == pytest.approx([1, 1], abs=1e-12)
    distance = result.showing(show="distance").table()
    assert distance["learned"][5] == pytest.approx(np.diagonal(expected, 5).mean(), abs=4e-7)
    assert result.metadata["off_sinusoids"] > 0.5
    assert result.showing(show="table").table().shape == (512, 384)
    with pytest.raises(
        UnavailableError, match=r"has no position table “bias”\. Choose one of cosines, distance"
    ):
        result.showing(show="bias")


def test_sinusoidal_table_is_detected(family: Family) -> None:
    model = family("bert").model
    with torch.no_grad():
        indices = model.embeddings.position_embeddings.weight.clone()
        model.embeddings.position_embeddings.weight.copy_(torch.from_numpy(sinusoids(160, 32).copy()))
        result = position_table(model, 160)
        model.embeddings.position_embeddings.weight.copy_(indices)
    assert result is not None
    assert result.sinusoid_difference < 1e-7


# ---------------------------------------------------------------- other position encodings


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cohere2", {"layer_types": ["sliding_attention"] * 2 + ["full_attention"], "sliding_window": 8}),
        ("exaone4", {"layer_types": ["sliding_attention"] * 2 + ["full_attention"], "sliding_window": 8}),
        ("smollm3", {"no_rope_layers": [1, 1, 0]}),
    ],
)
def test_layers_without_rotary_embeddings_are_not_listed(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """The attention of a layer depends on the frequencies exactly if the layer rotates."""
    build(name, tmp_path, **changes)
    checkpoint = load(tmp_path)
    (rotary,) = Positions().of(checkpoint).rotary
    text = "A small boat crosses the wide river at night."
    assert (rotary.name, rotary.layers) == ("rotary", (0, 1))
    inputs: list[dict[str, Any]] = []
    modules = [layer.self_attn for layer in checkpoint.model.layers]
    hooks = [
        module.register_forward_pre_hook(
            lambda _module, _args, kwargs: inputs.append(kwargs), with_kwargs=True
        )
        for module in modules
    ]
    checkpoint.trace(text)
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for layer, (module, kwargs) in enumerate(zip(modules, inputs, strict=True)):
            cosines, sines = kwargs["position_embeddings"]
            turned = {**kwargs, "position_embeddings": (cosines.flip(1), sines.flip(1))}
            is_equal = torch.equal(module(**kwargs)[0], module(**turned)[0])
            assert is_equal == (layer not in rotary.layers)


def test_equal_frequencies_of_layer_types_are_one_rotary_embedding(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 160_000.0}
    build("modernbert", tmp_path, rope_parameters={"full_attention": rope, "sliding_attention": rope})
    (rotary,) = Positions().of(load(tmp_path)).rotary
    assert (rotary.name, rotary.layers) == ("rotary", (0, 1, 2))


def test_falcon_with_a_bias_has_no_rotary_embeddings(tmp_path: Path) -> None:
    build("falcon", tmp_path, alibi=True)
    with pytest.raises(UnavailableError, match="that can be shown"):
        Positions().of(load(tmp_path))


@pytest.mark.parametrize("name", ["nomic_bert", "eurobert", "gte", "jina_embeddings_v3", "modernbert"])
def test_rotary_frequencies_equal_those_of_model(name: str, family: Family) -> None:
    checkpoint = family(name)
    result = Positions().of(checkpoint)
    assert result.question.show == "frequencies"
    module = next(item for part, item in checkpoint.model.named_modules() if part.endswith("rotary_emb"))
    places = torch.arange(7)[None]
    for item in result.rotary:
        kinds = [] if item.name == "rotary" else [item.name.replace(" ", "_")]
        cosines, sines = module(torch.zeros(1, 7, 4, dtype=torch.float32), places, *kinds)
        angles = np.arange(7)[:, None] * item.frequencies
        half = cosines.shape[-1] // 2
        np.testing.assert_allclose(cosines[0, :, :half].numpy(), np.cos(angles), rtol=0, atol=1e-6)
        np.testing.assert_allclose(sines[0, :, :half].numpy(), np.sin(angles), rtol=0, atol=1e-6)
        assert_exact(item.wavelengths * item.frequencies, np.full(half, 2 * np.pi))
        assert item.rotated_cosines(np.array([0])).tolist() == [1]
    assert sorted(layer for item in result.rotary for layer in item.layers) == [0, 1, 2]
    assert len(result.table()) == sum(len(item.frequencies) for item in result.rotary)


@pytest.mark.parametrize("name", ["gptj", "codegen"])
def test_frequencies_of_models_with_a_table_of_angles(name: str, tmp_path: Path) -> None:
    build(name, tmp_path)
    checkpoint = load(tmp_path)
    (rotary,) = Positions().of(checkpoint).rotary
    assert (rotary.name, rotary.layers) == ("rotary", (0, 1, 2))
    size = checkpoint.model.config.rotary_dim
    np.testing.assert_allclose(rotary.frequencies, 10_000.0 ** (-np.arange(0, size, 2) / size), rtol=1e-6)
    assert AttentionSteps(1, 0, 2).of(checkpoint.trace("A small boat")).rotary


def test_frequencies_of_roformer_are_those_of_its_sines_and_cosines(family: Family) -> None:
    checkpoint = family("roformer")
    result = Positions().of(checkpoint)
    assert result.available == ("frequencies", "distance")
    (rotary,) = result.rotary
    np.testing.assert_allclose(rotary.frequencies, 10_000.0 ** (-np.arange(0, 8, 2) / 8), rtol=1e-6)
    assert rotary.layers == (0, 1, 2)
    table = checkpoint.model.encoder.embed_positions.weight.detach().numpy()
    angles = np.arange(7)[:, None] * rotary.frequencies
    np.testing.assert_allclose(table[:7], np.concatenate([np.sin(angles), np.cos(angles)], axis=1), atol=1e-5)


def test_local_and_global_layers_have_separate_frequencies(family: Family) -> None:
    full, sliding = Positions().of(family("modernbert")).rotary
    assert (full.name, full.layers) == ("full attention", (0,))
    assert (sliding.name, sliding.layers) == ("sliding attention", (1, 2))
    assert full.wavelengths[-1] > sliding.wavelengths[-1]


def test_relative_bias_equals_that_of_model(family: Family) -> None:
    checkpoint = family("mpnet")
    result = Positions("bias").of(checkpoint)
    length = 90
    added = checkpoint.model.encoder.compute_position_bias(torch.zeros(1, length, 1)).detach().numpy()[0]
    assert result.bias is not None
    by_distance = dict(zip(result.bias.distances.tolist(), result.bias.values.T, strict=True))
    for query in range(0, length, 7):
        for key in range(length):
            assert np.array_equal(added[:, query, key], by_distance[key - query])
    assert list(result.table())[:3] == ["distance", "head_1", "head_2"]


def test_relative_vectors_equal_rows_read_by_model(family: Family) -> None:
    checkpoint = family("deberta-v2")
    result = Positions().of(checkpoint)
    assert result.available == ("relative",)
    assert result.relative is not None
    vectors = checkpoint.model.encoder.get_rel_embedding().detach().numpy()
    apart = checkpoint.model.encoder.get_rel_pos(torch.zeros(1, 60, 1))[0].numpy()
    for query, key in ((0, 0), (3, 10), (10, 3), (0, 59), (59, 0)):
        row = vectors[apart[query, key] + 16]
        own = [
            place for place, (low, high) in enumerate(result.relative.distances) if low <= key - query <= high
        ]
        assert len(own) == 1
        assert np.array_equal(result.relative.vectors[own[0]], row)
    assert "0" in result.table().columns


def test_model_without_position_encodings_raises(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = family("bert")
    monkeypatch.setattr("bert_probe.analyses.weights.positions.position_table", lambda *_: None)
    with pytest.raises(UnavailableError, match="BertModel has no position embeddings, rotary embeddings"):
        Positions().of(checkpoint)


def test_frequencies_do_not_depend_on_earlier_texts(tmp_path: Path) -> None:
    """With LongRoPE, transformers changes the frequencies of a model for long texts."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0}
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": 20,
        **factors,
    }
    build("llama", tmp_path, rope_parameters=rope)
    checkpoint = load(tmp_path)
    before = Positions().of(checkpoint).rotary[0].frequencies
    checkpoint.trace("a boat " * 30)
    assert np.array_equal(Positions().of(checkpoint).rotary[0].frequencies, before)


def test_heatmap_of_many_positions_has_some_of_them(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Positions().of(minilm)
    assert len(result.position_table.vectors) == 512
    learned, fixed = heatmaps.position_heatmaps(result)
    assert learned.values.shape == (512, 512)
    assert ", positions" not in learned.drawing["caption"]
    monkeypatch.setattr(heatmaps, "_MAX_POSITIONS", 100)
    for whole, part in zip((learned, fixed), heatmaps.position_heatmaps(result), strict=True):
        assert part.rows == part.columns == [str(position) for position in range(0, 512, 6)]
        assert part.drawing["caption"].endswith(", positions 0, 6, 12, …")
        assert np.allclose(part.values, whole.values[::6, ::6], rtol=0, atol=1e-6)
