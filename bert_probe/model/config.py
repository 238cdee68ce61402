"""What of a checkpoint's config.json is used: its kind, its sizes and what its layers compute.

Everything else in the file is left out before transformers sees it. A config may name an attention
implementation, for which transformers fetches and runs native code; it may name other classes, other files,
a compiler. Here a checkpoint chooses none of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto import modeling_auto

from bert_probe.errors import ArchitectureError, CheckpointError, WeightsError
from bert_probe.model.sources import read_config

SUPPORTED = (
    "BERT, RoBERTa, DistilBERT, ELECTRA, ALBERT, CamemBERT, XLM-RoBERTa, MobileBERT, ModernBERT, "
    "NomicBERT, EuroBERT, MPNet and DeBERTa encoders"
)
MOST_LAYERS = 1_000
"""More than any encoder has: 48 in the deepest that are published. Some configs make lists of this length."""
MOST_LABELS = 10_000
"""Of an output head."""
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
"""What a head for texts may have been trained to tell: a number, one class of several, or any of them."""
REMEDY = "Use the config.json that belongs to these weights."
"""Where config and weights disagree."""
_NATIVE_KINDS = frozenset({"mra", "yoso"})
"""Computed by native code that transformers would fetch when the model is made."""
_ROTARY = frozenset({"rope_scaling"})
"""Among the names of transformers' base class, those that change what a layer computes."""
_CHOICES = frozenset(
    {
        "attn_implementation",
        "auto_map",
        "compression_config",
        "deterministic_flash_attn",
        "device_map",
        "distributed_config",
        "experts_implementation",
        "fusion_config",
        "gradient_checkpointing",
        "kernel_config",
        "quantization_config",
        "reference_compile",
        "torchscript",
        "tp_plan",
        "transformers_weights",
        "use_kernels",
    }
)
"""Names that choose by what code, from where, or where to a model is computed."""


def check_kind(name: str, kind: str, settings: Mapping[str, Any]) -> None:
    """Refuse what is no text encoder, and weights that are no plain numbers.

    Raises:
        ArchitectureError, WeightsError: with what it is instead.
    """
    if settings.get("is_encoder_decoder"):
        raise ArchitectureError(f"{name} ({kind}) is an encoder-decoder. Supported: {SUPPORTED}.")
    if settings.get("is_decoder"):
        raise ArchitectureError(f"{name} ({kind}) is set up as a decoder. Supported: {SUPPORTED}.")
    if kind not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        decoder = kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        what = "a decoder" if decoder else "not a text encoder that transformers knows"
        raise ArchitectureError(f"{name} ({kind}) is {what}. Supported: {SUPPORTED}.")
    if kind in _NATIVE_KINDS:
        raise ArchitectureError(
            f"{name} ({kind}) needs native code that would have to be fetched. Supported: {SUPPORTED}."
        )
    if settings.get("quantization_config"):
        raise WeightsError(f"{name} holds quantized weights. Use the model as it was before that.")


def configure(folder: Path, name: str) -> Any:
    """transformers' config of a checkpoint, made of what is `used` of its config.json.

    Raises:
        NotFoundError, CheckpointError, ArchitectureError, WeightsError: no config, or none of an encoder.
    """
    return configured(read_config(folder), name)


def configured(raw: Mapping[str, Any], name: str) -> Any:
    """The same of what such a file says.

    Raises:
        CheckpointError, ArchitectureError, WeightsError: as `configure`.
    """
    kind = raw.get("model_type")
    if not kind or not isinstance(kind, str):
        raise CheckpointError("config.json names no model_type. Save the model with save_pretrained.")
    check_kind(name, kind, raw)
    if raw.get("transformers_weights"):
        raise WeightsError("config.json points to weights of another name. Rename them model.safetensors.")
    family = CONFIG_MAPPING[kind]
    settings = used(raw, family)
    _check_layers(settings, family)
    try:
        config = family.from_dict(settings)
        sizes = (config.num_hidden_layers, config.num_attention_heads, config.hidden_size, config.vocab_size)
    except Exception as error:  # a config's own validation raises many types
        raise CheckpointError(f"config.json is not valid for {kind}: {reason(error)}. {REMEDY}") from None
    if min(sizes) < 1:
        raise CheckpointError(f"config.json is not valid for {kind}: a size is less than 1. {REMEDY}")
    return config


def used(raw: Mapping[str, Any], family: type[PreTrainedConfig]) -> dict[str, Any]:
    """What of a config.json is used, for a family of models.

    Left out are names that begin with an underscore; those that transformers' configs have in common, which
    are about outputs, labels, dtype and files; those that name code; and those of the class's own methods.
    """
    fields = {field.name for field in dataclasses.fields(family)}
    common = {*dir(PreTrainedConfig), *(field.name for field in dataclasses.fields(PreTrainedConfig))}

    def wanted(name: str) -> bool:
        if name in _ROTARY or name in family.attribute_map:
            return True
        # What is no field may still be read by the layers, as DeBERTa's position_buckets are.
        return name not in common and (name in fields or not hasattr(family, name))

    return {name: value for name, value in _without_choices(raw).items() if wanted(name)}


@dataclass(frozen=True)
class ConfiguredHeads:
    """What a config.json says of output heads. Names are plain text, and choose nothing.

    Attributes:
        architectures: the classes that the weights were saved from.
        labels: what a head's numbers are of.
        problem: one of `PROBLEMS`, or "".
        tied: whether the words of the output are those of the input; None where that is the family's to say.
    """

    architectures: frozenset[str]
    labels: tuple[str, ...]
    problem: str
    tied: bool | None


def trained(folder: Path) -> ConfiguredHeads:
    """What a checkpoint says that it was trained for.

    Raises:
        CheckpointError: labels that are none, or more than `MOST_LABELS`.
    """
    raw = read_config(folder)
    names, tied = raw.get("architectures"), raw.get("tie_word_embeddings")
    problem = raw.get("problem_type") or ""
    if problem and problem not in PROBLEMS:
        raise CheckpointError(f"config.json has problem_type {problem!r}, which is not known. {REMEDY}")
    return ConfiguredHeads(
        frozenset(name for name in names if isinstance(name, str))
        if isinstance(names, list)
        else frozenset(),
        _labels(raw.get("id2label"), raw.get("num_labels")),
        problem,
        tied if isinstance(tied, bool) else None,
    )


def _labels(named: Any, count: Any) -> tuple[str, ...]:
    """By their index from 0; where none are named, as transformers calls them."""
    if named is None:
        number = count if isinstance(count, int) and not isinstance(count, bool) else 2  # saved without it
        named = {str(index): f"LABEL_{index}" for index in range(min(number, MOST_LABELS + 1))}
    if not isinstance(named, Mapping) or not all(isinstance(label, str) for label in named.values()):
        raise CheckpointError(f"id2label in config.json names no labels. {REMEDY}")
    if len(named) > MOST_LABELS:
        raise CheckpointError(
            f"config.json names more than {MOST_LABELS:,} labels, which is the most that is read. {REMEDY}"
        )
    if sorted(named) != sorted(map(str, range(len(named)))):
        raise CheckpointError(f"id2label in config.json does not count its labels from 0. {REMEDY}")
    return tuple(named[str(index)] for index in range(len(named)))


def _without_choices(value: Any) -> Any:
    """The same without what chooses code, at any depth: some configs hold others."""
    if isinstance(value, Mapping):
        kept = {name: part for name, part in value.items() if name[:1] != "_" and name not in _CHOICES}
        return {name: _without_choices(part) for name, part in kept.items()}
    return [_without_choices(part) for part in value] if isinstance(value, list) else value


def _check_layers(settings: Mapping[str, Any], family: type[PreTrainedConfig]) -> None:
    for name in ("num_hidden_layers", family.attribute_map.get("num_hidden_layers")):
        asked = settings.get(name) if name else None
        if isinstance(asked, int) and asked > MOST_LAYERS:
            raise CheckpointError(
                f"config.json asks for {asked:,} layers; at most {MOST_LAYERS:,} are opened. {REMEDY}"
            )


def reason(error: BaseException) -> str:
    """What an error says, on one line."""
    text = " ".join(str(error).split()).rstrip(".")[:300]
    return f"{type(error).__name__} {text}".strip() if isinstance(error, KeyError) or not text else text
