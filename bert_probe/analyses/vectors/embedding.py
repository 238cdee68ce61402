"""Hidden states, and the step-by-step computation of the input embeddings and of the pooler's output."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vectors.similarity import VECTOR_LAYER, VECTOR_LAYER_HELP
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Optional, TokenSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.forward import as_array
from bert_probe.model.trace import Array, Trace, read_only

Which = Literal["tokens", "cls", "pooler"]


@question("hidden states", command="embeddings")
class HiddenStates(Question):
    """The hidden states of a text after one layer.

    Attributes:
        layer: layer index, where 0 is the output of the embeddings; negative values count from the end. The
            pooler reads only the last layer.
        which: "tokens": a vector for each token; "cls": the vector of [CLS]; "pooler": the pooler's output.
    """

    inputs = OneTrace()

    layer: int = param(VECTOR_LAYER, default=-1, key="vector_layer", about=VECTOR_LAYER_HELP)
    which: Which = param(
        Choice(("tokens", "cls", "pooler")),
        default="tokens",
        key="vectors",
        option="--vectors",
        about="A vector for each token, the vector of [CLS], or the pooler's output.",
    )

    def of(self, trace: Trace) -> HiddenStatesResult:
        """Return the hidden states of a text.

        Raises:
            SelectionError: the layer does not exist, or the pooler is selected for a layer
                other than the last.
            UnavailableError: the model has no pooler, or its input does not begin with [CLS].
        """
        resolved = self.resolved(trace)
        names: tuple[str, ...] = trace.tokens
        values = trace.vectors(resolved.layer)
        if self.which == "cls":
            if trace.cls is None:
                raise UnavailableError(
                    "This model has no [CLS] token that attends to the whole text. Use the token vectors."
                )
            names, values = names[:1], values[:1]
        elif self.which == "pooler":
            if trace.pooler is None:
                raise UnavailableError(f"This {trace.architecture} has no pooler. Use the vector of [CLS].")
            if resolved.layer != trace.layers:
                raise SelectionError(
                    f"The pooler reads the last layer, {trace.layers}, not {resolved.layer}. Omit the layer."
                )
            names, values = ("pooler",), trace.pooler[None]
        return HiddenStatesResult(resolved, InputRecord.of(trace), names, values)


@dataclass(frozen=True, eq=False, repr=False)
class HiddenStatesResult(Result):
    """Hidden states of a text after one layer.

    Attributes:
        names: the token of each vector, or "pooler".
        values: the vectors, float32 [vector, hidden].
    """

    question: HiddenStates
    names: tuple[str, ...]
    values: Array

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or len(self.values) != len(self.names):
            raise ShapeError(f"values must have shape [{len(self.names)}, hidden], not {self.values.shape}.")

    def frame(self) -> pd.DataFrame:
        """Return one row per vector, with one column per dimension."""
        return frames.vectors(self.values, self.names)


_WORD_TABLES = ("word_embeddings", "tok_embeddings", "embed_tokens")
_NORMS = ("LayerNorm", "layer_norm", "norm")


@question("input embedding", command="anatomy")
class Embedding(Question):
    """Steps that compute a token's input vector: word, position and segment embeddings, sum, and LayerNorm.

    Devlin et al. 2019, figure 2.

    Attributes:
        token: position or word of the token whose steps the table shows. If None, the first token that is
            not special.
    """

    inputs = OneTrace()

    token: int | str | None = param(
        Optional(TokenSelector()),
        default=None,
        key="embedding_token",
        about="A word or a token position; by default, the first token that is not special.",
        display_only=True,
    )

    def resolved(self, trace: Trace) -> Self:
        """Return the question with its token as a position; None becomes the first non-special token."""
        if self.token is not None:
            return super().resolved(trace)
        return replace(self, token=next((token.position for token in trace.tokens if not token.special), 0))

    def of(self, trace: Trace) -> EmbeddingResult:
        """Compute the vectors of each step for all tokens of a text.

        Raises:
            SelectionError: the text does not contain the token.
            UnavailableError: the architecture does not compute its input vectors by the steps of `Embedding`,
                or the trace has no model.
        """
        resolved = self.resolved(trace)
        with torch.inference_mode(), trace.checkpoint.running() as model:
            module = getattr(model, "embeddings", model)
            table = _first(module, _WORD_TABLES)
            unknown = None if table is None or module is model else _unknown_part(module)
            if table is None or unknown is not None:
                raise _unsupported(trace, f" (it has {unknown})" if unknown else "")
            device = table.weight.device
            inputs = {
                name: torch.tensor(ids, device=device)[None] for name, ids in trace.encoding.inputs.items()
            }
            indices = _indices(module, inputs)
            rows = _rows(module, table, indices)
            if not all(isinstance(row, torch.Tensor | None) for row in rows.values()):
                raise _unsupported(trace, " (its tables return several values)")  # such as I-BERT's scales
            # Add the rows in the same order as the models do, so that rounding errors are equal.
            total = rows["word"]
            for name in ("segment", "position"):
                total = total + rows[name] if name in rows else total
            norm = _first(module, _NORMS) if module is not model else None
            normalised = None if norm is None else norm(total)
            output = _model_output(model, module, inputs)
        result = EmbeddingResult(
            resolved,
            InputRecord.of(trace),
            trace,
            word=to_array(rows["word"][0]),
            position=_optional(rows.get("position")),
            segment=_optional(rows.get("segment")),
            total=to_array(total[0]),
            normalised=_optional(normalised),
            model_output=trace.vectors(0) if output is None else to_array(output[0]),
            indices={name: read_only(numbers[0].cpu().numpy()) for name, numbers in indices.items()},
        )
        if not result.difference <= rounding_tolerance(table.weight, result.model_output):
            raise _unsupported(trace, f" (the sum differs by {result.difference:.2g})")
        return result


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingResult(Result):
    """Steps that compute the input vectors of all tokens; arrays are float32 of shape [token, dimension].

    Attributes:
        trace: the model's forward pass over the text.
        word: word embedding of each token.
        position: position embedding of each token; None if the model has no position embeddings.
        segment: segment (token type) embedding of each token; None if the model has no segment embeddings.
        total: sum of the word, position and segment embeddings.
        normalised: LayerNorm of the sum (Ba et al. 2016), or None if the embeddings have no LayerNorm.
        model_output: output of the model's embedding module.
        indices: mapping from "word", and "position" and "segment" if the model has these embeddings, to the
            row of the embedding table for each token, int64 of shape [token]. In RoBERTa, for example, the
            rows of the first positions are 2, 3 and so on.
    """

    question: Embedding
    trace: Trace
    word: Array
    position: Array | None
    segment: Array | None
    total: Array
    normalised: Array | None
    model_output: Array
    indices: Mapping[str, Array]

    def __post_init__(self) -> None:
        shapes = {name: part.shape for name, part in (self.steps | {"model": self.model_output}).items()}
        shape = (len(self.trace.tokens), *self.total.shape[1:])
        if set(shapes.values()) != {shape} or len(shape) != 2:
            raise ShapeError(f"All steps must have shape [token, dimension], not {shapes}.")

    def resolve(self, question: Embedding) -> Embedding:
        """Return the question with its token given by its position in the text."""
        return question.resolved(self.trace)

    @property
    def summed(self) -> dict[str, Array]:
        """Mapping from the name of each embedding, and of the sum, to its vectors, [token, dimension]."""
        steps = {"word": self.word, "position": self.position, "segment": self.segment, "sum": self.total}
        return {name: step for name, step in steps.items() if step is not None}

    @property
    def steps(self) -> dict[str, Array]:
        """Mapping from the name of each step of this architecture to its vectors, [token, dimension]."""
        return self.summed if self.normalised is None else self.summed | {"LayerNorm": self.normalised}

    @property
    def chosen(self) -> int:
        """Position of the token that the table shows."""
        assert isinstance(self.question.token, int)  # an integer, because `of` has resolved the question
        return self.question.token

    @property
    def difference(self) -> float:
        """Largest absolute difference between the last step and ``model_output``, over all tokens."""
        return largest_difference(
            self.total if self.normalised is None else self.normalised, self.model_output
        )

    @property
    def absent(self) -> tuple[str, ...]:
        """A sentence for each step that this architecture does not have."""
        name = self.trace.architecture
        sentences = []
        if self.position is None:
            sentences.append(
                f"{name} adds no position embeddings to its input vectors: positions are encoded in the "
                "attention layers."
            )
        if self.segment is None:
            sentences.append(
                f"{name} has no segment embeddings: its input vectors do not distinguish the sentences "
                "of a pair."
            )
        if self.normalised is None:
            sentences.append(f"{name} has no LayerNorm in its embeddings.")
        return tuple(sentences)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The selected token, and the largest difference of the computed embeddings from the model's."""
        return {"token": str(self.trace.tokens[self.chosen]), "difference_to_model": self.difference}

    def frame(self) -> pd.DataFrame:
        """Return one row per step that the model has: word, position, segment, sum and LayerNorm."""
        rows = np.stack([step[self.chosen] for step in self.steps.values()])
        return frames.vectors(rows, list(self.steps), "step")


def _first(module: Any, names: tuple[str, ...]) -> Any:
    parts = (getattr(module, name, None) for name in names)
    return next((part for part in parts if part is not None), None)


def _unknown_part(module: Any) -> str | None:
    """Return the name of a submodule with weights that is not an embedding table or a LayerNorm, or None."""
    known_parts = {*_WORD_TABLES, *_NORMS, "position_embeddings", "token_type_embeddings"}
    names = (name.partition(".")[0] for name, _ in module.named_parameters())
    return next((name for name in names if name not in known_parts), None)


def _unsupported(trace: Trace, reason: str) -> UnavailableError:
    return UnavailableError(
        f"The input vectors of {trace.architecture} are not the sum of word, position and segment embeddings"
        f"{reason}, so the embedding steps cannot be shown."
    )


def _indices(module: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each token's row index in the word, position and segment tables, each of shape [1, token]."""
    ids = inputs["input_ids"]
    indices = {"word": ids}
    positions = getattr(module, "position_embeddings", None)
    if isinstance(positions, torch.nn.Embedding) and getattr(module, "position_biased_input", True):
        indices["position"] = _position_ids(ids, positions.padding_idx)
    if isinstance(getattr(module, "token_type_embeddings", None), torch.nn.Embedding):
        indices["segment"] = inputs.get("token_type_ids", torch.zeros_like(ids))
    return indices


def _rows(module: Any, table: Any, indices: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the rows of the word, position and segment tables at the indices, [1, token, dimension]."""
    tables = {
        "word": table,
        "position": getattr(module, "position_embeddings", None),
        "segment": getattr(module, "token_type_embeddings", None),
    }
    return {name: tables[name](numbers) for name, numbers in indices.items()}


def _position_ids(ids: torch.Tensor, padding: int | None) -> torch.Tensor:
    """Return each token's row index in the position table, of shape [1, token].

    RoBERTa and related models count positions from the row after the padding row, and do not count padding
    tokens, even if these occur in the text.
    """
    if padding is None:
        return torch.arange(ids.shape[1], device=ids.device)[None]
    counted = ids.ne(padding).long()
    return counted.cumsum(1) * counted + padding


def _model_output(model: Any, module: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the output of the model's own embedding module, or None if it has no such module."""
    if module is model:
        return None
    parameters = inspect.signature(module.forward).parameters
    arguments = {name: value for name, value in inputs.items() if name in parameters}
    if "mask" in parameters:
        arguments["mask"] = inputs["attention_mask"]
    if "token_type_ids" in parameters and "input_ids" in inputs:
        # Without token_type_ids, Jina's embedding module raises an error in transformers 5.16.1.
        arguments.setdefault("token_type_ids", torch.zeros_like(inputs["input_ids"]))
    output = module(**arguments)
    return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


def _optional(tensor: torch.Tensor | None) -> Array | None:
    return None if tensor is None else to_array(tensor[0])


@question("pooler")
class Pooler(Question):
    """Steps that compute the pooler's output, tanh(W · CLS + b); Devlin et al. 2019, section 3.1."""

    inputs = OneTrace()

    def of(self, trace: Trace) -> PoolerResult:
        """Compute the vectors of each step for a text, and add the model's own output for comparison.

        Raises:
            UnavailableError: the model has no pooler, the pooler is not a linear layer and a tanh, or the
                trace has no model.
        """
        checkpoint = trace.checkpoint
        unsupported = f"The pooler of {trace.architecture} is not a linear layer and a tanh"
        with torch.inference_mode(), checkpoint.running() as model:
            pooler = getattr(model, "pooler", None)
            if trace.pooler is None or pooler is None:
                raise UnavailableError(f"This {trace.architecture} has no pooler.")
            dense = pooler if isinstance(pooler, torch.nn.Linear) else getattr(pooler, "dense", None)
            if not isinstance(dense, torch.nn.Linear):
                raise UnavailableError(f"{unsupported}, so its steps cannot be shown.")
            cls = trace.vectors(-1)[0]
            vector = torch.tensor(cls, device=dense.weight.device, dtype=dense.weight.dtype)
            linear = dense(vector[None])[0]
            steps = (cls, to_array(linear), to_array(torch.tanh(linear)), trace.pooler)
        result = PoolerResult(self.resolved(trace), InputRecord.of(trace), *steps)
        # Detect other activation functions by their output, because architectures name them differently.
        if not result.difference <= rounding_tolerance(dense.weight, trace.pooler):
            raise UnavailableError(
                f"{unsupported}: the recomputed output differs by {result.difference:.2g}."
            )
        return result


@dataclass(frozen=True, eq=False, repr=False)
class PoolerResult(Result):
    """Steps that compute tanh(W · CLS + b), and the model's output; arrays are float32 of shape [hidden].

    Attributes:
        cls: vector of [CLS] after the last layer.
        linear: W · CLS + b.
        replay: tanh(W · CLS + b).
        model_output: output of the model's pooler.
    """

    question: Pooler
    cls: Array
    linear: Array
    replay: Array
    model_output: Array

    def __post_init__(self) -> None:
        shapes = [part.shape for part in (self.cls, self.linear, self.replay, self.model_output)]
        if len(set(shapes)) > 1 or self.cls.ndim != 1:
            raise ShapeError(f"All steps of the pooler must have shape [hidden], not {shapes}.")

    @property
    def difference(self) -> float:
        """Largest absolute difference between ``replay`` and ``model_output``."""
        return largest_difference(self.replay, self.model_output)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The largest absolute difference between the recomputed output and the model's output."""
        return {"difference_to_model": self.difference}

    def frame(self) -> pd.DataFrame:
        """Return one row per step: cls, linear, tanh, and the model's output."""
        rows = np.stack([self.cls, self.linear, self.replay, self.model_output])
        return frames.vectors(rows, ["cls", "W·cls + b", "tanh(W·cls + b)", "model"], "step")


def to_array(tensor: torch.Tensor) -> Array:
    """Convert a tensor to a read-only array."""
    return read_only(as_array(tensor))


def largest_difference(replay: Array, expected: Array) -> float:
    """Return the largest absolute difference between corresponding elements of two arrays."""
    return float(np.abs(replay - expected).max())


def rounding_tolerance(weight: torch.Tensor, expected: Array) -> float:
    """Return the largest absolute difference from the expected values that rounding can explain.

    A larger difference means that the recomputed output does not reproduce the model's computation.

    Args:
        weight: a weight of the model, whose dtype determines the precision.
        expected: output of the model.
    """
    precision = max(1e-5, 4 * torch.finfo(weight.dtype).eps)
    return precision * max(1.0, float(np.abs(expected).max()))
