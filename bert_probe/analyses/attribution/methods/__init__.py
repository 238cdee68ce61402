"""Attribution methods, each defined as ``METHOD`` in its own module of this package.

The modules are discovered automatically. All methods are available in the library, on the command line, on
the pages, in exports and in the faithfulness check.
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
from bert_probe.model.gradients import forward_from_embeddings
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, word_lens

BASELINES = ("pad", "mask", "unknown")


@dataclass(frozen=True, eq=False)
class AttributionTarget:
    """The output value to explain, as a function of the tokens or words of a text.

    Attributes:
        number: the target output.
        units: tokens or words of the text as the model reads it.
        removal: how a unit is ablated: "removed" or "masked".
        baseline: the baseline token, one of `BASELINES`.
    """

    number: TargetOutput
    units: tuple[Token | Unit, ...]
    removal: str
    baseline: str

    @property
    def trace(self) -> Trace:
        """Trace of the text as the model reads it."""
        return self.number.trace

    def summed(self, tokens: Array) -> Array:
        """Return the score of each of the `units`: the sum of the scores of its tokens, shape [unit]."""
        scores: Array = np.array([tokens[list(positions(unit))].sum() for unit in self.units])
        return scores

    @property
    def free(self) -> tuple[int, ...]:
        """Indices in `units` of the tokens or words that can be ablated.

        Special tokens and the tokens of a prompt cannot be ablated. The tokens at which the model predicts
        cannot be removed, but they can be masked unless they are mask tokens already.
        """
        mask = self.trace.checkpoint.tokenizer.mask_token_id
        fixed = {position for position in self.number.places if self._stays(position, mask)}
        fixed |= set(self.number.prompt)
        return tuple(
            index
            for index, unit in enumerate(self.units)
            if not unit.special and fixed.isdisjoint(positions(unit))
        )

    @property
    def prompt_units(self) -> tuple[int, ...]:
        """Indices in `units` of the tokens or words that contain tokens of the checkpoint's prompt."""
        prompt = set(self.number.prompt)
        return tuple(index for index, unit in enumerate(self.units) if not prompt.isdisjoint(positions(unit)))

    def _stays(self, place: int, mask: int | None) -> bool:
        return self.removal == REMOVED or self.trace.tokens[place].id == mask

    @cached_property
    def read_at(self) -> Array:
        """How much the target value depends on the last-layer vector of each token.

        The values are the norms of the target value's gradient with respect to the vectors, divided by their
        sum; float64 of shape [token]. For example, the prediction of a masked word depends only on the vector
        of the mask, whose value is 1.
        """
        with forward_from_embeddings(self.trace) as forward_pass:
            states, _ = forward_pass.to_end(forward_pass.start())
            last = states.detach().requires_grad_()
            number = self.number.on(forward_pass.inputs, last, forward_pass.forward_pass.pooled(last))
            (gradient,) = torch.autograd.grad(number.sum(), last)
        norms = np.linalg.norm(as_array(gradient[0]).astype(np.float64), axis=-1)
        if not norms.sum() > 0:
            raise UnavailableError(
                f"The {self.number.name} does not depend on any token's vector, so it cannot be attributed "
                "to tokens. Explain another output."
            )
        weights: Array = norms / norms.sum()
        return weights

    def ids_without(self) -> torch.Tensor:
        """Return the token ids of the baseline text, shape [1, token].

        Special tokens and the mask tokens to predict are unchanged. The baseline token replaces all other
        tokens.
        """
        checkpoint = self.trace.checkpoint
        mask = checkpoint.tokenizer.mask_token_id
        baseline = baseline_id(checkpoint, self.baseline)
        ids = [
            token.id
            if token.special or (token.position in self.number.places and token.id == mask)
            else baseline
            for token in self.trace.tokens
        ]
        return torch.tensor([ids], device=checkpoint.device)


@dataclass(frozen=True, eq=False)
class AttributionScores:
    """The scores that an attribution method gives to the tokens or words of a text.

    Attributes:
        units: score of each unit, float64 of shape [unit]; NaN for units that the method does not score.
        metadata: details of the computation, such as the number of steps.
    """

    units: Array
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AttributionMethod:
    """An attribution method, with its name, explanation and function.

    Attributes:
        name: identifier in questions, URLs and on the command line.
        label: label in tables and on buttons.
        meaning: one or two sentences that explain the scores and cite the paper.
        order: sort key that determines the order of the methods in lists.
        of: function that takes a target and a progress callback, and returns the scores.
    """

    name: str
    label: str
    meaning: str
    order: int
    of: Callable[[AttributionTarget, Progress], AttributionScores]


def positions(unit: Token | Unit) -> tuple[int, ...]:
    """Return the token positions of a token or word."""
    return unit.positions if isinstance(unit, Unit) else (unit.position,)


def attribution_target(
    number: TargetOutput, words: bool = False, removal: str | None = None, baseline: str | None = None
) -> AttributionTarget:
    """Return the attribution target for an output, with default values filled in.

    Args:
        number: the target output.
        words: score whole words instead of tokens.
        removal: how a token or word is ablated. If None, "masked" for predictions at single tokens if the
            tokenizer has a mask token, and "removed" otherwise.
        baseline: baseline token. If None, the first of `BASELINES` that the tokenizer has.
    """
    checkpoint = number.trace.checkpoint
    units = word_lens(number.trace).units if words else number.trace.tokens
    maskable = checkpoint.tokenizer.mask_token_id is not None
    default_removal = MASKED if number.places and maskable else REMOVED
    return AttributionTarget(
        number, units, removal or default_removal, baseline or _default_baseline(checkpoint)
    )


def baseline_id(checkpoint: Checkpoint, name: str) -> int:
    """Return the id of a baseline token.

    Raises:
        UnavailableError: the tokenizer does not have the token.
    """
    token_id = _baseline(checkpoint, name)
    if token_id is None:
        raise UnavailableError(
            f"The tokenizer of {checkpoint.description.name} has no {name!r} token. Choose another baseline."
        )
    return token_id


def _baseline(checkpoint: Checkpoint, name: str) -> int | None:
    attribute = {"pad": "pad_token_id", "mask": "mask_token_id", "unknown": "unk_token_id"}[name]
    token_id: int | None = getattr(checkpoint.tokenizer, attribute)
    # The tokenizer may have been given a token without a row in the embedding.
    is_valid = token_id is not None and token_id < checkpoint.description.vocabulary_size
    return token_id if is_valid else None


def _default_baseline(checkpoint: Checkpoint) -> str:
    return next((name for name in BASELINES if _baseline(checkpoint, name) is not None), BASELINES[0])


def methods() -> Mapping[str, AttributionMethod]:
    """Return a mapping from names to attribution methods, sorted by their ``order``."""
    return _load_methods()


@cache
def _load_methods() -> Mapping[str, AttributionMethod]:
    loaded: list[AttributionMethod] = [
        import_module(f"{__name__}.{module.name}").METHOD for module in iter_modules(__path__)
    ]
    return MappingProxyType(
        {method.name: method for method in sorted(loaded, key=lambda method: method.order)}
    )
