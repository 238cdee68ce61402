"""Special cases for model types: text encoders, unsupported attention, and configs with model code.

Model code in a Hub repository (``auto_map`` in config.json) is never run. For some of these repositories,
transformers has a native model that loads the original weights, but uses other names for its settings. This
module translates the settings. A config is rejected if it has a setting that the native model does not
support.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

from bert_probe.errors import ArchitectureError, UnavailableError

SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")
"""Settings that describe the sizes of a text encoder."""
_TEXT_TOWERS = {
    "clip_text_model": "CLIPTextModel",
    "siglip_text_model": "SiglipTextModel",
    "siglip2_text_model": "Siglip2TextModel",
}
"""Model type of the text encoder of an image-text model → name of its transformers class."""


WITHOUT_FULL_ATTENTION = {
    "big_bird": "Its attention is block-sparse. Load the model with attention_type='original_full', which "
    "transformers itself uses for short texts.",
    "canine": "CANINE merges four characters into one position, so not all of its layers attend to the "
    "same positions.",
    "fnet": "FNet mixes tokens with a Fourier transform and has no attention.",
    "funnel": "Funnel merges adjacent tokens between its blocks, so not all of its layers attend to the same "
    "positions.",
    "gpt_oss": "gpt-oss assigns part of each token's attention to a learned sink that is not a token, so "
    "the weights of the tokens do not sum to 1.",
    "lfm2": "LFM2 has convolutions instead of attention in some layers.",
    "longt5": "LongT5 computes attention in local blocks and, unlike T5 and mT5, returns no attention matrix "
    "of all tokens.",
    "mamba": "Mamba is a state-space model and has no attention.",
    "nystromformer": "Nyströmformer approximates attention with landmarks and adds a convolution of the "
    "values, so its output is not attention weights × values.",
    "recurrent_gemma": "RecurrentGemma has recurrent layers without attention.",
    "squeezebert": "For SqueezeBERT, transformers returns the attention scores before the softmax instead of "
    "the attention weights.",
    "tapas": "TAPAS reads tables, with the row, column and rank of each token, instead of plain text.",
}
"""Model type → why its attention cannot be shown. These sentences only explain why a model failed the checks;
they do not decide whether a model opens.
"""

WITHOUT_SCORES = {
    "diffllama": "DiffLlama subtracts the outputs of two attention operations that share queries and "
    "keys, so each of its layers has two sets of values.",
    **dict.fromkeys(
        ("led", "longformer"),
        "Its tokens attend only to a window of adjacent tokens, and the model computes attention in "
        "overlapping chunks.",
    ),
    "lilt": "LiLT adds the scores of its layout stream to the scores of its text stream, so the queries "
    "and keys of the text do not determine the weights.",
}
"""Model type → why its queries, keys and values cannot be recorded although its attention can be shown."""

BLOCK_SPARSE = ("big_bird", "bigbird_pegasus")
"""Model types that compute full attention for short texts, and block-sparse attention for longer ones."""


def block_sparse_limit(config: Any) -> int | None:
    """Return the number of tokens up to which a block-sparse model computes full attention.

    Return None for models that are not block-sparse. The limit equals that of transformers: 2 global blocks,
    3 window blocks, and twice the number of random blocks.
    """
    if config.model_type not in BLOCK_SPARSE or config.attention_type != "block_sparse":
        return None
    return int((5 + 2 * config.num_random_blocks) * config.block_size)


def limit_notes(config: Any) -> tuple[str, ...]:
    """Return a note about the maximum text length of a block-sparse model; () for any other model."""
    limit = block_sparse_limit(config)
    if limit is None:
        return ()
    return (
        f"This model computes full attention for texts of up to {limit:,} tokens. For longer texts, its "
        "attention is block-sparse and cannot be shown.",
    )


def with_full_attention(config: Any) -> Any:
    """Return the config with which a block-sparse model always computes full attention.

    For texts up to `block_sparse_limit`, transformers itself switches to this setting.
    """
    if block_sparse_limit(config) is None:
        return config
    config = copy.deepcopy(config)
    config.attention_type = "original_full"
    return config


def setting_names(config_class: Any) -> set[str]:
    """Return the names of the settings that a config class declares, including their other names."""
    return {*(field.name for field in dataclasses.fields(config_class)), *config_class.attribute_map}


def is_text_type(config_class: Any) -> bool:
    """Return whether a config class describes a text encoder, without building a config or a model.

    A text encoder declares all `SIZES`, and its main input are token IDs. T5Gemma, CLIP and SigLIP declare
    them in the nested config of their encoder.
    """
    parts = config_class.sub_configs
    if AutoConfig in parts.values():  # a part may have any model type
        return False
    if "encoder" in parts or getattr(parts.get("text_config"), "model_type", None) in _TEXT_TOWERS:
        return is_text_type(parts.get("encoder", parts.get("text_config")))
    if not all(name in setting_names(config_class) or hasattr(config_class, name) for name in SIZES):
        return config_class.model_type in WITHOUT_FULL_ATTENTION
    try:
        model_class = MODEL_MAPPING[config_class]
    except (KeyError, ValueError, ImportError):  # `build_model` raises the error.
        return True
    first = model_class[0] if isinstance(model_class, tuple) else model_class
    return bool(first.main_input_name == "input_ids")


def text_config(config: Any) -> Any:
    """Return the text config of CLIP or SigLIP; return any other config unchanged."""
    nested = getattr(config, "text_config", None)
    return nested if getattr(nested, "model_type", None) in _TEXT_TOWERS else config


def encoder_config(config: Any) -> Any:
    """Return the nested encoder config if there is one, as in T5Gemma; otherwise return the config itself."""
    return getattr(config, "encoder", config)


def is_encoder_decoder(config: Any) -> bool:
    """Return whether a config describes an encoder-decoder. BERT Probe uses only the encoder."""
    return bool(config.is_encoder_decoder) or config.model_type in ("t5", "mt5", "umt5", "t5gemma")


def text_model_class(config: Any) -> Any:
    """Return the smallest transformers class that contains the text encoder of a model with this config."""
    model_type = config.model_type
    if model_type in _TEXT_TOWERS:
        return getattr(transformers, _TEXT_TOWERS[model_type])
    # T5GemmaEncoderModel rejects the config of a model that also has a decoder.
    is_split = model_type == "t5gemma" and config.is_encoder_decoder
    if is_encoder_decoder(config) and not is_split and model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return getattr(transformers, MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES[model_type])
    return AutoModel


def other_part(config: Any) -> tuple[str, tuple[str, ...]]:
    """Return (name, weight prefixes) of an unused vision model or decoder; ("", ()) for other models."""
    if config.model_type in _TEXT_TOWERS:
        return "vision model", ("vision_model.", "visual_projection.", "logit_scale", "logit_bias")
    return ("decoder", ("decoder.", "lm_head.")) if is_encoder_decoder(config) else ("", ())


def other_part_notes(config: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Return a note about the unused vision model or decoder; () if none of the weights belongs to it."""
    other, prefixes = other_part(config)
    if not any(name.removeprefix("model.").startswith(prefixes) for name in names):
        return ()
    return (f"Only the text encoder of this model is used, not its {other}.",)


def build_model(config: Any) -> Any:
    """Build a model from its config, with randomly initialized weights on torch's default device."""
    model_class = text_model_class(config)
    return model_class.from_config(config) if model_class is AutoModel else model_class(config)


def text_encoder(model: Any) -> Any:
    """Return the encoder of an encoder-decoder, the text tower of an image-text model, or the base model."""
    network = model.base_model
    if is_encoder_decoder(network.config):
        is_t5_encoder = type(network).__name__ in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.values()
        return network if is_t5_encoder and network.config.model_type != "t5gemma" else network.get_encoder()
    tower = getattr(network, "text_model", None)
    return network if tower is None else tower


def is_whole_model(network: Any) -> bool:
    """Return whether transformers and sentence-transformers can open an encoder that is saved by itself.

    From the config of BART's encoder, for example, they would build the complete encoder-decoder.
    """
    config = network.config
    model_class = text_model_class(config) if is_encoder_decoder(config) else AutoModel
    if model_class is AutoModel:
        model_class = MODEL_MAPPING.get(type(config), None)
    return type(network) in (model_class if isinstance(model_class, tuple) else (model_class,))


def check_pooled_encoder(network: Any) -> None:
    """Check that sentence-transformers would pool the output of this text encoder.

    For BART and related types, sentence-transformers pools the output of the decoder. For Marian, Pegasus and
    a few other types, it opens only an encoder, whose weights are random if the checkpoint has a decoder.
    All of these are rejected, also if a Marian or Pegasus checkpoint contains only the encoder.

    Raises:
        UnavailableError: sentence-transformers would not pool the output of this encoder.
    """
    config = network.config
    is_loaded_alone = is_whole_model(network) or config.model_type == "switch_transformers"
    if is_encoder_decoder(config) and not is_loaded_alone:
        raise UnavailableError(
            "sentence-transformers does not pool the encoder of this encoder-decoder "
            f"({config.model_type}), but the output of its decoder, which is not computed. Use the pooling "
            "mean, cls, pooler or max."
        )


def configs_of(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """Return the distinct configs of modules, including nested configs."""
    configs: dict[int, Any] = {}
    pending = [getattr(module, "config", None) for module in modules]
    while pending:
        config = pending.pop()
        if isinstance(config, PretrainedConfig) and id(config) not in configs:
            configs[id(config)] = config
            pending += [getattr(config, name, None) for name in config.sub_configs]
    return list(configs.values())


def disable_cache(network: torch.nn.Module) -> None:
    """Switch off the key-value cache of a decoder.

    The cache would store copies of keys and values, and append to them if a recorded layer runs again.
    """
    for config in configs_of(network.modules()):
        if hasattr(config, "use_cache"):
            config.use_cache = False


Settings = Mapping[str, Any]

_GTE = {
    "position_embedding_type": ("rope",),
    "layer_norm_type": ("layer_norm",),
    "logn_attention_scale": (False,),
    "pack_qkv": (True,),
}
"""Name of a setting of Alibaba-NLP/new-impl → values with which that model equals transformers' GteModel."""

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
"""Name of a setting of nomic-ai/nomic-bert-2048 → values with which that model equals NomicBertModel."""

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
"""Hub ID of jina-embeddings-v3, converted to the format of transformers."""


def native_settings(settings: Settings, name: str) -> Settings:
    """Translate the settings of a config.json to the settings of transformers' native model.

    Settings that need no translation are returned unchanged.

    Args:
        settings: contents of config.json.
        name: the model's name in error messages.

    Raises:
        ArchitectureError: the native model does not support a setting of this config.
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
        "config.json names model code in the repository (auto_map), which is not run. All numbers are "
        f"computed with transformers' {architecture}. If the code in the repository uses, for example, "
        "another attention mask, its results differ from these numbers.",
    )


def _check(settings: Settings, allowed: Mapping[str, tuple[Any, ...]], name: str, native: str) -> None:
    """Raise an error for a setting whose value the native class does not support."""
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
                f"{name} has rope_scaling = {scaling!r} in config.json, which transformers' GteModel "
                "does not support. Use another model."
            )
        # The repository's code multiplies theta by the factor, and divides all frequencies by
        # factor^(2 ÷ head dim).
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
    """Translate a config of nomic-ai/nomic-bert-2048, which uses the setting names of GPT-2."""
    activation = settings.get("activation_function")
    _check(settings, _NOMIC | {"activation_function": tuple(_NOMIC_ACTIVATIONS)}, name, "NomicBertModel")
    translated = {_NOMIC_NAMES.get(setting, setting): value for setting, value in settings.items()}
    multiple = settings.get("pad_vocab_size_multiple") or 1
    vocabulary = -(-settings["vocab_size"] // multiple) * multiple
    if settings.get("rotary_scaling_factor"):
        # Longer texts are not supported: for them, the repository's code scales the rotary angles.
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
            f"not run. Use {_JINA_CONVERTED}, which transformers can load."
        )
    return _renamed(settings, {"XLMRoberta": "JinaEmbeddingsV3"}) | {
        "model_type": "jina_embeddings_v3",
        "rope_parameters": {"rope_type": "default", "rope_theta": settings["rotary_emb_base"]},
    }


def _renamed(settings: Settings, classes: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings without rope_theta and rope_scaling, and with transformers' class names.

    Args:
        settings: contents of config.json.
        classes: prefix of a class name in the repository → prefix of the class name in transformers.
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
