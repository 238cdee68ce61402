"""A result: the answer to a question, with its provenance and the code that reproduces it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from bert_probe.core import files, snippets
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question
from bert_probe.errors import SelectionError
from bert_probe.text.words import truncate_text

if TYPE_CHECKING:
    import bert_probe

_MAX_NOTEBOOK_CELLS = 20
"""Maximum number of rows and maximum number of columns of a table that a notebook shows."""


def without_nan(value: Any) -> Any:
    """Return a JSON value with null in place of NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value


@dataclass(frozen=True)
class SortOrder:
    """The order of a table whose rows are sorted by a measured number, in either direction.

    Attributes:
        column: name of the column with the number.
        by_magnitude: whether the rows are sorted by the absolute value of the number.
        within: name of a column that divides the rows into consecutive groups, each of which is sorted; "" if
            the whole table is sorted.
    """

    column: str
    by_magnitude: bool = False
    within: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Result(ABC):
    """Base class of all results. Results are frozen, and their arrays are read-only.

    Attributes:
        question: the resolved question, in which every layer, head and token is an index from 0.
        inputs: the model and the texts from which the result was computed.
    """

    question: Question
    inputs: InputRecord

    @abstractmethod
    def frame(self) -> pd.DataFrame:
        """Return the table without provenance. Subclasses implement this method; callers use `table`."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Additional values that are saved with the table, such as a standard deviation."""
        return {}

    @property
    def provenance(self) -> dict[str, Any]:
        """Model, digest, libraries, texts and question of the result; layers and heads count from 1."""
        metadata = {"facts": without_nan(dict(self.metadata))} if self.metadata else {}
        return {**self.inputs.record, "question": self.question.to_json(), **metadata}

    @property
    def sort_order(self) -> SortOrder | None:
        """The measured number by which the rows of the table are sorted; None if they have another order.

        Rounding may change the order of rows with nearly equal numbers.
        """
        return None

    def table(self) -> pd.DataFrame:
        """Return the result as a DataFrame with its provenance in ``frame.attrs["provenance"]``."""
        return self._with_provenance(self.frame())

    def parts(self) -> Iterator[pd.DataFrame]:
        """Yield the table in blocks of rows, so that a large table need not fit into memory."""
        yield self.table()

    def joined(self, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Concatenate all `parts` of the result into the table that `table` returns."""
        return parts[0] if len(parts) == 1 else self._with_provenance(pd.concat(parts, ignore_index=True))

    def _with_provenance(self, frame: pd.DataFrame) -> pd.DataFrame:
        frame.attrs["provenance"] = self.provenance
        return frame

    def showing(self, **values: Any) -> Self:
        """Return this result with new values for display-only fields of the question.

        Display-only fields change the table, but not the computation.

        Raises:
            SelectionError: a field is not display-only, so a new value would need a new computation.
        """
        display_only = {field.name for field in fields(self.question) if field.metadata["display_only"]}
        if set(values) - display_only:
            names = ", ".join(sorted(set(values) - display_only))
            raise SelectionError(
                f"{names} changes the computation, not only the table. "
                f"Compute a new {type(self.question).__name__}."
            )
        return replace(self, question=self.resolve(replace(self.question, **values)))

    def resolve(self, question: Any) -> Any:
        """Resolve the display-only fields of a question; overridden if these fields select tokens."""
        return question

    def save(self, path: str | Path, csv_safe: bool = False, overwrite: bool = True) -> list[Path]:
        """Write the table in the format of the file's suffix: .csv, .json, .parquet or .npz.

        An existing file is replaced, completely or not at all, and keeps its permissions.

        Args:
            csv_safe: whether to insert a ' before text that begins with = + - @ ', a tab or a line end, to
                keep spreadsheets from running it as a formula. Numbers are unchanged.
            overwrite: whether to replace an existing file.

        Returns:
            The files written; for CSV, the second file contains the provenance.

        Raises:
            ExportError: the suffix is unknown, or a file cannot be written or must not be replaced.
        """
        return files.save(self.table(), path, csv_safe, overwrite)

    def show(self) -> bert_probe.Frame:
        """Return the figure for a notebook, such as heatmaps; its method `save` writes it to a file.

        Raises:
            UnavailableError: this result has no figure.
        """
        import bert_probe

        return bert_probe.show(self)

    @property
    def python(self) -> str:
        """A Python script whose last line computes the table of this result."""
        return self.snippets()[0]

    @property
    def shell(self) -> str:
        """The shell command that prints the table of this result."""
        return self.snippets()[1]

    @property
    def http(self) -> str:
        """The curl command that requests the table of this result from the HTTP API."""
        return snippets.http(self.question, self.inputs)

    def snippets(self, csv_safe: bool = False) -> tuple[str, str]:
        """Return a Python script and a shell command that compute the table of this result.

        Args:
            csv_safe: whether the code escapes CSV cells that a spreadsheet would read as formulas.
        """
        arguments = self.question, self.inputs, csv_safe
        return snippets.python(*arguments), snippets.shell(*arguments)

    @property
    def nbytes(self) -> int:
        """Size of the arrays, texts and traces in bytes."""
        return sum(count_bytes(getattr(self, field.name)) for field in fields(self))

    def __repr__(self) -> str:
        texts = [text.get("text") for text in self.inputs.texts]
        source = ", ".join(f"“{truncate_text(text)}”" for text in texts if text)
        if self.inputs.sentences:
            source = f"{self.inputs.sentences['sentences']:,} sentences"
        models = ", ".join(str(model.get("model", "given")) for model in self.inputs.models)
        return f"<{self.question!r} of {source or 'the model'} · {models}>"

    def _repr_html_(self) -> str:
        table = self.table()
        html: str = table.to_html(max_rows=_MAX_NOTEBOOK_CELLS, max_cols=_MAX_NOTEBOOK_CELLS, notebook=True)
        return html


def save(
    result: Result | pd.DataFrame, path: str | Path, csv_safe: bool = False, overwrite: bool = True
) -> list[Path]:
    """Write a result or its table in the format of the file's suffix; see `Result.save`.

    Raises:
        ExportError: the suffix is unknown, or a file cannot be written or must not be replaced.
    """
    return files.save(result.table() if isinstance(result, Result) else result, path, csv_safe, overwrite)


def count_bytes(value: Any) -> int:
    """Return the size in bytes of a value with its fields and items, each counted as often as it occurs."""
    size = getattr(value, "nbytes", None)  # of an array, a trace or another result
    if isinstance(size, int):
        return size
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = (part for item in value.items() for part in item)
    elif is_dataclass(value):
        parts = (getattr(value, field.name) for field in fields(value))
    elif isinstance(value, tuple | list):
        parts = value
    elif isinstance(value, str):  # a sentence or document with attributes
        parts = getattr(value, "__dict__", {}).values()
    return sys.getsizeof(value) + sum(map(count_bytes, parts))
