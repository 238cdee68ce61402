"""Test checkpoints that were saved for model code on the Hub: parity with transformers' own models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import PreTrainedModel

import bert_probe
from bert_probe.errors import ArchitectureError, CheckpointError
from bert_probe.model.config import build_config
from tests.helpers import families
from tests.helpers.families import PAIR, TEXT

Tensors = dict[str, torch.Tensor]

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 160,
}
AUTO_MAP = {"AutoModel": "owner/repository--modeling.Model"}
GTE = SIZES | {
    "architectures": ["NewModel"],
    "auto_map": AUTO_MAP,
    "model_type": "new",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
    "pad_token_id": 1,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 2.0, "type": "ntk"},
    "rope_theta": 20_000,
    "type_vocab_size": 1,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
}
NOMIC = {
    "architectures": ["NomicBertModel"],
    "auto_map": AUTO_MAP,
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 80,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 48,
    "n_layer": 3,
    "n_positions": 160,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
}
JINA = SIZES | {
    "architectures": ["XLMRobertaModel"],
    "auto_map": AUTO_MAP,
    "model_type": "xlm-roberta",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20_000.0,
    "type_vocab_size": 1,
    "use_flash_attn": False,
}


def joined(tensors: Tensors, parts: tuple[str, ...], name: str) -> Tensors:
    """Concatenate matrices or biases of each layer along the first axis, and rename the result."""
    result = {key: tensor for key, tensor in tensors.items() if not re.search(rf"\.{parts[0]}\.", key)}
    for key in tensors:
        if f".{parts[0]}." in key:
            members = [tensors[key.replace(f".{parts[0]}.", f".{part}.")] for part in parts]
            result[key.replace(f".{parts[0]}.", f".{name}.")] = torch.cat(members)
    return {key: tensor for key, tensor in result.items() if not any(f".{part}." in key for part in parts)}


def renamed(tensors: Tensors, names: dict[str, str]) -> Tensors:
    """Rename tensors by replacing patterns in their names."""
    for native, original in names.items():
        tensors = {re.sub(native, original, key): tensor for key, tensor in tensors.items()}
    return {key: tensor.contiguous() for key, tensor in tensors.items()}


QKV = ("q_proj", "k_proj", "v_proj")


def gte_layout(tensors: Tensors) -> Tensors:
    """Convert tensors to the layout of Alibaba-NLP/new-impl."""
    tensors = joined(joined(tensors, QKV, "qkv_proj"), ("up_proj", "gate_proj"), "up_gate_proj")
    norms = {"post_attention_layernorm": "attn_ln", "post_mlp_layernorm": "mlp_ln"}
    return renamed(tensors, {r"^layers\.": "encoder.layer.", r"self_attn\.": "attention.", **norms})


def nomic_layout(tensors: Tensors) -> Tensors:
    """Convert tensors to the layout of nomic-ai/nomic-bert-2048."""
    mlp = {"up_proj": "fc11", "gate_proj": "fc12", "down_proj": "fc2"}
    norms = {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
    names = {
        r"^layers\.": "encoder.layers.",
        r"embeddings\.LayerNorm": "emb_ln",
        r"self_attn\.o_proj": "attn.out_proj",
        r"self_attn\.": "attn.",
    }
    return renamed(joined(tensors, QKV, "Wqkv"), names | mlp | norms)


def jina_layout(tensors: Tensors) -> Tensors:
    """Convert tensors to the layout of jinaai/xlm-roberta-flash-implementation."""
    norms = {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
    names = {
        r"^layers\.": "encoder.layers.",
        r"embeddings\.LayerNorm": "emb_ln",
        r"self_attn\.o_proj": "mixer.out_proj",
        r"self_attn\.": "mixer.",
    }
    return renamed(joined(tensors, QKV, "Wqkv"), names | norms)


LAYOUTS: dict[str, tuple[str, dict[str, Any], Callable[[Tensors], Tensors], dict[str, Any]]] = {
    "gte": (
        "gte",
        GTE,
        gte_layout,
        # NTK scaling by a factor of 2 with heads of 8 dimensions, as in the repository's code.
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 40_000, "factor": 2**0.25}},
    ),
    "gte without scaling": (
        "gte",
        GTE | {"model_type": "gte", "rope_scaling": None, "rope_theta": 160_000},
        gte_layout,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 160_000}},
    ),
    "nomic": ("nomic_bert", NOMIC, nomic_layout, {}),
    "jina": ("jina_embeddings_v3", JINA, jina_layout, {}),
}
"""Layout → family, config.json of the repository, function that renames tensors, and native settings."""


def save(folder: Path, layout: str) -> PreTrainedModel:
    """Save a tiny native model in the layout of a repository, and return the native model."""
    family, settings, rename, changes = LAYOUTS[layout]
    model: PreTrainedModel = families.build(family, folder, **changes)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pooler = {name: tensor for name, tensor in tensors.items() if name.startswith("pooler.")}
    original = rename({name: tensor for name, tensor in tensors.items() if name not in pooler})
    assert not original.keys() & tensors.keys() - {name for name in original if "embeddings." in name}
    save_file(original | pooler, folder / "model.safetensors", {"format": "pt"})
    config = settings | {"vocab_size": model.config.vocab_size}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return model


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_equal_the_native_model(layout: str, tmp_path: Path) -> None:
    model = save(tmp_path, layout).eval()
    model.set_attn_implementation("eager")
    checkpoint = bert_probe.load(tmp_path)
    description = checkpoint.description
    assert description.family == LAYOUTS[layout][0]
    assert description.max_tokens == 160
    assert "which is not run" in description.notes[0]
    assert not any("does not use" in note or "pooler" in note for note in description.notes)
    trace = checkpoint.trace(TEXT, PAIR)
    inputs = {name: torch.tensor(ids)[None] for name, ids in trace.encoding.inputs.items()}
    with torch.inference_mode():
        output = model(**inputs, output_hidden_states=True, output_attentions=True)
    for layer, state in enumerate(output.hidden_states):
        np.testing.assert_allclose(trace.hidden_states[layer], state[0], atol=2e-5)
    for layer, weights in enumerate(output.attentions):
        np.testing.assert_allclose(trace.attention(layer), weights[0], atol=2e-5)
    state = checkpoint.model.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_ntk_frequencies_equal_the_formula() -> None:
    # Skip the test if transformers does not have the family, as `config_class` does.
    _ = families.family_of("gte").config_class
    config = build_config(GTE | {"vocab_size": 100}, "gte")
    rope = config.rope_parameters
    native = rope["rope_theta"] ** (-np.arange(0, 8, 2) / 8) / rope["factor"]
    # With NTK scaling by a factor of 2, the repository's code multiplies theta by the factor, and divides all
    # frequencies by factor^(2 ÷ head dim).
    expected = (20_000 * 2.0) ** (-np.arange(0, 8, 2) / 8) / 2.0 ** (2 / 8)
    np.testing.assert_allclose(native, expected, rtol=1e-12)


def test_scaled_nomic_reads_only_texts_whose_angles_are_not_scaled() -> None:
    settings = NOMIC | {"vocab_size": 100, "pad_vocab_size_multiple": 64, "rotary_scaling_factor": 2}
    config = build_config(settings, "nomic")
    assert (config.max_position_embeddings, config.vocab_size) == (80, 128)


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        (GTE, {"logn_attention_scale": True}, "logn_attention_scale = True"),
        (GTE, {"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 0.6}}, "mixed_b"),
        (GTE, {"rope_scaling": {"type": "dynamic", "factor": 2}}, "GteModel does not support"),
        (NOMIC, {"num_experts": 8}, "num_experts = 8"),
        (NOMIC, {"prenorm": True}, "prenorm = True"),
        (NOMIC, {"activation_function": "gelu"}, "activation_function"),
        (JINA, {"architectures": ["XLMRobertaLoRA"]}, "Use jinaai/jina-embeddings-v3-hf"),
        (JINA, {"position_embedding_type": "alibi"}, "ALiBi"),
        (JINA, {"model_type": "of_a_repository"}, r"model code in its repository \(auto_map\) is not run"),
    ],
)
def test_other_settings_are_refused(settings: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        build_config(settings | {"vocab_size": 100} | changes, "model")


def test_missing_setting_is_an_error() -> None:
    settings = {name: value for name, value in NOMIC.items() if name != "rotary_emb_base"}
    with pytest.raises(CheckpointError, match="rotary_emb_base"):
        build_config(settings | {"vocab_size": 100}, "model")


def test_several_attention_calls_in_a_layer_are_refused(tmp_path: Path) -> None:
    model = transformers.AlbertModel(families.config("albert", inner_group_num=2))
    model.save_pretrained(tmp_path)
    families.save_tokenizer("albert", tmp_path)
    with pytest.raises(ArchitectureError, match="AlbertModel calls its attention function more than once in"):
        bert_probe.load(tmp_path)
