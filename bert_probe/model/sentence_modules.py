"""Read a checkpoint's sentence-transformers modules, which map a text to one vector, from its files.

The files are read without sentence-transformers, because analyses that trace a vector to its tokens need each
module separately, in float64, with gradients and without a second forward pass of the encoder. Therefore the
package is optional, and classes named in the files are never imported. The tests compare the vectors with
those of sentence-transformers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bert_probe.errors import CheckpointError, OutOfMemoryError, ProbeError, UnavailableError, memory_errors
from bert_probe.model.architectures import check_pooled_encoder
from bert_probe.model.checkpoint import Description
from bert_probe.model.config import reason
from bert_probe.model.sentence_networks import (
    DenseNetwork,
    LayerNormNetwork,
    SentenceModule,
    activation_named,
    load_weights,
)
from bert_probe.model.sentence_router import (
    AGAIN,
    MODEL_FILE,
    MODULES_FILE,
    REMEDY,
    TRANSFORMERS,
    ModuleEntry,
    encoder_folder,
    is_late_interaction,
    read_modules,
    routers,
    select_route,
)
from bert_probe.model.sources import has_file, read_config, read_json

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""Pooling modes of sentence-transformers, in the order in which old configs concatenate them."""
SPLADE_MODES = ("splade_max", "splade_sum", "splade_max_log1p", "splade_sum_log1p")
"""Modes of SpladePooling, which pools vocabulary logits; the names combine strategy and activation."""
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

_LEGACY_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
TOKENS, VECTOR = "token_embeddings", "sentence_embedding"
_TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_OUTPUTS = {
    "feature-extraction": ("last_hidden_state", TOKENS),
    "fill-mask": ("logits", TOKENS),
    "sequence-classification": ("logits", "scores"),
}
"""Task of the Transformer module → the model's output, and the name that following modules use for it."""
_OLD_NAMES = {
    "model_kwargs": "model_args",
    "processor_kwargs": "tokenizer_args",
    "config_kwargs": "config_args",
}
"""Options of the Transformer module → their names in earlier versions of sentence-transformers."""
_HARMLESS = {"cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code"}
_COMPUTATION = {"attn_implementation", "dtype", "torch_dtype", "use_cache"}
_LOADING = {"add_pooling_layer", "device_map", "low_cpu_mem_usage", "use_safetensors"}
_IGNORED = {
    "model_kwargs": _HARMLESS | _COMPUTATION | _LOADING,
    "processor_kwargs": _HARMLESS | {"padding_side", "use_fast"},
    "config_kwargs": _HARMLESS | _COMPUTATION,
}
"""Options of the Transformer module → the keys that do not change a vector except by rounding."""
_SUPPORTED = "Transformer, Pooling, Dense, LayerNorm, Normalize, Dropout and Router"
_NOT_SUPPORTED = {
    "WordWeights": "weights the tokens by a list of words, and Pooling divides by the sum of these weights",
    "StaticEmbedding": "has one vector per token and no encoder, so it has no attention",
    "SparseStaticEmbedding": "has one weight per token and no encoder, so it has no attention",
    "MultiVectorMask": "outputs one vector per token (late interaction) and no vector of the whole text",
}
"""Maps unsupported modules to the reason, a verb phrase that error messages append to "it"."""


@dataclass(frozen=True)
class SentenceModel:
    """The pooling, modules and prompts with which a checkpoint maps a text to one vector.

    Attributes:
        modes: pooling modes, from `POOLING_MODES`; their results are concatenated in this order. For a sparse
            encoder, one of `SPLADE_MODES`, which pools the logits of the masked-language-modeling head.
        include_prompt: whether the tokens of the prompt are pooled.
        token_modules: modules applied to the vector of each token before pooling.
        vector_modules: modules applied to the pooled vector.
        size: number of dimensions of the vector, before it is truncated to `dimensions`.
        dimensions: number of leading dimensions to which the vector is truncated; None if it is not
            truncated.
        similarity: the similarity function for two vectors, from `SIMILARITIES`.
        prompts: names and texts of the prompts.
        default_prompt: the name of the default prompt, or None.
        max_tokens: maximum number of tokens, including special tokens; longer texts are truncated. None for
            no limit.
        lower_case: whether texts are lowercased first.
        trained_dimensions: numbers of dimensions for which the model was trained (Matryoshka), from its
            config.json; () if it does not list any.
        routes: for each task with its own modules or maximum length, such as "query" and "document": the
            `SentenceModel` for this task, or the reason why it is not supported.
        default_error: why a text without a task cannot be encoded; "" if it can.
    """

    modes: tuple[str, ...]
    include_prompt: bool
    token_modules: tuple[SentenceModule, ...]
    vector_modules: tuple[SentenceModule, ...]
    size: int
    dimensions: int | None
    similarity: str
    prompts: tuple[tuple[str, str], ...]
    default_prompt: str | None
    max_tokens: int | None
    lower_case: bool
    trained_dimensions: tuple[int, ...] = ()
    routes: tuple[tuple[str, SentenceModel | str], ...] = ()
    default_error: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks with their own modules or maximum length; () if there are none."""
        return tuple(task for task, _ in self.routes)

    def for_task(self, task: str | None) -> SentenceModel:
        """Return the `SentenceModel` that encodes texts for a task, or without a task.

        Raises:
            UnavailableError: texts cannot be encoded for this task.
        """
        route = self.default_error or self if task is None else dict(self.routes)[task]
        if isinstance(route, str):
            raise UnavailableError(route)
        return route

    @property
    def is_sparse(self) -> bool:
        """Return whether the dimensions of the vector are vocabulary entries."""
        return self.modes[0] in SPLADE_MODES

    @property
    def size_of_token(self) -> int:
        """Return the number of dimensions of the token vectors that are pooled."""
        sizes = [module.config["in_features"] for module in self.vector_modules if module.kind == "Dense"]
        return (sizes[0] if sizes else self.size) // len(self.modes)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the settings and the weights of all modules."""
        return hashlib.sha256(repr(self).encode("utf-8", "surrogatepass")).hexdigest()


def open_sentence_model(
    folder: Path, description: Description, tokenizer_limit: int | None, network: Any
) -> tuple[SentenceModel | None, ProbeError | None]:
    """Return (model, None) with the result of `read_sentence_model`, or (None, error) if it fails.

    Args:
        network: the text encoder, see `check_pooled_encoder`. The other arguments are those of
            `read_sentence_model`.
    """
    try:
        with memory_errors(f"The modules of {description.name} need more memory than is available."):
            sizes = description.hidden_size, description.vocabulary_size, description.max_tokens
            model = read_sentence_model(folder, *sizes, tokenizer_limit)
            if model is not None:
                check_pooled_encoder(network)
            return model, None
    except OutOfMemoryError:
        raise
    except ProbeError as error:
        return None, error
    except (OSError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        # Broken files raise exceptions of these types.
        return None, CheckpointError(
            f"The sentence-transformers files of the checkpoint are broken: {reason(error)}. {AGAIN}"
        )


def read_sentence_model(
    folder: Path,
    hidden_size: int,
    vocabulary_size: int,
    max_tokens: int | None,
    tokenizer_limit: int | None,
) -> SentenceModel | None:
    """Read the pooling, modules and prompts with which a checkpoint maps a text to one vector.

    Args:
        hidden_size: size of the encoder's last hidden states.
        vocabulary_size: number of outputs of a sparse encoder's masked-language-modeling head.
        max_tokens: maximum number of input tokens of the encoder; None for no limit.
        tokenizer_limit: the tokenizer's limit, for a Transformer module without its own limit.

    Returns:
        The model; None if the folder is not a sentence-transformers checkpoint, or is a cross-encoder.

    Raises:
        UnavailableError: a module or setting is not supported.
        CheckpointError: a file is broken, or a module's weights do not fit its config.
    """
    if not has_file(folder, MODULES_FILE):
        return None
    options = read_settings(folder / MODEL_FILE, dict) if has_file(folder, MODEL_FILE) else {}
    model_type = options.get("model_type", "SentenceTransformer")
    if model_type == "CrossEncoder":
        return None
    if is_late_interaction(options):
        raise UnavailableError(
            "This checkpoint is a late-interaction model, which outputs one vector per token, so there "
            f"is no vector of the whole text. Use Search with the scorer late-interaction. {REMEDY}"
        )
    _check_model_type(model_type)
    entries = read_modules(folder)
    encoder = encoder_folder(folder)
    prompts, default_prompt = read_prompts(options)

    # Tasks that share a route also share a `SentenceModel`, so that its weights are loaded once.
    read_routes: dict[tuple[Any, ...], SentenceModel] = {}

    def read(task: str | None) -> SentenceModel:
        modules = select_route(entries, task)
        length = _transformer_settings(encoder).get(f"{task}_length")
        key = (*modules, length)
        if key not in read_routes:
            read_routes[key] = read_route(modules, length)
        return read_routes[key]

    def read_route(modules: list[ModuleEntry], task_length: Any) -> SentenceModel:
        before: list[SentenceModule] = []
        after: list[SentenceModule] = []
        modes: tuple[str, ...]
        if model_type == "SparseEncoder":
            modes, include_prompt, size = (_read_splade(modules, options),), True, vocabulary_size
            _check_encoder(modules[0], encoder)
            transformer = read_transformer(encoder, "fill-mask")
        else:
            transformer = read_transformer(encoder, "feature-extraction")
            modules = _check_modules(modules)
            _check_encoder(modules[0], encoder)
            size, modes, include_prompt = _read_dense_model(modules, hidden_size, before, after)
        length = task_length or transformer.get("max_seq_length")
        return SentenceModel(
            modes=modes,
            include_prompt=include_prompt,
            token_modules=tuple(before),
            vector_modules=tuple(after),
            size=size,
            dimensions=_truncate_dim(options.get("truncate_dim"), size),
            similarity=_similarity(
                options.get("similarity_fn_name"), "dot" if model_type == "SparseEncoder" else "cosine"
            ),
            prompts=prompts,
            default_prompt=default_prompt,
            max_tokens=token_limit(length, tokenizer_limit, max_tokens),
            lower_case=bool(transformer.get("do_lower_case")),
            trained_dimensions=_trained_dimensions(encoder, size),
        )

    return _with_routes(read, _tasks(entries, encoder))


def _tasks(entries: list[ModuleEntry], encoder: Path) -> tuple[str, ...]:
    """Return the tasks that have a route in a Router, or a maximum length in the Transformer settings."""
    tasks = [task for router in routers(entries) for task in router.tasks]
    lengths = ("query", "document")
    settings = _transformer_settings(encoder)
    return tuple(dict.fromkeys([*tasks, *(task for task in lengths if settings.get(f"{task}_length"))]))


def _with_routes(read: Callable[[str | None], SentenceModel], tasks: tuple[str, ...]) -> SentenceModel:
    """Return the `SentenceModel` for texts without a task, with the routes of all tasks.

    If texts without a task cannot be encoded, the returned model has the settings of the first supported
    route.
    """
    if not tasks:
        return read(None)
    routes: dict[str | None, SentenceModel | UnavailableError] = {}
    for task in (None, *tasks):
        try:
            routes[task] = read(task)
        except UnavailableError as error:
            routes[task] = error
    model = next((route for route in routes.values() if isinstance(route, SentenceModel)), None)
    if model is None:
        raise next(route for route in routes.values() if isinstance(route, UnavailableError))
    for task, route in routes.items():
        if isinstance(route, SentenceModel) and route.size != model.size:
            routes[task] = UnavailableError(
                f"The vectors for the task {task} have {route.size:,} dimensions, but other vectors of "
                f"the model have {model.size:,}, so they cannot be compared."
            )
    default = routes.pop(None)
    return replace(
        model,
        routes=tuple(
            (str(task), route if isinstance(route, SentenceModel) else str(route))
            for task, route in routes.items()
        ),
        default_error="" if isinstance(default, SentenceModel) else str(default),
    )


def _read_dense_model(
    modules: list[ModuleEntry],
    size: int,
    before: list[SentenceModule],
    after: list[SentenceModule],
) -> tuple[int, tuple[str, ...], bool]:
    """Read the modules before and after pooling; return vector size, modes, and whether prompts are pooled.

    Args:
        size: size of the encoder's last hidden states.
        before: list to which the modules before pooling are appended.
        after: list to which the modules after pooling are appended.
    """
    position = [kind for kind, _ in modules].index("Pooling")
    for kind, path in modules[1:position]:
        size = _append(before, kind, path, TOKENS, size)
    modes, include_prompt = _read_pooling(modules[position][1])
    size *= len(modes)
    for kind, path in modules[position + 1 :]:
        size = _append(after, kind, path, VECTOR, size)
    return size, modes, include_prompt


def _read_splade(modules: list[ModuleEntry], options: Mapping[str, Any]) -> str:
    """Return the pooling mode of a sparse encoder, one of `SPLADE_MODES`."""
    kinds = [name.rpartition(".")[2] for name, _ in modules]
    if kinds not in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
        raise UnavailableError(
            f"The modules of this SparseEncoder are {', '.join(kinds)[:300] or 'missing'}, but only "
            f"Transformer and SpladePooling are supported. {REMEDY}"
        )
    if options.get("max_active_dims") is not None:
        raise UnavailableError(f"This SparseEncoder limits max_active_dims, which is not supported. {REMEDY}")
    config = read_settings(modules[1][1] / "config.json", dict)
    ending = {"relu": "", "log1p_relu": "_log1p"}.get(str(config.get("activation_function", "relu")), "?")
    mode = f"splade_{config.get('pooling_strategy', 'max')}{ending}"
    if mode not in SPLADE_MODES:
        raise UnavailableError(
            f"The module SpladePooling has the strategy {str(config.get('pooling_strategy'))[:100]} and the "
            f"activation {str(config.get('activation_function'))[:100]}, but only max and sum with relu or "
            f"log1p_relu are supported. {REMEDY}"
        )
    return mode


def _check_model_type(model_type: Any) -> None:
    """Raise an error if models of type `model_type` do not return one vector per text."""
    if model_type not in ("SentenceTransformer", "SparseEncoder"):
        raise UnavailableError(
            f"{MODEL_FILE} describes a {str(model_type)[:100]}, but only SentenceTransformer is supported. "
            f"{REMEDY}"
        )


def _check_modules(modules: list[ModuleEntry]) -> list[ModuleEntry]:
    """Return the type and folder of each module, after checking that they are supported."""
    kinds = [name.rpartition(".")[2] for name, _ in modules]
    for name, kind in zip((name for name, _ in modules), kinds, strict=True):
        is_own = name.startswith("sentence_transformers.")
        if not is_own or kind not in (*MODULE_READERS, "Transformer", "Pooling", "Dropout"):
            explanation = f": it {_NOT_SUPPORTED[kind]}" if is_own and kind in _NOT_SUPPORTED else ""
            raise UnavailableError(
                f"The module {(kind if is_own else name)[:100]} is not supported{explanation}. Supported: "
                f"{_SUPPORTED}. {REMEDY}"
            )
    for kind in ("Transformer", "Pooling"):
        if kinds.count(kind) != 1:
            raise UnavailableError(
                f"{MODULES_FILE} lists {kinds.count(kind)} modules of type {kind}, but there must be "
                f"exactly 1. {REMEDY}"
            )
    # Reject a folder that is listed twice, because its weights would be loaded twice.
    if len({path.resolve() for _, path in modules}) < len(modules):
        raise CheckpointError(f"{MODULES_FILE} lists a folder more than once. {AGAIN}")
    return [(kind, path) for kind, (_, path) in zip(kinds, modules, strict=True) if kind != "Dropout"]


def _check_encoder(module: ModuleEntry, encoder: Path) -> None:
    """Raise an error unless the first module is the Transformer in the folder of the encoder."""
    kind, path = module[0].rpartition(".")[2], module[1]
    if kind not in TRANSFORMERS:
        raise UnavailableError(f"The first module must be a Transformer, but is {kind[:100]}. {REMEDY}")
    if path.resolve() != encoder.resolve():
        raise UnavailableError(
            f"The Transformer is in {path.name[:100]}, but the model in {encoder.name[:100]} is open. "
            "Only one encoder of a checkpoint is used. To use the other encoder, open its folder as a model."
        )


def _append(target: list[SentenceModule], kind: str, path: Path, expected: str, size: int) -> int:
    """Read a module and append it to `target`; return the size of its output.

    A module that changes token vectors after pooling has no effect. It is skipped, and `size` is returned.

    Args:
        expected: input of modules at this position in the pipeline: `TOKENS` before pooling, `VECTOR` after.
        size: number of dimensions of the input vectors.
    """
    config = read_settings(path / "config.json", dict) if has_file(path, "config.json") else {}
    source = config.get("module_input_name") or VECTOR
    if source == TOKENS and expected == VECTOR:
        return size  # skip a module without effect: it changes token vectors after pooling
    if source != expected or (config.get("module_output_name") or source) != source:
        raise UnavailableError(
            f"The module {kind} reads {str(source)[:100]} and writes "
            f"{str(config.get('module_output_name') or source)[:100]}, which is not supported at this "
            f"position. {REMEDY}"
        )
    module, output = MODULE_READERS[kind](config, path, size)
    target.append(module)
    return output


def _read_dense(config: Mapping[str, Any], path: Path, size: int) -> tuple[SentenceModule, int]:
    inputs, outputs = (
        positive_integer(config.get(name), f"{name} of Dense") for name in ("in_features", "out_features")
    )
    if inputs != size:
        raise CheckpointError(
            f"The module Dense expects vectors of {inputs:,} dimensions, but receives {size:,}. {AGAIN}"
        )
    activation = activation_named(
        config.get("activation_function", "torch.nn.modules.activation.Tanh"), "The module Dense"
    )
    name, residual = type(activation).__name__, bool(config.get("use_residual"))
    with torch.device("meta"):
        network = DenseNetwork(inputs, outputs, bool(config.get("bias", True)), residual)
    network.activation_function = activation
    settings = (("size", outputs), ("activation", name), ("residual", residual))
    return SentenceModule("Dense", settings, load_weights(network, path, "Dense"), network), outputs


def _read_layer_norm(config: Mapping[str, Any], path: Path, size: int) -> tuple[SentenceModule, int]:
    dimension = positive_integer(config.get("dimension"), "dimension of LayerNorm")
    if dimension != size:
        raise CheckpointError(
            f"The module LayerNorm expects vectors of {dimension:,} dimensions, but receives {size:,}. "
            f"{AGAIN}"
        )
    with torch.device("meta"):
        network = LayerNormNetwork(dimension)
    return SentenceModule("LayerNorm", (), load_weights(network, path, "LayerNorm"), network), size


def _read_normalize(_config: Mapping[str, Any], _path: Path, size: int) -> tuple[SentenceModule, int]:
    return SentenceModule("Normalize"), size


MODULE_READERS: Mapping[str, Callable[[Mapping[str, Any], Path, int], tuple[SentenceModule, int]]] = {
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
}


def read_settings(path: Path, json_type: type) -> Any:
    """Return the content of a JSON file; raise CheckpointError if the content has another type."""
    content = read_json(path)
    if not isinstance(content, json_type):
        raise CheckpointError(f"{path.name} must contain a JSON {json_type.__name__}. {AGAIN}")
    return content


def read_transformer(folder: Path, task: str, expands_queries: bool = False) -> dict[str, Any]:
    """Return the settings of the Transformer module for a task of `_OUTPUTS`.

    `query_expansion` is allowed only if the caller supports it (`expands_queries`).
    """
    settings, (expected, output_name) = _transformer_settings(folder), _OUTPUTS[task]
    unsupported = ("processing_kwargs",) if expands_queries else ("query_expansion", "processing_kwargs")
    unknown = [name for name in unsupported if settings.get(name)]
    if settings.get("tokenizer_name_or_path") is not None:
        unknown.append("tokenizer_name_or_path")
    if settings.get("transformer_task", task) != task:
        unknown.append(f"transformer_task {str(settings['transformer_task'])[:100]}")
    for kind, ignored in _IGNORED.items():
        name = _OLD_NAMES[kind] if _OLD_NAMES[kind] in settings else kind
        options = settings.get(name) or {}
        if not isinstance(options, dict):
            raise CheckpointError(f"{name} of the module Transformer must be a JSON object. {AGAIN}")
        if kind == "processor_kwargs" and options.get("model_max_length") is not None:
            settings["max_seq_length"] = options["model_max_length"]
            ignored = ignored | {"model_max_length"}
        unknown += [f"{key[:100]} in {name}" for key in options if key not in ignored]
    if unknown:
        raise UnavailableError(
            f"The module Transformer sets {', '.join(unknown)[:300]}, which is not supported. {REMEDY}"
        )
    modalities = settings.get("modality_config", {"text": {}})
    text = modalities.get("text") if isinstance(modalities, dict) else None
    output = text.get("method_output_name", expected) if isinstance(text, dict) else text
    if output != expected or settings.get("module_output_name", output_name) != output_name:
        raise UnavailableError(
            f"The module Transformer returns {str(output)[:100]}, but only {expected} is supported. {REMEDY}"
        )
    return settings


def _transformer_settings(folder: Path) -> dict[str, Any]:
    """Return the settings in the first nonempty file that sentence-transformers reads, or {}."""
    settings: dict[str, Any] = {}
    for name in _TRANSFORMER_FILES:
        if not settings and has_file(folder, name):
            settings = read_settings(folder / name, dict)
    return settings


def _read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    """Return the pooling modes, and whether pooling includes the tokens of the prompt."""
    config = read_settings(path / "config.json", dict)
    setting = config.get("pooling_mode")
    if setting is None:
        setting = [mode for mode in POOLING_MODES if config.get(_LEGACY_MODES[mode])] or ["mean"]
    modes = tuple(setting) if isinstance(setting, list) else (setting if isinstance(setting, str) else "?",)
    unknown = [str(mode)[:100] for mode in modes if mode not in POOLING_MODES]
    if len(set(modes)) < len(modes):
        raise UnavailableError(f"The checkpoint lists a pooling mode more than once. {REMEDY}")
    if unknown or not modes:
        raise UnavailableError(
            f"The checkpoint's pooling mode is {', '.join(unknown) or 'empty'}, which is not "
            f"supported. {REMEDY}"
        )
    return modes, bool(config.get("include_prompt", True))


def read_prompts(options: Mapping[str, Any]) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """Return the (name, text) pairs of the prompts, and the name of the default prompt or None."""
    prompts, default = options.get("prompts") or {}, options.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise CheckpointError(f"prompts in {MODEL_FILE} must map prompt names to strings. {AGAIN}")
    if default is not None and default not in prompts:
        raise CheckpointError(
            f"The default prompt in {MODEL_FILE} is {str(default)[:100]!r}, but the prompts are "
            f"{', '.join(prompts) or 'none'}. {AGAIN}"
        )
    return tuple((name, text or "") for name, text in prompts.items()), default


def _similarity(name: Any, default: str) -> str:
    name = default if name is None else name
    if name not in SIMILARITIES:
        raise UnavailableError(
            f"The checkpoint's similarity function is {str(name)[:100]}, but only "
            f"{', '.join(SIMILARITIES)} are supported. {REMEDY}"
        )
    return str(name)


def _truncate_dim(dimensions: Any, size: int) -> int | None:
    if dimensions is None:
        return None
    if not positive_integer(dimensions, f"truncate_dim in {MODEL_FILE}") <= size:
        raise CheckpointError(
            f"truncate_dim in {MODEL_FILE} is {dimensions:,}, but the vectors have {size:,} "
            f"dimensions. {AGAIN}"
        )
    return int(dimensions)


def _trained_dimensions(encoder: Path, size: int) -> tuple[int, ...]:
    """Return the valid numbers of dimensions in `matryoshka_dimensions` of config.json, sorted."""
    sizes = read_config(encoder).get("matryoshka_dimensions")
    numbers = [n for n in sizes if isinstance(n, int) and 1 <= n <= size] if isinstance(sizes, list) else []
    return tuple(sorted(set(numbers)))


def token_limit(max_seq_length: Any, tokenizer_limit: int | None, model_limit: int | None) -> int | None:
    """Return `max_seq_length`, or `tokenizer_limit` if `max_seq_length` is None, bounded by `model_limit`."""
    if max_seq_length is not None:
        positive_integer(max_seq_length, "max_seq_length of Transformer")
    limits = (tokenizer_limit if max_seq_length is None else max_seq_length, model_limit)
    # Ignore very large limits: a tokenizer without a limit has a model_max_length of 1e30.
    return min((int(limit) for limit in limits if limit is not None and limit < 10**9), default=None)


def positive_integer(value: Any, name: str) -> int:
    """Return `value`; raise a CheckpointError that names the setting if it is not a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{name} is {str(value)[:100]}, but must be a positive integer. {AGAIN}")
    return value
