"""Compute all numeric values of a view, in its table, provenance and picture, and their tolerances."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pandas as pd

from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarityResult
from bert_probe.analyses.retrieval.calibration import SimilarityCalibrationResult, calibrate_result
from bert_probe.analyses.vectors.sentences import SentenceMap, Sentences, SentencesResult
from bert_probe.core.question import Question
from bert_probe.core.result import Result
from bert_probe.errors import ReportError, SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Array, Trace
from bert_probe.reports.json_reader import parse_object
from bert_probe.reports.tables import MAX_CELLS, MAX_TABLE_CHARACTERS, ReportTable, format_cell
from bert_probe.reports.tolerances import Tolerance, of_arrays, of_leaves, of_table, with_rounding
from bert_probe.reports.view_files import AnsweredView, ModelReference, ViewFile
from bert_probe.runtime.permissions import MAX_TEXTS
from bert_probe.views import pictures
from bert_probe.views.head_view import attention_of_vectors
from bert_probe.views.page import Page
from bert_probe.views.payload import unpack
from bert_probe.views.selection import from_address

_BLOCK: Final = 2_000_000
"""Maximum number of attention weights that are computed at once. 8,192 tokens have 67 million per head."""

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

    The outline is compared in addition to `leaves`, because the paths of `leaves` are ambiguous: they do not
    distinguish a list from an object, or ``{"a": {"b": 1}}`` from ``{"a.b": 1}``.
    """
    if isinstance(value, Mapping):
        return {"object": [[str(name), outline(child)] for name, child in value.items()]}
    if isinstance(value, list | tuple):
        return [outline(child) for child in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if value is None else type(value).__name__


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

ROWS, RECEIVED = "rows of attention", "received attention"
"""Names of the tolerances of sums of attention."""

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

    @property
    def row_axis(self) -> str:
        """The name of the rows of a matrix; "" for other pictures."""
        return str(self.leaves.get("rowAxis", ""))

    def attention(self) -> Iterator[tuple[int, Array]]:
        """Yield the index of a head, and the values of the attention measure for a block of its queries.

        The values are float64 of shape [query, key]. They are part of the payload, or are computed from its
        queries and keys as in the browser.
        """
        arrays = self.arrays
        is_computed = {"queries", "keys"} <= arrays.keys()
        rows = arrays.get("queries" if is_computed else "weights", np.empty((0, 0, 0)))
        heads, queries = rows.shape[:2]
        size = max(1, _BLOCK // max(1, queries))
        for head in range(heads):
            for start in range(0, queries, size):
                block = slice(start, start + size)
                if is_computed:
                    yield head, attention_of_vectors(arrays, self.leaves["scaling"], head, block)
                else:
                    yield head, rows[head, block].astype(np.float64)

    def compare_attention(self, other: Self, check: Callable[[], object]) -> AttentionSums:
        """Return sums of the attention of this payload and another one of the same shape.

        Args:
            check: called for each block; an exception from this callback ends the work.
        """
        distances, sizes = [], []
        columns: dict[int, Array] = {}
        for (head, left), (_, right) in zip(self.attention(), other.attention(), strict=True):
            check()
            distances.append(np.nansum(np.abs(left - right), axis=1))
            sizes.append(np.nansum(np.abs(right), axis=1))
            columns[head] = columns.get(head, 0) + np.nansum(np.stack([left, right]), axis=1)
        if not columns:
            empty = np.empty((0, 0))
            return AttentionSums(empty, empty, empty, empty)
        rows = np.stack([np.concatenate(arrays) for arrays in (distances, sizes)])
        by_query = rows.reshape(2, len(columns), -1)
        by_key = np.stack([*columns.values()], axis=1)
        return AttentionSums(by_query[0], by_query[1], by_key[0], by_key[1])


class AttentionSums(NamedTuple):
    """Sums of the attention of two payloads, each of shape [head, token].

    Attributes:
        distances: sum of the absolute differences in the row of each query.
        sizes: sum of the absolute weights in each row of the second payload.
        received, other_received: sum of the weights of each key, over all queries, in each payload.
    """

    distances: Array
    sizes: Array
    received: Array
    other_received: Array


@dataclass(frozen=True, eq=False)
class ViewNumbers:
    """All values of a computed view, in its result, table, provenance and picture.

    Attributes:
        result: the result of the question.
        frame: the table of the result as a DataFrame.
        table: the same table, with cells that JSON can represent.
        provenance: strings and numbers in the provenance, by path, without machine-dependent entries.
        picture: the picture of the view, or None.
    """

    result: Result
    frame: pd.DataFrame
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
        frame = _table_of(result)
        converted = ReportTable.of(frame)
        if converted.characters > MAX_TABLE_CHARACTERS:
            raise ReportError(
                f"the texts in its table have {converted.characters:,} characters, but at most "
                f"{MAX_TABLE_CHARACTERS:,} are allowed in a report. Choose shorter texts."
            )
        picture = _draw_picture(view, answered)
        return cls(result, frame, converted, portable_leaves(result.provenance), picture)

    def payloads(self) -> list[PicturePayload]:
        """Return the parsed payloads of the picture; [] if there is no picture."""
        if self.picture is None:
            return []
        return [PicturePayload.of(payload) for payload in self.picture.payloads]


def _table_of(result: Result) -> pd.DataFrame:
    """Return the table of a result. Blocks of rows are computed only until they exceed `MAX_CELLS`."""
    parts: list[pd.DataFrame] = []
    cells = 0
    for part in result.parts():
        parts.append(part)
        cells += len(part) * (len(part.columns) + (part.index.name is not None))
        if cells > MAX_CELLS:
            raise ReportError(
                f"its table has more than {MAX_CELLS:,} cells, the maximum in a report. Choose a shorter "
                "text, or fewer layers and heads."
            )
    return result.joined(parts)


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
        table: the tolerance for each group of numbers; see `tolerances.table_groups`.
        provenance: the tolerance for each float in the provenance.
        payloads: for each payload of the picture, the tolerances for its arrays and leaves.
        attention: for each payload, the tolerance for the sum of the absolute differences in a row of
            attention, and for the sum of the attention that a token receives. Reports do not contain these.
    """

    table: tuple[Tolerance, ...] = ()
    provenance: tuple[Tolerance, ...] = ()
    payloads: tuple[tuple[Tolerance, ...], ...] = ()
    attention: tuple[tuple[Tolerance, Tolerance], ...] = ()

    @classmethod
    def of(cls, single: ViewNumbers, double: ViewNumbers, progress: Progress = no_progress) -> Self:
        """Compute the tolerances of a view from its values as requested and in float64."""
        pairs = [*zip(single.payloads(), double.payloads(), strict=False)]
        bound = single.provenance.get("facts.rounding_explains")
        return cls(
            with_rounding(of_table(single.table, double.table), bound),
            with_rounding(of_leaves(single.provenance, double.provenance), bound),
            tuple(
                (
                    *of_arrays(payload.arrays, other.arrays, payload.row_axis),
                    *of_leaves(payload.leaves, other.leaves),
                )
                for payload, other in pairs
            ),
            tuple(
                _of_attention(payload.compare_attention(other, lambda: progress(0, 0)))
                for payload, other in pairs
            ),
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


def _of_attention(sums: AttentionSums) -> tuple[Tolerance, Tolerance]:
    differences = np.abs(sums.received - sums.other_received)
    received = np.abs(sums.other_received)
    return (
        Tolerance(ROWS, *(float(array.max(initial=0.0)) for array in (sums.sizes, sums.distances))),
        Tolerance(RECEIVED, *(float(array.max(initial=0.0)) for array in (received, differences))),
    )


_MAX_SENTENCES: Final[Mapping[type[Question], int]] = {Sentences: 1_000, SentenceMap: 2_000}
"""Maximum number of sentences in a view of a report of the app, for questions whose time or memory grows with
the square of this number.
"""


@dataclass
class NamedModels:
    """Opens the models to which views refer, and their float64 copies, each only once.

    Attributes:
        open: callback that opens a model, after asking the user for consent if needed.
        as_named: whether checkpoints get the name and revision in the view, even if they were opened from
            another source. Results, captions and generated code then equal those in the report.
        is_limited: whether the limits of the app apply to the questions; see `ViewFile.answer`.
    """

    open: Callable[[ModelReference], Checkpoint]
    _opened: dict[ModelReference, Checkpoint] = field(default_factory=dict)
    _references: dict[ModelReference, Checkpoint] = field(default_factory=dict)
    _calibrations: dict[Hashable, SimilarityCalibrationResult] = field(default_factory=dict)
    as_named: bool = False
    is_limited: bool = False

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
        return single, ViewTolerances.of(single, double, progress)

    def _answer(self, view: ViewFile, models: Sequence[Checkpoint], progress: Progress) -> AnsweredView:
        """Answer a view's question; calibrate sentence similarities with reference sentences."""
        if self.is_limited:
            maximum = _MAX_SENTENCES.get(type(view.asked_of(models[0])), len(view.sentences))
            for count, allowed, name in (
                (len(view.sentences), maximum, "sentences"),
                (len(view.texts), MAX_TEXTS, "texts"),
            ):
                if count > allowed:
                    raise ReportError(
                        f"it has {count:,} {name}, but at most {allowed:,} are allowed in a report of the "
                        f"app. Use fewer {name}, or create the report with bert-probe report."
                    )
        answered = view.answer(*models, progress=progress, is_limited=self.is_limited)
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
