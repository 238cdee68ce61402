"""Recording and changing the attention of models that compute it with their own code.

Such a model (MPNet, DeBERTa, RoFormer) does not call the attention function of `capture`. Its attention is a
short sequence of tensor operations, which are followed here from the product of queries and keys to the
product of weights and values. The model's numbers do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from bert_probe.model.capture import AttentionCall, finish_call, is_captured


@contextmanager
def eager_attention() -> Iterator[None]:
    """Within the context, let `capture.recording` and `capture.changed_outputs` work for a model of this
    thread that computes attention with its own code.
    """
    if _is_open.get():
        yield
        return
    token = _is_open.set(True)
    try:
        with _EagerAttention():
            yield
    finally:
        _is_open.reset(token)


_is_open: ContextVar[bool] = ContextVar("eager_attention", default=False)


@dataclass(frozen=True, eq=False)
class _Scaled:
    """A tensor multiplied by a number."""

    tensor: torch.Tensor
    factor: float


@dataclass(frozen=True, eq=False)
class _Scores:
    """Attention scores: query · key × scaling, plus terms; -inf where blocked.

    Attributes:
        query, key: tensors of shape [batch, head, token, dim] or [batch × head, token, dim].
        terms: tensors that the model adds, such as a mask or a position bias.
        blocked: bool tensors; the score is replaced where one of them is True.
    """

    query: torch.Tensor
    key: torch.Tensor
    scaling: float
    terms: tuple[torch.Tensor, ...] = ()
    blocked: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class _Weights:
    """Attention weights of shape [batch, head, query, key], or reshaped: the softmax of scores."""

    scores: _Scores
    shape: torch.Size


_Step = _Scaled | _Scores | _Weights


class _EagerAttention(TorchFunctionMode):
    """Follows the tensor operations of this thread while attention is recorded or changed.

    Attributes:
        steps: what is known about a tensor, for as long as the tensor exists.
        last_mask: the latest mask and the tensors that it combines; layers often share them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: Any = WeakTensorKeyDictionary()  # Tensor -> _Step
        self.last_mask: tuple[tuple[torch.Tensor, ...], torch.Tensor | None] = ((), None)

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation and note what its result is."""
        kwargs = kwargs or {}
        if not is_captured():
            return func(*args, **kwargs)
        name = func.__name__
        operation = _OPERATIONS.get(name.strip("_"))
        before = [self._step(argument) for argument in args[:2]]
        result = func(*args, **kwargs)
        if operation is None:
            if args and before[0] is not None and (result is args[0] or name == "__setitem__"):
                del self.steps[args[0]]  # changed in place, in an unknown way
            return result
        if isinstance(before[0], _Weights) and operation is _product:
            return self._finish(before[0], args[1], result)
        step = operation(before, result, *args, **kwargs)
        if step is not None:
            self.steps[result] = step
        elif isinstance(result, torch.Tensor):
            self.steps.pop(result, None)
        return result

    def _step(self, argument: Any) -> _Step | None:
        step: _Step | None = self.steps.get(argument) if isinstance(argument, torch.Tensor) else None
        return step

    def _finish(self, weights: _Weights, value: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """Record the product of weights and values, and return what the model continues with."""
        batch, heads, length = weights.shape[:3]
        shape = (batch, heads, length, -1)
        scores = weights.scores
        call = AttentionCall(
            scores.query.reshape(shape),
            scores.key.reshape(shape),
            value.expand(*result.shape[:-2], -1, -1).reshape(shape),
            self._mask(scores),
            scores.scaling,
            result.reshape(shape).transpose(1, 2),
        )
        # The model continues with a view of the recorded output, so that gradients flow through it.
        return finish_call(call).output.transpose(1, 2).reshape(result.shape)

    def _mask(self, scores: _Scores) -> torch.Tensor | None:
        parts = (*scores.terms, *scores.blocked)
        last, mask = self.last_mask
        if len(parts) != len(last) or any(a is not b for a, b in zip(parts, last, strict=True)):
            mask = _mask(scores)
            self.last_mask = (parts, mask)
        return mask


def _mask(scores: _Scores) -> torch.Tensor | None:
    """Return the sum of the terms, with -inf for blocked keys, as `AttentionCall.mask` describes it."""
    terms = [term for term in scores.terms if term.any()]
    blocked = [mask for mask in scores.blocked if mask.any()]
    if not terms:
        return ~reduce(torch.logical_or, blocked) if blocked else None
    total: torch.Tensor = sum(terms[1:], start=terms[0])
    # Models mask keys with the smallest number of a dtype; the weights of these keys are 0.
    blocked += [mask for mask in [total <= torch.finfo(total.dtype).min / 2] if mask.any()]
    return total.masked_fill(reduce(torch.logical_or, blocked), -torch.inf) if blocked else total


_Operation = Callable[..., _Step | None]


def _product(
    before: Sequence[_Step | None], result: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **_: Any
) -> _Step | None:
    """A product of shape [..., token, token] may be that of queries and keys."""
    is_square = result.ndim in (3, 4) and result.shape[-1] == result.shape[-2]
    if not is_square or left.ndim != result.ndim or right.ndim != result.ndim:
        return None
    query, key = (
        step if isinstance(step, _Scaled) else _Scaled(tensor, 1.0)
        for step, tensor in zip(before, (left, right), strict=True)
    )
    # One key of all heads (multi-query attention) is repeated for each head.
    shared = key.tensor.transpose(-1, -2).expand(*result.shape[:-2], -1, -1)
    return _Scores(query.tensor, shared, query.factor * key.factor)


def _multiply(
    before: Sequence[_Step | None], result: torch.Tensor, left: Any, right: Any, **_: Any
) -> _Step | None:
    if not isinstance(left, torch.Tensor):
        return _multiply(before[::-1], result, right, left)
    factor = _number(right)
    return None if factor is None else _scale(before[0], left, factor)


def _divide(
    before: Sequence[_Step | None], _result: torch.Tensor, left: Any, right: Any, **options: Any
) -> _Step | None:
    divisor = _number(right)
    is_plain = divisor is not None and not options and isinstance(left, torch.Tensor)
    return _scale(before[0], left, 1 / divisor) if is_plain and divisor else None


def _scale(step: _Step | None, tensor: torch.Tensor, factor: float) -> _Step | None:
    if isinstance(step, _Scores) and not step.blocked:
        terms = tuple(term * factor for term in step.terms)
        return replace(step, scaling=step.scaling * factor, terms=terms)
    if isinstance(step, _Scaled):
        return replace(step, factor=step.factor * factor)
    return _Scaled(tensor, factor) if step is None and tensor.ndim in (3, 4) else None


def _number(value: Any) -> float | None:
    """Return a number, also of a tensor without axes; None for other values."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.ndim == 0 else None
    return float(value) if isinstance(value, int | float) else None


def _add(
    before: Sequence[_Step | None], result: torch.Tensor, left: Any, right: Any, **options: Any
) -> _Step | None:
    """Add a term to scores. The sum of two products of queries and keys is not followed."""
    scores = [step for step in before if isinstance(step, _Scores)]
    if len(scores) != 1 or options:
        return None
    term = right if scores[0] is before[0] else left
    if not isinstance(term, torch.Tensor):
        return scores[0] if term == 0 else None
    is_square = result.shape[-2:] == scores[0].query.shape[-2:-1] * 2
    return replace(scores[0], terms=(*scores[0].terms, term)) if is_square else None


def _block(
    before: Sequence[_Step | None], _result: torch.Tensor, _scores: Any, mask: Any = None, value: Any = None
) -> _Step | None:
    """Replace scores by the smallest number of a dtype, or by -inf."""
    scores, number = before[0], _number(value)
    if not isinstance(scores, _Scores) or mask is None or number is None:
        return None
    # The weights of blocked keys must be 0.
    is_smallest = number <= torch.finfo(torch.float16).min / 2
    return replace(scores, blocked=(*scores.blocked, mask)) if is_smallest else None


def _where(
    before: Sequence[_Step | None], result: torch.Tensor, allowed: Any, scores: Any = None, value: Any = None
) -> _Step | None:
    """Keep the scores of allowed keys, and replace the others as `_block` does."""
    is_mask = len(before) > 1 and allowed.dtype == torch.bool
    return _block(before[1:], result, scores, ~allowed, value) if is_mask else None


def _reshape(before: Sequence[_Step | None], result: torch.Tensor, *_args: Any, **_: Any) -> _Step | None:
    """Reshape weights or scores; the terms are reshaped like the scores."""
    step = before[0]
    if not isinstance(step, _Scores):
        return step if isinstance(step, _Weights) else None
    if result.shape[-2:] != step.query.shape[-2:-1] * 2:
        return None
    tensors = (*step.terms, *step.blocked)
    if any(tensor.numel() not in (1, result.numel()) for tensor in tensors):
        return None
    shape = (*result.shape[:-2], *step.query.shape[-2:])
    reshaped = [tensor.reshape(result.shape) if tensor.numel() > 1 else tensor for tensor in tensors]
    return replace(
        step,
        query=step.query.reshape(shape),
        key=step.key.reshape(shape),
        terms=tuple(reshaped[: len(step.terms)]),
        blocked=tuple(reshaped[len(step.terms) :]),
    )


def _softmax(
    before: Sequence[_Step | None],
    result: torch.Tensor,
    _scores: Any,
    dim: int | None = None,
    *_: Any,
    **__: Any,
) -> _Step | None:
    is_over_keys = dim in (-1, result.ndim - 1) and result.ndim == 4
    return _Weights(before[0], result.shape) if isinstance(before[0], _Scores) and is_over_keys else None


def _same(before: Sequence[_Step | None], _result: torch.Tensor, *_args: Any, **_: Any) -> _Step | None:
    return before[0]


def _drop(
    before: Sequence[_Step | None], result: torch.Tensor, tensor: Any, *_args: Any, **_: Any
) -> _Step | None:
    """Dropout returns its input unless the model is being trained."""
    return before[0] if result is tensor else None


_OPERATIONS: Mapping[str, _Operation] = {
    **dict.fromkeys(("matmul", "bmm"), _product),
    **dict.fromkeys(("mul", "multiply", "rmul", "imul"), _multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv", "itruediv"), _divide),
    **dict.fromkeys(("add", "radd", "iadd"), _add),
    "masked_fill": _block,
    "where": _where,
    **dict.fromkeys(("view", "reshape"), _reshape),
    "softmax": _softmax,
    **dict.fromkeys(("float", "to", "type_as", "contiguous", "detach", "clone"), _same),
    "dropout": _drop,
}
"""Name of a torch function, without underscores → what its result is, or None if it is not followed.

The arguments are what is known about the first two arguments, the result, and the arguments of the function.
"""
