"""Translate configs that refer to model code in a Hub repository to settings of transformers' own models.

Code in a repository (``auto_map`` in config.json) is never run. transformers has its own models for these
architectures. They load weights under the original names, but need settings under other names. A config is
rejected if it changes a setting that transformers' model does not support.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_probe.errors import ArchitectureError

Settings = Mapping[str, Any]

_GTE = {
    "position_embedding_type": ("rope",),
    "layer_norm_type": ("layer_norm",),
    "logn_attention_scale": (False,),
    "pack_qkv": (True,),
}
"""Setting of Alibaba-NLP/new-impl → values for which its model equals transformers' GteModel."""

_NOMIC = {
    "prenorm": (False,),
    "parallel_block": (False,),
    "causal": (False,),
    "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "use_rms_norm": (False, None),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "num_experts": (0, None),
}
"""Setting of nomic-ai/nomic-bert-2048 → values for which its model equals transformers' NomicBertModel."""

_NOMIC_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}
_NOMIC_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu"}

_JINA_CONVERTED = "jinaai/jina-embeddings-v3-hf"
"""The checkpoint that the documentation of transformers uses."""


def native_settings(settings: Settings, name: str) -> Settings:
    """Translate the settings of a config.json for transformers' own model.

    Args:
        settings: contents of config.json.
        name: the model's name in error messages.

    Raises:
        ArchitectureError: transformers' model lacks a setting of this config.
    """
    model_type, positions = settings.get("model_type"), settings.get("position_embedding_type")
    if model_type in ("new", "gte") and "rope_theta" in settings and "rope_parameters" not in settings:
        return _gte(settings, name)
    if model_type == "nomic_bert" and "n_embd" in settings and "hidden_size" not in settings:
        return _nomic(settings, name)
    if model_type == "xlm-roberta" and positions == "rotary":
        return _jina(settings, name)
    if model_type in ("bert", "roberta", "xlm-roberta") and positions == "alibi":
        raise ArchitectureError(
            f"{name} has ALiBi positions (Press et al. 2022), which only the code in its repository "
            f"supports, not transformers' model of the type {model_type}. The code is not run. Use another "
            "model."
        )
    return settings


def unused_code_note(settings: Settings, architecture: str) -> tuple[str, ...]:
    """Return a note that a repository contains model code, which is not run; () if it contains none."""
    if not isinstance(settings.get("auto_map"), Mapping):
        return ()
    return (
        "config.json names model code in the repository (auto_map), which is not run. All numbers are those "
        f"of transformers' {architecture}; if the code differs, for example in which tokens attend to which, "
        "so do its numbers.",
    )


def _check(settings: Settings, allowed: Mapping[str, tuple[Any, ...]], name: str, native: str) -> None:
    """Raise an error for a setting that transformers' class does not support."""
    for setting, values in allowed.items():
        if setting in settings and settings[setting] not in values:
            raise ArchitectureError(
                f"{name} has {setting} = {settings[setting]!r} in config.json, which only the code in its "
                f"repository supports, not transformers' {native}. The code is not run. Use another model."
            )


def _gte(settings: Settings, name: str) -> Settings:
    """Translate a config of Alibaba-NLP/new-impl."""
    _check(settings, _GTE, name, "GteModel")
    scaling, theta = settings.get("rope_scaling"), settings["rope_theta"]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if scaling is not None:
        if not isinstance(scaling, Mapping) or scaling.get("type") != "ntk" or scaling.get("mixed_b"):
            raise ArchitectureError(
                f"{name} has rope_scaling = {scaling!r} in config.json, which transformers' GteModel does "
                "not have. Use another model."
            )
        # The repository's code multiplies theta by the factor, and divides all frequencies by factor^(2 ÷
        # head dim).
        factor = scaling["factor"]
        head_dim = settings["hidden_size"] // settings["num_attention_heads"]
        rope = {
            "rope_type": "linear",
            "rope_theta": theta * factor,
            "factor": factor ** (2 / head_dim),
        }
    return _renamed(settings, {"NewModel": "GteModel", "NewFor": "GteFor"}) | {
        "model_type": "gte",
        "rope_parameters": rope,
    }


def _nomic(settings: Settings, name: str) -> Settings:
    """Translate a config of nomic-ai/nomic-bert-2048, whose settings have the names of GPT-2."""
    activation = settings.get("activation_function")
    _check(settings, _NOMIC | {"activation_function": tuple(_NOMIC_ACTIVATIONS)}, name, "NomicBertModel")
    translated = {_NOMIC_NAMES.get(setting, setting): value for setting, value in settings.items()}
    multiple = settings.get("pad_vocab_size_multiple") or 1
    vocabulary = -(-settings["vocab_size"] // multiple) * multiple
    if settings.get("rotary_scaling_factor"):
        # The scaled angles apply only to texts beyond this length, and depend on the length.
        translated["max_position_embeddings"] = settings["max_trained_positions"]
    return translated | {
        "vocab_size": vocabulary,
        "hidden_act": _NOMIC_ACTIVATIONS[str(activation)],
        "rope_parameters": {"rope_type": "default", "rope_theta": settings["rotary_emb_base"]},
    }


def _jina(settings: Settings, name: str) -> Settings:
    """Translate a config of jinaai/xlm-roberta-flash-implementation."""
    names = settings.get("architectures")
    if isinstance(names, list) and "XLMRobertaLoRA" in names:
        raise ArchitectureError(
            f"{name} contains weights and LoRA adapters in the layout of code in its repository, which is "
            f"not run. Use {_JINA_CONVERTED}, which transformers reads."
        )
    return _renamed(settings, {"XLMRoberta": "JinaEmbeddingsV3"}) | {
        "model_type": "jina_embeddings_v3",
        "rope_parameters": {"rope_type": "default", "rope_theta": settings["rotary_emb_base"]},
    }


def _renamed(settings: Settings, classes: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings without the translated keys, and with transformers' class names.

    Args:
        settings: contents of config.json.
        classes: prefix of a class name in the repository → prefix in transformers.
    """
    renamed = {
        setting: value for setting, value in settings.items() if setting not in ("rope_theta", "rope_scaling")
    }
    names = settings.get("architectures")
    if isinstance(names, list):
        renamed["architectures"] = [_rename(class_name, classes) for class_name in names]
    return renamed


def _rename(class_name: Any, classes: Mapping[str, str]) -> Any:
    for start, native in classes.items():
        if isinstance(class_name, str) and class_name.startswith(start):
            return native + class_name.removeprefix(start)
    return class_name
