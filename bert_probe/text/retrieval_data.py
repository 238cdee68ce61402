"""Read documents, queries and relevance judgments for retrieval evaluation, in BEIR or TREC format."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Self

from bert_probe.errors import EmptyTextError, TextError
from bert_probe.text.documents import DocumentList, read_documents
from bert_probe.text.formats import ValidationErrors
from bert_probe.text.labeled_texts import parse_number
from bert_probe.text.sentence_files import is_dir, is_file, lines_of, open_file, unpack

_HEADERS = (("query-id", "corpus-id", "score"), ("query_id", "corpus_id", "score"))
_FORMAT = (
    "Write one judgment per line: query-id, corpus-id and score, separated by tabs, or the four columns of "
    "TREC"
)
_FILES: Mapping[str, tuple[str, ...]] = {
    "documents": tuple(f"corpus{ending}" for ending in (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")),
    "queries": tuple(f"queries{ending}" for ending in (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")),
    "judgments": ("qrels.tsv", "qrels/test.tsv", "qrels.tsv.gz", "qrels.tsv.zst", "qrels/test.tsv.gz"),
}
"""Paths, within a folder in BEIR layout, at which each argument of `RetrievalEvaluation.of` may be stored.

Earlier paths take precedence.
"""
MAX_GRADE = 1_000
"""Maximum grade of a judgment."""


@dataclass(frozen=True, eq=False)
class Judgments:
    """Relevance judgments of documents for queries (qrels).

    Attributes:
        grades: grade of each judged document, by query ID and document ID; a grade above 0 means relevant.
        digest: SHA-256 of the judgments, which does not depend on their order or format.
    """

    grades: Mapping[str, Mapping[str, int]]
    digest: str

    @classmethod
    def of(cls, grades: Mapping[str, Mapping[str, int]]) -> Self:
        """Create judgments, and compute their digest."""
        frozen = {query: MappingProxyType(dict(documents)) for query, documents in grades.items()}
        judgments = cls(MappingProxyType(frozen), "")
        object.__setattr__(judgments, "digest", hashlib.sha256(judgments.content).hexdigest())
        return judgments

    def __len__(self) -> int:
        """Return the number of judgments."""
        return sum(map(len, self.grades.values()))

    @property
    def content(self) -> bytes:
        """The judgments as TSV with a header, sorted by query and document."""
        lines = ["\t".join(_HEADERS[0])]
        for query, documents in sorted(self.grades.items()):
            lines += [f"{query}\t{document}\t{grade}" for document, grade in sorted(documents.items())]
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")


def read_judgments(file: str | Path) -> Judgments:
    """Read judgments from a file, which may be compressed (.gz, .zst).

    In BEIR format, a line has the columns query-id, corpus-id and score, separated by tabs; a header is
    optional. In TREC format, a line has the query, an ignored column, the document and the grade, separated
    by spaces or tabs.

    Raises:
        TextError: the file cannot be opened or is not UTF-8, or has invalid lines, which are listed.
        EmptyTextError: the file has no judgments.
    """
    with open_file(file) as (stream, name):
        return _read(stream, name)


def parse_judgments(content: bytes, name: str) -> Judgments:
    """Parse judgments from a file's bytes; see `read_judgments`."""
    return _read(io.BytesIO(content), name)


def read_retrieval_data(
    folder: str | Path, skip_broken: bool = False
) -> tuple[DocumentList, DocumentList, Judgments]:
    """Read documents, queries and judgments from a folder in BEIR layout.

    Args:
        folder: path of the folder.
        skip_broken: skip rows without a text or with other errors; see `read_documents`.

    Returns:
        The arguments of `RetrievalEvaluation.of`: documents, queries and judgments.

    Raises:
        TextError: the folder lacks a file; see also `read_documents` and `read_judgments`.
    """
    files = find_retrieval_files(Path(folder))
    return (
        read_documents(files["documents"], skip_broken=skip_broken),
        read_documents(files["queries"], skip_broken=skip_broken),
        read_judgments(files["judgments"]),
    )


def find_retrieval_files(folder: Path, without: Collection[str] = ()) -> dict[str, Path]:
    """Return the paths of the files "documents", "queries" and "judgments" in a folder in BEIR layout.

    Args:
        folder: path of the folder.
        without: keys of optional files. The result lacks the optional files that do not exist.

    Raises:
        TextError: the folder does not exist, or lacks a file that is not optional.
    """
    if not is_dir(folder):
        raise TextError(
            f"{folder} is not a folder. Use a folder with corpus.jsonl, queries.jsonl and qrels.tsv."
        )
    if not os.access(folder, os.X_OK):  # otherwise, the files in it seem to be missing
        raise TextError(f"{folder} cannot be opened: {os.strerror(errno.EACCES)}. Check its permissions.")
    files = {}
    for name, candidates in _FILES.items():
        paths = [folder / candidate for candidate in candidates if is_file(folder / candidate)]
        if not paths and name in without:
            continue
        if not paths:
            raise TextError(
                f"{folder} has none of {', '.join(candidates)}. Add one of these files, or pass a file "
                f"with --{name}."
            )
        files[name] = paths[0]
    return files


def _read(stream: BinaryIO, name: str) -> Judgments:
    errors = ValidationErrors(name)
    grades: dict[str, dict[str, int]] = {}
    with unpack(stream, name) as (unpacked, _):
        for number, line in enumerate(lines_of(unpacked, name), 1):
            cells = _cells(line)
            if not cells or (number == 1 and tuple(cell.casefold() for cell in cells) in _HEADERS):
                continue
            if len(cells) not in (3, 4):
                columns = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
                errors.add(number, f"the line has {columns}, but must have 3 or 4")
                continue
            query, document, grade = cells[0], cells[-2], _grade(cells[-1])
            documents = grades.setdefault(query, {})
            if grade is None:
                errors.add(number, f"the score {cells[-1][:40]!r} is not an integer of at most {MAX_GRADE:,}")
            elif document in documents:
                errors.add(
                    number,
                    f"an earlier line already judges query {query[:60]} and document {document[:60]}",
                )
            else:
                documents[document] = grade
    errors.check()
    if not grades:
        raise EmptyTextError(f"{name} has no judgments. {_FORMAT}.")
    return Judgments.of(grades)


def _cells(line: str) -> list[str]:
    """Split a line into cells: at tabs if this gives at least three cells, otherwise at spaces and tabs."""
    text = line.strip()
    cells = [cell.strip() for cell in text.split("\t")]
    return cells if len(cells) > 2 else text.split()


def _grade(text: str) -> int | None:
    grade, problem = parse_number(text)
    return int(grade) if not problem and grade.is_integer() and abs(grade) <= MAX_GRADE else None
