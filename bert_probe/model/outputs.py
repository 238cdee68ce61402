"""Load trained task heads, and compute their logits from a trace.

The transformers class for the task computes the logits. Its encoder is replaced by a stub that returns the
recorded encoder output, so the encoder does not run again, and no head is reimplemented.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.auto import modeling_auto

from bert_probe.errors import (
    ArchitectureError,
    CheckpointError,
    OutOfMemoryError,
    UnavailableError,
    WeightsError,
    memory_errors,
)
from bert_probe.model.architectures import is_encoder_decoder
from bert_probe.model.checkpoint import (
    FILL_MASK,
    NEXT_SENTENCE_PREDICTION,
    QUESTION_ANSWERING,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Checkpoint,
)
from bert_probe.model.config import ConfiguredHeads, read_head_settings, reason
from bert_probe.model.forward import as_array, as_tensor, batch, forward
from bert_probe.model.preflight import WeightHeaders, check_sizes
from bert_probe.model.sentence_modules import (
    positive_integer,
    read_prompts,
    read_settings,
    read_transformer,
    token_limit,
)
from bert_probe.model.sentence_networks import activation_named
from bert_probe.model.sentence_router import MODEL_FILE, MODULES_FILE, REMEDY, TRANSFORMERS, read_modules
from bert_probe.model.sources import has_file
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.model.weights import copy_to_own_memory, describe_mismatches, list_names, read

if TYPE_CHECKING:
    from bert_probe.model.checkpoint import Checkpoint
    from bert_probe.model.encoding import Encoding


CLASSES: Mapping[str, Mapping[str, str]] = {
    FILL_MASK: modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    TEXT_CLASSIFICATION: modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    TOKEN_CLASSIFICATION: modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    QUESTION_ANSWERING: modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    NEXT_SENTENCE_PREDICTION: modeling_auto.MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES,
}
"""For each task, maps model types to the names of the transformers classes for the task."""

_DISTINCTIVE = frozenset({FILL_MASK, NEXT_SENTENCE_PREDICTION})
"""Tasks whose heads can be identified by their weight names. Other heads share weight names, so they are only
loaded if the config names their class.
"""

_PRETRAINING_OUTPUTS = {
    FILL_MASK: ("prediction_logits",),
    NEXT_SENTENCE_PREDICTION: ("seq_relationship_logits",),
}
"""For each task of a pretraining model, which has two heads, the name of the logits in the model's output."""
_OUTPUT_NAMES = {QUESTION_ANSWERING: ("start_logits", "end_logits")}
_DEFAULT_OUTPUT = ("logits",)


@dataclass(frozen=True, eq=False)
class OutputHead:
    """A trained task head.

    Attributes:
        task: the task for which the head was trained.
        model: the transformers model for the task, including the encoder.
        labels: label names from the checkpoint; empty for tasks that predict tokens or positions.
        problem: "regression", "multi_label_classification", "single_label_classification", or "" if the
            checkpoint does not specify it.
        parts: names of the logits in the model's output object.
        activation: the function that sentence-transformers' `CrossEncoder.predict` applies to the logits;
            None if the model is not a cross-encoder.
        max_tokens: maximum number of tokens of a pair in the files of a cross-encoder; None if they do not
            specify it.
        weights_sha256: SHA-256 of a file with the head's weights that is separate from the model's weights;
            "" for a head in the model's own files.
    """

    task: str
    model: Any
    labels: tuple[str, ...] = ()
    problem: str = ""
    parts: tuple[str, ...] = _DEFAULT_OUTPUT
    activation: torch.nn.Module | None = None
    max_tokens: int | None = None
    weights_sha256: str = ""

    def logits(self, trace: Trace, positions: Sequence[int] | None = None) -> Array:
        """Return the logits for a traced text, in float32, or in float64 for a float64 model.

        Args:
            positions: tokens for which to compute logits, for a head that processes each token separately;
                None for all tokens.

        Returns:
            Logits of shape [token, …] from a head that predicts tokens, token labels, or answer positions
            (start and end); logits of shape [label] from a head that classifies the text.

        Raises:
            UnavailableError: the logits are not finite.
        """
        with trace.checkpoint.running() as model:
            states = as_tensor(trace.vectors(-1), model)[None]
            pooled = None if trace.pooler is None else as_tensor(trace.pooler, model)[None]
            return self.logits_on(trace, states, pooled, positions)

    def logits_on(
        self,
        trace: Trace,
        states: torch.Tensor,
        pooled: torch.Tensor | None,
        positions: Sequence[int] | None = None,
    ) -> Array:
        """Return the logits that the head computes from the encoder output in `states` and `pooled`.

        Args:
            states: last hidden states, of shape [1, token, hidden].
            pooled: pooler output, of shape [1, hidden], or None if the model has no pooler.
            positions: as in `logits`.
        """
        checkpoint = trace.checkpoint
        memory_message = (
            f"The {self.task} head needs more memory for {len(trace.encoding):,} tokens than is available."
        )
        with memory_errors(memory_message), torch.inference_mode(), checkpoint.running():
            inputs = batch(checkpoint, [trace.encoding])
            if positions is not None:
                index = torch.tensor(positions, device=states.device)
                states = states[:, index]
                inputs = {name: values[:, index] for name, values in inputs.items()}
            logits = as_array(self.answer(inputs, states, pooled))[0]
        return self._check_finite(logits, checkpoint)

    def logits_alone(self, checkpoint: Checkpoint, encoding: Encoding) -> Array:
        """Return the logits for a tokenized text, with the shape that `logits` returns, without a trace."""
        output, _ = forward(checkpoint, [encoding])
        with torch.inference_mode(), checkpoint.running():
            states, pooled = output.last_hidden_state, getattr(output, "pooler_output", None)
            logits = as_array(self.answer(batch(checkpoint, [encoding]), states, pooled))[0]
        return self._check_finite(logits, checkpoint)

    def _check_finite(self, logits: Array, checkpoint: Checkpoint) -> Array:
        """Return the logits as a read-only array, or raise UnavailableError if they are not finite."""
        if not np.isfinite(logits).all():
            raise UnavailableError(
                f"The {self.task} head of {checkpoint.description.name} returns logits that are not finite "
                "for this text. Use float32, or download the weights again."
            )
        return read_only(logits)

    def scores(self, logits: Array) -> Array | None:
        """Return the scores of a cross-encoder from logits of shape [label]; None for other models."""
        if self.activation is None:
            return None
        scores: Array = self.activation(torch.tensor(logits)[None])[0].numpy()
        return scores

    def score_limit(self, checkpoint: Checkpoint) -> int | None:
        """Return the number of tokens to which `CrossEncoder.predict` truncates a pair; None for no limit."""
        tokenizer_limit = checkpoint.tokenizer.model_max_length
        return token_limit(self.max_tokens, tokenizer_limit, checkpoint.description.max_tokens)

    def answer(
        self, inputs: Mapping[str, torch.Tensor], states: torch.Tensor, pooled: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the logits, of shape [text, …], that the head computes from an encoder output.

        Args:
            inputs: model inputs of shape [text, token].
            states: last hidden states, of shape [text, token, hidden].
            pooled: pooler output, of shape [text, hidden], or None if the model has no pooler.
        """
        model = without_encoder(self.model)
        if "attention_mask" in inputs:
            # Heads of decoders read the last token, which they find by the padding token of the config. The
            # tokenizer may have another one; without one, the heads refuse several texts.
            if model.config.pad_token_id is None:
                model.config = copy.copy(model.config)
                model.config.pad_token_id = _NO_TOKEN
            is_padding = inputs["attention_mask"] == 0
            ids = inputs["input_ids"].masked_fill(is_padding, model.config.pad_token_id)
            inputs = {**inputs, "input_ids": ids}
        with _encoder_output(states, pooled):
            return self.stack_logits(model(**inputs))

    def stack_logits(self, output: Any) -> torch.Tensor:
        """Return the logits of an output object of `model`; stack start and end logits on a new last axis."""
        logits = [getattr(output, name) for name in self.parts]
        return logits[0] if len(logits) == 1 else torch.stack(logits, dim=-1)

    @property
    def configuration(self) -> tuple[Any, ...]:
        """Return the settings that, together with the weights, determine the logits and their labels."""
        tied = getattr(self.model.config, "tie_word_embeddings", None)
        activation = () if self.activation is None else (type(self.activation).__name__,)
        limit = () if self.max_tokens is None else (self.max_tokens,)
        separate = (self.weights_sha256,) if self.weights_sha256 else ()
        own = self.task, type(self.model).__name__, self.labels, self.problem, tied
        return *own, *activation, *limit, *separate

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Return the head's own tensors by name, without the encoder's tensors."""
        prefix = f"{self.model.base_model_prefix}."
        return {
            name: tensor for name, tensor in self.model.state_dict().items() if not name.startswith(prefix)
        }


def output_head(checkpoint: Checkpoint, task: str) -> OutputHead:
    """Return the checkpoint's head for a task.

    Raises:
        UnavailableError: the checkpoint has no head for this task; the message lists the available tasks.
    """
    head = checkpoint.outputs.get(task)
    if head is None:
        raise UnavailableError(missing_head_message(checkpoint, task))
    return head


def missing_head_message(checkpoint: Checkpoint, task: str) -> str:
    """Return the error message for a checkpoint without a head for `task`."""
    tasks, name = checkpoint.tasks, checkpoint.description.name
    remedy = (
        f"It has a task head for {' and '.join(tasks)}."
        if tasks
        else "The checkpoint has no task head. Open a checkpoint that was fine-tuned for the task."
    )
    note = unused_head_note(checkpoint, task)
    if note:
        return f"{name} has no usable head for {task}. {note} Open another checkpoint."
    return f"{name} has no trained head for {task}. {remedy}"


def unused_head_note(checkpoint: Checkpoint, task: str = "") -> str:
    """Return the note that explains why a task head of the checkpoint is not used; "" if there is none.

    Args:
        task: the task of the head; "" for the first note about a head, whatever its task.
    """
    start = f"head for {task} " if task else "The head for "
    return next((note for note in checkpoint.description.notes if start in note), "")


def no_task_message(checkpoint: Checkpoint) -> str:
    """Return the error message for a checkpoint without a head for any task."""
    note, name = unused_head_note(checkpoint), checkpoint.description.name
    start = f"{name} has no usable task head. {note}" if note else f"{name} has no trained task head."
    return f"{start} Use a model that was fine-tuned for a task."


_NO_TOKEN = -1
"""An id that no token has."""
_open_states: ContextVar[Any] = ContextVar("states")


@dataclass
class _EncoderOutput(BaseModelOutputWithPooling):  # type: ignore[misc]
    """The output of an encoder or decoder. Heads of decoders return the other attributes unchanged."""

    past_key_values: Any = None
    mems: Any = None


@contextmanager
def _encoder_output(states: torch.Tensor, pooled: torch.Tensor | None) -> Iterator[None]:
    """Within the context, set the encoder output that `_EncoderStub` returns in this thread."""
    token = _open_states.set(_EncoderOutput(last_hidden_state=states, pooler_output=pooled))
    try:
        yield
    finally:
        _open_states.reset(token)


class _EncoderStub(torch.nn.Module):
    """Replaces the encoder and returns its recorded output.

    All other attributes come from the encoder, because some heads use the word embedding.
    """

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        # Do not register a submodule, because the encoder's weights are not part of the head.
        self.__dict__["encoder"] = encoder

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return the encoder output set by the current `_encoder_output` context."""
        return _open_states.get()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["encoder"], name)


def without_encoder(model: Any) -> Any:
    """Return a shallow copy of a task model whose encoder is a stub; the model itself is unchanged."""
    return _replace_encoder(model, _EncoderStub(model.base_model))


def with_encoder(model: Any, encoder: torch.nn.Module) -> Any:
    """Return a shallow copy of a task model with another encoder; tied weights refer to the new encoder."""
    names_by_id = {id(parameter): name for name, parameter in model.base_model.named_parameters()}
    shared = dict(encoder.named_parameters())
    changed = _replace_encoder(model, encoder)
    for module in own_modules(changed):
        for name, parameter in module._parameters.items():
            if id(parameter) in names_by_id:
                module._parameters[name] = shared[names_by_id[id(parameter)]]
    return changed


def _replace_encoder(model: Any, encoder: torch.nn.Module) -> Any:
    changed = copy.copy(model)
    changed._modules = dict(model._modules) | {model.base_model_prefix: encoder}
    return changed


def own_modules(model: Any) -> list[torch.nn.Module]:
    """Return a task model, followed by its modules outside the encoder."""
    children = [child for name, child in model._modules.items() if name != model.base_model_prefix]
    return [model, *(module for child in children if child is not None for module in child.modules())]


def outputs_of(model: Any) -> list[OutputHead]:
    """Return the task heads of a model in memory, determined by its class and base classes.

    Raises:
        ArchitectureError: the model's config does not number its labels consecutively from 0.
    """
    class_names = {base.__name__ for base in type(model).__mro__}
    config = model.config
    is_pretraining = modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES.get(config.model_type) in class_names
    heads = []
    for task, classes in CLASSES.items():
        name = classes.get(config.model_type)
        if name in class_names or (
            is_pretraining and task in _DISTINCTIVE and config.model_type in CLASSES[NEXT_SENTENCE_PREDICTION]
        ):
            labels = _labels(config) if task in (TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION) else ()
            problem = config.problem_type if task == TEXT_CLASSIFICATION else None
            parts = parts_of(task) if name in class_names else _PRETRAINING_OUTPUTS[task]
            heads.append(OutputHead(task, model, labels, problem or "", parts))
    return heads


def _labels(config: Any) -> tuple[str, ...]:
    """Return the names of the labels by index. ``id2label`` may have another order, and strings as keys."""
    names = {str(index): str(name) for index, name in config.id2label.items()}
    try:
        return tuple(names[str(index)] for index in range(len(names)))
    except KeyError:
        raise ArchitectureError(
            "id2label in the model's config must number the labels consecutively from 0, but has the keys "
            f"{list_names([*names])}. Set model.config.id2label."
        ) from None


def parts_of(task: str) -> tuple[str, ...]:
    """Return the names of the fields of a transformers output that contain the logits for a task.

    These are ("start_logits", "end_logits") for question answering, and ("logits",) for all other tasks.
    """
    return _OUTPUT_NAMES.get(task, _DEFAULT_OUTPUT)


def open_heads(
    folder: Path, config: Any, headers: WeightHeaders, network: torch.nn.Module
) -> tuple[list[OutputHead], list[str]]:
    """Load the heads that a checkpoint has for the tasks of `CLASSES`, and attach them to its encoder.

    Args:
        headers: headers of the weight files.
        network: the loaded encoder.

    Returns:
        The heads, and a sentence for each head that the config names but that cannot be loaded. Of the heads
        of encoder-decoder models, only those for tokens are loaded; the input of the others is the decoder's
        output.
    """
    tasks = (TOKEN_CLASSIFICATION,) if is_encoder_decoder(config) else tuple(CLASSES)
    try:
        configured = read_head_settings(folder)
    except CheckpointError as error:
        return [], [f"No task head is loaded. {error}"]
    heads, refused = [], []
    for task in tasks:
        name = CLASSES[task].get(config.model_type, "")
        is_configured = name in configured.architectures
        if not name or not (is_configured or task in _DISTINCTIVE):
            continue
        model_class, settings = getattr(transformers, name), _head_config(config, configured, task)
        try:
            with memory_errors(f"The head for {task} needs more memory than is available."):
                meta_model = check_sizes(settings, headers, model_class)
                if is_configured or _identifying_names(meta_model) <= {
                    modern_name(name) for name in headers.names
                }:
                    head = _load_head(task, model_class, folder, settings, headers, network)
                    heads.append(head)
                    if task == TEXT_CLASSIFICATION and configured.activation:
                        heads[-1] = _with_score(head, folder, configured.activation)
        except OutOfMemoryError:
            raise
        except UnavailableError as error:
            refused.append(f"The score of the cross-encoder is not shown. {error}")
        except Exception as error:  # Catch all exceptions, because task heads raise many types.
            if is_configured:
                refused.append(
                    f"config.json names {name}, but the head for {task} cannot be loaded: {reason(error)}."
                )
    return heads, refused


def _with_score(head: OutputHead, folder: Path, activation: str) -> OutputHead:
    """Return the head of a cross-encoder with its activation and its maximum number of tokens.

    Raises:
        UnavailableError: the score of the cross-encoder is not supported, or a file is broken.
    """
    try:
        return replace(
            head,
            activation=activation_named(activation, "The cross-encoder"),
            max_tokens=read_cross_encoder(folder),
        )
    except (CheckpointError, UnavailableError) as error:
        raise UnavailableError(str(error).replace(REMEDY, _SCORE_REMEDY)) from None


_SCORE_REMEDY = "Use the logit or, for a search, other scorers."


def read_cross_encoder(folder: Path) -> int | None:
    """Return the `max_seq_length` that a cross-encoder's files specify, or None.

    Raises:
        UnavailableError: the files change the model's input or output in a way that is not supported.
        CheckpointError: a file is broken.
    """
    options = read_settings(folder / MODEL_FILE, dict) if has_file(folder, MODEL_FILE) else {}
    prompts, default = read_prompts(options)
    if default is not None and dict(prompts)[default]:
        raise UnavailableError(
            f"The cross-encoder prepends the prompt {default[:100]!r} to each pair, which is not supported. "
            f"{_SCORE_REMEDY}"
        )
    # sentence-transformers ignores the modules of other types of models.
    if options.get("model_type") != "CrossEncoder" or not has_file(folder, MODULES_FILE):
        return None
    kinds = [name.rpartition(".")[2] for name, _ in read_modules(folder)]
    if len(kinds) != 1 or kinds[0] not in TRANSFORMERS:
        raise UnavailableError(
            f"The cross-encoder has the modules {', '.join(kinds)[:200]}, but only a Transformer is "
            f"supported. {_SCORE_REMEDY}"
        )
    settings = read_transformer(folder, "sequence-classification")
    if settings.get("do_lower_case"):
        raise UnavailableError(
            "The module Transformer of the cross-encoder sets do_lower_case, which is not supported. "
            f"{_SCORE_REMEDY}"
        )
    limit = settings.get("max_seq_length")
    return None if limit is None else positive_integer(limit, "max_seq_length of Transformer")


def modern_name(name: str) -> str:
    """Return a tensor's current name; early checkpoints name the weights of a norm gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _head_config(config: Any, configured: ConfiguredHeads, task: str) -> Any:
    """Return a copy of the encoder's config with the labels, problem type and weight tying of a head."""
    settings = copy.deepcopy(config)
    if task in (TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION):
        settings.id2label = dict(enumerate(configured.labels))
        settings.problem_type = configured.problem or None
    if configured.tied is not None:
        settings.tie_word_embeddings = configured.tied
    return settings


def _identifying_names(meta_model: Any) -> set[str]:
    """Return the names of the weights that identify a head: its own weights that are not tied."""
    encoder = f"{meta_model.base_model_prefix}."
    names = {name for name in meta_model.state_dict() if not name.startswith(encoder)} - {
        *meta_model.all_tied_weights_keys
    }
    # A head without weights of its own cannot be identified: return a name that no file contains.
    return names or {f"all weights of {type(meta_model).__name__}"}


def _load_head(
    task: str, model_class: Any, folder: Path, settings: Any, headers: WeightHeaders, network: torch.nn.Module
) -> OutputHead:
    """Load a head, attach it to the loaded encoder, and copy its weights to separate memory.

    Raises:
        WeightsError: weights are missing, differ in size, or are not finite.
    """
    weight = next(network.parameters())
    # Read the weights in the dtype of the file, so that they are memory-mapped instead of copied.
    model, report = read(model_class, folder, settings, headers.dtype or weight.dtype, "eager")
    if report["missing_keys"]:
        raise WeightsError(f"the weights lack {list_names(sorted(report['missing_keys']))}")
    if report["mismatched_keys"]:
        raise WeightsError(
            f"the shapes of the weights do not match the config: {list_names(describe_mismatches(report))}"
        )
    if type(model.base_model) is not type(network):
        raise WeightsError(
            f"its encoder is a {type(model.base_model).__name__}, not a {type(network).__name__}"
        )
    model.eval().requires_grad_(False)
    pooler: Any = getattr(model.base_model, "pooler", None)
    if getattr(network, "pooler", network) is None and pooler is not None:
        # Some families have a pooler only in the classes with a task head: add it to the encoder.
        network.pooler = pooler
        _move_weights(pooler.modules(), weight, set())
    model = with_encoder(model, network)
    _move_weights(own_modules(model), weight, {id(tensor) for tensor in network.parameters()})
    labels = tuple(settings.id2label.values()) if task in (TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION) else ()
    output = OutputHead(task, model, labels, settings.problem_type or "", parts_of(task))
    broken = [name for name, tensor in output.weights.items() if not tensor.isfinite().all()]
    if broken:
        raise WeightsError(f"{list_names(broken)} contain values that are not finite numbers")
    return output


def _move_weights(modules: Iterable[torch.nn.Module], weight: torch.Tensor, encoder_ids: Set[int]) -> None:
    """Move weights to the device and dtype of the encoder, except those whose `id` is in `encoder_ids`."""
    tensors = [
        tensor for module in modules for tensor in (*module._parameters.values(), *module._buffers.values())
    ]
    head_tensors = list(
        {
            id(tensor): tensor for tensor in tensors if tensor is not None and id(tensor) not in encoder_ids
        }.values()
    )
    for tensor in head_tensors:
        tensor.data = tensor.data.to(weight.device, weight.dtype if tensor.is_floating_point() else None)
    copy_to_own_memory(head_tensors)
