"""Measures of attention: one file each, found by being here.

A file sets ``MEASURE``. Everything else follows: library, command line, pages, head view, files.
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
from bert_probe.model.trace import Array, Trace, resolve


@dataclass(frozen=True)
class AttentionMeasure:
    """How much each query has to do with each key, in one of several senses.

    Attributes:
        name: in questions, addresses and on the command line.
        label: of a button; title: of a picture, which a layer follows.
        value: what a number is; total: what all of them add up to.
        meaning: what it says and does not say, in a sentence or two.
        order: its place among the measures.
        of_layer: trace, layer, residual share, report → [query, key], the layer as a whole.
        of_heads: trace, layer, heads → [head, query, key]; None where a layer has no single heads.
        lengths: trace, layer → [head, key], where the measure is the attention weight times these.
        shares: rows sum to 1 over all keys; otherwise the largest number depends on the text.
        rolled: it follows all layers up to this one, with a share for the residual connection.
        takes_long: trace, layer → whether `of_layer` runs the model for it, and reports meanwhile. What it
            gives is kept then as long as the trace, and no longer takes long.
        caveat: trace → a further sentence on this model, or "".
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
    takes_long: Callable[[Trace, int], bool] = lambda _trace, _layer: False
    caveat: Callable[[Trace], str] = lambda _: ""

    def single_heads(self) -> Callable[[Trace, int, slice], Array]:
        """`of_heads`, where there is any.

        Raises:
            SelectionError: the measure is of whole layers only.
        """
        if self.of_heads is None:
            raise SelectionError(f"{self.label} is of a layer as a whole; it has no single heads. Use mean.")
        return self.of_heads

    def shared_out(self, trace: Trace) -> bool:
        """Whether rows sum to 1 here: a measure of shares, on attention whose own rows do."""
        return self.shares and not trace.caveat

    def of_head(
        self,
        trace: Trace,
        layer: int,
        head: int | Literal["mean"],
        residual: float,
        report: Progress = no_progress,
    ) -> Array:
        """[query, key] of one head, or with "mean" of the layer.

        Raises:
            SelectionError: no such layer or head; no single heads.
            UnavailableError: the architecture hides what the measure needs.
        """
        if head == "mean":
            return self.of_layer(trace, layer, residual, report)
        index = resolve(head, trace.heads, "head")
        one: Array = self.single_heads()(trace, layer, slice(index, index + 1))[0]
        return one


def measures() -> Mapping[str, AttentionMeasure]:
    """All of them by name, in their order."""
    return _found()


@cache
def _found() -> Mapping[str, AttentionMeasure]:
    found: list[AttentionMeasure] = [
        import_module(f"{__name__}.{module.name}").MEASURE for module in iter_modules(__path__)
    ]
    return MappingProxyType({one.name: one for one in sorted(found, key=lambda one: one.order)})


def measure(name: str) -> AttentionMeasure:
    """The measure of a name.

    Raises:
        SelectionError: there is none.
    """
    if name not in measures():
        raise SelectionError(f"There is no measure {name}; use {', '.join(measures())}.")
    return measures()[name]
