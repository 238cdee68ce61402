"""Attention rollout of one token, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.attention import RESIDUAL, SHARE, WORDS_HELP, select_units
from bert_probe.analyses.attention.measures.rollout import rollouts
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Flag, TokenSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, find_word

DIRECTIONS = ("from", "into")


@question("token rollout", command="rollout")
class TokenRollout(Question):
    """The column or row of one token in the attention rollout up to each layer.

    Attributes:
        token: the token, given by its position or as a word. With ``words``, the word that contains it.
        direction: "from" for how much of the token reaches each token (its column), or "into" for how much
            of each token reaches it (its row).
        words: merge subword tokens into words.
        residual: the weight of the residual connection, 0 to 1.
    """

    inputs = OneTrace()

    token: int | str = param(TokenSelector(), option="", key="rollout_token")
    direction: str = param(
        Choice(DIRECTIONS),
        default="from",
        key="direction_of",
        about="With --token: rollout from the token into all tokens, or from all tokens into it.",
    )
    words: bool = param(Flag(), default=False, about=WORDS_HELP)
    residual: float = param(SHARE, default=0.5, about=RESIDUAL)

    def resolved(self, trace: Trace) -> Self:
        """Return the question with its token given by position; a word is given by its first token."""
        if self.words and isinstance(self.token, str):
            return replace(self, token=find_word(trace, self.token).position).resolved(trace)
        return super().resolved(trace)

    def of(self, trace: Trace) -> TokenRolloutResult:
        """Return the token's rollout up to each layer.

        Raises:
            SelectionError: the text does not contain the token.
        """
        resolved = self.resolved(trace)
        selection = select_units(trace, self.words, specials=True)
        position = int(resolved.token)
        unit_index = max(index for index, unit in enumerate(selection.units) if unit.position <= position)
        layers = (trace.attention(layer) for layer in range(trace.layers))
        rows = []
        for rollout in rollouts(layers, self.residual):
            merged = selection.reduce(rollout)
            rows.append(merged[:, unit_index] if self.direction == "from" else merged[unit_index])
        values = np.array(rows, dtype=trace.dtype)
        return TokenRolloutResult(resolved, InputRecord.of(trace), selection.units, unit_index, values)

    def options(self) -> list[str]:
        """Return the command-line options, with the token given by its position."""
        return ["--position", str(self.token), *super().options()]


@dataclass(frozen=True, eq=False, repr=False)
class TokenRolloutResult(Result):
    """The rollout of one token or word up to each layer.

    Attributes:
        units: the tokens or words of the text.
        chosen: index in `units` of the token or word whose rollout is shown.
        values: the rollout, shape [layer, unit], in the dtype of the trace, 0 to 1. With "into", the values
            of each layer sum to 1.
    """

    question: TokenRollout
    units: tuple[Token | Unit, ...]
    chosen: int
    values: Array

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.units):
            raise ShapeError(f"values has shape {self.values.shape}, but must be [layer, {len(self.units)}].")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Text of the token or word whose rollout is shown."""
        return {"token": str(self.units[self.chosen])}

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each layer, from 1, and a column for each token or word."""
        layers = [str(layer + 1) for layer in range(len(self.values))]
        return frames.matrix(self.values, layers, self.units, "layer")
