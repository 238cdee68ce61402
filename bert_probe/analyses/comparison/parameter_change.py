"""How much each parameter differs between two models, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from bert_probe.analyses.comparison.model_change import check_tokenizers
from bert_probe.analyses.weights.parameters import Inventory, Parameter, inventory
from bert_probe.core.inputs import TwoCheckpoints
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.model.checkpoint import Checkpoint

BOTH, OTHER_SHAPE, ONLY_A, ONLY_B = "both", "other shape", "only A", "only B"
_BLOCK = 1 << 20
"""Numbers that are taken at once, as they are made float64: a large table in whole would be doubled twice."""


@question("change of parameters", command="diff parameters")
class ParameterChange(Question):
    """‖B − A‖ ÷ ‖A‖ of each named parameter that both models have in one shape; the others are listed.

    The parameters are those of the encoder, as in `Parameters`.
    """

    inputs = TwoCheckpoints()

    def of(self, a: Checkpoint, b: Checkpoint) -> ParameterChangeResult:
        """The change from one model to the other.

        Raises:
            SelectionError: not the same tokenizer.
        """
        a, b = a.now(), b.now()
        check_tokenizers(a, b)
        subject = InputRecord.of_model(a).beside(InputRecord.of_model(b))
        with a.running() as one, b.running() as other:
            mine, theirs = inventory(one), inventory(other)
            parts = [dict(model.named_parameters(remove_duplicate=False)) for model in (one, other)]
            rows = [_changed(row, *(part.get(row.name) for part in parts)) for row in mine.rows]
        own = {row.name for row in mine.rows}
        rows += [TensorChange(row, ONLY_B) for row in theirs.rows if row.name not in own]
        return ParameterChangeResult(self, subject, mine, tuple(rows))


@dataclass(frozen=True)
class TensorChange:
    """One named parameter in both models.

    Attributes:
        parameter: as A has it, or B where A has none of that name.
        there: "both"; "other shape" where both have the name; "only A"; "only B".
        norm: ‖A‖, the root of the sum of the squares of its numbers; NaN unless in both.
        change: ‖B − A‖, likewise.
    """

    parameter: Parameter
    there: str
    norm: float = math.nan
    change: float = math.nan

    @property
    def relative(self) -> float:
        """‖B − A‖ ÷ ‖A‖; 0 where nothing changed, NaN where A is all zeros and B is not."""
        return _ratio(self.change, self.norm)


@dataclass(frozen=True, eq=False, repr=False)
class ParameterChangeResult(Result):
    """How much each parameter changed from A to B.

    Attributes:
        inventory: the parameters of A.
        tensors: these in A's order, then those that only B has.
    """

    question: ParameterChange
    inventory: Inventory
    tensors: tuple[TensorChange, ...]

    @property
    def compared(self) -> tuple[TensorChange, ...]:
        """Those that both have in one shape."""
        return tuple(tensor for tensor in self.tensors if tensor.there == BOTH)

    @property
    def others(self) -> tuple[TensorChange, ...]:
        """Those without a counterpart."""
        return tuple(tensor for tensor in self.tensors if tensor.there != BOTH)

    def relative(self, of: Callable[[Parameter], bool] = lambda _: True) -> float:
        """‖B − A‖ ÷ ‖A‖ of several tensors as one vector, shared ones once; NaN where none is in both."""
        chosen = [one for one in self.compared if one.parameter.tied_to is None and of(one.parameter)]
        if not chosen:
            return math.nan
        return _ratio(math.hypot(*(one.change for one in chosen)), math.hypot(*(one.norm for one in chosen)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The change of all that is compared, as one vector; how many tensors are not."""
        whole = self.relative()
        return {"relative": None if math.isnan(whole) else whole, "not_compared": len(self.others)}

    @property
    def finding(self) -> str:
        """What changed most, as a sentence."""
        if not self.compared:
            return "No parameter of the one model has a counterpart in the other."
        if not any(one.change for one in self.compared):
            return "No parameter changed."
        known = [one for one in self.compared if not math.isnan(one.relative)]
        most = max(known, key=lambda one: one.relative, default=None)
        whole = f"All parameters together changed by {_percent(self.relative())} of their length"
        return (
            f"{whole}."
            if most is None
            else (f"{whole}; {most.parameter.name} changed most, by {_percent(most.relative)}.")
        )

    def frame(self) -> pd.DataFrame:
        """One row a parameter: name, group, part, shape, count, in, norm, change, relative."""
        return pd.DataFrame(
            {
                "name": [tensor.parameter.name for tensor in self.tensors],
                "group": [tensor.parameter.group for tensor in self.tensors],
                "part": [tensor.parameter.part for tensor in self.tensors],
                "shape": ["×".join(map(str, tensor.parameter.shape)) for tensor in self.tensors],
                "count": [tensor.parameter.count for tensor in self.tensors],
                "in": [tensor.there for tensor in self.tensors],
                "norm": [tensor.norm for tensor in self.tensors],
                "change": [tensor.change for tensor in self.tensors],
                "relative": [tensor.relative for tensor in self.tensors],
            }
        )


def _changed(row: Parameter, one: torch.Tensor | None, other: torch.Tensor | None) -> TensorChange:
    assert one is not None  # a row is of a parameter
    if other is None:
        return TensorChange(row, ONLY_A)
    if one.shape != other.shape:
        return TensorChange(row, OTHER_SHAPE)
    norms, changes = [0.0], [0.0]
    blocks = (torch.split(part.detach().reshape(-1), _BLOCK) for part in (one, other))
    for mine, theirs in zip(*blocks, strict=True):
        a, b = mine.cpu().double(), theirs.cpu().double()
        norms.append(float(torch.linalg.vector_norm(a)))
        changes.append(float(torch.linalg.vector_norm(b - a)))
    return TensorChange(row, BOTH, math.hypot(*norms), math.hypot(*changes))


def _ratio(change: float, norm: float) -> float:
    if math.isnan(change) or norm == 0:
        return 0.0 if change == 0 else math.nan
    return change / norm


def _percent(share: float) -> str:
    return "an unknown share" if math.isnan(share) else f"{100 * share:.3g} %"
