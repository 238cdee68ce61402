"""Taking the first and the last step of an encoder apart: the input embedding and the pooler.

Each replay stands beside what the model itself computes, with the largest absolute difference. One
that differs by more than rounding is refused: the architecture does something else.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array, Trace, read_only

_WORD_TABLES = ("word_embeddings", "tok_embeddings", "embed_tokens")
_NORMS = ("LayerNorm", "layer_norm", "norm")


@dataclass(frozen=True, eq=False)
class EmbeddingAnatomy:
    """How each token's input vector is made. Arrays are [token, dimension], float32.

    Attributes:
        trace: the text.
        word: rows of the word table.
        position: rows of the position table, or None.
        segment: rows of the segment (token type) table, or None.
        total: sum of those that are there.
        normalised: LayerNorm of the sum (Ba et al. 2016), or None where there is none.
        model_output: what the model's embedding module computes.
        difference: largest absolute difference of the last step here to ``model_output``.
        absent: a sentence for each part that this architecture does not have.
    """

    trace: Trace
    word: Array
    position: Array | None
    segment: Array | None
    total: Array
    normalised: Array | None
    model_output: Array
    difference: float
    absent: tuple[str, ...]

    @property
    def parts(self) -> dict[str, Array]:
        """The steps that this architecture has, in order: name → [token, dimension]."""
        steps = {
            "word": self.word,
            "position": self.position,
            "segment": self.segment,
            "sum": self.total,
            "LayerNorm": self.normalised,
        }
        return {name: step for name, step in steps.items() if step is not None}


@dataclass(frozen=True, eq=False)
class PoolerReplay:
    """tanh(W · CLS + b) beside the model's pooler output. Arrays are [hidden], float32.

    Attributes:
        cls: last-layer vector of [CLS].
        linear: W · CLS + b.
        replay: tanh of it.
        model_output: what the model's pooler computes.
        difference: largest absolute difference of ``replay`` to ``model_output``.
    """

    cls: Array
    linear: Array
    replay: Array
    model_output: Array
    difference: float


def embedding_anatomy(checkpoint: Checkpoint, trace: Trace) -> EmbeddingAnatomy:
    """Word + position + segment → sum → LayerNorm for each token; Devlin et al. 2019, figure 2.

    Raises:
        UnavailableError: the architecture builds its input in another way.
    """
    model: Any = checkpoint.model
    module = getattr(model, "embeddings", model)
    table = _first(module, _WORD_TABLES)
    other = None if table is None or module is model else _another_part(module)
    if table is None or other is not None:
        raise _another_way(checkpoint, f" (it has {other})" if other else "")
    device = table.weight.device
    inputs = {name: torch.tensor(ids, device=device)[None] for name, ids in trace.encoding.inputs.items()}
    with torch.inference_mode():
        rows = _rows(module, table, inputs)
        # The order in which the models add, so that even the rounding is theirs.
        total = rows["word"]
        for name in ("segment", "position"):
            total = total if rows[name] is None else total + rows[name]
        norm = _first(module, _NORMS) if module is not model else None
        normalised = None if norm is None else norm(total)
        output = _model_output(model, module, inputs)
    made = _vectors(total if normalised is None else normalised)
    expected = trace.vectors(0) if output is None else _vectors(output)
    difference = float(np.abs(made - expected).max())
    if not difference <= _tolerance(table.weight, expected):
        raise _another_way(checkpoint, f" (the sum is off by {difference:.2g})")
    return EmbeddingAnatomy(
        trace=trace,
        word=_vectors(rows["word"]),
        position=_optional(rows["position"]),
        segment=_optional(rows["segment"]),
        total=_vectors(total),
        normalised=_optional(normalised),
        model_output=expected,
        difference=difference,
        absent=_absent(checkpoint, rows, normalised),
    )


def _first(module: Any, names: tuple[str, ...]) -> Any:
    found = (getattr(module, name, None) for name in names)
    return next((part for part in found if part is not None), None)


def _another_part(module: Any) -> str | None:
    """Name of a part with weights that is neither one of the three tables nor the LayerNorm."""
    known = {*_WORD_TABLES, *_NORMS, "position_embeddings", "token_type_embeddings"}
    names = (name.partition(".")[0] for name, _ in module.named_parameters())
    return next((name for name in names if name not in known), None)


def _another_way(checkpoint: Checkpoint, reason: str) -> UnavailableError:
    return UnavailableError(
        f"{checkpoint.description.architecture} does not simply add rows of a word, a position and a "
        f"segment table{reason}, so its embedding cannot be taken apart this way."
    )


def _tolerance(weight: torch.Tensor, expected: Array) -> float:
    """Rounding of the model's own element type, for values of this size."""
    precision = max(1e-5, 16 * torch.finfo(weight.dtype).eps)
    return precision * max(1.0, float(np.abs(expected).max()))


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


def _absent(checkpoint: Checkpoint, rows: dict[str, Any], normalised: Any) -> tuple[str, ...]:
    name = checkpoint.description.architecture
    sentences = []
    if rows["position"] is None:
        sentences.append(f"{name} adds no position rows here: positions enter in the attention instead.")
    if rows["segment"] is None:
        sentences.append(f"{name} has no segment table: both sentences of a pair look alike to it here.")
    if normalised is None:
        sentences.append(f"{name} has no LayerNorm in its embeddings.")
    return tuple(sentences)


def _vectors(tensor: torch.Tensor) -> Array:
    return read_only(tensor[0].float().cpu().numpy())


def _optional(tensor: torch.Tensor | None) -> Array | None:
    return None if tensor is None else _vectors(tensor)


def pooler_replay(checkpoint: Checkpoint, trace: Trace) -> PoolerReplay:
    """Compute the pooler from the [CLS] vector and compare; Devlin et al. 2019, section 3.1.

    Raises:
        UnavailableError: the model has no pooler, or one that computes something else.
    """
    model: Any = checkpoint.model
    pooler = getattr(model, "pooler", None)
    if trace.pooler is None or pooler is None:
        raise UnavailableError(f"{checkpoint.description.architecture} here has no pooler.")
    dense = pooler if isinstance(pooler, torch.nn.Linear) else getattr(pooler, "dense", None)
    other = f"The pooler of {checkpoint.description.architecture} is not a linear layer and a tanh"
    if not isinstance(dense, torch.nn.Linear):
        raise UnavailableError(f"{other}.")
    cls = trace.vectors(-1)[0]
    with torch.inference_mode():
        given = torch.tensor(cls, device=dense.weight.device, dtype=dense.weight.dtype)
        linear = dense(given[None])
        replay = _vectors(torch.tanh(linear)[None])[0]
    # Families name their activation in different ways, so the numbers have the last word.
    difference = float(np.abs(replay - trace.pooler).max())
    if not difference <= _tolerance(dense.weight, trace.pooler):
        raise UnavailableError(f"{other} of [CLS] (they are off by {difference:.2g}).")
    return PoolerReplay(
        cls=cls,
        linear=_vectors(linear[None])[0],
        replay=replay,
        model_output=trace.pooler,
        difference=difference,
    )
