"""A result: the answer to a question, which knows what was asked, of whom, and how to ask again."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from bert_probe.core import files, snippets
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Array
from bert_probe.text.truncation import truncate_text

if TYPE_CHECKING:
    import bert_probe

_MAX_NOTEBOOK_CELLS = 20
"""Rows and columns that a notebook shows."""


@dataclass(frozen=True, eq=False, repr=False)
class Result(ABC):
    """Base of all results. Frozen; its arrays are read-only.

    Attributes:
        question: what was asked, resolved: every layer, head and token an index from 0.
        inputs: the model and the texts that it is about.
    """

    question: Question
    inputs: InputRecord

    @abstractmethod
    def frame(self) -> pd.DataFrame:
        """The table without its provenance; `table` is what people want."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What a file should say beside the table, and the question does not: a difference, a spread."""
        return {}

    @property
    def provenance(self) -> dict[str, Any]:
        """Model, digest, libraries, texts, and what was asked, as people count."""
        facts = {"facts": dict(self.metadata)} if self.metadata else {}
        return {**self.inputs.record, "question": self.question.to_json(), **facts}

    def table(self) -> pd.DataFrame:
        """The numbers as a DataFrame; ``frame.attrs["provenance"]`` says where they come from."""
        return self._with_provenance(self.frame())

    def parts(self) -> Iterator[pd.DataFrame]:
        """`table` in pieces of rows, for one too large to hold at once."""
        yield self.table()

    def joined(self, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """`table`, of all its `parts`."""
        return parts[0] if len(parts) == 1 else self._with_provenance(pd.concat(parts, ignore_index=True))

    def _with_provenance(self, frame: pd.DataFrame) -> pd.DataFrame:
        frame.attrs["provenance"] = self.provenance
        return frame

    def showing(self, **facets: Any) -> Self:
        """The same answer with another table: other values for facets of the question.

        Raises:
            SelectionError: a field that is no facet, for which it would have to be computed again.
        """
        free = {field.name for field in fields(self.question) if field.metadata["display_only"]}
        if set(facets) - free:
            names = ", ".join(sorted(set(facets) - free))
            raise SelectionError(
                f"{names} changes the answer itself. Ask {type(self.question).__name__} anew."
            )
        return replace(self, question=self.resolve(replace(self.question, **facets)))

    def resolve(self, question: Any) -> Any:
        """Facets resolved; a result whose facets name tokens finds them in its text."""
        return question

    def save(self, path: str | Path, csv_safe: bool = False, overwrite: bool = True) -> list[Path]:
        """Write the table in the format of the file's ending: .csv, .json, .parquet or .npz.

        A file that is there is replaced, as pandas does it, but whole or not at all, and keeps its
        permissions.

        Args:
            csv_safe: for spreadsheets: in CSV a ' goes before text that begins with = + - @ ', a tab or a
                line end, so that it is no formula; the second file says so. Numbers stay as they are.
            overwrite: False refuses to replace a file.

        Returns:
            The files written; CSV has its provenance in a second one.

        Raises:
            ExportError: an unknown ending, a place that cannot be written, or, not to be overwritten, taken.
        """
        return files.save(self.table(), path, csv_safe, overwrite)

    def show(self) -> bert_probe.Frame:
        """Its picture in a notebook: heatmaps, as its page has them; `save` of what is returned writes it.

        Raises:
            UnavailableError: there is no picture of it.
        """
        import bert_probe

        return bert_probe.show(self)

    @property
    def python(self) -> str:
        """A script whose last line makes this table again."""
        return self.snippets()[0]

    @property
    def shell(self) -> str:
        """The command that prints this table again."""
        return self.snippets()[1]

    @property
    def http(self) -> str:
        """The request that gives this table again, for curl."""
        return snippets.http(self.question, self.inputs)

    def snippets(self, csv_safe: bool = False) -> tuple[str, str]:
        """Both, in Python and in the shell.

        Args:
            csv_safe: they write CSV in which no text is a formula.
        """
        asked = self.question, self.inputs, csv_safe
        return snippets.python(*asked), snippets.shell(*asked)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays and texts that it holds."""
        return _count_bytes(self.inputs.texts) + sum(
            _count_bytes(getattr(self, field.name)) for field in fields(self)
        )

    def __repr__(self) -> str:
        texts = [text.get("text") for text in self.inputs.texts]
        of = ", ".join(f"“{truncate_text(text)}”" for text in texts if text)
        if self.inputs.sentences:
            of = f"{self.inputs.sentences['sentences']:,} sentences"
        models = ", ".join(str(model.get("model", "given")) for model in self.inputs.models)
        return f"<{self.question!r} of {of or 'the model'} · {models}>"

    def _repr_html_(self) -> str:
        table = self.table()
        html: str = table.to_html(max_rows=_MAX_NOTEBOOK_CELLS, max_cols=_MAX_NOTEBOOK_CELLS, notebook=True)
        return html


def save(
    shown: Result | pd.DataFrame, path: str | Path, csv_safe: bool = False, overwrite: bool = True
) -> list[Path]:
    """Write a result, or a table of one, in the format of the file's ending; see `Result.save`.

    Raises:
        ExportError: an unknown ending, a place that cannot be written, or, not to be overwritten, taken.
    """
    return files.save(shown.table() if isinstance(shown, Result) else shown, path, csv_safe, overwrite)


def _count_bytes(value: Any) -> int:
    if isinstance(value, Array):
        return value.nbytes
    if isinstance(value, str):
        return sys.getsizeof(value)
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    return sum(map(_count_bytes, value)) if isinstance(value, tuple) else 0
