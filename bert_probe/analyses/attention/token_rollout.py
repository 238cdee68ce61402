"""How far one token reaches in the rollout, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.attention import RESIDUAL, SHARE, WORDS, shown_units
from bert_probe.analyses.attention.measures.rollout import rollouts
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Flag
from bert_probe.core.field_types_of_words import TokenSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, find_word

DIRECTIONS = ("from", "into")


@question("reach", command="rollout")
class TokenRollout(Question):
    """How far a token reaches, layer by layer: its column, or its row, of the rollout up to each of them.

    Attributes:
        token: its position, or its word; with ``words`` the whole word that it belongs to.
        direction: "from": how much of it is in each of the others; "into": how much of each other one
            is in it.
        words: merge pieces into words.
        residual: the share that the residual connection is taken to carry, 0 to 1.
    """

    inputs = OneTrace()

    token: int | str = param(TokenSelector(), option="", key="reach_token")
    direction: str = param(
        Choice(DIRECTIONS),
        default="from",
        key="direction_of",
        about="With --token: how much of it is in the others, or of the others in it.",
    )
    words: bool = param(Flag(), default=False, about=WORDS)
    residual: float = param(SHARE, default=0.5, about=RESIDUAL)

    def resolved(self, trace: Trace) -> Self:
        """A word of several pieces stands for its first one where words are followed as a whole."""
        if self.words and isinstance(self.token, str):
            return replace(self, token=find_word(trace, self.token).position).resolved(trace)
        return super().resolved(trace)

    def of(self, trace: Trace) -> TokenRolloutResult:
        """Its share after each layer.

        Raises:
            SelectionError: no such token.
        """
        asked_for = self.resolved(trace)
        seen = shown_units(trace, self.words, specials=True)
        chosen = max(index for index, unit in enumerate(seen.units) if unit.position <= int(asked_for.token))
        layers = (trace.attention(layer) for layer in range(trace.layers))
        rows = []
        for reached in rollouts(layers, self.residual):
            merged = seen.cut(reached)
            rows.append(merged[:, chosen] if self.direction == "from" else merged[chosen])
        values = np.array(rows, dtype=trace.dtype)
        return TokenRolloutResult(asked_for, InputRecord.of(trace), seen.units, chosen, values)

    def options(self) -> list[str]:
        """By its position, which names any token."""
        return ["--position", str(self.token), *super().options()]


@dataclass(frozen=True, eq=False, repr=False)
class TokenRolloutResult(Result):
    """One token, or word, in the rollouts up to each layer.

    Attributes:
        units: the tokens or words of the text.
        chosen: which of them, from 0.
        values: [layer, unit], in the trace's type, 0 to 1; with "into" each layer sums to 1.
    """

    question: TokenRollout
    units: tuple[Token | Unit, ...]
    chosen: int
    values: Array

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.units):
            raise ShapeError(f"values has shape {self.values.shape}; [layer, {len(self.units)}] is needed.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The token by its name."""
        return {"token": str(self.units[self.chosen])}

    def frame(self) -> pd.DataFrame:
        """A row for each layer, from 1; a column for each token or word."""
        layers = [str(layer + 1) for layer in range(len(self.values))]
        return frames.matrix(self.values, layers, self.units, "layer")
