"""Attention measures, each defined as ``MEASURE`` in its own module of this package.

The modules are discovered automatically. All measures are available in the library, on the command line, on
the pages, in the head view and in exports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Literal

from bert_probe.errors import SelectionError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, resolve_index


def _is_fast(_trace: Trace, _layer: int) -> bool:
    return False


@dataclass(frozen=True)
class AttentionMeasure:
    """A measure of how much each query attends to each key.

    Attributes:
        name: identifier in questions, URLs and on the command line.
        label: label of the measure's button.
        title: first words of a heatmap's title; the layer follows them.
        value: description of a single value.
        total: description of a row's sum.
        meaning: what the measure shows and what it does not show.
        order: sort key that determines the order of the measures in lists.
        of_layer: function that takes a trace, a layer, a residual weight and a progress callback, and returns
            the values of the whole layer, shape [query, key].
        of_heads: function that takes a trace, a layer and a slice of heads, and returns the values of these
            heads, shape [head, query, key]; None if the measure is not defined for individual heads.
        lengths: function that takes a trace and a layer, and returns the factors by which the measure
            multiplies the attention weights, shape [head, key]; None if the measure does not multiply them.
        shares: whether rows sum to 1 over all keys; otherwise the largest value depends on the text.
        rolled: whether the values of a layer combine the attention of this layer and all layers below it,
            with a weight for the residual connection.
        takes_long: function that takes a trace and a layer, and returns whether `of_layer` has to run the
            model. In this case, the result is cached with the trace, so a second call is fast. By default,
            `of_layer` never runs the model.
        caveat: function that takes a trace and returns a warning about its model; "" if there is none.
    """

    name: str
    label: str
    title: str
    value: str
    total: str
    meaning: str
    order: int
    of_layer: Callable[[Trace, int, float, Progress], Array]
    of_heads: Callable[[Trace, int, slice], Array] | None = None
    lengths: Callable[[Trace, int], Array] | None = None
    shares: bool = True
    rolled: bool = False
    takes_long: Callable[[Trace, int], bool] = _is_fast
    caveat: Callable[[Trace], str] = lambda _: ""

    @property
    def runs_model(self) -> bool:
        """Whether `of_layer` runs the model, unless its result is cached."""
        return self.takes_long is not _is_fast

    def require_heads(self) -> Callable[[Trace, int, slice], Array]:
        """Return `of_heads`, or raise an error if the measure is not defined for individual heads.

        Raises:
            SelectionError: the measure is defined for whole layers only.
        """
        if self.of_heads is None:
            raise SelectionError(
                f"{self.label} is defined for whole layers, not for individual heads. Set the head to mean."
            )
        return self.of_heads

    def sums_to_one(self, trace: Trace) -> bool:
        """Return whether rows sum to 1 for a trace; rows of external attention may have other sums."""
        return self.shares and not trace.caveat

    def of_head(
        self,
        trace: Trace,
        layer: int,
        head: int | Literal["mean"],
        residual: float,
        progress: Progress = no_progress,
    ) -> Array:
        """Return the values of one head or, for "mean", of the whole layer, shape [query, key].

        ``residual`` is the weight of the residual connection in measures that combine several layers.

        Raises:
            SelectionError: the layer or head does not exist, or the measure is not defined for individual
                heads.
            UnavailableError: the architecture does not expose what the measure needs.
        """
        if head == "mean":
            return self.of_layer(trace, layer, residual, progress)
        index = resolve_index(head, trace.heads, "head")
        matrix: Array = self.require_heads()(trace, layer, slice(index, index + 1))[0]
        return matrix


def measures() -> Mapping[str, AttentionMeasure]:
    """Return a mapping from names to attention measures, sorted by their ``order``."""
    return _load_measures()


@cache
def _load_measures() -> Mapping[str, AttentionMeasure]:
    loaded: list[AttentionMeasure] = [
        import_module(f"{__name__}.{module.name}").MEASURE for module in iter_modules(__path__)
    ]
    loaded.sort(key=lambda attention_measure: attention_measure.order)
    return MappingProxyType({attention_measure.name: attention_measure for attention_measure in loaded})


def get_measure(name: str) -> AttentionMeasure:
    """Return the attention measure with the given name.

    Raises:
        SelectionError: no measure has this name.
    """
    if name not in measures():
        raise SelectionError(f"Unknown attention measure {name}. Use one of {', '.join(measures())}.")
    return measures()[name]
