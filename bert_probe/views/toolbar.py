"""The toolbar: what a reader can choose, the same for every view of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.analyses.attention.measures import measure as measure_named
from bert_probe.model.trace import Trace
from bert_probe.views.view import RESIDUALS, VersionedView, View
from bert_probe.views.view import described as view_described


class MeasureOption(NamedTuple):
    """A measure to choose: its name, what a button calls it, and what it says."""

    name: str
    label: str
    meaning: str


@dataclass(frozen=True)
class ToolbarOptions:
    """What a reader can choose.

    Attributes:
        layers, heads: how many there are.
        several: whether several heads can be shown at once.
        rolled: whether the measure is of layers as a whole, without single heads.
        specials: whether there are special tokens that can be hidden.
        pair: whether the text has a second segment.
        measures: to choose from; none where the numbers are all there is.
        words: whether pieces can be merged into words.
        more: the rare options, by the names that `Options` has for them, and "residual".
        residuals: shares of the residual connection to choose from.
        shares: whether rows sum to 1 as they are.
    """

    layers: int
    heads: int
    several: bool
    rolled: bool
    specials: bool
    pair: bool
    measures: tuple[MeasureOption, ...]
    words: bool
    more: tuple[str, ...]
    residuals: tuple[float, ...]
    shares: bool

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
        """What there is to choose of a trace."""
        what = measure_named(view.measure)
        pair = any(token.segment for token in trace.tokens)
        residual = ("residual",) if what.rolled and measures else ()
        return cls(
            layers=trace.layers,
            heads=trace.heads,
            several=several,
            rolled=what.of_heads is None,
            specials=specials and any(token.special for token in trace.tokens),
            pair=pair,
            measures=tuple(
                MeasureOption(measure.name, measure.label, measure.meaning) for measure in measures
            ),
            words=words,
            more=(*(name for name in more if name != "direction" or pair), *residual),
            residuals=RESIDUALS if residual else (),
            shares=what.shared_out(trace),
        )


def described(shown: VersionedView, offer: ToolbarOptions, *, key: str, source: str) -> dict[str, Any]:
    """What a browser draws as a toolbar of its own, beside a picture that is no head view.

    Args:
        source: address of the layers, where the labels of heads are.
    """
    return {"key": key, "shown": view_described(shown), "offer": asdict(offer), "source": source}
