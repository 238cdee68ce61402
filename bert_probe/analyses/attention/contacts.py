"""Contacts between the residues of a protein: predicted by the model, or APC-corrected attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.attention import HEAD, LAYER, Head
from bert_probe.core.field_types import Choice, Number, Optional
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only

AUTO, PREDICTION, ATTENTION = "auto", "prediction", "attention"
METHODS = (AUTO, PREDICTION, ATTENTION)

ALL_PAIRS = "all"
_SHARES = {"L": 1, "L/2": 2, "L/5": 5, "L/10": 10}
TOPS = (*_SHARES, ALL_PAIRS)
"""Choices for the number of pairs in the table; L is the number of residues."""

NOT_A_PREDICTION = (
    "The values are attention after average product correction (APC), not a contact prediction."
)
_UNTRAINED = "The bias of the model's contact head is exactly 0, so the head was probably never trained."


def sum_corrected(weights: Array, coefficients: Array) -> Array:
    """Return the weighted sum over heads of the symmetrized, APC-corrected attention, [residue, residue].

    The attention A of a head is symmetrized, S = A + Aᵀ, and its average product is subtracted:
    S_ij − S_i S_j ÷ T, where S_i is the sum of row i and T the sum of all values of S (Dunn et al. 2008). The
    sum over heads is computed without storing the corrected matrix of each head. A head whose attention is 0
    everywhere gives NaN.

    Args:
        weights: attention between residues, [head, residue, residue].
        coefficients: coefficient of each head.
    """
    total = np.tensordot(coefficients.astype(weights.dtype), weights, axes=1).astype(np.float64)
    rows = weights.sum(axis=-1, dtype=np.float64) + weights.sum(axis=-2, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = coefficients / rows.sum(axis=-1)
        corrected: Array = total + total.T - (rows * shares[:, None]).T @ rows
    return corrected


@question("contacts")
class Contacts(Question):
    """Contact probabilities of the residue pairs of a protein, or the corrected attention between residues.

    With a contact head (ESM-2), the values are the probabilities that ``model.predict_contacts`` returns: a
    logistic regression on the attention of all heads (Rao et al. 2020). For other models, the values are the
    symmetrized attention with average product correction (APC), averaged over the heads. This
    attention is not a prediction, because it was not fitted to known structures.

    Attributes:
        method: "prediction" for the model's contact head, "attention" for APC-corrected attention, or "auto"
            for the prediction if the model has a trained contact head, otherwise the attention.
        layer: for the attention, the layer index from 0; None for the mean over the heads of all layers.
        head: for the attention, the head index from 0, or "mean" for the mean over the heads.
        separation: minimum distance along the sequence between the residues of a pair.
        top: number of pairs in the table: L is the number of residues, and "all" keeps all pairs.
    """

    inputs = OneTrace()

    method: str = param(
        Choice(METHODS),
        default=AUTO,
        key="contact_method",
        about="Method: the model's contact prediction, or APC-corrected attention.",
    )
    layer: int | None = param(
        Optional(LAYER),
        default=None,
        key="contact_layer",
        about="For attention: layer, counted from 1; default: all layers.",
    )
    head: Head = param(
        HEAD,
        default="mean",
        key="contact_head",
        about="For attention: head of the layer, counted from 1, or mean.",
    )
    separation: int = param(
        Number(1, 100_000),
        default=6,
        key="contact_separation",
        display_only=True,
        about="Minimum distance between the two residues of a pair along the sequence.",
    )
    top: str = param(
        Choice(TOPS),
        default="L",
        key="contact_top",
        display_only=True,
        about="Number of pairs to list; L is the number of residues.",
    )

    def of(self, trace: Trace, progress: Progress = no_progress) -> ContactsResult:
        """Return the contact values of all residue pairs in a sequence.

        Args:
            trace: the model's forward pass over the sequence.
            progress: called with the number of layers done and their total.

        Raises:
            SelectionError: the input is a text pair, the layer or head does not exist, or a layer or head is
                selected for the prediction.
            UnavailableError: the model has no contact head, but ``method`` is "prediction".
            EmptyTextError: the sequence has fewer than two residues.
            OutOfMemoryError: a layer's attention needs more memory than is available.
        """
        if trace.encoding.pair is not None:
            raise SelectionError(
                "Contacts are computed for a single sequence, but the input is a pair. Join the chains into "
                "one sequence."
            )
        resolved, note = _choose_method(self.resolved(trace), trace)
        is_prediction = resolved.method == PREDICTION
        residues = trace.tokens[1:-1] if is_prediction else _residues(trace)
        if len(residues) < 2:
            raise EmptyTextError(
                f"Contacts need at least 2 residues, but the sequence has {len(residues)}. Use a longer "
                "sequence."
            )
        values = (
            _predict(trace, progress)
            if is_prediction
            else _mean_attention(resolved, trace, residues, progress)
        )
        note = " ".join(filter(None, (note, trace.note)))
        return ContactsResult(resolved, InputRecord.of(trace), residues, read_only(values), note)


@dataclass(frozen=True, eq=False, repr=False)
class ContactsResult(Result):
    """Contact values of all residue pairs in a sequence.

    Attributes:
        residues: the residue tokens; with the method "attention", all tokens except special tokens.
        values: symmetric matrix, [residue, residue]: probabilities for a prediction; otherwise APC-corrected
            attention, which may be negative.
        note: sentences about the model and the method; "" if there are none.
    """

    question: Contacts
    residues: tuple[Token, ...]
    values: Array
    note: str = ""

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.residues),) * 2:
            raise ShapeError(
                f"values must have shape [residue, residue] for {len(self.residues)} residues, not "
                f"{self.values.shape}."
            )

    @property
    def is_prediction(self) -> bool:
        """Whether the values are the probabilities of the model's contact head."""
        return self.question.method == PREDICTION

    @property
    def value_name(self) -> str:
        """Name of a value: "probability" for a prediction, otherwise "corrected attention"."""
        return "probability" if self.is_prediction else "corrected attention"

    @property
    def numbers(self) -> Array:
        """Residue number of each token, from 1, or its index from 1 if tokens contain several residues."""
        return np.array(
            [
                index if residue.residue is None else residue.residue
                for index, residue in enumerate(self.residues, 1)
            ]
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Notes on the model and the method, for exported files."""
        return {"note": self.note} if self.note else {}

    @property
    def sort_order(self) -> SortOrder:
        """The order of the table, by descending value."""
        return SortOrder(self.value_name.replace(" ", "_"))

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each pair of residues, by descending value.

        Columns: residue_i, residue_j, token_i, token_j, separation, and the value: probability for a
        prediction, corrected_attention for the attention.
        """
        question, numbers = self.question, self.numbers
        first, second = np.triu_indices(len(numbers), k=1)
        separations = numbers[second] - numbers[first]
        is_far = separations >= question.separation
        first, second, separations = first[is_far], second[is_far], separations[is_far]
        values = self.values[first, second]
        order = np.argsort(-values, kind="stable")
        if question.top != ALL_PAIRS:
            order = order[: max(1, len(numbers) // _SHARES[question.top])]
        names = np.array([residue.display for residue in self.residues], dtype=object)
        return pd.DataFrame(
            {
                "residue_i": numbers[first][order],
                "residue_j": numbers[second][order],
                "token_i": names[first][order],
                "token_j": names[second][order],
                "separation": separations[order],
                self.value_name.replace(" ", "_"): values[order],
            }
        )


def contact_head(checkpoint: Checkpoint | None) -> Any:
    """Return the contact head of a model, or None if the model does not have one."""
    return None if checkpoint is None else getattr(checkpoint.model, "contact_head", None)


def predicts_contacts(trace: Trace) -> bool:
    """Return whether the model of a trace has a trained contact head."""
    head = contact_head(trace.made_by)
    return head is not None and bool(head.regression.bias.any())


def _choose_method(resolved: Contacts, trace: Trace) -> tuple[Contacts, str]:
    """Return the question with its method resolved, and a note about the choice."""
    head = contact_head(trace.made_by)
    is_untrained = head is not None and not predicts_contacts(trace)
    note = _UNTRAINED if is_untrained else ""
    method = resolved.method
    if method == AUTO:
        has_selection = resolved.layer is not None or resolved.head != "mean"
        method = PREDICTION if predicts_contacts(trace) and not has_selection else ATTENTION
    if method == ATTENTION:
        if resolved.layer is None and resolved.head != "mean":
            raise SelectionError(
                "A head can be selected only within a layer. Select a layer too, or the mean over all heads."
            )
        note = f"{NOT_A_PREDICTION} {note}"
    elif head is None:
        raise UnavailableError(
            f"{trace.architecture} has no contact head. Use the method attention, or a model with a contact "
            "head such as ESM-2."
        )
    elif resolved.layer is not None or resolved.head != "mean":
        raise SelectionError(
            "The prediction uses the attention of all layers and heads. Omit layer and head, or use the "
            "method attention."
        )
    return replace(resolved, method=method), note.strip()


def _residues(trace: Trace) -> tuple[Token, ...]:
    return tuple(token for token in trace.tokens if not token.special)


def _predict(trace: Trace, progress: Progress) -> Array:
    """Return the contact probabilities, [residue, residue], as `EsmModel.predict_contacts` computes them.

    The first and the last token are left out, and attention from and to end-of-sequence tokens is set to 0.
    """
    with trace.checkpoint.running() as model:
        regression = model.contact_head.regression
        coefficients = regression.weight.detach().cpu().double().numpy().reshape(trace.layers, trace.heads)
        bias, end_id = float(regression.bias.detach()), model.contact_head.eos_idx
    is_end = (np.array(trace.encoding.ids) == end_id)[1:-1]
    with memory_errors(_no_memory(trace)):
        logits = np.full((len(is_end),) * 2, bias)
        for layer in range(trace.layers):
            weights = trace.attention(layer)[:, 1:-1, 1:-1]
            if is_end.any():
                weights = np.where(is_end[:, None] | is_end, 0, weights)
            logits += sum_corrected(weights, coefficients[layer])
            progress(layer + 1, trace.layers)
        probabilities: Array = (0.5 + 0.5 * np.tanh(0.5 * logits)).astype(trace.dtype)
    return probabilities


def _mean_attention(
    resolved: Contacts, trace: Trace, residues: tuple[Token, ...], progress: Progress
) -> Array:
    """Return the mean over heads of the APC-corrected attention, shape [residue, residue]."""
    positions = [token.position for token in residues]
    layers = range(trace.layers) if resolved.layer is None else [resolved.layer]
    heads = [head for head in range(trace.heads) if resolved.head in ("mean", head)]
    square = np.ix_(heads, positions, positions)
    coefficients = np.full(len(heads), 1 / (len(layers) * len(heads)))
    with memory_errors(_no_memory(trace)):
        total = np.zeros((len(residues),) * 2)
        for number, layer in enumerate(layers, 1):
            weights = trace.attention(layer)[square]
            total += sum_corrected(weights, coefficients)
            del weights  # otherwise, the attention of two layers would be in memory at once
            progress(number, len(layers))
        mean: Array = total.astype(trace.dtype)
    return mean


def _no_memory(trace: Trace) -> str:
    return (
        f"The contacts between {len(trace.tokens):,} tokens need more memory than is available. Shorten "
        "the sequence."
    )
