"""Changes between two models: in their parameters, and in heads and vectors for the same text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attention.attention import WORDS_HELP
from bert_probe.analyses.vectors.similarity import cosine_of_rows
from bert_probe.analyses.weights.parameters import Inventory, Parameter, list_parameters
from bert_probe.core import frames
from bert_probe.core.field_types import Flag
from bert_probe.core.inputs import TwoCheckpoints, TwoModelTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Array, Trace, read_only, tensor_view
from bert_probe.text.alignment import CommonSpans, common_spans
from bert_probe.text.words import Unit, truncate_text, word_lens

# Provenance fields that may differ between two copies of the same model
_NAME_FIELDS = frozenset({"model", "origin", "revision"})
BOTH, OTHER_SHAPE, ONLY_A, ONLY_B = "both", "other shape", "only A", "only B"
_BLOCK_SIZE = 1 << 20
"""Number of values that are converted to float64 at a time, which limits memory use."""


def check_same_tokens(a: Trace, b: Trace) -> tuple[InputRecord, Trace, Trace]:
    """Check that two traces have the same tokens, and return their provenance and both traces.

    If the models are equal, A's trace is returned in place of B's; see `are_same_model`.

    Raises:
        SelectionError: the traces come from different texts, or the models have different tokenizers.
        UnavailableError: a trace has no model.
    """
    _check_text(a, b)
    check_tokenizers(a.checkpoint, b.checkpoint)
    check_encodings(a.encoding, b.encoding)
    return _inputs_and_traces(a, b)


def align_spans(a: Trace, b: Trace) -> tuple[InputRecord, Trace, Trace, CommonSpans]:
    """Return the provenance of two traces, both traces, and the text spans that both tokenizers share.

    If the models are equal, A's trace is returned in place of B's; see `are_same_model`.

    Raises:
        SelectionError: the traces come from different texts, or the text was truncated.
        UnavailableError: a trace has no model.
    """
    _check_text(a, b)
    return *_inputs_and_traces(a, b), common_spans(a.encoding, b.encoding)


def _check_text(a: Trace, b: Trace) -> None:
    encoding_a, encoding_b = a.encoding, b.encoding
    if (encoding_a.text, encoding_a.pair) != (encoding_b.text, encoding_b.pair):
        raise SelectionError(
            "The two models read different texts. Trace the same text with both models, or use "
            "MinimalPair to compare two texts in one model."
        )


def _inputs_and_traces(a: Trace, b: Trace) -> tuple[InputRecord, Trace, Trace]:
    inputs = InputRecord.of(a).with_other_model(InputRecord.of(b))
    is_same = are_same_model(inputs, a.checkpoint, b.checkpoint) and a.encoding.ids == b.encoding.ids
    return inputs, a, a if is_same else b


def check_tokenizers(a: Checkpoint, b: Checkpoint) -> None:
    """Check that two models have the same vocabulary.

    Raises:
        SelectionError: the vocabularies differ; the message names the first token that differs.
    """
    if a.tokenizer is b.tokenizer:
        return
    vocabulary_a, vocabulary_b = a.tokenizer.get_vocab(), b.tokenizer.get_vocab()
    if vocabulary_a == vocabulary_b:
        return
    tokens_a, tokens_b = (
        {token_id: token for token, token_id in vocabulary.items()}
        for vocabulary in (vocabulary_a, vocabulary_b)
    )
    first = min(
        token_id
        for token_id in tokens_a.keys() | tokens_b.keys()
        if tokens_a.get(token_id) != tokens_b.get(token_id)
    )
    sizes = (
        f"A has {len(vocabulary_a):,} tokens and B has {len(vocabulary_b):,}; "
        if len(vocabulary_a) != len(vocabulary_b)
        else ""
    )
    raise SelectionError(
        f"The models have different tokenizers: {sizes}token id {first:,} is {_quote(tokens_a.get(first))} "
        f"in A, {a.description.name}, and {_quote(tokens_b.get(first))} in B, {b.description.name}. Use two "
        "models with the same tokenizer, such as a model before and after fine-tuning."
    )


def check_encodings(encoding_a: Encoding, encoding_b: Encoding, text_name: str = "this text") -> None:
    """Check that two models tokenize a text in the same way.

    Args:
        text_name: name of the text in error messages.

    Raises:
        SelectionError: the tokens differ; the message names the first token that differs.
    """
    if encoding_a.ids == encoding_b.ids:
        return
    if (
        encoding_a.dropped != encoding_b.dropped
        and len(encoding_a) + encoding_a.dropped == len(encoding_b) + encoding_b.dropped
    ):
        raise SelectionError(
            f"A reads {len(encoding_a):,} tokens of {text_name}, and B reads {len(encoding_b):,}, "
            "because one of the models truncates the input. Shorten the text so that both models read "
            "the complete text."
        )
    pairs = zip([*encoding_a.tokens, None], [*encoding_b.tokens, None], strict=False)
    position, (token_a, token_b) = next(
        (position, pair)
        for position, pair in enumerate(pairs)
        if (pair[0] and pair[0].id) != (pair[1] and pair[1].id)
    )
    raise SelectionError(
        f"The models have different tokenizers: token {position} of {text_name} is {_quote(token_a)} in A "
        f"and {_quote(token_b)} in B. Use two models with the same tokenizer."
    )


def are_same_model(inputs: InputRecord, a: Checkpoint, b: Checkpoint) -> bool:
    """Return whether two models have the same weights and settings, including dtype, device and libraries.

    For equal models, callers use A's results also for B. Running the model twice could give small differences
    due to rounding.
    """
    settings_a, settings_b = (
        {name: value for name, value in model.items() if name not in _NAME_FIELDS} for model in inputs.models
    )
    return settings_a == settings_b and _settings(a) == _settings(b)


def _settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the configuration of a model without the model's name."""
    config: Any = checkpoint.model.config
    settings: dict[str, Any] = config.to_dict()
    return {name: value for name, value in settings.items() if name not in ("_name_or_path", "name_or_path")}


def _quote(token: str | None) -> str:
    return "nothing" if token is None else f"“{truncate_text(token)}”"


@question("vector change", command="diff vectors")
class VectorChange(Question):
    """Cosine distance between each token's vectors in two models, after each layer.

    The comparison is meaningful only if one model was derived from the other, for example by fine-tuning, so
    that their dimensions correspond. `LayerSimilarity` compares any two models with the same tokenizer.

    Attributes:
        words: compare words instead of tokens; a word's vector is the mean of its tokens' vectors.
    """

    inputs = TwoModelTraces()

    words: bool = param(Flag(), default=False, about=WORDS_HELP)

    def of(self, a: Trace, b: Trace) -> VectorChangeResult:
        """Compare the vectors of two models after each layer.

        Raises:
            SelectionError: the traces come from different texts, or the models have different tokenizers.
            UnavailableError: the models have different hidden sizes or numbers of layers.
        """
        inputs, trace_a, trace_b = check_same_tokens(a, b)
        if _sizes(trace_a) != _sizes(trace_b):
            raise UnavailableError(
                f"A has {trace_a.layers} layers of size {_width(trace_a)}, B has {trace_b.layers} of size "
                f"{_width(trace_b)}, so vectors cannot be compared one to one. Compare the layer similarity "
                "instead."
            )
        lens = word_lens(trace_a) if self.words else None

        def vectors(trace: Trace, layer: int) -> Array:
            states = trace.vectors(layer)
            return states if lens is None else lens.average(states)

        moved = [
            1 - cosine_of_rows(vectors(trace_a, n), vectors(trace_b, n)) for n in range(trace_a.layers + 1)
        ]
        units = trace_a.tokens if lens is None else lens.units
        return VectorChangeResult(self, inputs, units, read_only(np.array(moved)))


@dataclass(frozen=True, eq=False, repr=False)
class VectorChangeResult(Result):
    """Cosine distances between the vectors of model A and of model B for the same text.

    Attributes:
        units: the tokens or words of the text.
        moved: 1 − cosine of each unit's vectors, float64 of shape [layer + 1, unit], 0 to 2. Row 0 is the
            embeddings. NaN if a vector is zero.
    """

    question: VectorChange
    units: tuple[Token | Unit, ...]
    moved: Array

    def __post_init__(self) -> None:
        if self.moved.ndim != 2 or self.moved.shape[1] != len(self.units):
            raise ShapeError(f"moved must have shape [layer + 1, {len(self.units)}], not {self.moved.shape}.")

    @property
    def mean(self) -> Array:
        """Mean change over all tokens or words at each layer, ignoring NaN; shape [layer + 1].

        NaN if all values of a layer are NaN.
        """
        is_defined = ~np.isnan(self.moved)
        sums, counts = np.where(is_defined, self.moved, 0.0).sum(axis=1), is_defined.sum(axis=1)
        mean: Array = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
        return mean

    @property
    def largest(self) -> Array:
        """Largest change of any token or word at each layer, ignoring NaN; shape [layer + 1]."""
        maxima: Array = np.nan_to_num(self.moved).max(axis=1)
        return maxima

    @property
    def finding(self) -> str:
        """A sentence that names the token and layer with the largest change, and gives the distance."""
        peaks = np.nan_to_num(self.moved)
        if not peaks.any():
            return "No vector changed direction."
        layer, index = np.unravel_index(int(peaks.argmax()), peaks.shape)
        layer_name = "in the embeddings" if layer == 0 else f"after layer {layer}"
        unit = self.units[int(index)]
        return (
            f"The vector of “{truncate_text(unit.display)}” ({unit.position}) changed direction most "
            f"{layer_name}: cosine distance {peaks.max():.3g} (mean of the layer: {self.mean[layer]:.3g})."
        )

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per token or word and one column per layer, counted from 0."""
        return frames.vectors(self.moved.T, self.units)


def _width(trace: Trace) -> int:
    return int(trace.vectors(0).shape[1])


def _sizes(trace: Trace) -> tuple[int, ...]:
    return tuple(int(trace.vectors(layer).shape[1]) for layer in range(trace.layers + 1))


@question("head change", command="diff heads")
class HeadChange(Question):
    """Total variation between the attention of each head in two models, averaged over the queries.

    Attributes:
        words: merge tokens into words before comparing, as in `WordLens.merge`.
    """

    inputs = TwoModelTraces()

    words: bool = param(Flag(), default=False, about=WORDS_HELP)

    def of(self, a: Trace, b: Trace) -> HeadChangeResult:
        """Compare the attention of each head in two models.

        Only one attention matrix per model is in memory at a time.

        Raises:
            SelectionError: the traces come from different texts, or the models have different tokenizers.
            UnavailableError: the models have different numbers of layers or heads.
        """
        inputs, trace_a, trace_b = check_same_tokens(a, b)
        if (trace_a.layers, trace_a.heads) != (trace_b.layers, trace_b.heads):
            raise UnavailableError(
                f"A has {_grid(trace_a)}, B has {_grid(trace_b)}, so heads cannot be compared one to one. "
                "Compare head matches, layer similarity or predictions instead."
            )
        lens = word_lens(trace_a) if self.words else None

        def weights(trace: Trace, layer: int, head: int) -> torch.Tensor:
            attention = trace.attention(layer, head)
            return tensor_view(attention if lens is None else lens.merge(attention))

        variation = np.zeros((trace_a.layers, trace_a.heads))
        for index in np.ndindex(variation.shape):
            layer, head = int(index[0]), int(index[1])
            queries = total_variation(weights(trace_b, layer, head) - weights(trace_a, layer, head))
            variation[index] = queries.mean()
        return HeadChangeResult(self, inputs, read_only(variation))


@dataclass(frozen=True, eq=False, repr=False)
class HeadChangeResult(Result):
    """Changes of the attention of each head between model A and model B.

    Attributes:
        total_variation: change of each head, float64 of shape [layer, head], 0 to 1: ½ Σ |p − q| between a
            query's attention in A and in B, averaged over all queries, including special tokens.
    """

    question: HeadChange
    total_variation: Array

    def __post_init__(self) -> None:
        if self.total_variation.ndim != 2:
            raise ShapeError(
                f"total_variation must have shape [layer, head], not {self.total_variation.shape}."
            )

    @property
    def strongest(self) -> tuple[int, int]:
        """Layer and head index, from 0, of the head that changed most; in a tie, of the first one."""
        layer, head = np.unravel_index(int(self.total_variation.argmax()), self.total_variation.shape)
        return int(layer), int(head)

    @property
    def finding(self) -> str:
        """A sentence that names the head that changed most; layers and heads are counted from 1."""
        if not self.total_variation.any():
            return "No head changed."
        layer, head = self.strongest
        largest, median = float(self.total_variation.max()), float(np.median(self.total_variation))
        return (
            f"Head {layer + 1}.{head + 1} changed most: total variation {largest:.3g} (median of all "
            f"{self.total_variation.size:,} heads: {median:.3g})."
        )

    @property
    def sort_order(self) -> SortOrder:
        """The order of the heads, by descending change."""
        return SortOrder("total_variation")

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per head, sorted by descending change: layer, head, total_variation."""
        heads = frames.by_head({"total_variation": self.total_variation})
        return heads.sort_values("total_variation", ascending=False, kind="stable", ignore_index=True)


def total_variation(difference: torch.Tensor) -> torch.Tensor:
    """Return the total variation ½ Σ |p − q| of each query over its keys, float64 of shape [query], 0 to 1.

    Args:
        difference: difference of two attention matrices, q − p, shape [query, key].
    """
    return difference.abs().sum(dim=1, dtype=torch.float64) / 2


def _grid(trace: Trace) -> str:
    return f"{trace.layers} layers of {trace.heads} heads"


@question("parameter change", command="diff parameters")
class ParameterChange(Question):
    """Relative change ‖B − A‖ ÷ ‖A‖ of each parameter that both models have with the same shape.

    Parameters that only one model has, or that differ in shape, are listed without a value. As in
    `Parameters`, only parameters of the encoders are included.
    """

    inputs = TwoCheckpoints()

    def of(self, a: Checkpoint, b: Checkpoint) -> ParameterChangeResult:
        """Return the change of each parameter from model A to model B.

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
    """Changes of the parameters from model A to model B.

    Attributes:
        inventory: the inventory of A's parameters.
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
        """Return the relative change ‖B − A‖ ÷ ‖A‖ of several parameters taken as one vector.

        Tied parameters count once. The result is NaN if none of the parameters was compared.

        Args:
            of: function that returns whether a parameter is included; by default, all are.
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
        """A sentence that gives the overall change and names the parameter that changed most."""
        if not self.compared:
            return "The models have no parameters in common."
        if not any(tensor.change for tensor in self.compared):
            return "No parameter changed."
        defined = [tensor for tensor in self.compared if not math.isnan(tensor.relative)]
        largest = max(defined, key=lambda tensor: tensor.relative, default=None)
        total = f"All parameters together changed by {_percent(self.relative())} of their norm"
        if largest is None:
            return f"{total}."
        return f"{total}; {largest.parameter.name} changed most, by {_percent(largest.relative)} of its norm."

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per parameter.

        Columns: name, group, part, shape, count, in (the models that have the parameter), norm, change,
        relative.
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
    assert tensor_a is not None  # the caller compares only parameters that model A has
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
