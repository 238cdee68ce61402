"""Trained output heads: what a checkpoint can be asked beyond its vectors, and the answer from a trace.

The model's own class for the task computes the answer, with the encoder taken out: what the encoder gave in
the one recorded pass stands in its place. So there is no second pass, and no formula written again.
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
from bert_probe.model.checkpoint import ANSWERING, CLASSIFYING, FILLING, FOLLOWING, LABELLING
from bert_probe.model.forward import as_array, batch, forward
from bert_probe.model.trace import Array, Trace, read_only

if TYPE_CHECKING:
    from bert_probe.model.checkpoint import Checkpoint
    from bert_probe.model.encoding import Encoding

CLASSES: Mapping[str, Mapping[str, str]] = {
    FILLING: modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    CLASSIFYING: modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    LABELLING: modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    ANSWERING: modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    FOLLOWING: modeling_auto.MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES,
}
"""Task → transformers' name for a family → the class that carries out the task."""

TELLING = frozenset({FILLING, FOLLOWING})
"""Tasks whose heads have names of their own in the weights. Those of the others are called alike, so that
only the config says which of them it is."""

_BOTH = {FILLING: ("prediction_logits",), FOLLOWING: ("seq_relationship_logits",)}
"""What a model for pre-training calls its two answers."""
_PARTS = {ANSWERING: ("start_logits", "end_logits")}
_ANYTHING = ("logits",)


@dataclass(frozen=True, eq=False)
class OutputHead:
    """A trained head of a model.

    Attributes:
        task: what it was trained for.
        whole: the model's class for that, around the encoder.
        labels: what its numbers are of, as the checkpoint names them; none for words and places.
        problem: "regression", "multi_label_classification", "single_label_classification", or "" where the
            checkpoint does not say.
        parts: what the class calls its answer.
    """

    task: str
    whole: Any
    labels: tuple[str, ...] = ()
    problem: str = ""
    parts: tuple[str, ...] = _ANYTHING

    def logits(self, trace: Trace, positions: Sequence[int] | None = None) -> Array:
        """What the head makes of a traced text, float32, or float64 where the model computes in it.

        Args:
            positions: of the tokens that are asked about, for a head that looks at each by itself.

        Returns:
            [token, …] for words, labels and places (start and end); [label] for classes.

        Raises:
            UnavailableError: it gives numbers that are not finite.
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
        """The same for other vectors of the text's tokens than those of the last layer.

        Args:
            states: [1, token, hidden]; pooled: [1, hidden], or None where the model has no pooler.
        """
        checkpoint = trace.checkpoint
        words = f"The {self.task} head needs more memory for {len(trace.encoding):,} tokens than is free."
        with memory_errors(words), torch.inference_mode(), checkpoint.running():
            inputs = batch(checkpoint, [trace.encoding])
            if positions is not None:
                chosen = torch.tensor(positions, device=states.device)
                states = states[:, chosen]
                inputs = {name: values[:, chosen] for name, values in inputs.items()}
            found = as_array(self.answer(inputs, states, pooled))[0]
        return self._finite(found, checkpoint)

    def logits_alone(self, checkpoint: Checkpoint, encoding: Encoding) -> Array:
        """The same for a text of which no trace is wanted, in a pass that keeps nothing else."""
        given, _ = forward(checkpoint, [encoding])
        with torch.inference_mode(), checkpoint.running():
            states, pooled = given.last_hidden_state, getattr(given, "pooler_output", None)
            found = as_array(self.answer(batch(checkpoint, [encoding]), states, pooled))[0]
        return self._finite(found, checkpoint)

    def _finite(self, found: Array, checkpoint: Checkpoint) -> Array:
        if not np.isfinite(found).all():
            raise UnavailableError(
                f"The {self.task} head of {checkpoint.description.name} gives numbers that are not finite "
                "for this text, so there is no answer. Use float32, or download the weights again."
            )
        return read_only(found)

    def answer(
        self, inputs: Mapping[str, torch.Tensor], states: torch.Tensor, pooled: torch.Tensor | None
    ) -> torch.Tensor:
        """The head's numbers for what an encoder gave, [text, …]; start and end are stacked last."""
        with _giving(states, pooled):
            return self.numbers(without_encoder(self.whole)(**inputs))

    def numbers(self, given: Any) -> torch.Tensor:
        """What is asked for among all that the class gives."""
        parts = [getattr(given, part) for part in self.parts]
        return parts[0] if len(parts) == 1 else torch.stack(parts, dim=-1)

    @property
    def about(self) -> tuple[Any, ...]:
        """What a config says of it; with the weights, all that its numbers and their names depend on."""
        tied = getattr(self.whole.config, "tie_word_embeddings", None)
        return self.task, type(self.whole).__name__, self.labels, self.problem, tied

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The head's own, by name; those of the encoder are left out, though the head may share some."""
        prefix = f"{self.whole.base_model_prefix}."
        return {name: part for name, part in self.whole.state_dict().items() if not name.startswith(prefix)}


def as_tensor(values: Array, model: torch.nn.Module) -> torch.Tensor:
    """Numbers of a trace in the model's own dtype and place, exactly as they came from there."""
    first = next(model.parameters())
    return torch.tensor(values, device=first.device, dtype=first.dtype)


def output_of(checkpoint: Checkpoint, task: str) -> OutputHead:
    """The head for a task.

    Raises:
        UnavailableError: the checkpoint has none; with what it has.
    """
    found = checkpoint.outputs.get(task)
    if found is None:
        raise UnavailableError(missing(checkpoint, task))
    return found


def missing(checkpoint: Checkpoint, task: str) -> str:
    """A sentence for who asks for a head that is not there."""
    others = checkpoint.tasks
    has = (
        f"It has one for {' and '.join(others)}."
        if others
        else "It is an encoder alone; open a checkpoint that was trained for the task."
    )
    return f"{checkpoint.description.name} has no trained head for {task}, and none is made up. {has}"


_open_states: ContextVar[Any] = ContextVar("states")


@contextmanager
def _giving(states: torch.Tensor, pooled: torch.Tensor | None) -> Iterator[None]:
    """Let an `_EncoderStub` give these, in this thread."""
    given = (
        BaseModelOutput(last_hidden_state=states)
        if pooled is None
        else BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=pooled)
    )
    token = _open_states.set(given)
    try:
        yield
    finally:
        _open_states.reset(token)


class _EncoderStub(torch.nn.Module):
    """Stands where the encoder was, and gives what it gave.

    Some heads read the table of words, so whatever else they ask for is the encoder's own.
    """

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.__dict__["encoder"] = encoder  # not as a part, whose weights would count as the head's

    def forward(self, *_given: Any, **_named: Any) -> Any:
        """What `_giving` holds."""
        return _open_states.get()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["encoder"], name)


def without_encoder(whole: Any) -> Any:
    """The same model, parts and all, with the encoder taken out; the model itself stays as it is."""
    return _with(whole, _EncoderStub(whole.base_model))


def with_encoder(whole: Any, encoder: torch.nn.Module) -> Any:
    """The same model around another encoder of its kind, whose words the head uses where it shares them."""
    names = {id(part): name for name, part in whole.base_model.named_parameters()}
    shared = dict(encoder.named_parameters())
    changed = _with(whole, encoder)
    for module in own_modules(changed):
        for name, part in module._parameters.items():
            if id(part) in names:
                module._parameters[name] = shared[names[id(part)]]
    return changed


def _with(whole: Any, encoder: torch.nn.Module) -> Any:
    changed = copy.copy(whole)
    changed._modules = dict(whole._modules) | {whole.base_model_prefix: encoder}
    return changed


def own_modules(whole: Any) -> list[torch.nn.Module]:
    """The head's modules, the encoder's left out, the whole first."""
    parts = [part for name, part in whole._modules.items() if name != whole.base_model_prefix]
    return [whole, *(module for part in parts if part is not None for module in part.modules())]


def outputs_of(whole: Any) -> list[OutputHead]:
    """The heads of a model in memory, by its class or one that this is made from."""
    names = {one.__name__ for one in type(whole).__mro__}
    config = whole.config
    both = modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES.get(config.model_type) in names
    found = []
    for task, classes in CLASSES.items():
        name = classes.get(config.model_type)
        if name in names or (both and task in TELLING and config.model_type in CLASSES[FOLLOWING]):
            labels = tuple(map(str, config.id2label.values())) if task in (CLASSIFYING, LABELLING) else ()
            problem = config.problem_type if task == CLASSIFYING else None
            parts = parts_of(task) if name in names else _BOTH[task]
            found.append(OutputHead(task, whole, labels, problem or "", parts))
    return found


def parts_of(task: str) -> tuple[str, ...]:
    """What a class made for a task calls its answer."""
    return _PARTS.get(task, _ANYTHING)
