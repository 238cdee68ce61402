"""Inputs of evaluations: files, and an optional second model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_probe.core.inputs import DOCUMENTS, JUDGMENTS, FileInput, Files, InputValues, load_two
from bert_probe.core.provenance import InputRecord


@dataclass(frozen=True)
class EvaluationFiles(Files):
    """Input type of evaluations: files, and an optional second model."""

    has_other = True

    def arguments(self, values: InputValues) -> list[Any]:
        """Return the checkpoint, the files, whether to truncate texts, and the other checkpoint or None."""
        files = (values.files.get(name) for name in self.files_by_name)
        other = next(iter(values.checkpoints[1:]), None)
        return [*values.checkpoints[:1], *files, values.truncate, other]

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return statements that load the models and read each file, and the arguments as code."""
        lines, arguments = super().python(record)
        if not record.other:
            return lines, arguments
        return [*load_two(record), *lines[1:]], f"{arguments}, other=other"

    def __hash__(self) -> int:
        return super().__hash__()


_JUDGED_FILES = {
    "documents": FileInput(
        "--documents", True, (DOCUMENTS,), "File with the documents; by default corpus.jsonl."
    ),
    "queries": FileInput("--queries", True, (DOCUMENTS,), "File with the queries; by default queries.jsonl."),
    "judgments": FileInput(
        "--judgments",
        True,
        (JUDGMENTS,),
        "File with the relevance judgments; by default qrels.tsv or qrels/test.tsv.",
    ),
}


@dataclass(frozen=True)
class JudgedQueries(EvaluationFiles):
    """Documents, queries and the documents that are relevant to each query."""

    files_by_name: Mapping[str, FileInput] = field(default_factory=lambda: _JUDGED_FILES)

    has_folder = True

    def __hash__(self) -> int:
        return super().__hash__()
