"""All numbers of a view: its table, what is said beside it, its pictures; and how exact each is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from bert_probe.analyses.attention.heads import Heads
from bert_probe.core.result import Result
from bert_probe.errors import ReportError, SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Array, Trace
from bert_probe.reports import tolerances
from bert_probe.reports.json_reader import given
from bert_probe.reports.tables import Table
from bert_probe.reports.tolerances import Tolerance, leaves, outline
from bert_probe.reports.view_files import AnsweredView, ModelReference, ViewFile
from bert_probe.views import head_view, model_view, pictures
from bert_probe.views.head_view import LABELLED, HeadViewData
from bert_probe.views.page import Page, caption_of
from bert_probe.views.payload import unpacked
from bert_probe.views.view import from_address

MOST_CELLS: Final = 500_000
"""Of one view's table."""

_OF_THE_MACHINE: Final = ("origin", "device", "libraries")
"""Keys of a provenance that say where it was computed, which no other machine can check."""

_LAYOUT: Final = re.compile("[0-9a-f]{16}")
"""Names the layout of a map."""


@dataclass(frozen=True, eq=False)
class PicturePayload:
    """A payload of a picture.

    Attributes:
        said: texts and numbers of its description, by their paths.
        outline: names and types of the description, see `tolerances.outline`.
    """

    said: Mapping[str, Any]
    arrays: Mapping[str, Array]
    outline: Any

    @classmethod
    def of(cls, payload: bytes) -> Self:
        """Return what a payload holds.

        Raises:
            ValueError: it holds nothing that can be read.
        """
        described, arrays = unpacked(payload)
        if "points" in arrays and _LAYOUT.fullmatch(str(described.get("of"))):
            described["of"] = ""  # a digest of measured numbers, by which a page knows that others came
        try:
            return cls(leaves(described), arrays, outline(described))
        except RecursionError:
            raise ValueError("The description is nested too deep.") from None


@dataclass(frozen=True, eq=False)
class ViewNumbers:
    """What a view shows.

    Attributes:
        said: texts and numbers beside the table, by their path.
        picture: None where there is none.
    """

    result: Result
    table: Table
    said: Mapping[str, Any]
    picture: Page | None

    @classmethod
    def of(cls, view: ViewFile, answered: AnsweredView) -> Self:
        """The numbers of an answer, drawn as the view has it.

        Raises:
            SelectionError, UnavailableError: it cannot be drawn so.
            ReportError: its table is too large for a report.
        """
        result = answered.result
        table = result.table()
        cells = len(table) * (len(table.columns) + (table.index.name is not None))
        if cells > MOST_CELLS:
            raise ReportError(
                f"its table has {cells:,} cells; a report takes at most {MOST_CELLS:,} of a view. Choose a "
                "shorter text, or fewer layers and heads."
            )
        return cls(result, Table.of(table), said_of(result.provenance), picture_of(view, answered))

    def drawn(self) -> list[PicturePayload]:
        """What the picture's payloads hold."""
        if self.picture is None:
            return []
        return [PicturePayload.of(payload) for payload in self.picture.payloads]


def said_of(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What a provenance says, by its path, whoever computed it."""

    def without(record: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key not in _OF_THE_MACHINE}

    whole = without(provenance)
    if isinstance(whole.get("other_model"), Mapping):
        whole["other_model"] = without(whole["other_model"])
    if isinstance(whole.get("configs"), list):
        whole["configs"] = [without(one) if isinstance(one, Mapping) else one for one in whole["configs"]]
    return leaves(whole)


@dataclass(frozen=True)
class ViewTolerances:
    """The tolerances of a view's numbers.

    Attributes:
        table, said: see `ViewNumbers`.
        drawn: of each payload of the picture; of its arrays and of what is said of it.
    """

    table: tuple[Tolerance, ...] = ()
    said: tuple[Tolerance, ...] = ()
    drawn: tuple[tuple[Tolerance, ...], ...] = ()

    @classmethod
    def of(cls, single: ViewNumbers, double: ViewNumbers) -> Self:
        """From a view's numbers and those in float64."""
        pairs = zip(single.drawn(), double.drawn(), strict=False)
        return cls(
            tolerances.of_table(single.table, double.table),
            tolerances.of_leaves(single.said, double.said),
            tuple(
                (
                    *tolerances.of_arrays(one.arrays, other.arrays),
                    *tolerances.of_leaves(one.said, other.said),
                )
                for one, other in pairs
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "table": [one.to_json() for one in self.table],
            "said": [one.to_json() for one in self.said],
            "drawn": [[one.to_json() for one in part] for part in self.drawn],
        }

    @classmethod
    def from_json(cls, held: Any) -> Self:
        """What `plain` made, checked.

        Raises:
            ReportError: it is something else.
        """
        with given(held, "The tolerances of the report") as one:
            table, said, drawn = (one.several(name) for name in ("table", "said", "drawn"))
        return cls(
            tuple(map(Tolerance.from_json, table)),
            tuple(map(Tolerance.from_json, said)),
            tuple(tuple(map(Tolerance.from_json, part)) for part in drawn if isinstance(part, list)),
        )


@dataclass
class NamedModels:
    """Models that views name, each opened once, and their twins in float64.

    Attributes:
        open: opens one as it is named; asks whom it has to ask.
        as_named: whether a checkpoint goes by the name and revision of the view, wherever it was opened
            from, so that its answers, code and captions name it as they did where the view was made.
    """

    open: Callable[[ModelReference], Checkpoint]
    _opened: dict[ModelReference, Checkpoint] = field(default_factory=dict)
    _twins: dict[ModelReference, Checkpoint] = field(default_factory=dict)
    as_named: bool = False

    def of(self, view: ViewFile) -> list[Checkpoint]:
        """The models of a view.

        Raises:
            ProbeError: one cannot be opened.
        """
        for name in view.models:
            if name not in self._opened:
                self._opened[name] = self.open(name)
        opened = [self._opened[name] for name in view.models]
        return [*map(_renamed, opened, view.models)] if self.as_named else opened

    def twins(self, view: ViewFile) -> list[Checkpoint]:
        """The same in float64.

        Raises:
            ProbeError: one cannot be opened, as for lack of memory.
        """
        # What runs a model takes seconds to import; here one was opened already.
        from bert_probe.model.float64 import twin

        for name, checkpoint in zip(view.models, self.of(view), strict=True):
            if name not in self._twins:
                self._twins[name] = checkpoint if name.dtype == "float64" else twin(checkpoint)
        return [self._twins[name] for name in view.models]

    def computed(self, view: ViewFile, report: Progress = no_progress) -> tuple[ViewNumbers, ViewTolerances]:
        """A view's numbers, and how exact they are.

        Args:
            report: called now and then while they are computed; what it raises ends that.

        Raises:
            ProbeError: a model cannot be opened, or the question not be asked of it.
        """
        single = ViewNumbers.of(view, view.answer(*self.of(view), report=report))
        double = ViewNumbers.of(view, view.answer(*self.twins(view), report=report))
        return single, ViewTolerances.of(single, double)


def _renamed(checkpoint: Checkpoint, named: ModelReference) -> Checkpoint:
    description = replace(checkpoint.opened, name=named.name or BUILT_IN, revision=named.revision or None)
    return replace(checkpoint, opened=description)


def picture_of(view: ViewFile, answered: AnsweredView) -> Page | None:
    """How a view's answer is drawn; None where there is no picture of it.

    Raises:
        SelectionError: it asks for what the text or its model does not have.
        UnavailableError: it draws attention, and names no text.
    """
    if view.drawn:
        return _attention(view, answered.traces)
    return pictures.page(answered.result) if pictures.is_drawn(answered.result) else None


def _attention(view: ViewFile, traces: Sequence[Trace]) -> Page:
    """Lines from token to token, or all heads at once."""
    look = dict(view.drawn)
    kind = look.pop("as", "")
    if len(traces) != 1 or kind not in ("lines", "model"):
        raise UnavailableError(f"There is no picture {kind[:60]!r} of {len(traces)} texts.")
    trace = traces[0]
    shown, unknown = from_address(look, trace)
    if unknown:
        raise SelectionError(f"There is no {unknown[0].what} {unknown[0].given[:60]} here.")
    if kind == "model":
        return model_view.page(trace, Heads(shown.words).of(trace), words=shown.words, measure=shown.measure)
    labels = Heads().of(trace).labels if len(trace.tokens) <= LABELLED else ()
    drawn = HeadViewData(trace, shown.measure, shown.words, shown.residual, labels, caption_of(trace))
    return head_view.page(drawn, shown)
