"""Compute all numeric values of a view (in its table, provenance and picture) and their tolerances.

The last digits of float32 results depend on the processor, which may add numbers in a different order.
Therefore, every result is computed twice: as requested, and with the same weights in float64, where rounding
errors are a million times smaller. The difference estimates the float32 error for this model, text and
formula. Results from two processors may differ from the exact value by about this error, in opposite
directions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarityResult
from bert_probe.analyses.retrieval.calibration import SimilarityCalibrationResult, calibrate_result
from bert_probe.analyses.vectors.sentences import SentencesResult
from bert_probe.core.result import Result
from bert_probe.errors import ReportError, SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Array, Trace
from bert_probe.reports.json_reader import parse_object
from bert_probe.reports.tables import (
    MAX_CELLS,
    MAX_TABLE_CHARACTERS,
    ReportTable,
    format_cell,
    match_rows,
)
from bert_probe.reports.view_files import AnsweredView, ModelReference, ViewFile
from bert_probe.views import pictures
from bert_probe.views.head_view import attention_of_vectors
from bert_probe.views.page import Page
from bert_probe.views.payload import unpack
from bert_probe.views.selection import from_address

FACTOR: Final = 8
"""Tolerance as a multiple of the measured float32 error. For 19 model families, three instruction sets and
two thread counts, float32 results differed by at most 4.6 times the error of the raw model."""

FLOOR: Final = 32 * float(np.finfo(np.float32).eps)
"""Minimum tolerance relative to the largest value; the error of a small group may be 0 by chance."""

MAX_STATED_FACTOR: Final = 8
"""Limit of the tolerance stated in a report, as a multiple of the recomputed tolerance. The recomputed error
of a few values may be small by chance, so a larger stated tolerance is accepted up to this limit."""

MAX_SHARE: Final = 0.01
"""Share of the largest value up to which a tolerance verifies numbers. A larger tolerance is never taken from
a report, and is reported if it is measured."""

_SHARE: Final = re.compile(r"facts\.calibration\.(percentile|histogram\.percent\.[0-9]+)")
"""Matches the provenance paths of calibration values that are percentages of random pairs."""
_MIN_SHARE_ERROR: Final = 0.01
"""Minimum error of a percentile or of a histogram bar, in percent. It allows for four of 44,850 random pairs
whose scores are so close to a bin edge that rounding moves them to the next bin."""

ENTRIES: Final = "entries"
"""Name of the array in a picture's payload that contains color indices, which refer to a color table."""


@dataclass(frozen=True)
class Tolerance:
    """The tolerance for a group of values.

    Attributes:
        of: name of the column or array, or path of the leaf; "" for all values of a matrix.
        largest: largest absolute value in the group.
        error: largest absolute difference between float32 and float64 results in the group.
    """

    of: str
    largest: float
    error: float

    @property
    def allowed(self) -> float:
        """Return the largest allowed difference from the same value computed on another machine."""
        return max(FLOOR * self.largest, FACTOR * self.error)

    @property
    def is_large(self) -> bool:
        """Whether rounding changes the values so much that `verify` cannot distinguish them from others."""
        is_fixed = self.of == ENTRIES or _SHARE.fullmatch(self.of) is not None
        return self.allowed > MAX_SHARE * self.largest and not is_fixed

    def to_json(self) -> dict[str, Any]:
        """Return the tolerance as a JSON object."""
        return asdict(self) | {"tolerance": self.allowed}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse and check the JSON of a tolerance.

        Raises:
            ReportError: the value is not a tolerance, or one of its numbers is negative.
        """
        with parse_object(value, "A tolerance in the report") as parsed:
            tolerance = cls(parsed.text("of"), parsed.number("largest"), parsed.number("error"))
            parsed.number("tolerance")  # ignored, because `allowed` recomputes it
        if min(tolerance.largest, tolerance.error) < 0:
            raise ReportError("A tolerance in the report is negative. Create the report again.")
        return tolerance


def of_table(single: ReportTable, double: ReportTable) -> tuple[Tolerance, ...]:
    """Return the tolerance for each numeric column of a table, or one tolerance for a matrix.

    Args:
        single: the table as requested, computed in float32 by default.
        double: the table computed in float64.
    """
    rows = match_rows(single, double)
    double_columns = {column.name: column for column in double.columns}
    pairs = {
        column.name: [
            (cell, double_columns[column.name].cells[row])
            for cell, row in zip(column.cells, rows, strict=True)
            if row is not None and column.name in double_columns
        ]
        for column in single.columns
        if column.kind == "number"
    }
    if single.matrix:
        return (_from_pairs("", [pair for column in pairs.values() for pair in column]),) if pairs else ()
    return tuple(_from_pairs(name, column) for name, column in pairs.items())


def of_arrays(single: Mapping[str, Array], double: Mapping[str, Array]) -> tuple[Tolerance, ...]:
    """Return the tolerance for each float array in a picture's payload, and for its color indices.

    Color indices may differ by 1.

    Args:
        single: the arrays as requested, by name.
        double: the arrays computed in float64, by name.
    """
    tolerances = []
    for name, array in sorted(single.items()):  # safetensors returns arrays in any order
        other = double.get(name)
        if other is None or other.shape != array.shape:
            continue
        if array.dtype.kind == "f":
            tolerances.append(_from_arrays(name, array, other))
        elif name == ENTRIES:
            tolerances.append(Tolerance(name, 0.0, 1 / FACTOR))
    return tuple(tolerances)


def of_leaves(single: Mapping[str, Any], double: Mapping[str, Any]) -> tuple[Tolerance, ...]:
    """Return the tolerance for each float among the `leaves` of a provenance or a picture's description.

    Args:
        single: the leaves as requested, by path.
        double: the leaves computed in float64, by path.
    """
    tolerances = [
        _from_pairs(path, [(value, double.get(path, value))])
        for path, value in single.items()
        if isinstance(value, float)
    ]
    return tuple(
        replace(tolerance, error=max(tolerance.error, _MIN_SHARE_ERROR))
        if _SHARE.fullmatch(tolerance.of)
        else tolerance
        for tolerance in tolerances
    )


_MAX_LEAVES: Final = 400_000
"""Maximum number of leaves of a JSON value, each of which takes up to 3,000 bytes with its path and text."""
_MAX_PATH, _MAX_PATHS = 10_000, 50_000_000
"""Maximum number of characters of a leaf's path, and of all paths."""


def leaves(value: Any) -> dict[str, Any]:
    """Return a dict that maps paths, such as ``facts.positions.0``, to the leaves of a JSON value.

    Raises:
        ReportError: the value has more than `_MAX_LEAVES` leaves, or paths that are too long.
    """
    found, size = {}, 0
    for number, (path, leaf) in enumerate(_leaves(value, ""), 1):
        found[path] = leaf
        size += len(path)
        if number > _MAX_LEAVES or size > _MAX_PATHS:
            reason = f"more than {_MAX_LEAVES:,} values outside its table, or values with long names"
            raise ReportError(f"A view has {reason}. Split the report.")
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        children: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    else:
        yield path, value.item() if isinstance(value, np.generic) else value
        return
    if len(path) > _MAX_PATH:
        raise ReportError(f"A value has a name of more than {_MAX_PATH:,} characters. Shorten the name.")
    for key, child in children:
        yield from _leaves(child, f"{path}.{key}" if path else str(key))


def outline(value: Any) -> Any:
    """Return the structure of a JSON value: the keys, in order, with the types of their values.

    Unlike the outline, the paths of `leaves` are ambiguous: they do not distinguish a list from an object,
    or ``{"a": {"b": 1}}`` from ``{"a.b": 1}``.
    """
    if isinstance(value, Mapping):
        return {"object": [[str(name), outline(child)] for name, child in value.items()]}
    if isinstance(value, list | tuple):
        return [outline(child) for child in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if value is None else type(value).__name__


def _from_pairs(name: str, pairs: Iterable[tuple[Any, Any]]) -> Tolerance:
    """Compute a tolerance from (float32, float64) pairs; ignore pairs that are not finite."""
    finite = [
        (float(single), float(double))
        for single, double in pairs
        if isinstance(single, int | float)
        and isinstance(double, int | float)
        and math.isfinite(single)
        and math.isfinite(double)
    ]
    largest = max((abs(double) for _, double in finite), default=0.0)
    return Tolerance(name, largest, max((abs(single - double) for single, double in finite), default=0.0))


def _from_arrays(name: str, single: Array, double: Array) -> Tolerance:
    is_finite = np.isfinite(single) & np.isfinite(double)
    singles, doubles = single[is_finite].astype(np.float64), double[is_finite].astype(np.float64)
    largest, error = np.abs(doubles).max(initial=0.0), np.abs(singles - doubles).max(initial=0.0)
    return Tolerance(name, float(largest), float(error))


def _from_rows(single: Array, double: Array) -> Tolerance:
    largest, error = (np.nansum(np.abs(array), -1).max(initial=0.0) for array in (double, single - double))
    return Tolerance("", float(largest), float(error))


def combine(own: Sequence[Tolerance], stated: Sequence[Tolerance]) -> dict[str, float]:
    """Return the allowed difference by name: the larger of the recomputed and the stated tolerance.

    A stated tolerance is limited to `MAX_STATED_FACTOR` times the recomputed tolerance, and to `MAX_SHARE` of
    the largest value. That of color indices is fixed.

    Args:
        own: the tolerances recomputed on this machine.
        stated: the tolerances in the report.
    """
    stated_by_name = {tolerance.of: tolerance.allowed for tolerance in stated}
    return {
        tolerance.of: max(
            tolerance.allowed,
            min(
                stated_by_name.get(tolerance.of, 0.0),
                (1 if tolerance.of == ENTRIES else MAX_STATED_FACTOR) * tolerance.allowed,
                MAX_SHARE * tolerance.largest,
            ),
        )
        for tolerance in own
    }


DIFFERS: Final = "differs from the recomputed value"
CHANGED: Final = "changed after the report was written"
DISPLAY_DIFFERS: Final = "displayed value differs from the data"
OTHER_MODEL: Final = "weights differ from those of the model named in the report"
OTHER_VERSION: Final = "written by another version of BERT Probe, so pages and files cannot be compared"
NOT_RENDERED: Final = "differs from BERT Probe's rendering of the data"

MAX_DIFFERENCES: Final = 1_000
"""Maximum number of differences listed per table, picture or other part of a view."""

_MAX_CELL_CHARACTERS: Final = 500
"""Maximum number of characters of a stated or recomputed value in a `Difference`."""


@dataclass(frozen=True)
class Difference:
    """A difference between a report and its recomputed content.

    Attributes:
        view: number of the view, from 1; 0 for the file itself.
        table: the part of the view: table, note, picture 1, …
        row: name of the row, starting with the 1-based row number.
        column: name of the column.
        stated: value in the report.
        recomputed: value that the verification computed or rendered.
        difference: absolute difference of two numbers.
        tolerance: allowed difference.
        finding: description of the difference, one of this module's constants such as `DIFFERS`.
    """

    view: int
    table: str
    row: str
    column: str
    stated: str
    recomputed: str
    difference: float | None = None
    tolerance: float | None = None
    finding: str = DIFFERS


def exact_text(cell: Any) -> str:
    """Return a cell as a string, with all digits of a number."""
    return clip(format_cell("text", cell if cell is None or isinstance(cell, str) else repr(cell)))


def clip(text: str) -> str:
    """Truncate a text, and escape lone surrogates, which UTF-8 cannot encode."""
    if len(text) > _MAX_CELL_CHARACTERS:
        text = f"{text[:_MAX_CELL_CHARACTERS]}…"
    return text.encode("utf-8", "backslashreplace").decode()


_MACHINE_KEYS: Final = ("origin", "device", "libraries", "skipped")
"""Keys of a provenance that are not verified, because their values depend on the machine, or on rows of a
file that are not part of the view."""

_LAYOUT_DIGEST: Final = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, eq=False)
class PicturePayload:
    """The parsed payload of a picture: a JSON description and arrays.

    Attributes:
        leaves: strings and numbers in the description, by path.
        arrays: arrays of the payload, by name.
        outline: keys and types of the description, see `outline`.
    """

    leaves: Mapping[str, Any]
    arrays: Mapping[str, Array]
    outline: Any

    @classmethod
    def of(cls, payload: bytes) -> Self:
        """Parse the payload of a picture.

        Raises:
            ValueError: the payload cannot be read.
        """
        description, arrays = unpack(payload)
        if "points" in arrays and _LAYOUT_DIGEST.fullmatch(str(description.get("of"))):
            # Ignore the digest of measured values, because rounding errors change it completely.
            description["of"] = ""
        try:
            return cls(leaves(description), arrays, outline(description))
        except RecursionError:
            raise ValueError("The description of the view is nested too deeply.") from None

    def attention(self) -> Array:
        """Return the attention of a head view, sent or computed from queries and keys; otherwise empty."""
        if {"queries", "keys"} <= self.arrays.keys():
            return attention_of_vectors(self.arrays, self.leaves["scaling"])
        return self.arrays.get("weights", np.empty((0, 0))).astype(np.float64)


@dataclass(frozen=True, eq=False)
class ViewNumbers:
    """All values of a computed view, in its result, table, provenance and picture.

    Attributes:
        result: the result of the question.
        table: the table of the result.
        provenance: strings and numbers in the provenance, by path, without machine-dependent entries.
        picture: the picture of the view, or None.
    """

    result: Result
    table: ReportTable
    provenance: Mapping[str, Any]
    picture: Page | None

    @classmethod
    def of(cls, view: ViewFile, answered: AnsweredView) -> Self:
        """Collect the values of an answer, and draw the picture that the view specifies.

        Raises:
            SelectionError: the parameters of the picture do not fit the text or the model.
            UnavailableError: this type of picture does not exist for the number of texts.
            ReportError: the table is too large for a report.
        """
        result = answered.result
        table = result.table()
        cells = len(table) * (len(table.columns) + (table.index.name is not None))
        if cells > MAX_CELLS:
            raise ReportError(
                f"its table has {cells:,} cells, but at most {MAX_CELLS:,} are allowed in a report. Choose a "
                "shorter text, or fewer layers and heads."
            )
        converted = ReportTable.of(table)
        if converted.characters > MAX_TABLE_CHARACTERS:
            raise ReportError(
                f"the texts in its table have {converted.characters:,} characters, but at most "
                f"{MAX_TABLE_CHARACTERS:,} are allowed in a report. Choose shorter texts."
            )
        picture = _draw_picture(view, answered)
        return cls(result, converted, portable_leaves(result.provenance), picture)

    def payloads(self) -> list[PicturePayload]:
        """Return the parsed payloads of the picture; [] if there is no picture."""
        if self.picture is None:
            return []
        return [PicturePayload.of(payload) for payload in self.picture.payloads]


def portable_leaves(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a provenance by path, without machine-dependent entries."""

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
    """The tolerances of the values of a view.

    Attributes:
        table: the tolerance for each column, or for the matrix.
        provenance: the tolerance for each float in the provenance.
        payloads: for each payload of the picture, the tolerances for its arrays and leaves.
        attention: for each payload, the tolerance for the sum of the absolute differences in a row of
            `PicturePayload.attention`. Reports do not contain it.
    """

    table: tuple[Tolerance, ...] = ()
    provenance: tuple[Tolerance, ...] = ()
    payloads: tuple[tuple[Tolerance, ...], ...] = ()
    attention: tuple[Tolerance, ...] = ()

    @classmethod
    def of(cls, single: ViewNumbers, double: ViewNumbers) -> Self:
        """Compute the tolerances of a view from its values as requested and in float64."""
        pairs = [*zip(single.payloads(), double.payloads(), strict=False)]
        return cls(
            of_table(single.table, double.table),
            of_leaves(single.provenance, double.provenance),
            tuple(
                (
                    *of_arrays(payload.arrays, other.arrays),
                    *of_leaves(payload.leaves, other.leaves),
                )
                for payload, other in pairs
            ),
            tuple(_from_rows(payload.attention(), other.attention()) for payload, other in pairs),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the tolerances as a JSON object with the keys of the report format."""
        return {
            "table": [tolerance.to_json() for tolerance in self.table],
            "said": [tolerance.to_json() for tolerance in self.provenance],
            "drawn": [[tolerance.to_json() for tolerance in payload] for payload in self.payloads],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse and check the JSON of tolerances.

        Raises:
            ReportError: the value does not have the format of tolerances.
        """
        with parse_object(value, "The tolerances in the report") as parsed:
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
    """Opens the models to which views refer, and their float64 copies, each only once.

    Attributes:
        open: callback that opens a model, after asking the user for consent if needed.
        as_named: whether checkpoints are renamed to the name and revision in the view, even if they were
            opened from another source, so that results, code and captions equal those in the report.
    """

    open: Callable[[ModelReference], Checkpoint]
    _opened: dict[ModelReference, Checkpoint] = field(default_factory=dict)
    _references: dict[ModelReference, Checkpoint] = field(default_factory=dict)
    _calibrations: dict[Hashable, SimilarityCalibrationResult] = field(default_factory=dict)
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
            ProbeError: a model cannot be opened, for example because there is not enough memory.
        """
        # Imported here, because importing torch takes seconds.
        from bert_probe.model.from_model import float64_reference

        for model, checkpoint in zip(view.models, self.of(view), strict=True):
            if model not in self._references:
                is_float64 = model.dtype == "float64"
                self._references[model] = checkpoint if is_float64 else float64_reference(checkpoint)
        return [self._references[model] for model in view.models]

    def computed(
        self, view: ViewFile, progress: Progress = no_progress
    ) -> tuple[ViewNumbers, ViewTolerances]:
        """Compute the values of a view, and their tolerances from a second computation in float64.

        Args:
            view: the view to compute.
            progress: progress callback; an exception that it raises cancels the computation.

        Raises:
            ProbeError: a model cannot be opened, or the question cannot be answered.
        """
        single, double = (
            ViewNumbers.of(view, self._answer(view, models, progress))
            for models in (self.of(view), self.float64_references(view))
        )
        return single, ViewTolerances.of(single, double)

    def _answer(self, view: ViewFile, models: Sequence[Checkpoint], progress: Progress) -> AnsweredView:
        """Answer a view's question; calibrate sentence similarities with reference sentences."""
        answered = view.answer(*models, progress=progress)
        result = answered.result
        if isinstance(result, SentenceSimilarityResult | SentencesResult):
            result = calibrate_result(result, models[0], progress, self._calibrations)
        return replace(answered, result=result)


def _rename(checkpoint: Checkpoint, model: ModelReference) -> Checkpoint:
    description = replace(
        checkpoint.initial_description, name=model.name or BUILT_IN, revision=model.revision or None
    )
    return replace(checkpoint, initial_description=description)


def _draw_picture(view: ViewFile, answered: AnsweredView) -> Page | None:
    """Draw the picture of a view; return None if the view has no picture."""
    if view.drawn:
        return _draw_attention(view, answered.traces)
    return pictures.page(answered.result) if pictures.is_drawn(answered.result) else None


def _draw_attention(view: ViewFile, traces: Sequence[Trace]) -> Page:
    """Draw attention as lines between tokens for the selected heads, or as thumbnails of all heads."""
    parameters = dict(view.drawn)
    kind = parameters.pop("as", "")
    if len(traces) != 1 or kind not in pictures.ATTENTION_PICTURES:
        raise UnavailableError(
            f"A picture of the type {kind[:60]!r} cannot be drawn for {len(traces):,} texts. Use one text, "
            f"and one of the types {', '.join(pictures.ATTENTION_PICTURES)}."
        )
    trace = traces[0]
    selection, unknown = from_address(parameters, trace)
    if unknown:
        raise SelectionError(
            f"The {unknown[0].parameter} {unknown[0].value[:60]} does not exist in this model and text."
        )
    return pictures.attention_page(kind, trace, selection)
