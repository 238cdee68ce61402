"""Test queries, keys and values of models with their own attention code: parity with raw transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention as DebertaAttention
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention as DebertaV2Attention
from transformers.models.mpnet import modeling_mpnet
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention

import bert_probe
from bert_probe.analyses.attribution.head_ablation import HeadAblation
from bert_probe.errors import UnavailableError
from bert_probe.model.capture import AttentionCall, changed_outputs, recording
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.checks import NO_SCORES
from bert_probe.model.eager_attention import eager_attention
from bert_probe.model.encoding import Encoding
from tests.helpers.exactness import assert_exact
from tests.helpers.families import EAGER_FAMILIES, LONG, PAIR, SENTENCES, TEXT
from tests.helpers.raw import Raw

Checkpoints = Callable[[str], Checkpoint]
Folders = Callable[[str], Path]

PROJECTIONS = {
    "mpnet": ("attn.q", "attn.k", "attn.v"),
    "deberta-v2": ("query_proj", "key_proj", "value_proj"),
    "xlm": ("q_lin", "k_lin", "v_lin"),
    "flaubert": ("q_lin", "k_lin", "v_lin"),
    **dict.fromkeys(
        ("rembert", "megatron-bert", "convbert", "luke"), ("self.query", "self.key", "self.value")
    ),
}
"""Names of the modules that compute the queries, keys and values of all layers."""


RECORDED = [
    "mpnet",
    "deberta-v2",
    *(name for name, family in EAGER_FAMILIES.items() if family.shows_qkv),
]


@contextmanager
def outputs_of(model: torch.nn.Module, suffixes: Sequence[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Collect the first output of each module whose name has one of the suffixes."""
    outputs: dict[str, torch.Tensor] = {}
    names = {module: name for name, module in model.named_modules() if name.endswith(tuple(suffixes))}

    def collect(module: torch.nn.Module, _args: Any, output: torch.Tensor) -> None:
        outputs.setdefault(names[module], output)

    hooks = [module.register_forward_hook(collect) for module in names]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def by_head(output: torch.Tensor, heads: int) -> np.ndarray:
    """Convert a projection of shape [1, token, head × dim] to [head, token, dim]."""
    return output[0].reshape(output.shape[1], heads, -1).transpose(0, 1).numpy()


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("name", sorted(PROJECTIONS))
def test_q_k_and_v_are_the_outputs_of_the_projections(
    name: str, double_family: Checkpoints, family_folder: Folders
) -> None:
    trace = double_family(name).trace(TEXT, PAIR)
    raw = Raw(family_folder(name), "float64")
    arrays = (trace.queries, trace.keys, trace.values)
    for suffix, observed in zip(PROJECTIONS[name], arrays, strict=True):
        with outputs_of(raw.model, [suffix]) as outputs:
            raw.run(trace.encoding)
        assert observed is not None
        assert len(outputs) == trace.layers
        for layer, output in enumerate(outputs.values()):
            assert_exact(observed[layer], by_head(output, trace.heads))


@pytest.mark.gate(cases=4)
@pytest.mark.parametrize("name", RECORDED)
def test_content_scores_and_position_terms_reproduce_the_weights(
    name: str, double_family: Checkpoints, family_folder: Folders
) -> None:
    trace = double_family(name).trace(LONG[:200], PAIR)
    weights = Raw(family_folder(name), "float64").run(trace.encoding).attentions
    assert trace.q is not None
    assert trace.k is not None
    assert trace.scaling is not None
    assert trace.masks is not None
    # DeBERTa divides the attention scores by sqrt(3 × head size).
    dims = trace.q.shape[-1] * (3 if name.startswith("deberta") else 1)
    for layer in range(trace.layers):
        assert trace.scaling[layer] == pytest.approx(dims**-0.5, rel=1e-7)
        content = trace.q[layer] @ trace.k[layer].swapaxes(1, 2) * trace.scaling[layer]
        term = trace.masks[layer]
        assert (term is None) == (name not in {"mpnet", "deberta", "deberta-v2"})
        # Up to a constant per row, the logarithm of a weight is the content score plus the bias term.
        difference = np.log(weights[layer][0].numpy()) - content - (0 if term is None else term)
        np.testing.assert_allclose(difference, difference[..., :1].repeat(len(trace.tokens), -1), atol=1e-10)
        assert_exact(trace.scores(layer), content if term is None else content + term)


def test_position_term_of_mpnet_is_its_relative_bias(
    double_family: Checkpoints, family_folder: Folders
) -> None:
    trace = double_family("mpnet").trace(LONG, truncate=True)
    encoder = Raw(family_folder("mpnet"), "float64").model.encoder
    assert trace.masks is not None
    expected = encoder.compute_position_bias(torch.zeros(1, len(trace.tokens), 1))[0].detach().numpy()
    for layer in range(trace.layers):
        np.testing.assert_array_equal(trace.masks[layer], expected)
    assert len({id(mask) for mask in trace.masks}) == 1, "the layers share an array"
    padded = double_family("mpnet").traces([SENTENCES[2], TEXT])[0]
    assert padded.masks is not None
    assert len({id(mask) for mask in padded.masks}) == 1


@pytest.mark.parametrize(
    ("name", "module", "method"),
    [
        ("deberta-v2", DebertaV2Attention, "disentangled_attention_bias"),
        ("deberta", DebertaAttention, "disentangled_att_bias"),
    ],
)
def test_position_term_of_deberta_is_its_disentangled_bias(
    name: str,
    module: Any,
    method: str,
    double_family: Checkpoints,
    family_folder: Folders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = double_family(name).trace(TEXT, PAIR)
    biases: list[torch.Tensor] = []
    original = getattr(module, method)

    def collect(*args: Any) -> torch.Tensor:
        biases.append(original(*args))
        return biases[-1]

    monkeypatch.setattr(module, method, collect)
    Raw(family_folder(name), "float64").run(trace.encoding)
    assert trace.masks is not None
    assert len(biases) == trace.layers
    for mask, bias in zip(trace.masks, biases, strict=True):
        assert mask is not None
        assert_exact(mask, bias.reshape(mask.shape).numpy())


def test_roformer_rotates_q_and_k_and_adds_no_term(
    double_family: Checkpoints, family_folder: Folders
) -> None:
    trace = double_family("roformer").trace(TEXT, PAIR)
    raw = Raw(family_folder("roformer"), "float64")
    with outputs_of(raw.model, ["self.query", "self.key", "self.value"]) as outputs:
        raw.run(trace.encoding)
    q, k, v = (
        [by_head(output, trace.heads) for name, output in outputs.items() if name.endswith(suffix)]
        for suffix in ("query", "key", "value")
    )
    dim = q[0].shape[-1]
    positions = np.arange(len(trace.tokens))
    angles = positions[:, None] * 10_000.0 ** (-np.arange(0, dim, 2) / dim)

    def rotated(vectors: np.ndarray) -> np.ndarray:
        pairs = vectors[..., ::2] + 1j * vectors[..., 1::2]
        turned = pairs * np.exp(1j * angles)
        return np.stack([turned.real, turned.imag], axis=-1).reshape(vectors.shape)

    assert trace.queries is not None
    assert trace.keys is not None
    assert trace.values is not None
    for layer in range(trace.layers):
        # The tolerance is that of float32, in which the model stores its sines and cosines.
        np.testing.assert_allclose(trace.queries[layer], rotated(q[layer]), atol=1e-5)
        np.testing.assert_allclose(trace.keys[layer], rotated(k[layer]), atol=1e-5)
        assert_exact(trace.values[layer], v[layer])
    table = raw.model.encoder.embed_positions.weight[None, None, : len(trace.tokens)]
    expected = RoFormerSelfAttention.apply_rotary_position_embeddings(
        table, torch.from_numpy(q[0])[None], torch.from_numpy(k[0])[None]
    )
    assert_exact(trace.queries[0], expected[0][0].detach().numpy())
    assert_exact(trace.keys[0], expected[1][0].detach().numpy())


@pytest.mark.gate(cases=4)
@pytest.mark.parametrize("name", RECORDED)
def test_switched_off_heads_equal_raw_model(
    name: str, double_family: Checkpoints, family_folder: Folders
) -> None:
    trace = double_family(name).trace(TEXT)
    raw = Raw(family_folder(name), "float64")
    assert trace.values is not None
    size = trace.values[0].shape[-1]

    def silence(_module: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        changed = args[0].clone()
        changed[..., 2 * size : 3 * size] = 0
        return (changed,)

    suffixes = ("layer.1.attention.output.dense", "layer.1.attention.attn.o", "attentions.1.out_lin")
    modules = [module for path, module in raw.model.named_modules() if path.endswith(suffixes)]
    assert len(modules) == 1
    hook = modules[0].register_forward_pre_hook(silence)
    expected = raw.run(trace.encoding).last_hidden_state[0].numpy()
    hook.remove()
    assert_exact(HeadAblation([(1, 2)]).of(trace).without_heads, expected)


# ---------------------------------------------------------------- hand-computed cases


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, change: Callable[..., Any]
) -> torch.Tensor:
    """Compute attention with scaling ½ and a bias. `change(name, tensor)` may alter scores and weights."""
    bias = torch.tensor([[[[0.0, math.log(3)], [0.0, 0.0]]]])
    scores = torch.matmul(query, key.transpose(2, 3)) / 2
    scores = change("scores", scores + bias)
    return torch.matmul(change("weights", scores.softmax(dim=-1)), value)


def unchanged(_name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def apply(changed: str, change: Callable[..., Any], name: str, tensor: torch.Tensor) -> Any:
    """Apply `change` to a tensor if its name ("scores" or "weights") is `changed`; return the tensor."""
    return change(tensor) if name == changed else tensor


Q = torch.tensor([[[[1.0, 0.0], [0.0, 2.0]]]])
K = torch.tensor([[[[0.0, 1.0], [0.0, 5.0]]]])
V = torch.tensor([[[[4.0], [8.0]]]])


def test_recorded_call_equals_hand_computation() -> None:
    with eager_attention(), recording() as calls:
        output = attend(Q, K, V, unchanged)
    (call,) = calls
    # For the first query, q · k is 0 for both keys and the biases are 0 and ln 3, so its weights are 1 : 3.
    assert output[0, 0, 0].item() == pytest.approx((4 + 3 * 8) / 4)
    assert torch.equal(call.query, Q)
    assert torch.equal(call.key, K)
    assert torch.equal(call.value, V)
    assert call.scaling == 0.5
    assert call.mask is not None
    assert torch.equal(call.mask, torch.tensor([[[[0.0, math.log(3)], [0.0, 0.0]]]]))
    assert call.output.shape == (1, 2, 1, 1)
    assert torch.equal(call.output[0, :, 0], output[0, 0])


def test_bias_that_is_added_before_the_scaling_is_scaled() -> None:
    bias = torch.tensor([[[[0.0, 3.0], [1.0, 0.0]]]])
    with eager_attention(), recording() as calls:
        weights = ((torch.matmul(Q, K.transpose(2, 3)) + bias) / 4).softmax(dim=-1)
        torch.matmul(weights, V)
    assert calls[0].scaling == 0.25
    assert calls[0].mask is not None
    assert torch.equal(calls[0].mask, bias / 4)


def test_changed_output_is_what_the_code_continues_with() -> None:
    def negate(layer: int, call: AttentionCall) -> torch.Tensor:
        assert layer == 0
        return -call.output

    expected = attend(Q, K, V, unchanged)
    with eager_attention(), changed_outputs(negate):
        assert torch.equal(attend(Q, K, V, unchanged), -expected)
    assert torch.equal(attend(Q, K, V, unchanged), expected)


def test_masked_keys_have_a_score_of_minus_infinity() -> None:
    smallest = torch.finfo(torch.float32).min
    mask = torch.tensor([[[[False, True]]]])
    additive = torch.tensor([[[[0.0, smallest]]]])
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda scores: scores.masked_fill(mask, smallest),
        lambda scores: scores.masked_fill_(mask, -torch.inf),
        lambda scores: scores + additive,
        lambda scores: additive + scores,
    ]
    for change in changes:
        with eager_attention(), recording() as calls:
            attend(
                Q, K, V, lambda name, tensor, change=change: change(tensor) if name == "scores" else tensor
            )
        assert calls[0].mask is not None
        assert torch.isneginf(calls[0].mask[..., 1]).all()
        assert (calls[0].mask[..., 0] == 0).all()


HEADS_BY_ROW = [torch.cat([part, -2 * part, part / 2, part]).reshape(4, 2, -1) for part in (Q, K, V)]
"""Queries, keys and values of two texts with two heads each, shape [text × head, token, dim]."""


def test_joined_heads_are_split() -> None:
    query, key, value = (part.reshape(2, 2, 2, -1) for part in HEADS_BY_ROW)
    alibi = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 1.0], [2.0, 0.0]])[:, None]  # [batch × head, 1, key]
    with eager_attention(), recording() as calls:
        q, k = query.reshape(4, 2, 2), key.reshape(4, 2, 2).transpose(1, 2)
        scores = alibi.baddbmm(batch1=q, batch2=k, beta=2.0, alpha=0.5)
        torch.bmm(scores.softmax(dim=-1), value.reshape(4, 2, 1))
    (call,) = calls
    assert torch.equal(call.query, query)
    assert torch.equal(call.key, key)
    assert torch.equal(call.value, value)
    assert call.scaling == 0.5
    assert call.mask is not None
    assert torch.equal(call.mask, (2 * alibi).reshape(2, 2, 1, 2))
    assert call.output.shape == (2, 2, 2, 1)


def test_scores_that_are_set_to_a_large_negative_number_are_blocked() -> None:
    allowed = torch.tensor([[1.0, 0.0], [1.0, 1.0]])

    def gpt(number: float) -> list[AttentionCall]:
        with eager_attention(), recording() as calls:
            scores = torch.matmul(Q, K.transpose(2, 3)) * allowed + number * (1 - allowed)
            torch.matmul(scores.softmax(dim=-1), V)
        return calls

    (call,) = gpt(-1e4)
    assert call.mask is not None
    assert call.mask.tolist() == [[[[True, False], [True, True]]]]
    assert not gpt(-5.0), "a weight that is not 0"
    assert not gpt(1e4)


def test_scores_below_the_large_number_are_not_recorded() -> None:
    allowed = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    with eager_attention(), recording() as calls:
        scores = torch.matmul(-1e4 * (Q + 1), (K + 1).transpose(2, 3)) * allowed - 1e4 * (1 - allowed)
        torch.matmul(scores.softmax(dim=-1), V)
    assert not calls


def test_maximum_with_the_smallest_number_is_followed() -> None:
    smallest = torch.full((), torch.finfo(torch.float32).min)
    for limit, count in ((smallest, 1), (torch.tensor(0.0), 0)):
        with eager_attention(), recording() as calls:
            attend(Q, K, V, partial(apply, "scores", lambda scores, limit=limit: torch.max(scores, limit)))
        assert len(calls) == count


@pytest.mark.parametrize(
    ("changed", "change"),
    [
        ("scores", lambda scores: scores.tanh()),
        ("scores", lambda scores: scores.clamp_(max=1)),
        ("scores", lambda scores: scores.masked_fill(scores > 1, 0.5)),
        ("scores", lambda scores: scores * scores),
        ("scores", lambda scores: scores + scores),
        ("scores", lambda scores: scores * torch.tensor([[1.0, 0.5]])),
        ("scores", lambda scores: scores * torch.tensor([[1.0, 0.0]])),
        ("weights", lambda weights: weights * 0.5),
        ("weights", lambda weights: weights.mul_(0.5)),
        ("weights", lambda weights: weights.flip(-1)),
        ("weights", lambda weights: weights.relu_()),
    ],
)
def test_other_steps_are_not_recorded(changed: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with eager_attention(), recording() as calls:
        attend(Q, K, V, partial(apply, changed, change))
    assert not calls


def test_set_item_is_not_recorded() -> None:
    def first_to_zero(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == "weights":
            tensor[..., 0] = 0
        return tensor

    with eager_attention(), recording() as calls:
        attend(Q, K, V, first_to_zero)
    assert not calls


# ---------------------------------------------------------------- attention that cannot be reproduced


def scaled_by_a_gate(weights: torch.Tensor) -> torch.Tensor:
    return weights * torch.linspace(0.5, 1, weights.shape[-1])


def changed_behind_the_scenes(weights: torch.Tensor) -> torch.Tensor:
    """Swap the weights of the first two keys in the tensor's memory, which torch cannot intercept."""
    memory = weights.numpy()
    memory[..., [0, 1]] = memory[..., [1, 0]]
    return weights


@pytest.mark.parametrize("step", [scaled_by_a_gate, changed_behind_the_scenes])
def test_model_whose_weights_are_not_reproduced_hides_q_k_and_v(
    step: Callable[[torch.Tensor], torch.Tensor], family_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax = torch.nn.functional.softmax

    def forward(self: Any, hidden: torch.Tensor, _mask: Any = None, bias: Any = None, **_: Any) -> Any:
        shape = (*hidden.shape[:-1], -1, self.attention_head_size)
        q, k, v = (layer(hidden).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.attention_head_size) + bias
        weights = step(softmax(scores, dim=-1))
        weights = weights / weights.sum(dim=-1, keepdim=True) if step is scaled_by_a_gate else weights
        output = torch.matmul(weights, v).transpose(1, 2).reshape(hidden.shape)
        return self.o(output), weights

    monkeypatch.setattr(modeling_mpnet.MPNetSelfAttention, "forward", forward)
    checkpoint = bert_probe.load(family_folder("mpnet"), dtype="float64")
    assert checkpoint.description.no_qkv == NO_SCORES
    assert checkpoint.description.notes == (f"Queries, keys and values cannot be shown. {NO_SCORES}",)
    encoding: Encoding = checkpoint.encode(TEXT)
    trace = checkpoint.trace(TEXT)
    Raw(family_folder("mpnet"), "float64").numbers(encoding).check(trace)
    with pytest.raises(UnavailableError, match="does not expose its queries, keys and values"):
        bert_probe.AttentionSteps().of(trace)
    assert len(bert_probe.Heads().of(trace).table()) == 12
    assert len(bert_probe.Similarity().of(trace).table()) == len(trace.tokens) - 2
