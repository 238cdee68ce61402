"""The input embedding taken apart: what each token's first vector is the sum of, checked with the model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attention.replay import allowed, off_by, vectors
from bert_probe.core import frames
from bert_probe.core.field_types import Optional
from bert_probe.core.field_types_of_words import TokenSelector
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
    """How a token's input vector is made: word + position + segment → sum → LayerNorm.

    Devlin et al. 2019, figure 2.

    Attributes:
        token: the one whose steps the table shows: its position, or its word; None for the first that is
            no special token.
    """

    inputs = OneTrace()

    token: int | str | None = param(
        Optional(TokenSelector()),
        default=None,
        key="embedding_token",
        about="A word, or a position; else the text's first token.",
        display_only=True,
    )

    def resolved(self, trace: Trace) -> Self:
        """With the first token of the text where none is named."""
        if self.token is not None:
            return super().resolved(trace)
        return replace(self, token=next((token.position for token in trace.tokens if not token.special), 0))

    def of(self, trace: Trace) -> EmbeddingResult:
        """The steps of all tokens of a text.

        Raises:
            SelectionError: no such token.
            UnavailableError: the architecture builds its input in another way; or no model made this trace.
        """
        asked_for = self.resolved(trace)
        with torch.inference_mode(), trace.checkpoint.running() as model:
            module = getattr(model, "embeddings", model)
            table = _first(module, _WORD_TABLES)
            other = None if table is None or module is model else _another_part(module)
            if table is None or other is not None:
                raise _another_way(trace, f" (it has {other})" if other else "")
            device = table.weight.device
            inputs = {
                name: torch.tensor(ids, device=device)[None] for name, ids in trace.encoding.inputs.items()
            }
            rows = _rows(module, table, inputs)
            # The order in which the models add, so that even the rounding is theirs.
            total = rows["word"]
            for name in ("segment", "position"):
                total = total if rows[name] is None else total + rows[name]
            norm = _first(module, _NORMS) if module is not model else None
            normalised = None if norm is None else norm(total)
            output = _model_output(model, module, inputs)
        found = EmbeddingResult(
            asked_for,
            InputRecord.of(trace),
            trace,
            word=vectors(rows["word"][0]),
            position=_optional(rows["position"]),
            segment=_optional(rows["segment"]),
            total=vectors(total[0]),
            normalised=_optional(normalised),
            model_output=trace.vectors(0) if output is None else vectors(output[0]),
        )
        if not found.difference <= allowed(table.weight, found.model_output):
            raise _another_way(trace, f" (the sum is off by {found.difference:.2g})")
        return found


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingResult(Result):
    """How each token's input vector is made. Arrays are [token, dimension], float32.

    Attributes:
        trace: of the text.
        word: rows of the word table.
        position: rows of the position table, or None.
        segment: rows of the segment (token type) table, or None.
        total: sum of those that are there.
        normalised: LayerNorm of the sum (Ba et al. 2016), or None where there is none.
        model_output: what the model's embedding module computes.
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
        wanted = (len(self.trace.tokens), *self.total.shape[1:])
        if set(shapes.values()) != {wanted} or len(wanted) != 2:
            raise ShapeError(f"The steps have shapes {shapes}; all must be [token, dimension].")

    def resolve(self, question: Embedding) -> Embedding:
        """Another token is found in the text."""
        return question.resolved(self.trace)

    @property
    def summed(self) -> dict[str, Array]:
        """The rows of the tables that this architecture has, and their sum: name → [token, dimension]."""
        steps = {"word": self.word, "position": self.position, "segment": self.segment, "sum": self.total}
        return {name: step for name, step in steps.items() if step is not None}

    @property
    def steps(self) -> dict[str, Array]:
        """The steps that this architecture has, in order: name → [token, dimension]."""
        return self.summed if self.normalised is None else self.summed | {"LayerNorm": self.normalised}

    @property
    def chosen(self) -> int:
        """Position of the token that the table shows."""
        assert isinstance(self.question.token, int)  # it is resolved
        return self.question.token

    @property
    def difference(self) -> float:
        """Largest absolute difference of the last step, over all tokens, to ``model_output``."""
        return off_by(self.total if self.normalised is None else self.normalised, self.model_output)

    @property
    def absent(self) -> tuple[str, ...]:
        """A sentence for each part that this architecture does not have."""
        name = self.trace.architecture
        sentences = []
        if self.position is None:
            sentences.append(f"{name} adds no position rows here: positions enter in the attention instead.")
        if self.segment is None:
            sentences.append(f"{name} has no segment table: both sentences of a pair look alike to it here.")
        if self.normalised is None:
            sentences.append(f"{name} has no LayerNorm in its embeddings.")
        return tuple(sentences)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The token by its name, and how far the steps are off."""
        return {"token": str(self.trace.tokens[self.chosen]), "difference_to_model": self.difference}

    def frame(self) -> pd.DataFrame:
        """The steps of one token, a row each: word, position, segment, sum, LayerNorm."""
        rows = np.stack([step[self.chosen] for step in self.steps.values()])
        return frames.vectors(rows, list(self.steps), "step")


def _first(module: Any, names: tuple[str, ...]) -> Any:
    found = (getattr(module, name, None) for name in names)
    return next((part for part in found if part is not None), None)


def _another_part(module: Any) -> str | None:
    """Name of a part with weights that is neither one of the three tables nor the LayerNorm."""
    known = {*_WORD_TABLES, *_NORMS, "position_embeddings", "token_type_embeddings"}
    names = (name.partition(".")[0] for name, _ in module.named_parameters())
    return next((name for name in names if name not in known), None)


def _another_way(trace: Trace, reason: str) -> UnavailableError:
    return UnavailableError(
        f"{trace.architecture} does not simply add rows of a word, a position and a "
        f"segment table{reason}, so its embedding cannot be taken apart this way."
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
    """Rows of the position table, [1, token].

    RoBERTa and its kin count from the row after that of padding, and do not count a padding token,
    even one that a person has typed.
    """
    if padding is None:
        return torch.arange(ids.shape[1], device=ids.device)[None]
    counted = ids.ne(padding).long()
    return counted.cumsum(1) * counted + padding


def _model_output(model: Any, module: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """What the model's own embedding module returns; None where it has no such module."""
    if module is model:
        return None
    taken = inspect.signature(module.forward).parameters
    arguments = {name: value for name, value in inputs.items() if name in taken}
    if "mask" in taken:
        arguments["mask"] = inputs["attention_mask"]
    output = module(**arguments)
    return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


def _optional(tensor: torch.Tensor | None) -> Array | None:
    return None if tensor is None else vectors(tensor[0])
