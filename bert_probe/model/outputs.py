"""Trained output heads and their logits, computed from a trace.

The model's own class for the task computes the logits, with its encoder replaced by a stub that returns the
recorded output of the encoder. This needs neither a second forward pass nor a reimplementation of the head.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.models.auto import modeling_auto

from bert_probe.errors import UnavailableError, memory_errors
from bert_probe.model.checkpoint import (
    FILL_MASK,
    NEXT_SENTENCE_PREDICTION,
    QUESTION_ANSWERING,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
)
from bert_probe.model.forward import as_array, batch, forward
from bert_probe.model.trace import Array, Trace, read_only

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
"""Task → model type → name of the transformers class for the task."""

TELLING = frozenset({FILL_MASK, NEXT_SENTENCE_PREDICTION})
"""Tasks whose heads have distinctive weight names. Other heads share names, so only the config identifies
them.
"""

_PRETRAINING_OUTPUTS = {
    FILL_MASK: ("prediction_logits",),
    NEXT_SENTENCE_PREDICTION: ("seq_relationship_logits",),
}
"""Names of the two outputs of a pretraining model."""
_OUTPUT_NAMES = {QUESTION_ANSWERING: ("start_logits", "end_logits")}
_DEFAULT_OUTPUT = ("logits",)


@dataclass(frozen=True, eq=False)
class OutputHead:
    """A trained output head of a model.

    Attributes:
        task: the task that the head was trained for.
        model: the transformers model for the task, including the encoder.
        labels: label names from the checkpoint; empty for tasks that predict tokens or positions.
        problem: "regression", "multi_label_classification", "single_label_classification", or "" if the
            checkpoint does not specify it.
        parts: names of the logits in the output of the model.
        activation: the function of the logits that `CrossEncoder.predict` of sentence-transformers returns;
            None if the model is not a cross-encoder.
        weights_sha256: SHA-256 of a file with the head's weights that is separate from the model's weights;
            "" for a head in the model's own files.
    """

    task: str
    model: Any
    labels: tuple[str, ...] = ()
    problem: str = ""
    parts: tuple[str, ...] = _DEFAULT_OUTPUT
    activation: torch.nn.Module | None = None
    weights_sha256: str = ""

    def logits(self, trace: Trace, positions: Sequence[int] | None = None) -> Array:
        """Return the logits for a traced text, in float32, or in float64 for a float64 model.

        Args:
            positions: token positions to compute, for a head that processes each token separately.

        Returns:
            Logits of shape [token, …] for a head that predicts tokens, token labels, or answer positions
            (start and end); of shape [label] for a head that classifies the text.

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
        """Return the logits that the head computes from the given encoder output.

        Args:
            states: last hidden states, of shape [1, token, hidden].
            pooled: pooler output, of shape [1, hidden], or None if the model has no pooler.
            positions: as in `logits`.
        """
        checkpoint = trace.checkpoint
        memory_message = (
            f"The {self.task} head needs more memory for {len(trace.encoding):,} tokens than is free."
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
        """Return the logits for a tokenized text, without a trace."""
        output, _ = forward(checkpoint, [encoding])
        with torch.inference_mode(), checkpoint.running():
            states, pooled = output.last_hidden_state, getattr(output, "pooler_output", None)
            logits = as_array(self.answer(batch(checkpoint, [encoding]), states, pooled))[0]
        return self._check_finite(logits, checkpoint)

    def _check_finite(self, logits: Array, checkpoint: Checkpoint) -> Array:
        """Return the logits read-only, or raise UnavailableError if they are not finite."""
        if not np.isfinite(logits).all():
            raise UnavailableError(
                f"The {self.task} head of {checkpoint.description.name} returns logits that are not finite "
                "for this text. Use float32, or download the weights again."
            )
        return read_only(logits)

    def scores(self, logits: Array) -> Array | None:
        """Return what a cross-encoder returns for logits of shape [label]; None for another model."""
        if self.activation is None:
            return None
        scores: Array = self.activation(torch.tensor(logits)[None])[0].numpy()
        return scores

    def answer(
        self, inputs: Mapping[str, torch.Tensor], states: torch.Tensor, pooled: torch.Tensor | None
    ) -> torch.Tensor:
        """Return logits of shape [text, …] for an encoder's output; start and end are stacked in the last
        dimension.
        """
        with _encoder_output(states, pooled):
            return self.stack_logits(without_encoder(self.model)(**inputs))

    def stack_logits(self, output: Any) -> torch.Tensor:
        """Return the logits in the output of `model`; start and end are stacked in the last dimension."""
        logits = [getattr(output, name) for name in self.parts]
        return logits[0] if len(logits) == 1 else torch.stack(logits, dim=-1)

    @property
    def configuration(self) -> tuple[Any, ...]:
        """Return the settings that, together with the weights, determine the logits and their labels."""
        tied = getattr(self.model.config, "tie_word_embeddings", None)
        activation = () if self.activation is None else (type(self.activation).__name__,)
        separate = (self.weights_sha256,) if self.weights_sha256 else ()
        return self.task, type(self.model).__name__, self.labels, self.problem, tied, *activation, *separate

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Return the head's own tensors by name, without the encoder's tensors."""
        prefix = f"{self.model.base_model_prefix}."
        return {
            name: tensor for name, tensor in self.model.state_dict().items() if not name.startswith(prefix)
        }


def as_tensor(values: Array, model: torch.nn.Module) -> torch.Tensor:
    """Convert an array of a trace back to the model's dtype and device, without loss."""
    weight = next(model.parameters())
    return torch.tensor(values, device=weight.device, dtype=weight.dtype)


def output_head(checkpoint: Checkpoint, task: str) -> OutputHead:
    """Return the checkpoint's head for a task.

    Raises:
        UnavailableError: the checkpoint has no such head; the message lists the available tasks.
    """
    head = checkpoint.outputs.get(task)
    if head is None:
        raise UnavailableError(missing_head_message(checkpoint, task))
    return head


def missing_head_message(checkpoint: Checkpoint, task: str) -> str:
    """Return the error message for a task without a head."""
    tasks = checkpoint.tasks
    remedy = (
        f"It has one for {' and '.join(tasks)}."
        if tasks
        else "The checkpoint has no task head. Open a checkpoint that was fine-tuned for the task."
    )
    return f"{checkpoint.description.name} has no trained head for {task}. {remedy}"


_open_states: ContextVar[Any] = ContextVar("states")


@contextmanager
def _encoder_output(states: torch.Tensor, pooled: torch.Tensor | None) -> Iterator[None]:
    """Set the output of `_EncoderStub` in this thread."""
    output = (
        BaseModelOutput(last_hidden_state=states)
        if pooled is None
        else BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=pooled)
    )
    token = _open_states.set(output)
    try:
        yield
    finally:
        _open_states.reset(token)


class _EncoderStub(torch.nn.Module):
    """Replaces the encoder and returns its recorded output.

    All other attributes are those of the encoder, because some heads read the word embedding.
    """

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.__dict__["encoder"] = encoder  # not a submodule, because its weights are not part of the head

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return the recorded encoder output of the current `_encoder_output` block."""
        return _open_states.get()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["encoder"], name)


def without_encoder(model: Any) -> Any:
    """Return a shallow copy of a task model whose encoder is a stub; the model itself is unchanged."""
    return _replace_encoder(model, _EncoderStub(model.base_model))


def with_encoder(model: Any, encoder: torch.nn.Module) -> Any:
    """Return a shallow copy of a task model with another encoder; tied weights are replaced too."""
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
    """Return a task model and its modules outside the encoder; the task model comes first."""
    children = [child for name, child in model._modules.items() if name != model.base_model_prefix]
    return [model, *(module for child in children if child is not None for module in child.modules())]


def outputs_of(model: Any) -> list[OutputHead]:
    """Return the heads of a model in memory, determined by its class and base classes."""
    class_names = {base.__name__ for base in type(model).__mro__}
    config = model.config
    is_pretraining = modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES.get(config.model_type) in class_names
    heads = []
    for task, classes in CLASSES.items():
        name = classes.get(config.model_type)
        if name in class_names or (
            is_pretraining and task in TELLING and config.model_type in CLASSES[NEXT_SENTENCE_PREDICTION]
        ):
            labels = (
                tuple(map(str, config.id2label.values()))
                if task in (TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION)
                else ()
            )
            problem = config.problem_type if task == TEXT_CLASSIFICATION else None
            parts = parts_of(task) if name in class_names else _PRETRAINING_OUTPUTS[task]
            heads.append(OutputHead(task, model, labels, problem or "", parts))
    return heads


def parts_of(task: str) -> tuple[str, ...]:
    """Return the names of the logits in the output of transformers' class for a task."""
    return _OUTPUT_NAMES.get(task, _DEFAULT_OUTPUT)
