"""Test that the recomputed input embedding equals that of the raw model, for every architecture."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModel

import bert_probe
from bert_probe import Embedding
from bert_probe.analyses.vectors.embedding import EmbeddingResult
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from tests.helpers import families
from tests.helpers.exactness import EXACT, assert_exact, expect_raw, largest
from tests.helpers.families import PAIR, TEXT
from tests.helpers.gate import prove_unless
from tests.helpers.raw import Raw

Folders = Callable[[str], Path]
Checkpoints = Callable[[str], Checkpoint]

WITHOUT = {"mobilebert", "layoutlm"}
NAMES = sorted(set(families.FAMILIES) - WITHOUT)


def raw_embedding(raw: Raw, trace: Trace) -> np.ndarray:
    """Return the output of the raw model's embedding module, shape [token, hidden]."""
    observed: list[torch.Tensor] = []
    module = getattr(raw.model, "embeddings", None) or raw.model.get_input_embeddings()

    def hook(_module: Any, _args: Any, output: Any) -> None:
        observed.append(output[0] if isinstance(output, tuple) else output)

    handle = module.register_forward_hook(hook)
    raw.run(trace.encoding)
    handle.remove()
    return observed[0][0].numpy()


def traced(checkpoint: Checkpoint, name: str, kind: str) -> Trace:
    pad = families.FAMILIES[name].special.pad
    text = f"we had {pad} left" if kind == "padding typed" else TEXT
    trace = checkpoint.trace(text, PAIR if kind == "pair" else None)
    assert (checkpoint.tokenizer.pad_token_id in trace.encoding.ids) == (kind == "padding typed")
    return trace


@pytest.mark.parametrize(
    ("kind", "name"),
    prove_unless(
        lambda case: (
            (case[0] == "pair" and case[1] in families.REPRESENTATIVE) or case[1] in {"bert", "mpnet"}
        ),
        product(["text", "pair", "padding typed"], NAMES),
    ),
)
def test_replay_equals_embedding_of_raw_model(
    name: str, kind: str, double_family: Checkpoints, family_folder: Folders
) -> None:
    trace = traced(double_family(name), name, kind)
    anatomy = Embedding().of(trace)
    expected = raw_embedding(Raw(family_folder(name), "float64"), trace)
    last = list(anatomy.steps.values())[-1]
    assert_exact(last, expected)
    assert_exact(anatomy.model_output, expected)
    assert anatomy.difference == np.abs(last - anatomy.model_output).max() <= EXACT * largest(expected)
    present = [part for part in (anatomy.word, anatomy.position, anatomy.segment) if part is not None]
    assert_exact(sum(present), anatomy.total)
    assert {step.shape for step in anatomy.steps.values()} == {(len(trace.tokens), expected.shape[1])}
    assert not any(step.flags.writeable for step in anatomy.steps.values())


@pytest.mark.parametrize(
    ("kind", "name"),
    prove_unless(
        lambda case: case[1] in {"bert", "roberta"},
        product(["text", "pair", "padding typed"], NAMES),
    ),
)
def test_indices_are_the_rows_that_the_raw_model_reads(
    name: str, kind: str, double_family: Checkpoints, family_folder: Folders
) -> None:
    trace = traced(double_family(name), name, kind)
    raw = Raw(family_folder(name), "float64")
    module = getattr(raw.model, "embeddings", raw.model)
    tables = {
        "word": raw.model.get_input_embeddings(),
        "position": getattr(module, "position_embeddings", None),
        "segment": getattr(module, "token_type_embeddings", None),
    }
    observed: dict[str, torch.Tensor] = {}
    for part, table in tables.items():
        if table is not None:
            table.register_forward_pre_hook(lambda _, args, part=part: observed.update({part: args[0]}))
    raw.run(trace.encoding)
    indices = Embedding().of(trace).indices
    assert set(indices) == set(observed)
    for part, rows in indices.items():
        assert (rows.shape, rows.dtype) == ((len(trace.tokens),), np.dtype(np.int64))
        assert np.array_equal(rows, np.broadcast_to(observed[part].numpy(), (1, len(trace.tokens)))[0])


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", families.representative(NAMES))
def test_replay_in_float32_is_as_accurate_as_raw_model(
    name: str, family: Checkpoints, family_folder: Folders
) -> None:
    trace = traced(family(name), name, "pair")
    anatomy = Embedding().of(trace)
    raw = Raw(family_folder(name))
    expected = expect_raw(raw_embedding(raw, trace), raw_embedding(raw.twin, trace))
    expected.check(list(anatomy.steps.values())[-1])
    expected.check(anatomy.model_output)
    assert {step.dtype for step in anatomy.steps.values()} == {np.dtype(np.float32)}


ABSENT = {
    "distilbert": ["segment"],
    "mpnet": ["segment"],
    "modernbert": ["position", "segment"],
    "eurobert": ["position", "segment", "LayerNorm"],
    "deberta-v2": ["position", "segment"],
    "nomic_bert": ["position"],
    "gte": ["position"],
    "jina_embeddings_v3": ["position"],
    "xlm-roberta-xl": ["LayerNorm"],
}


@pytest.mark.gate(cases=4)
@pytest.mark.parametrize("name", NAMES)
def test_missing_steps_are_described(name: str, double_family: Checkpoints) -> None:
    checkpoint = double_family(name)
    anatomy = Embedding().of(checkpoint.trace(TEXT))
    absent = ABSENT.get(name, [])
    result = [part for part in ("word", "position", "segment", "sum", "LayerNorm") if part not in absent]
    assert list(anatomy.steps) == result
    assert len(anatomy.absent) == len(absent)
    for part, sentence in zip(absent, anatomy.absent, strict=True):
        assert part in sentence
        assert sentence.startswith(checkpoint.description.architecture)
        assert sentence.endswith(".")


def saved(folder: Path, name: str, model: Any) -> Checkpoint:
    families.randomize(model)
    model.save_pretrained(folder)
    families.save_tokenizer(name, folder)
    return bert_probe.load(folder)


def other_ways() -> dict[str, Callable[[], Any]]:
    """Return configs of models whose input embedding is not a sum of three embeddings, by tokenizer."""
    bird = {"attention_type": "original_full", "rescale_embeddings": True, "pad_token_id": 0}
    bird["vocab_size"] = families.config("bert").vocab_size
    return {
        "ernie": lambda: families.config("ernie", use_task_id=True),
        "deberta-v2": lambda: families.config("deberta-v2", embedding_size=20),
        "bert": lambda: transformers.BigBirdConfig(**families.COMMON, **bird),
    }


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("name", "reason"),
    [("ernie", "task_type_embeddings"), ("deberta-v2", "embed_proj"), ("bert", "the sum differs by")],
)
def test_unsupported_architecture_raises(name: str, reason: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, name, AutoModel.from_config(other_ways()[name]()))
    with pytest.raises(UnavailableError, match=reason):
        Embedding().of(checkpoint.trace(TEXT))


@pytest.mark.parametrize(
    ("name", "reason"), [("mobilebert", "embedding_transformation"), ("layoutlm", "x_position_embeddings")]
)
def test_unsupported_embeddings_raise(name: str, reason: str, family: Checkpoints) -> None:
    checkpoint = family(name)
    with pytest.raises(
        UnavailableError, match=rf"\(it has {reason}\), so the embedding steps cannot be shown\.$"
    ):
        Embedding().of(checkpoint.trace(TEXT))


@pytest.mark.parametrize("name", ["roberta", "camembert", "xlm-roberta", "mpnet", "xlm-roberta-xl"])
def test_roberta_positions_start_at_two(name: str, family: Checkpoints) -> None:
    checkpoint = family(name)
    anatomy = Embedding().of(checkpoint.trace(TEXT))
    table = checkpoint.model.get_submodule("embeddings.position_embeddings").weight.numpy()
    assert checkpoint.tokenizer.pad_token_id == 1
    assert np.array_equal(anatomy.position, table[2 : 2 + len(anatomy.trace.tokens)])


def test_typed_padding_token_has_no_position(family: Checkpoints) -> None:
    checkpoint = family("roberta")
    trace = checkpoint.trace("we <pad> had")
    place = trace.encoding.ids.index(1)
    anatomy = Embedding().of(trace)
    table = checkpoint.model.get_submodule("embeddings.position_embeddings").weight.numpy()
    assert np.array_equal(anatomy.position[place], table[1])
    assert np.array_equal(anatomy.position[place + 1], table[place + 2])


@pytest.mark.parametrize("name", ["bert", "electra", "albert"])
def test_bert_positions_start_at_zero_with_two_segments(name: str, family: Checkpoints) -> None:
    checkpoint = family(name)
    trace = checkpoint.trace(TEXT, PAIR)
    anatomy = Embedding().of(trace)
    weights = checkpoint.model.get_submodule("embeddings")
    assert np.array_equal(anatomy.position, weights.position_embeddings.weight[: len(trace.tokens)].numpy())
    segments = [token.segment for token in trace.tokens]
    assert set(segments) == {0, 1}
    assert np.array_equal(anatomy.segment, weights.token_type_embeddings.weight.numpy()[segments])
    assert np.array_equal(anatomy.word, weights.word_embeddings.weight.numpy()[trace.encoding.ids])


def test_sum_and_layer_norm_equal_hand_computation(tmp_path: Path) -> None:
    model = AutoModel.from_config(families.config("bert", hidden_size=4, num_attention_heads=2))
    families.randomize(model)
    rows = model.embeddings
    with torch.no_grad():
        rows.word_embeddings.weight[2] = torch.tensor([1.0, 2.0, 3.0, 4.0])  # [CLS]
        rows.position_embeddings.weight[0] = torch.tensor([0.5, 0.0, -0.5, 0.0])
        rows.token_type_embeddings.weight[0] = torch.tensor([0.5, -1.0, -0.5, 2.0])
        rows.LayerNorm.weight.copy_(torch.tensor([1.0, 2.0, 1.0, -1.0]))
        rows.LayerNorm.bias.copy_(torch.tensor([0.0, 0.0, 10.0, 0.0]))
    model.save_pretrained(tmp_path)
    families.save_tokenizer("bert", tmp_path)
    checkpoint = bert_probe.load(tmp_path, dtype="float64")
    anatomy = Embedding().of(checkpoint.trace("we"))
    assert anatomy.total[0].tolist() == [2, 1, 2, 6]
    # The mean is 2.75, and the variance is ((-0.75)² + (-1.75)² + (-0.75)² + 3.25²) / 4 = 3.6875.
    deviation = 3.6875**0.5
    expected = [-0.75 / deviation, 2 * -1.75 / deviation, 10 - 0.75 / deviation, -3.25 / deviation]
    assert_exact(anatomy.normalised[0], expected)
    assert np.array_equal(anatomy.steps["sum"], anatomy.total)
    assert np.array_equal(checkpoint.trace("we").states[0], anatomy.normalised)


def nudged(trace: Trace, amount: float) -> Trace:
    """Return a trace whose model adds a constant to the output of its embedding module."""
    model: Any = copy.deepcopy(trace.checkpoint.model)
    model.embeddings.register_forward_hook(lambda _module, _args, output: output + amount)
    return replace(trace, made_by=replace(trace.checkpoint, model=model))


def test_difference_grows_with_error(double_family: Checkpoints) -> None:
    trace = double_family("bert").trace(TEXT)
    exact = Embedding().of(trace).difference
    small, larger = (Embedding().of(nudged(trace, amount)).difference for amount in (3e-6, 9e-6))
    lost = EXACT * largest(trace.states[0])
    assert exact <= lost
    assert small == pytest.approx(3e-6, abs=lost)
    assert larger == pytest.approx(9e-6, abs=lost)
    with pytest.raises(UnavailableError, match=r"the sum differs by 0\.5\b"):
        Embedding().of(nudged(trace, 0.5))


def test_wrong_weight_is_refused_without_embedding_module(family: Checkpoints) -> None:
    checkpoint = family("eurobert")
    trace = checkpoint.trace(TEXT)
    model: Any = copy.deepcopy(checkpoint.model)
    with torch.no_grad():
        model.embed_tokens.weight[trace.encoding.ids[1], 0] += 0.25
    with pytest.raises(UnavailableError, match=r"differs by 0\.25"):
        Embedding().of(replace(trace, made_by=replace(checkpoint, model=model)))


def test_external_trace_has_no_embedding_parts(minilm: Checkpoint) -> None:
    with pytest.raises(UnavailableError, match="needs the model that computed the attention"):
        Embedding().of(replace(minilm.trace("we"), made_by=None))


def test_minilm_replay_is_within_rounding(minilm: Checkpoint, double_minilm: Checkpoint) -> None:
    trace, twin = (item.trace("I am Sinan", "And you?") for item in (minilm, double_minilm))
    anatomy = Embedding().of(trace)
    expected = expect_raw(trace.states[0], twin.states[0])
    expected.check(anatomy.normalised)
    assert anatomy.difference <= expected.share * largest(expected.values)


# ---------------------------------------------------------------- the table


def test_anatomy_command_prints_steps(minilm: Checkpoint) -> None:
    trace = minilm.trace("Sinan loves, loves it", "Do you?")
    anatomy = Embedding(5).of(trace)
    frame = anatomy.table()
    assert list(frame.index) == ["word", "position", "segment", "sum", "LayerNorm"]
    for name, step in anatomy.steps.items():
        assert np.array_equal(frame.loc[name].to_numpy(), step[5])
    description = frame.attrs["provenance"]
    assert description["question"] == {"analysis": "input embedding", "token": 5}
    assert description["facts"] == {"token": "loves", "difference_to_model": anatomy.difference}
    assert (description["text"], description["pair"]) == ("Sinan loves, loves it", "Do you?")
    assert Embedding(-1).of(trace).chosen == 11
    with pytest.raises(SelectionError, match="no token 12"):
        Embedding(12).of(trace)


def test_default_token_is_the_first(minilm: Checkpoint) -> None:
    anatomy = Embedding().of(minilm.trace("we left the ground"))
    assert anatomy.question == Embedding(1)
    for token in ("ground", 4, -2):
        other = anatomy.showing(token=token)
        assert (other.chosen, other.provenance["facts"]["token"]) == (4, "ground")
        assert other.word is anatomy.word, "the result is cached"
    with pytest.raises(SelectionError, match="no word sky"):
        anatomy.showing(token="sky")


def test_inconsistent_steps_raise(minilm: Checkpoint) -> None:
    anatomy = Embedding().of(minilm.trace("we left"))
    with pytest.raises(ShapeError, match=r"must have shape \[token, dimension\]"):
        replace(anatomy, word=anatomy.word[:2])


def test_table_is_labeled_by_its_token(minilm: Checkpoint) -> None:
    a, b = minilm.trace("we left"), minilm.trace("they stayed")
    result: EmbeddingResult = Embedding().of(a)
    with pytest.raises(TypeError):
        result.table(b)  # type: ignore[call-arg]
    assert result.table().attrs["provenance"]["text"] == "we left"
