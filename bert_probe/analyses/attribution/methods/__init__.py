"""Ways to say what an answer depends on: one file each, found by being here.

A file sets ``METHOD``. Everything else follows: library, command line, page, files, and the check of each by
what removing words really does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from bert_probe.analyses.outputs.target import MASKED, REMOVED, TargetOutput
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.forward import as_array
from bert_probe.model.gradients import onward
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, word_lens

BASELINES = ("pad", "mask", "unknown")


@dataclass(frozen=True, eq=False)
class AttributionTarget:
    """A number, and in which parts of the text it is to be explained.

    Attributes:
        number: of the answer.
        units: tokens, or words, of the text as the model reads it.
        removal: what takes the place of a unit that is taken away: "removed" or "masked".
        baseline: the token that stands for no information; see `BASELINES`.
    """

    number: TargetOutput
    units: tuple[Token | Unit, ...]
    removal: str
    baseline: str

    @property
    def trace(self) -> Trace:
        """Of the text as the model reads it."""
        return self.number.trace

    def summed(self, tokens: Array) -> Array:
        """Scores of tokens → of units, the sum over the tokens of each."""
        scores: Array = np.array([tokens[list(positions(unit))].sum() for unit in self.units])
        return scores

    @property
    def free(self) -> tuple[int, ...]:
        """Units that can be taken away: none that is special, none without which there is no such number."""
        mask = self.trace.checkpoint.tokenizer.mask_token_id
        stay = {place for place in self.number.places if self._stays(place, mask)}
        return tuple(
            index
            for index, unit in enumerate(self.units)
            if not unit.special and stay.isdisjoint(positions(unit))
        )

    def _stays(self, place: int, mask: int | None) -> bool:
        return self.removal == REMOVED or self.trace.tokens[place].id == mask

    @cached_property
    def read_at(self) -> Array:
        """How much the answer reads of each token's last vector, float64 [token], summing to 1.

        The length of the gradient there: all at [CLS] for a class, all at the mask for a word.
        """
        with onward(self.trace) as way:
            states, _ = way.to_end(way.start())
            last = states.detach().requires_grad_()
            number = self.number.on(way.inputs, last, way.passed.pooled(last))
            (gradient,) = torch.autograd.grad(number.sum(), last)
        lengths = np.linalg.norm(as_array(gradient[0]).astype(np.float64), axis=-1)
        if not lengths.sum() > 0:
            raise UnavailableError(f"The {self.number.name} does not depend on any token's vector.")
        shares: Array = lengths / lengths.sum()
        return shares

    def ids_without(self) -> torch.Tensor:
        """The baseline in place of all but special tokens and masks that are asked about, [1, token]."""
        checkpoint = self.trace.checkpoint
        mask = checkpoint.tokenizer.mask_token_id
        instead = baseline_id(checkpoint, self.baseline)
        ids = [
            token.id
            if token.special or (token.position in self.number.places and token.id == mask)
            else instead
            for token in self.trace.tokens
        ]
        return torch.tensor([ids], device=checkpoint.device)


@dataclass(frozen=True, eq=False)
class AttributionScores:
    """What a method says.

    Attributes:
        units: how much the number depends on each, float64 [unit]; NaN where the method has no say.
        facts: what a reader should know beside them.
    """

    units: Array
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AttributionMethod:
    """A way to say what a number depends on.

    Attributes:
        name: in questions, addresses and on the command line.
        label: of a row or a button.
        meaning: what a score is, in a sentence or two, with the paper.
        order: its place among the methods.
        of: what is explained, report → scores.
    """

    name: str
    label: str
    meaning: str
    order: int
    of: Callable[[AttributionTarget, Progress], AttributionScores]


def positions(unit: Token | Unit) -> tuple[int, ...]:
    """The tokens of a unit."""
    return unit.positions if isinstance(unit, Unit) else (unit.position,)


def explained(
    number: TargetOutput, words: bool = False, removal: str | None = None, baseline: str | None = None
) -> AttributionTarget:
    """What is explained, with what is usual where nothing is said.

    Args:
        removal: tokens are removed unless the answer stands at some of them, and there is a mask.
        baseline: the first of `BASELINES` that the tokenizer has.
    """
    checkpoint = number.trace.checkpoint
    units = word_lens(number.trace).units if words else number.trace.tokens
    maskable = checkpoint.tokenizer.mask_token_id is not None
    usual = MASKED if number.places and maskable else REMOVED
    return AttributionTarget(number, units, removal or usual, baseline or _usual_baseline(checkpoint))


def baseline_id(checkpoint: Checkpoint, name: str) -> int:
    """The token of the vocabulary that stands for no information.

    Raises:
        UnavailableError: the tokenizer has no such token.
    """
    found = _baseline(checkpoint, name)
    if found is None:
        raise UnavailableError(f"The tokenizer of {checkpoint.description.name} has no token for {name!r}.")
    return found


def _baseline(checkpoint: Checkpoint, name: str) -> int | None:
    named = {"pad": "pad_token_id", "mask": "mask_token_id", "unknown": "unk_token_id"}[name]
    found: int | None = getattr(checkpoint.tokenizer, named)
    return found


def _usual_baseline(checkpoint: Checkpoint) -> str:
    return next((name for name in BASELINES if _baseline(checkpoint, name) is not None), BASELINES[0])


def methods() -> Mapping[str, AttributionMethod]:
    """All methods by name, in their order."""
    return _found()


@cache
def _found() -> Mapping[str, AttributionMethod]:
    found: list[AttributionMethod] = [
        import_module(f"{__name__}.{module.name}").METHOD for module in iter_modules(__path__)
    ]
    return MappingProxyType({one.name: one for one in sorted(found, key=lambda one: one.order)})
