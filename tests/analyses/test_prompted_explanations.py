"""Test explanations of scores with prompts and truncated vectors, checked against sentence-transformers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe import (
    ActivationPatching,
    Attribution,
    AttributionFaithfulness,
    HeadAttribution,
    SentenceSimilarity,
    SimilarityAttribution,
)
from bert_probe.analyses.attribution.attribution import _directional_derivative
from bert_probe.errors import SelectionError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from bert_probe.views.contributions import similarity_attribution_heatmap
from bert_probe.views.heatmaps import attribution_heatmap, patching_heatmap
from tests.helpers import sentence_models
from tests.helpers.exactness import assert_exact
from tests.helpers.gate import prove_unless

PAIR = ("a boat on the river", "the night was dark")
OPTIONS: dict[str, Any] = {"prompt": "query", "pair_prompt": "passage", "dimensions": 12}
LAYOUTS = ("no prompt pooled", "router", "dense gelu")


@pytest.fixture(scope="module")
def opened(family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a factory that maps a layout to the float64 models of BERT Probe and sentence-transformers."""
    root, models = tmp_path_factory.mktemp("prompted"), {}

    def open_layout(name: str) -> tuple[Checkpoint, Any]:
        if name not in models:
            folder = sentence_models.save(name, family_folder("bert"), root / name.replace(" ", "-"))
            checkpoint = bert_probe.load(folder, dtype="float64")
            keep_float64(checkpoint.model)
            models[name] = checkpoint, sentence_models.reference(folder, "float64")
        return models[name]

    return open_layout


def _options(name: str) -> dict[str, Any]:
    second = {"no prompt pooled": "passage", "router": "document", "dense gelu": "none"}[name]
    return OPTIONS | {"pair_prompt": second} | ({"prompt": "none"} if second == "none" else {})


def _score(model: Any, options: dict[str, Any], removed: Sequence[int] = ()) -> float:
    """Return the score of `PAIR`, with some tokens of the first text left out."""
    size = options["dimensions"]
    first = _vector(model, PAIR[0], options["prompt"], removed)[:, :size]
    second = _vector(model, PAIR[1], options["pair_prompt"])[:, :size]
    return float(model.similarity(first, second)[0, 0])


@pytest.mark.prove
@pytest.mark.parametrize("name", prove_unless({"router"}, LAYOUTS))
def test_explained_score_equals_sentence_transformers(name: str, opened: Any) -> None:
    checkpoint, model = opened(name)
    traces, options = [checkpoint.trace(text) for text in PAIR], _options(name)
    expected = _score(model, options)
    pairs = SimilarityAttribution(steps=48, **options).of(*traces)
    assert pairs.score == pytest.approx(expected, abs=1e-10)
    assert pairs.off < 0.02
    assert HeadAttribution(**options).of(*traces).value == pytest.approx(expected, abs=1e-10)
    removed = Attribution(words=True, **options).of(*traces)
    assert removed.value == pytest.approx(expected, abs=1e-10)
    scored = [index for index, change in enumerate(removed.scores) if not np.isnan(change)]
    assert len(scored) == len(PAIR[0].split())
    assert not set(scored) & set(removed.prompt_units)
    for index in scored:
        score = _score(model, options, removed=removed.units[index].positions)
        assert expected - removed.scores[index] == pytest.approx(score, abs=1e-10)


def _vector(model: Any, text: str, prompt: str, removed: Sequence[int] = ()) -> torch.Tensor:
    """Return the vector of a text with some tokens left out, computed with sentence-transformers' modules."""
    name = None if prompt == "none" else prompt
    features = model.preprocess([text], prompt=model.prompts.get(prompt, ""), task=name)
    for key in ("input_ids", "attention_mask", "token_type_ids"):
        if key in features:
            features[key] = torch.tensor(np.delete(features[key].numpy(), removed, axis=1))
    vector: torch.Tensor = model(features, task=name)["sentence_embedding"].detach()
    return vector


def test_integrated_gradients_equal_autograd_through_sentence_transformers(opened: Any) -> None:
    checkpoint, model = opened("no prompt pooled")
    traces, options = [checkpoint.trace(text) for text in PAIR], _options("no prompt pooled")
    result = Attribution(method="integrated-gradients", **options).of(*traces)
    features = model.preprocess([PAIR[0]], prompt=model.prompts["query"])
    ids, encoder = features["input_ids"], model[0].auto_model
    table = encoder.get_input_embeddings()
    baseline = torch.zeros_like(ids)  # [PAD] has the id 0; [CLS] and [SEP] are restored below
    baseline[:, [0, -1]] = ids[:, [0, -1]]
    end, start = table(ids).detach(), table(baseline).detach()
    other = _vector(model, PAIR[1], "passage")[:, :12]
    points, weights = np.polynomial.legendre.leggauss(result.said["steps"])
    expected = torch.zeros(ids.shape[1], dtype=torch.float64)
    # captum rounds the quadrature weights to float32.
    for point, weight in zip((points + 1) / 2, (weights / 2).astype(np.float32).tolist(), strict=True):
        inputs = (start + point * (end - start)).requires_grad_()
        states = encoder(inputs_embeds=inputs, attention_mask=features["attention_mask"])
        pooled = model[1](features | {"token_embeddings": states.last_hidden_state})["sentence_embedding"]
        score = torch.nn.functional.cosine_similarity(pooled[:, :12], other)
        (gradient,) = torch.autograd.grad(score.sum(), inputs)
        expected += weight * (gradient * (end - start)).sum(dim=-1)[0]
    np.testing.assert_allclose(result.scores, expected.numpy(), rtol=1e-10, atol=1e-12)


def test_tokens_of_the_prompt_are_marked_and_not_removed(opened: Any) -> None:
    checkpoint, _ = opened("no prompt pooled")
    traces, options = [checkpoint.trace(text) for text in PAIR], _options("no prompt pooled")
    result = AttributionFaithfulness(orders=2, **options).of(*traces)
    explanation = result.explanations["leave-one-out"]
    prompt = explanation.metadata["prompt_positions"]
    assert prompt[0] == 1
    assert np.isnan(explanation.scores[prompt]).all()
    names = attribution_heatmap([*result.explanations.values()]).columns
    assert [name.startswith("prompt: ") for name in names].count(True) == len(prompt)
    pairs = SimilarityAttribution(steps=2, **options).of(*traces)
    heatmap = similarity_attribution_heatmap(pairs)
    for labels, positions in zip((heatmap.rows, heatmap.columns), pairs.prompt_positions, strict=True):
        assert [label.startswith("prompt: ") for label in labels].count(True) == len(positions) > 0


def test_patching_with_a_prompt_equals_sentence_transformers(opened: Any) -> None:
    checkpoint, model = opened("no prompt pooled")
    a, b = (checkpoint.trace(text) for text in ("a boat on the river", "a boat on the night"))
    result = ActivationPatching(prompt="query", dimensions=12).of(a, b)
    vectors = [model.encode([trace.encoding.text], prompt_name="query", truncate_dim=12) for trace in (a, b)]
    assert result.nothing == pytest.approx(float(model.similarity(*vectors)[0, 0]), abs=1e-10)
    assert_exact(result.recovered_together, np.ones(len(result.together)))
    names = patching_heatmap(result).rows
    assert [name.startswith("prompt: ") for name in names].count(True) == len(result.prompt_positions) > 0
    # The checkpoint's default prompt is "query".
    assert ActivationPatching(dimensions=12).of(a, b).nothing == result.nothing
    plain = ActivationPatching(prompt="none").of(a, b)
    assert plain.prompt_positions == ()
    assert plain.nothing == pytest.approx(
        SentenceSimilarity(prompt="none", pair_prompt="none").of(a, b).score
    )
    pair = checkpoint.trace("a boat", "the night")
    with pytest.raises(TextError, match="A prompt applies to single texts"):
        ActivationPatching(prompt="query").of(pair, pair)


def test_prompts_of_another_task_raise(trained_on: Callable[[str, str], Checkpoint]) -> None:
    checkpoint = trained_on("bert", "text-classification")
    trace = checkpoint.trace(PAIR[0])
    with pytest.raises(SelectionError, match="apply to sentence-similarity only, not to text-classification"):
        Attribution(dimensions=8).of(trace)
    with pytest.raises(SelectionError, match="apply to the cosine only, not to text-classification"):
        ActivationPatching(prompt="query").of(trace, checkpoint.trace(PAIR[1]))


def test_derivatives_are_computed_by_one_thread_at_a_time() -> None:
    """Torch has one level of forward-mode differentiation for all threads, which cannot be entered twice."""
    barrier = threading.Barrier(2)
    directions = torch.eye(3).reshape(3, 1, 3)

    def vector(inputs: torch.Tensor) -> torch.Tensor:
        with suppress(threading.BrokenBarrierError):
            barrier.wait(0.2)  # both threads arrive only if they compute at the same time
        return inputs.sum(1) ** 2

    with ThreadPoolExecutor(2) as threads:
        futures = [
            threads.submit(_directional_derivative, vector, torch.ones(1, 1, 3), directions) for _ in range(2)
        ]
    for future in futures:
        np.testing.assert_array_equal(future.result(), 2 * np.eye(3))
