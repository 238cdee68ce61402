"""Which part of a transformers model encodes text: the class to load, and the module to run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import transformers
from transformers import AutoModel, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

_TEXT_TOWERS = {
    "clip_text_model": "CLIPTextModel",
    "siglip_text_model": "SiglipTextModel",
    "siglip2_text_model": "Siglip2TextModel",
}
"""Model type of the text tower of a model for text and images → its class."""


def text_config(config: Any) -> Any:
    """Return the part of a config that describes the text tower of CLIP or SigLIP; otherwise the config."""
    nested = getattr(config, "text_config", None)
    return nested if getattr(nested, "model_type", None) in _TEXT_TOWERS else config


def encoder_config(config: Any) -> Any:
    """Return the config with the sizes of the encoder, which T5Gemma nests."""
    return getattr(config, "encoder", config)


def is_encoder_decoder(config: Any) -> bool:
    """Return whether a config describes an encoder and a decoder, of which only the encoder is used."""
    return bool(config.is_encoder_decoder) or config.model_type in ("t5", "mt5", "umt5", "t5gemma")


def text_model_class(config: Any) -> Any:
    """Return the smallest class of transformers that contains the text encoder of a config."""
    model_type = config.model_type
    if model_type in _TEXT_TOWERS:
        return getattr(transformers, _TEXT_TOWERS[model_type])
    # T5GemmaEncoderModel rejects the config of a model that also has a decoder.
    is_split = model_type == "t5gemma" and config.is_encoder_decoder
    if is_encoder_decoder(config) and not is_split and model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return getattr(transformers, MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES[model_type])
    return AutoModel


def other_part(config: Any) -> tuple[str, tuple[str, ...]]:
    """Return what a checkpoint contains besides its text encoder, and the prefixes of those weights."""
    if config.model_type in _TEXT_TOWERS:
        return "vision model", ("vision_model.", "visual_projection.", "logit_scale", "logit_bias")
    return ("decoder", ("decoder.", "lm_head.")) if is_encoder_decoder(config) else ("", ())


def build_model(config: Any) -> Any:
    """Build the model of a config, with initial weights on torch's current default device."""
    model_class = text_model_class(config)
    return model_class.from_config(config) if model_class is AutoModel else model_class(config)


def text_encoder(model: Any) -> Any:
    """Return the module of a model that encodes text: the encoder of an encoder-decoder, or a text tower."""
    network = model.base_model
    if is_encoder_decoder(network.config):
        is_t5_encoder = type(network).__name__ in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.values()
        return network if is_t5_encoder and network.config.model_type != "t5gemma" else network.get_encoder()
    tower = getattr(network, "text_model", None)
    return network if tower is None else tower


def configs_of(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """Return the configs of modules, including nested ones, each once."""
    configs: dict[int, Any] = {}
    pending = [getattr(module, "config", None) for module in modules]
    while pending:
        config = pending.pop()
        if isinstance(config, PretrainedConfig) and id(config) not in configs:
            configs[id(config)] = config
            pending += [getattr(config, name, None) for name in config.sub_configs]
    return list(configs.values())
