"""Read the settings in a checkpoint's config.json that select the model type, sizes and layer computations.

All other settings are removed before transformers reads the config, because they may name a class, a file, a
compiler, or an attention implementation for which transformers would download and run native code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig

from bert_probe.errors import ArchitectureError, CheckpointError, NotFoundError, WeightsError
from bert_probe.model.architectures import (
    SIZES,
    WITHOUT_FULL_ATTENTION,
    encoder_config,
    is_text_type,
    native_settings,
    setting_names,
    text_config,
)
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sentence_router import at_encoder
from bert_probe.model.sources import (
    CONFIG_FILES,
    existing,
    has_file,
    is_hub_id,
    locate,
    read_config,
    read_config_file,
)

SUPPORTED = (
    "encoders such as BERT, RoBERTa, DistilBERT, ELECTRA, ALBERT, CamemBERT, XLM-RoBERTa, MobileBERT, "
    "ModernBERT, NomicBERT, EuroBERT, MPNet and DeBERTa, decoders such as Qwen3, Mistral, Llama, Gemma 3 and "
    "GPT-2, the encoders of T5 and BART, and the text models of CLIP and SigLIP"
)
MAX_LAYERS = 1_000
"""Maximum number of layers in a config; the deepest published encoder has 48. The limit is needed because
some config classes build a list with one item per layer.
"""
MAX_INTEGER = 20_000_000
"""Maximum value of an integer setting, except the base of rotary positions. The largest known value is the
number of positions of Llama 4, 10,485,760.
"""
MAX_LABELS, MAX_LABEL_LENGTH = 10_000, 1_000
"""Maximum number of labels of a task head, and maximum number of characters of a label."""
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
"""Problem types of a text classification head: it predicts a value, exactly one class, or any set of
classes.
"""
REMEDY = "Use the config.json that belongs to these weights."
"""Advice at the end of error messages about a config.json that is invalid or does not match its weights."""
_NATIVE_CODE_TYPES = frozenset({"mra", "rwkv", "sam3_video", "yoso"})
"""Model types that run native code, which transformers would download when the model is built."""
_AMBIGUOUS_TYPES = frozenset({"funnel"})
"""Model types without full attention that transformers cannot load, because they have several classes."""
_LAYER_COUNTS = ("layers", "n_layer")
"""Suffixes of setting names that contain a number of layers, such as num_hidden_layers."""
_STAGES = frozenset(
    {"depths", "block_sizes", "block_repeats", "first_k_dense_replace", "H_cycles", "L_cycles"}
)
"""Settings that contain a number of layers or repetitions, or a list with such a number for each stage."""
MAX_SINUSOIDS = 2_000_000
"""Maximum number of elements in a table of sinusoidal positions, which transformers computes one by one in
Python for some model types. The table of Pegasus has 1,048,576.
"""
_SINUSOIDS = {
    "distilbert": "sinusoidal_pos_embds",
    "flaubert": "sinusoidal_embeddings",
    "marian": "",
    "pegasus": "",
    "roformer": "",
    "xlm": "sinusoidal_embeddings",
}
"""Model type with such a table → name of the setting that turns it on; "" if the table always exists."""
_ROTARY = frozenset({"rope_scaling"})
"""Settings of transformers' base class that change what a layer computes."""
_CODE_SETTINGS = frozenset(
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
"""Settings that choose which code computes a model, or where its files are."""


def check_kind(name: str, model_type: str, settings: Mapping[str, Any]) -> None:
    """Raise an error if transformers lacks the model type, or if the weights are quantized.

    This function reads only the config; `checks` tests later whether the loaded model can be run on text.

    Raises:
        ArchitectureError: the model type is unknown, or needs native code.
        WeightsError: the weights are quantized.
    """
    if model_type not in CONFIG_MAPPING:
        code = "The model code in its repository (auto_map) is not run. " if "auto_map" in settings else ""
        raise ArchitectureError(
            f"{name} ({model_type}) is not a model type of transformers {transformers.__version__}. {code}"
            f"Supported: {SUPPORTED}."
        )
    if model_type in _NATIVE_CODE_TYPES:
        raise ArchitectureError(
            f"{name} ({model_type}) needs native code, which is not downloaded. Supported: {SUPPORTED}."
        )
    if settings.get("quantization_config"):
        raise WeightsError(f"{name} has quantized weights. Use the model before quantization.")


def load_config(folder: Path, name: str) -> Any:
    """Read a checkpoint's config.json and build the transformers config.

    Raises:
        NotFoundError, CheckpointError, ArchitectureError, WeightsError: the config is missing or invalid, or
            does not describe an encoder.
    """
    return build_config(read_config(folder), name)


def build_config(settings: Mapping[str, Any], name: str) -> Any:
    """Build the transformers config from the settings of a config.json that `select_settings` keeps.

    Raises:
        CheckpointError, ArchitectureError, WeightsError: as in `load_config`.
    """
    settings = _translated(settings, name)
    model_type = settings.get("model_type")
    if not model_type or not isinstance(model_type, str):
        raise CheckpointError("config.json has no model_type. Save the model with save_pretrained.")
    check_kind(name, model_type, settings)
    if settings.get("transformers_weights"):
        raise WeightsError(
            "config.json refers to weights with another file name (transformers_weights). Rename the weight "
            "file to model.safetensors, and remove transformers_weights from config.json."
        )
    config_class = CONFIG_MAPPING[model_type]
    not_text = f"{name} ({model_type}) is not a text model. Supported: {SUPPORTED}."
    if not is_text_type(config_class):
        raise ArchitectureError(not_text)
    used_settings = select_settings(settings, config_class)
    _check_layers(used_settings)
    if model_type in _AMBIGUOUS_TYPES:
        raise ArchitectureError(
            f"The attention of {name} cannot be shown: {WITHOUT_FULL_ATTENTION[model_type]} "
            f"Supported: {SUPPORTED}."
        )
    declared = setting_names(config_class)
    _check_integers({name: value for name, value in used_settings.items() if name in declared})
    try:
        config = text_config(config_class.from_dict(used_settings))
        sizes: list[Any] = [getattr(encoder_config(config), name, None) for name in SIZES]
    except Exception as error:  # Catch all exceptions, because the config class raises many types.
        raise CheckpointError(
            f"config.json is not valid for {model_type}: {reason(error)}. {REMEDY}"
        ) from None
    if None in sizes:
        raise ArchitectureError(not_text)
    if not all(isinstance(size, int) for size in sizes):
        raise CheckpointError(
            f"config.json is not valid for {model_type}, because a size is not a number. {REMEDY}"
        )
    if min(sizes) < 1:
        raise CheckpointError(
            f"config.json is not valid for {model_type}, because a size is less than 1. {REMEDY}"
        )
    _check_sinusoids(config)
    return config


def _translated(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return `architectures.native_settings`, with unexpected errors converted to CheckpointErrors."""
    try:
        return native_settings(settings, name)
    except ArchitectureError:
        raise
    except Exception as error:  # A setting is missing or has an unexpected type.
        raise CheckpointError(
            f"config.json is not valid for {settings.get('model_type')}: {reason(error)}. {REMEDY}"
        ) from None


def select_settings(settings: Mapping[str, Any], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """Select the settings of a config.json that BERT Probe uses for a model family.

    These settings are removed: names with a leading underscore; settings common to all transformers configs,
    which concern outputs, labels, dtype and files; settings that select custom code (such as `auto_map`); and
    names of methods of the config class.
    """
    declared_names = setting_names(config_class)
    common_names = {*dir(PreTrainedConfig), *(field.name for field in dataclasses.fields(PreTrainedConfig))}

    def is_used(name: str) -> bool:
        if name in _ROTARY or name in config_class.attribute_map:
            return True
        # Layers may also read settings that their config class does not declare, such as position_buckets.
        return name not in common_names and (name in declared_names or not hasattr(config_class, name))

    return {name: value for name, value in _remove_code_settings(settings).items() if is_used(name)}


@dataclass(frozen=True)
class ConfiguredHeads:
    """The task heads that a config.json describes. Class names are stored as strings and never select code.

    Attributes:
        architectures: class names of the models from which the weights were saved.
        labels: label names for the outputs of a task head.
        problem: one of `PROBLEMS`; "" if the config does not specify it.
        tied: whether input and output word embeddings are tied; None for the default of the model family.
        activation: the activation that a sentence-transformers cross-encoder applies to its score, such as
            torch.nn.modules.activation.Sigmoid; "" for other models.
    """

    architectures: frozenset[str]
    labels: tuple[str, ...]
    problem: str
    tied: bool | None
    activation: str


def read_head_settings(folder: Path) -> ConfiguredHeads:
    """Read the settings of the task heads from a checkpoint's config.json.

    Raises:
        CheckpointError: the labels are invalid, or there are more than `MAX_LABELS`, or one is longer than
            `MAX_LABEL_LENGTH`.
    """
    settings = _translated(read_config(folder), folder.name)
    names, tied = settings.get("architectures"), settings.get("tie_word_embeddings")
    problem = settings.get("problem_type") or ""
    if problem and problem not in PROBLEMS:
        raise CheckpointError(f"config.json has an unknown problem_type {problem!r}. {REMEDY}")
    labels = _labels(settings.get("id2label"), settings.get("num_labels"))
    return ConfiguredHeads(
        frozenset(name for name in names if isinstance(name, str))
        if isinstance(names, list)
        else frozenset(),
        labels,
        problem,
        tied if isinstance(tied, bool) else None,
        _score_activation(folder, settings, len(labels)),
    )


def _score_activation(folder: Path, settings: Mapping[str, Any], label_count: int) -> str:
    """Return the class path of the activation that `CrossEncoder.predict` applies; "" for other models."""
    file = folder / "config_sentence_transformers.json"
    options = read_config_file(file) if has_file(folder, file.name) else {}
    is_cross_encoder = options.get("model_type") == "CrossEncoder"
    section = settings.get("sentence_transformers")
    declared = (
        options.get("activation_fn") if is_cross_encoder else None,
        section.get("activation_fn") if isinstance(section, dict) else None,
        settings.get("sbert_ce_default_activation_function"),
    )
    name = next((name for name in declared if name is not None), "")
    if name or not (is_cross_encoder or isinstance(section, dict)):
        return str(name)
    return "torch.nn.Sigmoid" if label_count == 1 else "torch.nn.Identity"


def _labels(id2label: Any, count: Any) -> tuple[str, ...]:
    """Return the label names in index order; if `id2label` is None, the default names of `count` labels."""
    if id2label is None:
        label_count = 2 if count is None else count  # transformers omits the default value 2 from the file
        if isinstance(label_count, bool) or not isinstance(label_count, int) or label_count < 0:
            raise CheckpointError(
                f"num_labels in config.json is {str(count)[:100]}, but must be a whole number of at least 0. "
                f"{REMEDY}"
            )
        id2label = {str(index): f"LABEL_{index}" for index in range(min(label_count, MAX_LABELS + 1))}
    if not isinstance(id2label, Mapping) or not all(isinstance(label, str) for label in id2label.values()):
        raise CheckpointError(f"id2label in config.json must map indices to label names. {REMEDY}")
    if len(id2label) > MAX_LABELS:
        raise CheckpointError(
            f"config.json has more than {MAX_LABELS:,} labels, the maximum that is supported. {REMEDY}"
        )
    longest = max(map(len, id2label.values()), default=0)
    if longest > MAX_LABEL_LENGTH:
        raise CheckpointError(
            f"A label in config.json has {longest:,} characters; at most {MAX_LABEL_LENGTH:,} are supported. "
            f"{REMEDY}"
        )
    if sorted(id2label) != sorted(map(str, range(len(id2label)))):
        raise CheckpointError(
            f"id2label in config.json must number the labels consecutively from 0. {REMEDY}"
        )
    return tuple(id2label[str(index)] for index in range(len(id2label)))


def _remove_code_settings(value: Any) -> Any:
    """Remove settings that select custom code, such as `auto_map`, also from nested configs."""
    if isinstance(value, Mapping):
        allowed = {
            name: setting for name, setting in value.items() if name[:1] != "_" and name not in _CODE_SETTINGS
        }
        return {name: _remove_code_settings(setting) for name, setting in allowed.items()}
    return [_remove_code_settings(setting) for setting in value] if isinstance(value, list) else value


def _check_layers(settings: Mapping[str, Any]) -> None:
    """Raise an error if a setting, at any depth, describes more than `MAX_LAYERS` layers."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _check_layers(value)
            continue
        layers = _attention_layers(value) if name == "attention_types" else value
        if name in _STAGES:
            layers = sum(number for number in _flatten(value) if isinstance(number, int | float))
        is_count = name.endswith(_LAYER_COUNTS) or name in _STAGES or name == "attention_types"
        if is_count and isinstance(layers, int | float) and layers > MAX_LAYERS:
            raise CheckpointError(
                f"config.json describes {layers:,} layers, but at most {MAX_LAYERS:,} are supported. {REMEDY}"
            )


def _check_integers(settings: Mapping[str, Any]) -> None:
    """Raise an error if a setting, at any depth, contains an integer larger than `MAX_INTEGER`."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _check_integers(value)
        elif "theta" not in name and "base" not in name:
            largest = max((number for number in _flatten(value) if isinstance(number, int)), default=0)
            if largest > MAX_INTEGER:
                raise CheckpointError(
                    f"{name[:100]} in config.json is {str(largest)[:100]}, but at most {MAX_INTEGER:,} is "
                    f"supported. {REMEDY}"
                )


def _check_sinusoids(config: Any) -> None:
    """Raise an error if a table of sinusoidal positions has more than `MAX_SINUSOIDS` elements."""
    setting = _SINUSOIDS.get(config.model_type)
    if setting is None or (setting and not getattr(config, setting)):
        return
    positions, size = config.max_position_embeddings, config.hidden_size
    if positions * size > MAX_SINUSOIDS:
        raise CheckpointError(
            f"config.json describes {positions:,} sinusoidal positions of {size:,} elements, but at most "
            f"{MAX_SINUSOIDS:,} elements are supported. {REMEDY}"
        )


def _flatten(value: Any) -> Iterator[Any]:
    """Yield the items of a list, at any depth, or the value itself if it is not a list."""
    if isinstance(value, list):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


def _attention_layers(types: Any) -> int:
    """Return the number of layers that GPT-Neo's `attention_types` describe: [[layer types, repeats], …]."""
    pairs = [pair for pair in types if isinstance(pair, list) and len(pair) == 2] if types else []
    return sum(
        max(0, repeats) * len(kinds)
        for kinds, repeats in pairs
        if isinstance(repeats, int) and isinstance(kinds, list | str)
    )


def reason(error: BaseException) -> str:
    """Return the message of an error on one line, without the final period."""
    text = " ".join(str(error).split()).rstrip(".")[:300]
    return f"{type(error).__name__} {text}".strip() if isinstance(error, KeyError) or not text else text


_TURC, _DEVLIN = "Turc et al. 2019", "Devlin et al. 2019"


def _bert(layers: int, hidden: int) -> dict[str, Any]:
    """Return the settings of an English uncased BERT: head dimension 64, feed-forward size 4 × `hidden`."""
    return {
        "model_type": "bert",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
        "vocab_size": 30_522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }


PUBLISHED: Mapping[str, tuple[dict[str, Any], str]] = {
    "bert-tiny": (_bert(2, 128), _TURC),
    "bert-mini": (_bert(4, 256), _TURC),
    "bert-small": (_bert(4, 512), _TURC),
    "bert-medium": (_bert(8, 512), _TURC),
    "bert-base": (_bert(12, 768), _DEVLIN),
    "bert-large": (_bert(24, 1024), _DEVLIN),
}
"""Published model sizes: maps each name to its config settings and its paper."""


@dataclass(frozen=True)
class ModelConfig:
    """A model described by its config, without weights.

    Attributes:
        name: the name that the caller used, without the revision.
        origin: "published", "local file", "local folder", "built-in" or "hub".
        revision: the commit on the hub, or None.
        source: the paper that published the size, or the location of the config.
        sha256: SHA-256 of the config's contents.
        config: the transformers config, built from the settings that `select_settings` keeps.
    """

    name: str
    origin: str
    revision: str | None
    source: str
    sha256: str
    config: Any = field(compare=False, repr=False)

    @property
    def record(self) -> dict[str, Any]:
        """Return the provenance of the config as JSON values."""
        return {
            "model": self.name,
            "origin": self.origin,
            "revision": self.revision,
            "source": self.source,
            "config_sha256": self.sha256,
        }


def open_config(name: str | os.PathLike[str], progress: Progress = no_progress) -> ModelConfig:
    """Read the config of a model, without reading or downloading weights.

    Args:
        name: a published size (bert-tiny, bert-mini, bert-small, bert-medium, bert-base, bert-large); a file
            such as config.json; a folder that contains config.json; the built-in model; or a Hub ID,
            optionally followed by @ and a revision. Write ./bert-base for a folder that has the name of a
            published size.
        progress: called with bytes done and total bytes during a download.

    Raises:
        NotFoundError, NetworkError: the config is unavailable.
        CheckpointError, ArchitectureError: the file is not a config, or does not describe an encoder.
    """
    requested = str(name).strip()
    if not requested:
        raise NotFoundError(
            f"The name of the model is empty. Use {', '.join(PUBLISHED)}, a file, a folder or a Hub ID."
        )
    if requested in PUBLISHED and not isinstance(name, os.PathLike):
        settings, paper = PUBLISHED[requested]
        return _model_config(settings, requested, "published", None, paper)
    path = existing(requested)
    if path is not None and path.is_file():
        return _model_config(read_config_file(path), requested, "local file", None, str(path.resolve()))
    if path is not None or isinstance(name, os.PathLike):
        source = locate(name)
    else:
        model, _, revision = requested.partition("@")
        source = locate(*((model, revision) if is_hub_id(model) else (requested, "")), progress, CONFIG_FILES)
    location = f"https://huggingface.co/{source.name}" if source.origin == "hub" else str(source.folder)
    settings = read_config(at_encoder(source).folder)
    return _model_config(settings, source.name, source.origin, source.revision, location)


def _model_config(
    settings: Mapping[str, Any], name: str, origin: str, revision: str | None, source: str
) -> ModelConfig:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return ModelConfig(name, origin, revision, source, digest, build_config(settings, name))
