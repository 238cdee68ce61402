"""Steps of the input embedding: the table rows that are added for each token, checked against the model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attention.replay import largest_difference, rounding_tolerance, to_array
from bert_probe.core import frames
from bert_probe.core.field_types import Optional, TokenSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.trace import Array, Trace

_WORD_TABLES = ("word_embeddings", "tok_embeddings", "embed_tokens")
_NORMS = ("LayerNorm", "layer_norm", "norm")


@question("input embedding", command="anatomy")
class Embedding(Question):
    """Steps of a token's input vector: word + position + segment → sum → LayerNorm.

    Devlin et al. 2019, figure 2.

    Attributes:
        token: position or word of the token whose steps the table shows; None for the first token that is not
            special.
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
        """Return the resolved question; the default is the first token that is not special."""
        if self.token is not None:
            return super().resolved(trace)
        return replace(self, token=next((token.position for token in trace.tokens if not token.special), 0))

    def of(self, trace: Trace) -> EmbeddingResult:
        """Return the steps of all tokens of a text.

        Raises:
            SelectionError: the text does not contain the token.
            UnavailableError: the architecture computes its input vectors differently, or the trace has no
                model.
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
            rows = _rows(module, table, inputs)
            # The rows are added in the same order as in the models, so that rounding is equal.
            total = rows["word"]
            for name in ("segment", "position"):
                total = total if rows[name] is None else total + rows[name]
            norm = _first(module, _NORMS) if module is not model else None
            normalised = None if norm is None else norm(total)
            output = _model_output(model, module, inputs)
        result = EmbeddingResult(
            resolved,
            InputRecord.of(trace),
            trace,
            word=to_array(rows["word"][0]),
            position=_optional(rows["position"]),
            segment=_optional(rows["segment"]),
            total=to_array(total[0]),
            normalised=_optional(normalised),
            model_output=trace.vectors(0) if output is None else to_array(output[0]),
        )
        if not result.difference <= rounding_tolerance(table.weight, result.model_output):
            raise _unsupported(trace, f" (the sum differs by {result.difference:.2g})")
        return result


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingResult(Result):
    """Steps of all tokens' input vectors. Arrays are float32 [token, dimension].

    Attributes:
        trace: the model's forward pass over the text.
        word: rows of the word table.
        position: rows of the position table; None if the model has none.
        segment: rows of the segment (token type) table; None if the model has none.
        total: sum of these rows.
        normalised: LayerNorm of the sum (Ba et al. 2016), or None if the embeddings have no LayerNorm.
        model_output: output of the model's embedding module.
    """

    question: Embedding
    trace: Trace
    word: Array
    position: Array | None
    segment: Array | None
    total: Array
    normalised: Array | None
    model_output: Array

    def __post_init__(self) -> None:
        shapes = {name: part.shape for name, part in (self.steps | {"model": self.model_output}).items()}
        shape = (len(self.trace.tokens), *self.total.shape[1:])
        if set(shapes.values()) != {shape} or len(shape) != 2:
            raise ShapeError(f"The steps have shapes {shapes}, but all must be [token, dimension].")

    def resolve(self, question: Embedding) -> Embedding:
        """Return the question with its token as a position in the text."""
        return question.resolved(self.trace)

    @property
    def summed(self) -> dict[str, Array]:
        """The added table rows and their sum: name → [token, dimension]."""
        steps = {"word": self.word, "position": self.position, "segment": self.segment, "sum": self.total}
        return {name: step for name, step in steps.items() if step is not None}

    @property
    def steps(self) -> dict[str, Array]:
        """All steps of this architecture, in order: name → [token, dimension]."""
        return self.summed if self.normalised is None else self.summed | {"LayerNorm": self.normalised}

    @property
    def chosen(self) -> int:
        """Position of the token that the table shows."""
        assert isinstance(self.question.token, int)  # the question is resolved
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
                f"{name} adds no position embeddings here: positions enter in the attention layers."
            )
        if self.segment is None:
            sentences.append(
                f"{name} has no segment embeddings: it does not distinguish the sentences of a pair here."
            )
        if self.normalised is None:
            sentences.append(f"{name} has no LayerNorm in its embeddings.")
        return tuple(sentences)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The token as text, and the difference from the model's output."""
        return {"token": str(self.trace.tokens[self.chosen]), "difference_to_model": self.difference}

    def frame(self) -> pd.DataFrame:
        """Return the steps of one token, a row each: word, position, segment, sum, LayerNorm."""
        rows = np.stack([step[self.chosen] for step in self.steps.values()])
        return frames.vectors(rows, list(self.steps), "step")


def _first(module: Any, names: tuple[str, ...]) -> Any:
    parts = (getattr(module, name, None) for name in names)
    return next((part for part in parts if part is not None), None)


def _unknown_part(module: Any) -> str | None:
    """Return the name of a submodule with weights other than the three tables and the LayerNorm, or None."""
    known_parts = {*_WORD_TABLES, *_NORMS, "position_embeddings", "token_type_embeddings"}
    names = (name.partition(".")[0] for name, _ in module.named_parameters())
    return next((name for name in names if name not in known_parts), None)


def _unsupported(trace: Trace, reason: str) -> UnavailableError:
    return UnavailableError(
        f"The input vectors of {trace.architecture} are not the sum of word, position and segment embeddings"
        f"{reason}, so these steps cannot be shown."
    )


def _rows(module: Any, table: Any, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    ids = inputs["input_ids"]
    rows: dict[str, Any] = {"word": table(ids), "position": None, "segment": None}
    positions = getattr(module, "position_embeddings", None)
    if isinstance(positions, torch.nn.Embedding) and getattr(module, "position_biased_input", True):
        rows["position"] = positions(_position_ids(ids, positions.padding_idx))
    segments = getattr(module, "token_type_embeddings", None)
    if isinstance(segments, torch.nn.Embedding):
        rows["segment"] = segments(inputs.get("token_type_ids", torch.zeros_like(ids)))
    return rows


def _position_ids(ids: torch.Tensor, padding: int | None) -> torch.Tensor:
    """Return the row indices in the position table, [1, token].

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
    output = module(**arguments)
    return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


def _optional(tensor: torch.Tensor | None) -> Array | None:
    return None if tensor is None else to_array(tensor[0])
