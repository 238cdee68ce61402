"""The toolbar of the attention views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.analyses.attention.measures import get_measure as measure_named
from bert_probe.model.trace import Trace
from bert_probe.views.view import RESIDUALS, VersionedView, View
from bert_probe.views.view import view_to_json as view_described


class MeasureOption(NamedTuple):
    """A measure that the user can select."""

    name: str
    label: str
    meaning: str


@dataclass(frozen=True)
class ToolbarOptions:
    """The choices that the toolbar offers."""

    layers: int  # number of layers
    heads: int  # number of heads per layer
    several: bool  # whether several heads can be visible at once
    rolled: bool  # whether the measure is of whole layers, without single heads
    specials: bool  # whether there are special tokens that can be hidden
    pair: bool  # whether the text has a second segment
    measures: tuple[MeasureOption, ...]  # empty if the measure cannot be changed
    words: bool  # whether tokens can be merged into words
    more: tuple[str, ...]  # options in the overflow menu: field names of `Options`, and "residual"
    residuals: tuple[float, ...]  # shares of the residual connection
    shares: bool  # whether the rows sum to 1

    @classmethod
    def of(
        cls,
        trace: Trace,
        view: View,
        more: Sequence[str],
        measures: Sequence[AttentionMeasure] = (),
        *,
        several: bool = False,
        specials: bool = True,
        words: bool = False,
    ) -> ToolbarOptions:
        """Return the choices for a view of a trace."""
        measure = measure_named(view.measure)
        pair = any(token.segment for token in trace.tokens)
        residual = ("residual",) if measure.rolled and measures else ()
        return cls(
            layers=trace.layers,
            heads=trace.heads,
            several=several,
            rolled=measure.of_heads is None,
            specials=specials and any(token.special for token in trace.tokens),
            pair=pair,
            measures=tuple(MeasureOption(option.name, option.label, option.meaning) for option in measures),
            words=words,
            more=(*(name for name in more if name != "direction" or pair), *residual),
            residuals=RESIDUALS if residual else (),
            shares=measure.sums_to_one(trace),
        )


def toolbar_data(versioned: VersionedView, offer: ToolbarOptions, *, key: str, source: str) -> dict[str, Any]:
    """Return the data of a separate toolbar as JSON, for the views other than the head view.

    Args:
        versioned: The current view.
        offer: The choices.
        key: Key of the component.
        source: URL prefix of the layers, from which the browser requests the labels of the heads.
    """
    return {"key": key, "selection": view_described(versioned), "offer": asdict(offer), "source": source}
