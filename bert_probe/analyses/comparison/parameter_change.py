"""Changes in parameters: how much each tensor differs between two models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from bert_probe.analyses.comparison.model_change import check_tokenizers
from bert_probe.analyses.weights.parameters import Inventory, Parameter, list_parameters
from bert_probe.core.inputs import TwoCheckpoints
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.model.checkpoint import Checkpoint

BOTH, OTHER_SHAPE, ONLY_A, ONLY_B = "both", "other shape", "only A", "only B"
_BLOCK_SIZE = 1 << 20
"""Number of values that are converted to float64 at a time, which limits memory use."""


@question("parameter change", command="diff parameters")
class ParameterChange(Question):
    """Relative change ‖B − A‖ ÷ ‖A‖ of each parameter that both models have with the same shape.

    Other parameters are listed without a value. As in `Parameters`, only parameters of the encoders are
    included.
    """

    inputs = TwoCheckpoints()

    def of(self, a: Checkpoint, b: Checkpoint) -> ParameterChangeResult:
        """Compare the parameters of two models.

        Raises:
            SelectionError: the models have different tokenizers.
        """
        a, b = a.snapshot(), b.snapshot()
        check_tokenizers(a, b)
        inputs = InputRecord.of_model(a).with_other_model(InputRecord.of_model(b))
        with a.running() as model_a, b.running() as model_b:
            inventory_a, inventory_b = list_parameters(model_a), list_parameters(model_b)
            parameters = [
                dict(model.named_parameters(remove_duplicate=False)) for model in (model_a, model_b)
            ]
            rows = [
                _compare(row, *(by_name.get(row.name) for by_name in parameters)) for row in inventory_a.rows
            ]
        names_a = {row.name for row in inventory_a.rows}
        rows += [TensorChange(row, ONLY_B) for row in inventory_b.rows if row.name not in names_a]
        return ParameterChangeResult(self, inputs, inventory_a, tuple(rows))


@dataclass(frozen=True)
class TensorChange:
    """A parameter and the change of its values between two models.

    Attributes:
        parameter: A's parameter, or B's if A has no parameter of that name.
        there: the models that have the parameter: "both", "other shape" (both, but with different shapes),
            "only A" or "only B".
        norm: Frobenius norm ‖A‖; NaN if `there` is not "both".
        change: Frobenius norm ‖B − A‖; NaN if `there` is not "both".
    """

    parameter: Parameter
    there: str
    norm: float = math.nan
    change: float = math.nan

    @property
    def relative(self) -> float:
        """Relative change ‖B − A‖ ÷ ‖A‖; 0 if nothing changed.

        NaN if the parameter was not compared, or if A is zero and B is not.
        """
        return _ratio(self.change, self.norm)


@dataclass(frozen=True, eq=False, repr=False)
class ParameterChangeResult(Result):
    """Changes of parameters from model A to model B.

    Attributes:
        inventory: the parameters of A.
        tensors: A's parameters in their original order, followed by the parameters that only B has.
    """

    question: ParameterChange
    inventory: Inventory
    tensors: tuple[TensorChange, ...]

    @property
    def compared(self) -> tuple[TensorChange, ...]:
        """Parameters that both models have with the same shape."""
        return tuple(tensor for tensor in self.tensors if tensor.there == BOTH)

    @property
    def others(self) -> tuple[TensorChange, ...]:
        """Parameters of either model that have no counterpart of the same shape in the other model."""
        return tuple(tensor for tensor in self.tensors if tensor.there != BOTH)

    def relative(self, of: Callable[[Parameter], bool] = lambda _: True) -> float:
        """Return the relative change ‖B − A‖ ÷ ‖A‖ over several parameters; NaN if none is compared.

        Tied parameters count once.

        Args:
            of: function that returns whether a parameter is included.
        """
        tensors = [
            tensor for tensor in self.compared if tensor.parameter.tied_to is None and of(tensor.parameter)
        ]
        if not tensors:
            return math.nan
        return _ratio(
            math.hypot(*(tensor.change for tensor in tensors)),
            math.hypot(*(tensor.norm for tensor in tensors)),
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Relative change over all compared parameters, and the number of parameters not compared."""
        relative = self.relative()
        return {"relative": None if math.isnan(relative) else relative, "not_compared": len(self.others)}

    @property
    def finding(self) -> str:
        """A sentence about the overall change and the parameter that changed most."""
        if not self.compared:
            return "The models have no parameters in common."
        if not any(tensor.change for tensor in self.compared):
            return "No parameter changed."
        defined = [tensor for tensor in self.compared if not math.isnan(tensor.relative)]
        largest = max(defined, key=lambda tensor: tensor.relative, default=None)
        total = f"All parameters together changed by {_percent(self.relative())} of their norm"
        if largest is None:
            return f"{total}."
        return f"{total}; {largest.parameter.name} changed most, by {_percent(largest.relative)}."

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per parameter.

        Columns: name, group, part, shape, count, in, norm, change, relative.
        """
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


def _compare(row: Parameter, tensor_a: torch.Tensor | None, tensor_b: torch.Tensor | None) -> TensorChange:
    assert tensor_a is not None  # All rows are parameters of A.
    if tensor_b is None:
        return TensorChange(row, ONLY_A)
    if tensor_a.shape != tensor_b.shape:
        return TensorChange(row, OTHER_SHAPE)
    norms, changes = [0.0], [0.0]
    blocks = (torch.split(tensor.detach().reshape(-1), _BLOCK_SIZE) for tensor in (tensor_a, tensor_b))
    for block_a, block_b in zip(*blocks, strict=True):
        a, b = block_a.cpu().double(), block_b.cpu().double()
        norms.append(float(torch.linalg.vector_norm(a)))
        changes.append(float(torch.linalg.vector_norm(b - a)))
    return TensorChange(row, BOTH, math.hypot(*norms), math.hypot(*changes))


def _ratio(change: float, norm: float) -> float:
    if math.isnan(change) or norm == 0:
        return 0.0 if change == 0 else math.nan
    return change / norm


def _percent(share: float) -> str:
    return "an unknown share" if math.isnan(share) else f"{100 * share:.3g}%"
