"""A reader's own files within a view: tagged sentences and labelled texts, written to be read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Self

from bert_probe.core.provenance import describe_file
from bert_probe.errors import ProbeError, ReportError, UnavailableError
from bert_probe.reports.json_reader import given
from bert_probe.text.labeled_texts import KINDS, LabeledTexts, parse_labeled_texts
from bert_probe.text.sentence_files import is_table
from bert_probe.text.tables import as_file
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences

MOST_BYTES: Final = 3_000_000
"""Of all files of a view, or of its sentences: two treebanks of 2,000 sentences each."""

Rows = LabeledTexts | Sequence[TaggedSentence]


@dataclass(frozen=True)
class Attachment:
    """A file, whole.

    Attributes:
        file: its name, whose ending says how it is read.
        content: what is in it.
        kind: of the labels in a table, one of `KINDS`; "" for tagged sentences.
    """

    file: str
    content: str
    kind: str = ""

    @classmethod
    def of(cls, rows: Rows, told: Mapping[str, Any]) -> Self:
        """What a question was asked of.

        Args:
            told: what the provenance of the answer says of it.

        Raises:
            UnavailableError: rows that do not read again as they are, such as a word with a space at its end.
        """
        held = cls(told["file"], as_file(rows).decode(), told.get("kind", ""))
        try:
            again = describe_file("", held.rows())["sha256"]
        except ProbeError:
            again = ""
        if again != told["sha256"]:
            raise UnavailableError(
                f"What is in {held.file} is not what was asked about, or reads otherwise when it is written "
                "anew, so no view file holds it. Save the table, or its lines of Python beside the file."
            )
        return held

    @classmethod
    def from_json(cls, held: Any) -> Self:
        """What `plain` made, checked.

        Raises:
            ReportError: it is something else.
        """
        with given(held, "A file in this view") as one:
            file = cls(one.text("file"), one.text("content"), one.text("kind"))
        if file.file != PurePath(file.file).name or not file.file or "\\" in file.file or "\0" in file.file:
            raise ReportError(f"A file in this view is called {file.file[:60]!r}, which is no file's name.")
        # A ZIP of a report writes the file beside its own, such as code.py, which the reader may run.
        if PurePath(file.file).suffix not in (".csv", ".conll", ".conllu"):
            raise ReportError(
                f"A file in this view is called {file.file[:60]!r}. Its name must end in .csv, .conll or "
                ".conllu."
            )
        if is_table(file.file) != (file.kind in KINDS):
            raise ReportError(f"{file.file[:60]} in this view says {file.kind[:60]!r} as its kind of labels.")
        return file

    def to_json(self) -> dict[str, str]:
        """For JSON."""
        said = {"file": self.file, "content": self.content, "kind": self.kind}
        return {name: value for name, value in said.items() if value}

    def rows(self) -> Rows:
        """What is in it.

        Raises:
            TextError, EmptyTextError: it cannot be read.
        """
        content = self.content.encode("utf-8", "surrogatepass")
        return (
            parse_labeled_texts(content, self.file, self.kind)
            if self.kind
            else parse_tagged_sentences(content, self.file)
        )


def held_of(data: Mapping[str, Rows], told: Mapping[str, Mapping[str, Any]]) -> dict[str, Attachment]:
    """Each file of an answer, by the name of its argument.

    Args:
        data: what was asked about.
        told: what the answer's provenance says of it.

    Raises:
        UnavailableError: it is not at hand, does not read again as it is, or is too large.
    """
    if not told.keys() <= data.keys():
        raise UnavailableError(
            "This was asked of a file, which is not at hand any more. Save its table, or its lines of Python "
            "beside the file."
        )
    held = {name: Attachment.of(data[name], one) for name, one in told.items()}
    check_size(sum(len(one.content.encode("utf-8", "surrogatepass")) for one in held.values()))
    return held


def check_size(count: int, error: type[ProbeError] = UnavailableError) -> None:
    """Refuse more bytes than `MOST_BYTES`."""
    if count > MOST_BYTES:
        raise error(
            f"The texts that this is asked of have {count / 1e6:.1f} MB, and a view file holds at most "
            f"{MOST_BYTES / 1e6:.0f} MB of them. Give a part, or save the table and its lines of Python."
        )
