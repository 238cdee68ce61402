"""Compute all numbers of a view (table, provenance and picture) and their tolerances."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from bert_probe.core.result import Result
from bert_probe.errors import ReportError, SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Array, Trace
from bert_probe.reports import tolerances
from bert_probe.reports.json_reader import parse_object
from bert_probe.reports.tables import ReportTable
from bert_probe.reports.tolerances import Tolerance, leaves, outline
from bert_probe.reports.view_files import AnsweredView, ModelReference, ViewFile
from bert_probe.views import pictures
from bert_probe.views.page import Page
from bert_probe.views.payload import unpack
from bert_probe.views.selection import from_address

MAX_CELLS: Final = 500_000
"""Maximum number of cells in a view's table."""

_MACHINE_KEYS: Final = ("origin", "device", "libraries")
"""Keys of a provenance whose values depend on the machine; other machines cannot verify these values."""

_LAYOUT_DIGEST: Final = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, eq=False)
class PicturePayload:
    """A parsed payload of a picture.

    Attributes:
        leaves: texts and numbers of the payload's description, by path.
        arrays: arrays of the payload, by name.
        outline: keys and types of the description, see `tolerances.outline`.
    """

    leaves: Mapping[str, Any]
    arrays: Mapping[str, Array]
    outline: Any

    @classmethod
    def of(cls, payload: bytes) -> Self:
        """Parse a payload of a picture.

        Raises:
            ValueError: the payload cannot be read.
        """
        description, arrays = unpack(payload)
        if "points" in arrays and _LAYOUT_DIGEST.fullmatch(str(description.get("of"))):
            description["of"] = ""  # contains a digest of measured values, which cannot be compared exactly
        try:
            return cls(leaves(description), arrays, outline(description))
        except RecursionError:
            raise ValueError("The description is nested too deeply.") from None


@dataclass(frozen=True, eq=False)
class ViewNumbers:
    """All numbers of a view.

    Attributes:
        result: the result of the question.
        table: the table of the result.
        provenance: texts and numbers of the provenance, by path, without machine-dependent entries.
        picture: the picture of the view, or None.
    """

    result: Result
    table: ReportTable
    provenance: Mapping[str, Any]
    picture: Page | None

    @classmethod
    def of(cls, view: ViewFile, answered: AnsweredView) -> Self:
        """Collect the numbers of an answer, and draw its picture as the view specifies.

        Raises:
            SelectionError: the parameters of the picture do not fit the text or the model.
            UnavailableError: the kind of picture does not exist for this number of texts.
            ReportError: the table is too large for a report.
        """
        result = answered.result
        table = result.table()
        cells = len(table) * (len(table.columns) + (table.index.name is not None))
        if cells > MAX_CELLS:
            raise ReportError(
                f"its table has {cells:,} cells; at most {MAX_CELLS:,} are allowed in a report. Choose a "
                "shorter text, or fewer layers and heads."
            )
        picture = _draw_picture(view, answered)
        return cls(result, ReportTable.of(table), portable_leaves(result.provenance), picture)

    def payloads(self) -> list[PicturePayload]:
        """Return the parsed payloads of the picture."""
        if self.picture is None:
            return []
        return [PicturePayload.of(payload) for payload in self.picture.payloads]


def portable_leaves(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a provenance, by path, without machine-dependent entries."""

    def without_machine(record: Any) -> Any:
        if not isinstance(record, Mapping):
            return record
        return {key: value for key, value in record.items() if key not in _MACHINE_KEYS}

    portable = without_machine(provenance)
    if "other_model" in portable:
        portable["other_model"] = without_machine(portable["other_model"])
    if isinstance(portable.get("configs"), list):
        portable["configs"] = [without_machine(config) for config in portable["configs"]]
    return leaves(portable)


@dataclass(frozen=True)
class ViewTolerances:
    """The tolerances of a view's numbers.

    Attributes:
        table: the tolerance of each column, or of the matrix.
        provenance: the tolerance of each float in the provenance.
        payloads: the tolerances of the arrays and leaves of each payload of the picture.
    """

    table: tuple[Tolerance, ...] = ()
    provenance: tuple[Tolerance, ...] = ()
    payloads: tuple[tuple[Tolerance, ...], ...] = ()

    @classmethod
    def of(cls, single: ViewNumbers, double: ViewNumbers) -> Self:
        """Compute the tolerances of a view's numbers from the same numbers in float64."""
        pairs = zip(single.payloads(), double.payloads(), strict=False)
        return cls(
            tolerances.of_table(single.table, double.table),
            tolerances.of_leaves(single.provenance, double.provenance),
            tuple(
                (
                    *tolerances.of_arrays(payload.arrays, other.arrays),
                    *tolerances.of_leaves(payload.leaves, other.leaves),
                )
                for payload, other in pairs
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the tolerances as a JSON object."""
        return {
            "table": [tolerance.to_json() for tolerance in self.table],
            "said": [tolerance.to_json() for tolerance in self.provenance],
            "drawn": [[tolerance.to_json() for tolerance in payload] for payload in self.payloads],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse and check the JSON of tolerances.

        Raises:
            ReportError: the value does not have the form of tolerances.
        """
        with parse_object(value, "The tolerances of the report") as parsed:
            table, provenance, payloads = (parsed.array(name) for name in ("table", "said", "drawn"))
        return cls(
            tuple(map(Tolerance.from_json, table)),
            tuple(map(Tolerance.from_json, provenance)),
            tuple(
                tuple(map(Tolerance.from_json, payload)) for payload in payloads if isinstance(payload, list)
            ),
        )


@dataclass
class NamedModels:
    """The models that views refer to, each opened once, and their float64 references.

    Attributes:
        open: callback that opens a model, after asking the user for consent if needed.
        as_named: whether checkpoints get the name and revision of the view's reference, even if they were
            opened from another place, so that results, code and captions equal those in the report.
    """

    open: Callable[[ModelReference], Checkpoint]
    _opened: dict[ModelReference, Checkpoint] = field(default_factory=dict)
    _references: dict[ModelReference, Checkpoint] = field(default_factory=dict)
    as_named: bool = False

    def of(self, view: ViewFile) -> list[Checkpoint]:
        """Return the models of a view.

        Raises:
            ProbeError: a model cannot be opened.
        """
        for model in view.models:
            if model not in self._opened:
                self._opened[model] = self.open(model)
        checkpoints = [self._opened[model] for model in view.models]
        return [*map(_rename, checkpoints, view.models)] if self.as_named else checkpoints

    def float64_references(self, view: ViewFile) -> list[Checkpoint]:
        """Return the models of a view in float64.

        Raises:
            ProbeError: a model cannot be opened, for example because memory is full.
        """
        # Imported here, because importing torch takes seconds.
        from bert_probe.model.float64 import float64_reference

        for model, checkpoint in zip(view.models, self.of(view), strict=True):
            if model not in self._references:
                is_float64 = model.dtype == "float64"
                self._references[model] = checkpoint if is_float64 else float64_reference(checkpoint)
        return [self._references[model] for model in view.models]

    def computed(
        self, view: ViewFile, progress: Progress = no_progress
    ) -> tuple[ViewNumbers, ViewTolerances]:
        """Compute a view's numbers and their tolerances.

        Args:
            view: the view to compute.
            progress: progress callback; if it raises an exception, the computation ends.

        Raises:
            ProbeError: a model cannot be opened, or the question cannot be answered.
        """
        single = ViewNumbers.of(view, view.answer(*self.of(view), progress=progress))
        double = ViewNumbers.of(view, view.answer(*self.float64_references(view), progress=progress))
        return single, ViewTolerances.of(single, double)


def _rename(checkpoint: Checkpoint, model: ModelReference) -> Checkpoint:
    description = replace(
        checkpoint.initial_description, name=model.name or BUILT_IN, revision=model.revision or None
    )
    return replace(checkpoint, initial_description=description)


def _draw_picture(view: ViewFile, answered: AnsweredView) -> Page | None:
    """Draw the picture of a view; return None if it has no picture."""
    if view.drawn:
        return _draw_attention(view, answered.traces)
    return pictures.page(answered.result) if pictures.is_drawn(answered.result) else None


def _draw_attention(view: ViewFile, traces: Sequence[Trace]) -> Page:
    """Draw attention as lines between tokens for the selected heads, or as thumbnails of all heads."""
    parameters = dict(view.drawn)
    kind = parameters.pop("as", "")
    if len(traces) != 1 or kind not in pictures.ATTENTION_PICTURES:
        raise UnavailableError(f"A picture of kind {kind[:60]!r} does not exist for {len(traces)} texts.")
    trace = traces[0]
    selection, unknown = from_address(parameters, trace)
    if unknown:
        raise SelectionError(f"The {unknown[0].what} {unknown[0].given[:60]} does not exist here.")
    return pictures.attention_page(kind, trace, selection)
