"""The replayed embedding and pooler against the raw model's own modules, family by family."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModel

import bert_probe
from bert_probe import embedding_anatomy, pooler_replay
from bert_probe.analyses.anatomy import EmbeddingAnatomy
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from tests.helpers import families
from tests.helpers.families import PAIR, TEXT

Folders = Callable[[str], Path]
Checkpoints = Callable[[str], Checkpoint]

WITHOUT = {"mobilebert", "layoutlm"}
NAMES = sorted(set(families.FAMILIES) - WITHOUT)
WITH_POOLER = [
    "bert", "roberta", "albert", "camembert", "xlm-roberta", "mobilebert", "mpnet", "ernie",
    "xlm-roberta-xl", "roberta-prelayernorm", "jina_embeddings_v3", "layoutlm",
]  # fmt: skip


def raw_run(folder: Path, trace: Trace) -> tuple[np.ndarray | None, Any]:
    """What transformers' own model computes: output of its embedding module, and its whole output."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    seen: list[torch.Tensor] = []
    module = getattr(model, "embeddings", None) or model.get_input_embeddings()

    def hook(_module: Any, _args: Any, output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)

    module.register_forward_hook(hook)
    inputs = {name: torch.tensor(ids)[None] for name, ids in trace.encoding.inputs.items()}
    with torch.inference_mode():
        output = model(**inputs)
    return seen[0][0].numpy(), output


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["text", "pair", "padding typed"])
def test_the_replay_is_the_raw_models_embedding(
    name: str, kind: str, family: Checkpoints, family_folder: Folders
) -> None:
    checkpoint = family(name)
    pad = families.FAMILIES[name].special.pad
    text = f"we had {pad} left" if kind == "padding typed" else TEXT
    trace = checkpoint.trace(text, PAIR if kind == "pair" else None)
    assert (checkpoint.tokenizer.pad_token_id in trace.encoding.ids) == (kind == "padding typed")
    anatomy = embedding_anatomy(checkpoint, trace)
    expected, _ = raw_run(family_folder(name), trace)
    last = list(anatomy.parts.values())[-1]
    np.testing.assert_allclose(last, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(anatomy.model_output, expected, rtol=0, atol=1e-6)
    assert anatomy.difference == np.abs(last - anatomy.model_output).max() <= 1e-6
    present = [part for part in (anatomy.word, anatomy.position, anatomy.segment) if part is not None]
    np.testing.assert_allclose(sum(present), anatomy.total, rtol=0, atol=1e-6)
    assert {step.shape for step in anatomy.parts.values()} == {(len(trace.tokens), expected.shape[1])}
    assert all(step.dtype == np.float32 and not step.flags.writeable for step in anatomy.parts.values())


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


@pytest.mark.parametrize("name", NAMES)
def test_absent_parts_are_said(name: str, family: Checkpoints) -> None:
    checkpoint = family(name)
    anatomy = embedding_anatomy(checkpoint, checkpoint.trace(TEXT))
    absent = ABSENT.get(name, [])
    shown = [part for part in ("word", "position", "segment", "sum", "LayerNorm") if part not in absent]
    assert list(anatomy.parts) == shown
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
    """Tokenizer to use → config of a model whose input is more than a sum of three rows."""
    bird = {"attention_type": "original_full", "rescale_embeddings": True, "pad_token_id": 0}
    bird["vocab_size"] = families.config("bert").vocab_size
    return {
        "ernie": lambda: families.config("ernie", use_task_id=True),
        "deberta-v2": lambda: families.config("deberta-v2", embedding_size=20),
        "bert": lambda: transformers.BigBirdConfig(**families.COMMON, **bird),
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [("ernie", "task_type_embeddings"), ("deberta-v2", "embed_proj"), ("bert", "the sum is off by")],
)
def test_an_architecture_that_does_something_else_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, name, AutoModel.from_config(other_ways()[name]()))
    with pytest.raises(UnavailableError, match=reason):
        embedding_anatomy(checkpoint, checkpoint.trace(TEXT))


@pytest.mark.parametrize(
    ("name", "reason"), [("mobilebert", "embedding_transformation"), ("layoutlm", "x_position_embeddings")]
)
def test_these_families_are_refused_by_a_sentence(name: str, reason: str, family: Checkpoints) -> None:
    checkpoint = family(name)
    with pytest.raises(UnavailableError, match=rf"\(it has {reason}\), so .* taken apart this way\.$"):
        embedding_anatomy(checkpoint, checkpoint.trace(TEXT))


@pytest.mark.parametrize("name", ["roberta", "camembert", "xlm-roberta", "mpnet", "xlm-roberta-xl"])
def test_roberta_counts_its_positions_from_two(name: str, family: Checkpoints) -> None:
    checkpoint = family(name)
    anatomy = embedding_anatomy(checkpoint, checkpoint.trace(TEXT))
    table = checkpoint.model.get_submodule("embeddings.position_embeddings").weight.numpy()
    assert checkpoint.tokenizer.pad_token_id == 1
    assert np.array_equal(anatomy.position, table[2 : 2 + len(anatomy.trace.tokens)])


def test_a_typed_padding_token_is_not_counted(family: Checkpoints) -> None:
    checkpoint = family("roberta")
    trace = checkpoint.trace("we <pad> had")
    place = trace.encoding.ids.index(1)
    anatomy = embedding_anatomy(checkpoint, trace)
    table = checkpoint.model.get_submodule("embeddings.position_embeddings").weight.numpy()
    assert np.array_equal(anatomy.position[place], table[1])
    assert np.array_equal(anatomy.position[place + 1], table[place + 2])


@pytest.mark.parametrize("name", ["bert", "electra", "albert"])
def test_bert_counts_its_positions_from_zero_and_knows_the_second_sentence(
    name: str, family: Checkpoints
) -> None:
    checkpoint = family(name)
    trace = checkpoint.trace(TEXT, PAIR)
    anatomy = embedding_anatomy(checkpoint, trace)
    weights = checkpoint.model.get_submodule("embeddings")
    assert np.array_equal(anatomy.position, weights.position_embeddings.weight[: len(trace.tokens)].numpy())
    segments = [token.segment for token in trace.tokens]
    assert set(segments) == {0, 1}
    assert np.array_equal(anatomy.segment, weights.token_type_embeddings.weight.numpy()[segments])
    assert np.array_equal(anatomy.word, weights.word_embeddings.weight.numpy()[trace.encoding.ids])


def test_sum_and_layer_norm_by_hand(tmp_path: Path) -> None:
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
    checkpoint = bert_probe.load(tmp_path)
    anatomy = embedding_anatomy(checkpoint, checkpoint.trace("we"))
    assert anatomy.total[0].tolist() == [2, 1, 2, 6]
    # Mean 2.75, variance ((-0.75)² + (-1.75)² + (-0.75)² + 3.25²) / 4 = 3.6875.
    deviation = 3.6875**0.5
    expected = [-0.75 / deviation, 2 * -1.75 / deviation, 10 - 0.75 / deviation, -3.25 / deviation]
    np.testing.assert_allclose(anatomy.normalised[0], expected, atol=1e-6)
    assert np.array_equal(anatomy.parts["sum"], anatomy.total)
    assert np.array_equal(checkpoint.trace("we").states[0], anatomy.normalised)


def nudged(checkpoint: Checkpoint, amount: float) -> Checkpoint:
    """The checkpoint with a model whose embedding module and pooler weights are off by an amount."""
    model: Any = copy.deepcopy(checkpoint.model)
    model.embeddings.register_forward_hook(lambda _module, _args, output: output + amount)
    with torch.no_grad():
        model.pooler.dense.bias += amount
    return replace(checkpoint, model=model)


@pytest.mark.parametrize("replay", [embedding_anatomy, pooler_replay])
def test_the_difference_is_a_comparison_that_grows_with_the_error(
    replay: Callable[[Checkpoint, Trace], EmbeddingAnatomy], family: Checkpoints
) -> None:
    checkpoint = family("bert")
    trace = checkpoint.trace(TEXT)
    exact = replay(checkpoint, trace).difference
    small, larger = (replay(nudged(checkpoint, amount), trace).difference for amount in (3e-6, 9e-6))
    assert exact < 5e-7 < small < 4e-6 < larger < 1.1e-5
    with pytest.raises(UnavailableError, match=r"off by 0\.\d+"):
        replay(nudged(checkpoint, 0.5), trace)


def test_a_wrong_weight_is_refused_where_the_model_has_no_embedding_module(family: Checkpoints) -> None:
    checkpoint = family("eurobert")
    trace = checkpoint.trace(TEXT)
    model: Any = copy.deepcopy(checkpoint.model)
    with torch.no_grad():
        model.embed_tokens.weight[trace.encoding.ids[1], 0] += 0.25
    with pytest.raises(UnavailableError, match=r"off by 0\.25"):
        embedding_anatomy(replace(checkpoint, model=model), trace)


@pytest.mark.parametrize("name", WITH_POOLER)
def test_the_pooler_replay_is_the_raw_models_output(
    name: str, family: Checkpoints, family_folder: Folders
) -> None:
    checkpoint = family(name)
    trace = checkpoint.trace(TEXT, PAIR)
    replay = pooler_replay(checkpoint, trace)
    _, output = raw_run(family_folder(name), trace)
    expected = output.pooler_output[0].numpy()
    np.testing.assert_allclose(replay.replay, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(replay.model_output, expected, rtol=0, atol=1e-5)
    assert replay.difference == np.abs(replay.replay - replay.model_output).max() <= 1e-6
    assert np.array_equal(replay.cls, trace.vectors(-1)[0])
    np.testing.assert_allclose(np.tanh(replay.linear), replay.replay, rtol=0, atol=1e-6)
    assert np.abs(replay.replay - np.tanh(replay.cls)).max() > 0.1, "the linear layer does something"


@pytest.mark.parametrize("name", sorted(set(families.FAMILIES) - set(WITH_POOLER)))
def test_no_pooler_is_a_refusal(name: str, family: Checkpoints) -> None:
    checkpoint = family(name)
    trace = checkpoint.trace(TEXT)
    assert trace.pooler is None
    with pytest.raises(UnavailableError, match="has no pooler"):
        pooler_replay(checkpoint, trace)


def test_a_pooler_without_a_linear_layer_is_refused(tmp_path: Path) -> None:
    config = families.config("mobilebert", classifier_activation=False)
    checkpoint = saved(tmp_path, "mobilebert", AutoModel.from_config(config))
    with pytest.raises(UnavailableError, match="is not a linear layer and a tanh"):
        pooler_replay(checkpoint, checkpoint.trace(TEXT))


def test_a_pooler_with_another_activation_is_refused(family: Checkpoints) -> None:
    checkpoint = family("bert")
    model: Any = copy.deepcopy(checkpoint.model)
    model.pooler.activation = torch.nn.ReLU()
    other = replace(checkpoint, model=model)
    with pytest.raises(UnavailableError, match=r"not a linear layer and a tanh of \[CLS\]"):
        pooler_replay(other, other.trace(TEXT))


def test_minilm_is_replayed_to_the_last_bit_or_nearly(minilm: Checkpoint) -> None:
    trace = minilm.trace("I am Sinan", "And you?")
    assert embedding_anatomy(minilm, trace).difference <= 1e-6
    assert pooler_replay(minilm, trace).difference <= 1e-6
    np.testing.assert_allclose(embedding_anatomy(minilm, trace).normalised, trace.states[0], atol=1e-6)
