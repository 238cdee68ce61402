"""Test questions about causal models and about architectures other than BERT."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import bert_probe
from bert_probe import (
    AttentionSteps,
    HeadConfidence,
    Heads,
    HiddenStates,
    Search,
    Sentences,
    Similarity,
    Tokens,
)
from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.heads import MEASURES, max_entropy_bits
from bert_probe.analyses.vectors.pooling import available_poolings
from bert_probe.corpus.head_batch import Units, measure_batch
from bert_probe.errors import ArchitectureError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import batch, run_with_capture
from bert_probe.model.trace import CAUSAL
from tests.helpers import families
from tests.helpers.command_line import bert_probe as run
from tests.helpers.exactness import assert_exact
from tests.helpers.families import MORE_FAMILIES, PAIR, TEXT
from tests.helpers.gate import prove_unless

Checkpoints = Callable[[str], Checkpoint]
NEW = sorted(MORE_FAMILIES)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", prove_unless({"qwen3", "t5", "gemma3_text", "embeddinggemma"}, NEW))
def test_tokens_steps_and_similarity(name: str, double_family: Checkpoints) -> None:
    checkpoint = double_family(name)
    trace = checkpoint.trace(TEXT)
    assert len(Tokens().of(trace).table()) == len(trace.tokens)
    cosines = Similarity().of(trace).table()
    assert np.isfinite(cosines.select_dtypes("number").to_numpy()).all()
    for layer in range(trace.layers):
        steps = AttentionSteps(layer, 1).of(trace)
        assert steps.difference < 1e-10
        later = len(trace.tokens) - 1 - steps.query
        assert not MORE_FAMILIES[name].is_causal or steps.forbidden >= later
        assert (steps.metadata.get("note") == CAUSAL) == MORE_FAMILIES[name].is_causal
    if MORE_FAMILIES[name].is_causal:
        assert Attention().of(trace).metadata["note"] == CAUSAL


@pytest.mark.parametrize("name", prove_unless({"qwen3", "t5"}, NEW))
def test_commands(name: str, family: Checkpoints, family_folder: Callable[[str], Path]) -> None:
    folder = str(family_folder(name))
    opened = {folder: family(name)}
    for command in ("tokens", "steps", "similarity"):
        result = run(command, TEXT, "--model", folder, checkpoints=opened)
        assert len(result.rows) > 2


def test_vectors_that_exceed_the_data_type_are_refused(tmp_path: Path) -> None:
    """Finite weights can lead to hidden states that are not finite, and so to empty cells."""
    families.build("bert", tmp_path)
    word = bert_probe.load(tmp_path).encode("boat").ids[1]
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][word] *= 1e30
    save_file(tensors, file, {"format": "pt"})
    checkpoint = bert_probe.load(tmp_path)
    message = "hidden states that are not finite numbers"
    with pytest.raises(ArchitectureError, match=message):
        checkpoint.trace("a boat")
    for question in (Sentences("mean"), Search("a boat")):
        with pytest.raises(ArchitectureError, match=message):
            question.of(checkpoint, ["a boat", "a ship"])


def test_weights_that_are_not_numbers_name_the_settings(tmp_path: Path) -> None:
    families.build("llama", tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 0.0})
    with pytest.raises(
        ArchitectureError, match=r"are not finite numbers\. Check settings such as sliding_window"
    ):
        bert_probe.load(tmp_path).trace(TEXT)


def test_entropy_of_a_causal_query_is_relative_to_the_keys_before_it(double_family: Checkpoints) -> None:
    trace = double_family("qwen3").trace(TEXT, PAIR)
    values = Heads().of(trace).values
    count = len(trace.tokens)
    largest = np.mean([math.log2(position + 1) for position in range(count)])
    weights = trace.attention(1)
    entropies = -np.sum(weights * np.log2(np.where(weights > 0, weights, 1)), axis=-1).mean(axis=-1)
    assert_exact(values["relative_entropy"][1], entropies / largest)
    assert (values["next"] == 0).all()
    assert max_entropy_bits(4, 4, is_causal=True) == pytest.approx((0 + 1 + math.log2(3) + 2) / 4)
    assert max_entropy_bits(4, 4, is_causal=False) == 2
    assert max_entropy_bits(1, 1, is_causal=True) == max_entropy_bits(1, 1, is_causal=False) == 1


def test_heads_of_many_texts_equal_those_of_one(double_family: Checkpoints) -> None:
    checkpoint = double_family("qwen3")
    encodings = [checkpoint.encode(text) for text in (TEXT, PAIR)]
    with checkpoint.running() as model:
        _, calls = run_with_capture(checkpoint, model, batch(checkpoint, encodings))
        measured = measure_batch(calls, Units.of_tokens(encodings), is_causal=True)
    for index, text in enumerate((TEXT, PAIR)):
        values = Heads().of(checkpoint.trace(text)).values
        for number, name in enumerate(MEASURES):
            np.testing.assert_allclose(measured.measures[number, index], values[name], rtol=0, atol=1e-10)


def test_confidence_leaves_out_the_first_query_of_a_causal_model(double_family: Checkpoints) -> None:
    trace = double_family("gpt2").trace("the river")
    positions = [token.position for token in trace.tokens]
    expected = trace.attention(0)[:, positions[1:]].max(axis=-1).mean(axis=-1)
    assert_exact(HeadConfidence(specials=True).of(trace).confidence[0], expected)


def test_causal_model_is_pooled_by_its_last_token(double_family: Checkpoints) -> None:
    checkpoint = double_family("qwen3")
    assert available_poolings(checkpoint) == ("last", "mean", "max")
    vectors = Sentences("last").of(checkpoint, [TEXT, PAIR]).vectors
    for vector, text in zip(vectors, (TEXT, PAIR), strict=True):
        assert_exact(vector, checkpoint.trace(text).vectors(-1)[-1])
    assert double_family("bert").trace(TEXT).cls is not None
    assert checkpoint.trace(TEXT).tokens[0].special
    with pytest.raises(UnavailableError, match=r"has no \[CLS\] token that attends to the whole text"):
        HiddenStates(which="cls").of(checkpoint.trace(TEXT))
    with pytest.raises(UnavailableError, match=r"has no \[CLS\] token that attends to the whole text"):
        Sentences("cls").of(checkpoint, [TEXT, PAIR])
    with pytest.raises(UnavailableError, match="applies only to decoders, which read from left to right"):
        Sentences("last").of(double_family("bert"), [TEXT, PAIR])
