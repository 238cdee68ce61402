"""Record and change the attention of models that compute attention with their own code.

Such a model (MPNet, DeBERTa, RoFormer) does not call the attention function of `capture`. Its attention is a
short sequence of tensor operations. This module follows the operations from the query-key product to the
weight-value product. Recording does not change the model's output.
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
    """Enable `capture.recording` and `capture.changed_outputs` for models with their own attention code.

    The context applies to the current thread.
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
    """A tensor multiplied by a number, such as scaled queries.

    Attributes:
        heads: number of heads if batch and heads share the first axis and the number is known; else None.
    """

    tensor: torch.Tensor
    factor: float = 1.0
    heads: int | None = None


@dataclass(frozen=True, eq=False)
class _Scores:
    """Attention scores: query · key × scaling plus terms; -inf where a key is blocked.

    Attributes:
        query, key: tensors of shape [batch, head, token, dim], or [batch × head, token, dim] as long as the
            number of heads is unknown.
        terms: tensors that the model adds, such as a mask or a position bias. Like the model's score tensor,
            they may have the axis [batch × head].
        blocked: bool tensors; a score is replaced where any of these tensors is True.
        zeroed: bool tensor that marks scores set to 0, to which the model then adds a large negative number.
        is_checked: whether to check that blocked keys have weight 0, because their score is not the smallest
            number of a dtype.
    """

    query: torch.Tensor
    key: torch.Tensor
    scaling: float
    terms: tuple[torch.Tensor, ...] = ()
    blocked: tuple[torch.Tensor, ...] = ()
    zeroed: torch.Tensor | None = None
    is_checked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the scores, [batch, head, query, key] or [batch × head, query, key]."""
        return (*self.query.shape[:-1], self.query.shape[-2])


@dataclass(frozen=True, eq=False)
class _Weights:
    """Attention weights: the softmax of `scores`, of shape [batch, head, query, key] or reshaped."""

    scores: _Scores


_Step = _Scaled | _Scores | _Weights


class _EagerAttention(TorchFunctionMode):
    """Torch function mode that follows the tensor operations of this thread to record or change attention.

    Attributes:
        steps: maps each followed tensor to its role in the attention, for as long as the tensor exists.
        last_mask: the latest combined mask and its source tensors, which layers often share.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: Any = WeakTensorKeyDictionary()  # Tensor -> _Step
        self.last_mask: tuple[tuple[torch.Tensor, ...], torch.Tensor | None] = ((), None)

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a torch function, and store the role that its result has in the attention."""
        kwargs = kwargs or {}
        if not is_captured():
            return func(*args, **kwargs)
        name = func.__name__
        operation = _OPERATIONS.get(name.strip("_"))
        before = [self._step(argument) for argument in (*args, *kwargs.values())[:3]]
        result = func(*args, **kwargs)
        if operation is None:
            if before and before[0] is not None and (result is args[0] or name == "__setitem__"):
                # stop following a tensor that an unsupported operation has changed in place
                del self.steps[args[0]]
            return result
        if before and isinstance(before[0], _Weights) and operation is _product:
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
        """Record the product of weights and values; return the (possibly changed) head outputs."""
        scores = weights.scores
        shape = (*scores.shape[:3], -1)
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
    """Combine the terms and the blocked keys of scores into a mask as described in `AttentionCall.mask`."""
    terms = [_split_heads(term, scores) for term in scores.terms if term.any()]
    blocked = [_split_heads(mask, scores) for mask in scores.blocked if mask.any()]
    if not terms:
        return ~reduce(torch.logical_or, blocked) if blocked else None
    total: torch.Tensor = sum(terms[1:], start=terms[0])
    # Models mask keys with the smallest number of a dtype; the weights of these keys are 0.
    blocked += [mask for mask in [total <= torch.finfo(total.dtype).min / 2] if mask.any()]
    return total.masked_fill(reduce(torch.logical_or, blocked), -torch.inf) if blocked else total


def _split_heads(term: torch.Tensor, scores: _Scores) -> torch.Tensor:
    """Return a term with the four axes of the scores; split the axis [batch × head] if necessary."""
    batch, heads = scores.shape[:2]
    if term.ndim == 3 and term.shape[0] == batch * heads:
        return term.reshape(batch, heads, *term.shape[1:])
    return term[(None,) * (4 - term.ndim)] if term.ndim < 4 else term


_Operation = Callable[..., _Step | None]


def _product(
    before: Sequence[_Step | None], result: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **_: Any
) -> _Step | None:
    """Return `_Scores` for a product of shape [..., token, token], which may be queries times keys."""
    is_square = result.ndim in (3, 4) and result.shape[-1] == result.shape[-2]
    if not is_square or left.ndim != result.ndim or right.ndim != result.ndim:
        return None
    query, key = (
        step if isinstance(step, _Scaled) else _Scaled(tensor)
        for step, tensor in zip(before[:2], (left, right), strict=True)
    )
    # In multi-query attention, all heads share one key, which is repeated for each head.
    shared = key.tensor.transpose(-1, -2).expand(*result.shape[:-2], -1, -1)
    scores = _Scores(query.tensor, shared, query.factor * key.factor)
    return scores if query.heads is None else _with_heads(scores, len(result) // query.heads, query.heads)


def _add_product(
    before: Sequence[_Step | None],
    result: torch.Tensor,
    term: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> _Step | None:
    """Follow `torch.baddbmm`, whose result is the scores beta × term + alpha × query · key."""
    scores = _product(before[1:], result, batch1, batch2)
    if not isinstance(scores, _Scores):
        return None
    term = term if beta == 1 else term * beta
    return replace(scores, scaling=scores.scaling * alpha, terms=(term,))


def _multiply(
    before: Sequence[_Step | None], result: torch.Tensor, left: Any, right: Any, **_: Any
) -> _Step | None:
    if not isinstance(left, torch.Tensor):
        return _multiply(before[::-1], result, right, left)
    factor = _number(right)
    if factor is None:
        return _zero(before[0], right)
    return _scale(before[0], left, factor)


def _zero(step: _Step | None, factor: Any) -> _Step | None:
    """Follow a multiplication by zeros and ones, which sets the scores of blocked keys to 0."""
    if not isinstance(step, _Scores) or not isinstance(factor, torch.Tensor):
        return None
    if step.terms or step.blocked or step.zeroed is not None:
        return None
    zeroed = factor == 0
    return replace(step, zeroed=zeroed) if bool((zeroed | (factor == 1)).all()) else None


def _divide(
    before: Sequence[_Step | None], _result: torch.Tensor, left: Any, right: Any, **options: Any
) -> _Step | None:
    divisor = _number(right)
    is_plain = divisor is not None and not options and isinstance(left, torch.Tensor)
    return _scale(before[0], left, 1 / divisor) if is_plain and divisor else None


def _scale(step: _Step | None, tensor: torch.Tensor, factor: float) -> _Step | None:
    if isinstance(step, _Scores) and not step.blocked and step.zeroed is None:
        terms = tuple(term * factor for term in step.terms)
        return replace(step, scaling=step.scaling * factor, terms=terms)
    if isinstance(step, _Scaled):
        return replace(step, factor=step.factor * factor)
    return _Scaled(tensor, factor) if step is None and tensor.ndim in (3, 4) else None


def _number(value: Any) -> float | None:
    """Return a number or the item of a zero-dimensional tensor as a number; None for other values."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.ndim == 0 else None
    return float(value) if isinstance(value, int | float) else None


def _add(
    before: Sequence[_Step | None], result: torch.Tensor, left: Any, right: Any, **options: Any
) -> _Step | None:
    """Follow the addition of a term to scores; a sum of two query-key products is not followed."""
    scores = [step for step in before if isinstance(step, _Scores)]
    if len(scores) != 1 or options:
        return None
    term = right if scores[0] is before[0] else left
    if not isinstance(term, torch.Tensor):
        return scores[0] if term == 0 else None
    if result.shape[-2:] != scores[0].shape[-2:]:
        return None
    if scores[0].zeroed is not None:
        return _block_zeroed(scores[0], scores[0].zeroed, term)
    return replace(scores[0], terms=(*scores[0].terms, term))


def _block_zeroed(scores: _Scores, zeroed: torch.Tensor, term: torch.Tensor) -> _Step | None:
    """Follow the addition of a large negative number to scores that were set to 0."""
    is_large = bool((term.masked_fill(~zeroed, _LARGE) <= _LARGE).all())
    if not is_large or bool(term.masked_fill(zeroed, 0).any()):
        return None
    return replace(scores, zeroed=None, blocked=(*scores.blocked, zeroed), is_checked=True)


_LARGE = -1e4
"""Largest number whose addition blocks a key: the key's weight becomes 0, which `_softmax` checks."""


def _maximum(
    before: Sequence[_Step | None], result: torch.Tensor, _scores: Any, limit: Any = None, **_: Any
) -> _Step | None:
    """Follow max(scores, smallest number of the dtype), which does not change the attention weights."""
    number = _number(limit) if isinstance(limit, torch.Tensor) else None
    is_smallest = number is not None and number <= torch.finfo(result.dtype).min
    return before[0] if isinstance(before[0], _Scores) and is_smallest else None


def _block(
    before: Sequence[_Step | None], _result: torch.Tensor, _scores: Any, mask: Any = None, value: Any = None
) -> _Step | None:
    """Follow the replacement of scores by -inf or by the smallest number of a dtype."""
    scores, number = before[0], _number(value)
    if not isinstance(scores, _Scores) or mask is None or number is None:
        return None
    # The scores are tracked further only if the softmax gives the blocked keys a weight of 0.
    is_smallest = number <= torch.finfo(torch.float16).min / 2
    return replace(scores, blocked=(*scores.blocked, mask)) if is_smallest else None


def _where(
    before: Sequence[_Step | None], result: torch.Tensor, allowed: Any, scores: Any = None, value: Any = None
) -> _Step | None:
    """Follow torch.where(allowed, scores, value): block the keys that are not allowed; see `_block`."""
    is_mask = len(before) > 1 and allowed.dtype == torch.bool
    return _block(before[1:], result, scores, ~allowed, value) if is_mask else None


def _reshape(
    before: Sequence[_Step | None], result: torch.Tensor, source: torch.Tensor, *_args: Any, **_: Any
) -> _Step | None:
    """Follow a reshape of weights or scores, or a merge of the axes [batch, head] of queries or keys."""
    step = before[0]
    if isinstance(step, _Weights):
        return step
    if not isinstance(step, _Scores):
        joins = source.ndim == 4 and result.ndim == 3 and source.shape[2:] == result.shape[1:]
        factor = step.factor if isinstance(step, _Scaled) else 1.0
        original = step.tensor.reshape(result.shape) if joins and isinstance(step, _Scaled) else result
        return _Scaled(original, factor, source.shape[1]) if joins else None
    if result.shape[-2:] != step.shape[-2:]:
        return None
    joint = (step.shape[0] * step.shape[1], *step.shape[2:])
    if len(step.shape) == 4:
        # The recorded scores keep their four axes, even if the model joins two of them.
        return step if result.shape in (torch.Size(step.shape), torch.Size(joint)) else None
    return _with_heads(step, *result.shape[:2]) if result.ndim == 4 else None


def _with_heads(scores: _Scores, batch: int, heads: int) -> _Scores | None:
    """Split the axis [batch × head] of queries and keys into two; None if it has a different size."""
    if batch * heads != scores.shape[0]:
        return None
    query, key = (tensor.reshape(batch, heads, *tensor.shape[1:]) for tensor in (scores.query, scores.key))
    return replace(scores, query=query, key=key)


def _softmax(
    before: Sequence[_Step | None],
    result: torch.Tensor,
    _scores: Any,
    dim: int | None = None,
    *_: Any,
    **__: Any,
) -> _Step | None:
    scores, is_over_keys = before[0], dim in (-1, result.ndim - 1)
    if not isinstance(scores, _Scores) or not is_over_keys or len(scores.shape) != 4:
        return None
    if scores.zeroed is not None:
        return None
    if scores.is_checked:
        blocked = reduce(torch.logical_or, (_split_heads(mask, scores) for mask in scores.blocked))
        if bool(result.reshape(scores.shape).masked_fill(~blocked, 0).any()):
            return None
    return _Weights(scores)


def _same(before: Sequence[_Step | None], _result: torch.Tensor, *_args: Any, **_: Any) -> _Step | None:
    return before[0]


def _drop(
    before: Sequence[_Step | None], result: torch.Tensor, tensor: Any, *_args: Any, **_: Any
) -> _Step | None:
    """Follow dropout only if it returns its input unchanged, as in evaluation mode."""
    return before[0] if result is tensor else None


_OPERATIONS: Mapping[str, _Operation] = {
    **dict.fromkeys(("matmul", "bmm"), _product),
    "baddbmm": _add_product,
    **dict.fromkeys(("mul", "multiply", "rmul", "imul"), _multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv", "itruediv"), _divide),
    **dict.fromkeys(("add", "radd", "iadd"), _add),
    **dict.fromkeys(("max", "maximum"), _maximum),
    "masked_fill": _block,
    "where": _where,
    **dict.fromkeys(("view", "reshape"), _reshape),
    "softmax": _softmax,
    **dict.fromkeys(("float", "to", "type_as", "contiguous", "detach", "clone"), _same),
    "dropout": _drop,
}
"""Maps the names of torch functions, without leading and trailing underscores, to their handlers.

A handler returns the role of the function's result in the attention, or None if the result is not followed.
The arguments of a handler are the roles of the function's first three arguments, the function's result, and
the function's arguments.
"""
