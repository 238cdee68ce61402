"""Select the transformers class to load and the module that encodes text.

Also list architectures whose attention is unavailable, or available only for some texts.
"""

from __future__ import annotations

import copy
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


WITHOUT_FULL_ATTENTION = {
    "big_bird": "Its attention is block-sparse. Load it with attention_type='original_full', which "
    "transformers uses itself for short texts.",
    "canine": "CANINE merges four characters into a position, so its layers attend to different positions.",
    "fnet": "FNet mixes tokens with a Fourier transform and has no attention.",
    "gpt_oss": "gpt-oss gives part of the attention of each token to a learned sink that is not a token, so "
    "the weights of the tokens do not sum to 1.",
    "lfm2": "LFM2 has convolutions instead of attention in some layers.",
    "longt5": "LongT5 computes attention in local blocks and returns no matrix of all tokens. T5 and mT5 do.",
    "mamba": "Mamba is a state-space model and has no attention.",
    "nystromformer": "Nyströmformer approximates attention with landmarks and adds a convolution of the "
    "values, so its output is not attention weights × values.",
    "recurrent_gemma": "RecurrentGemma has recurrent layers without attention.",
    "squeezebert": "transformers returns the attention scores of SqueezeBERT before the softmax instead of "
    "its attention weights.",
    "tapas": "TAPAS reads tables, with row, column and rank of each token, instead of plain text.",
}
"""Model type → why its attention cannot be shown. Only the checks decide whether a model opens; these
sentences explain a failed check.
"""

WITHOUT_SCORES = {
    "diffllama": "DiffLlama subtracts the outputs of two attentions that share their queries and keys, so "
    "each of its layers has two sets of values.",
    **dict.fromkeys(
        ("led", "longformer"),
        "Its tokens attend to a window around them, which the model computes in overlapping chunks.",
    ),
    "lilt": "LiLT adds the scores of its layout stream to those of its text stream, so the queries and keys "
    "of the text do not determine the weights.",
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
    """Return a note that a block-sparse model reads only texts for which it computes full attention."""
    limit = block_sparse_limit(config)
    if limit is None:
        return ()
    return (
        f"Up to {limit:,} tokens, this model computes full attention. For longer texts, its attention is "
        "block-sparse and cannot be shown.",
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


def text_config(config: Any) -> Any:
    """Return the text config of CLIP or SigLIP; return any other config unchanged."""
    nested = getattr(config, "text_config", None)
    return nested if getattr(nested, "model_type", None) in _TEXT_TOWERS else config


def encoder_config(config: Any) -> Any:
    """Return the encoder's config, which T5Gemma nests in the config of the model."""
    return getattr(config, "encoder", config)


def is_encoder_decoder(config: Any) -> bool:
    """Return whether a config describes an encoder-decoder. BERT Probe uses only the encoder."""
    return bool(config.is_encoder_decoder) or config.model_type in ("t5", "mt5", "umt5", "t5gemma")


def text_model_class(config: Any) -> Any:
    """Return the smallest transformers class that contains the text encoder described by a config."""
    model_type = config.model_type
    if model_type in _TEXT_TOWERS:
        return getattr(transformers, _TEXT_TOWERS[model_type])
    # T5GemmaEncoderModel rejects the config of a model that also has a decoder.
    is_split = model_type == "t5gemma" and config.is_encoder_decoder
    if is_encoder_decoder(config) and not is_split and model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return getattr(transformers, MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES[model_type])
    return AutoModel


def other_part(config: Any) -> tuple[str, tuple[str, ...]]:
    """Return the name of the checkpoint's other part (vision model or decoder), and its weight prefixes."""
    if config.model_type in _TEXT_TOWERS:
        return "vision model", ("vision_model.", "visual_projection.", "logit_scale", "logit_bias")
    return ("decoder", ("decoder.", "lm_head.")) if is_encoder_decoder(config) else ("", ())


def build_model(config: Any) -> Any:
    """Build a model from its config, with randomly initialized weights on torch's default device."""
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
    """Return the distinct configs of modules, including nested configs."""
    configs: dict[int, Any] = {}
    pending = [getattr(module, "config", None) for module in modules]
    while pending:
        config = pending.pop()
        if isinstance(config, PretrainedConfig) and id(config) not in configs:
            configs[id(config)] = config
            pending += [getattr(config, name, None) for name in config.sub_configs]
    return list(configs.values())
