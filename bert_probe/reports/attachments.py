"""Files within a view file: tagged sentences and labeled texts that its question needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Self

from bert_probe.core.provenance import describe_file
from bert_probe.errors import ProbeError, ReportError, UnavailableError
from bert_probe.reports.json_reader import parse_object
from bert_probe.text.labeled_texts import KINDS, LabeledTexts, parse_labeled_texts
from bert_probe.text.sentence_files import is_table
from bert_probe.text.tables import to_file
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences

MOST_BYTES: Final = 3_000_000
"""Maximum size of all files of a view, or of its sentences: two treebanks of 2,000 sentences each."""

Rows = LabeledTexts | Sequence[TaggedSentence]


@dataclass(frozen=True)
class Attachment:
    """A complete input file.

    Attributes:
        file: name, whose ending determines the format.
        content: text of the file.
        kind: kind of the labels of a table, one of `KINDS`; "" for tagged sentences.
    """

    file: str
    content: str
    kind: str = ""

    @classmethod
    def of(cls, rows: Rows, record: Mapping[str, Any]) -> Self:
        """Create an attachment from the rows that a question was asked about.

        Args:
            rows: labeled texts or tagged sentences.
            record: their provenance in the answer.

        Raises:
            UnavailableError: the written file does not give the same rows, for example because a word ends
                with a space.
        """
        attachment = cls(record["file"], to_file(rows).decode(), record.get("kind", ""))
        try:
            digest = describe_file("", attachment.rows())["sha256"]
        except ProbeError:
            digest = ""
        if digest != record["sha256"]:
            raise UnavailableError(
                f"The content of {attachment.file} is not what the question was asked about, or changes when "
                "it is written to a file, so it cannot be saved in a view file. Save the table, or its "
                "Python code next to the file."
            )
        return attachment

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse and check the JSON of an attachment.

        Raises:
            ReportError: the value is something else, or the name of the file is not safe.
        """
        with parse_object(value, "A file in this view") as parsed:
            attachment = cls(parsed.text("file"), parsed.text("content"), parsed.text("kind"))
        name, kind = attachment.file, attachment.kind
        if name != PurePath(name).name or not name or "\\" in name or "\0" in name:
            raise ReportError(
                f"A file in this view has the name {name[:60]!r}, which is not a valid file name."
            )
        # A ZIP of a report has the file next to its own, such as code.py, which the user may run.
        if PurePath(name).suffix not in (".csv", ".conll", ".conllu"):
            raise ReportError(
                f"A file in this view has the name {name[:60]!r}. It must end in .csv, .conll or .conllu."
            )
        if is_table(name) != (kind in KINDS):
            raise ReportError(f"{name[:60]} in this view has an invalid kind of labels, {kind[:60]!r}.")
        return attachment

    def to_json(self) -> dict[str, str]:
        """Return the attachment for JSON."""
        values = {"file": self.file, "content": self.content, "kind": self.kind}
        return {name: value for name, value in values.items() if value}

    def rows(self) -> Rows:
        """Parse the file.

        Raises:
            TextError: the file cannot be parsed.
            EmptyTextError: the file has no rows.
        """
        content = self.content.encode("utf-8", "surrogatepass")
        if self.kind:
            return parse_labeled_texts(content, self.file, self.kind)
        return parse_tagged_sentences(content, self.file)


def make_attachments(
    data: Mapping[str, Rows], records: Mapping[str, Mapping[str, Any]]
) -> dict[str, Attachment]:
    """Return argument name → attachment for the files of an answer.

    Args:
        data: argument name → rows that the question was asked about.
        records: argument name → provenance of the file in the answer.

    Raises:
        UnavailableError: a file is missing, changes when it is written, or is too large.
    """
    if not records.keys() <= data.keys():
        raise UnavailableError(
            "The file that this was computed from is not available any more. Save the table, or its Python "
            "code next to the file."
        )
    attachments = {name: Attachment.of(data[name], record) for name, record in records.items()}
    contents = (attachment.content for attachment in attachments.values())
    check_size(sum(len(content.encode("utf-8", "surrogatepass")) for content in contents))
    return attachments


def check_size(count: int, error: type[ProbeError] = UnavailableError) -> None:
    """Raise an error for more than `MAX_BYTES` bytes."""
    if count > MOST_BYTES:
        raise error(
            f"The input texts have {count / 1e6:.1f} MB, but a view file can have at most "
            f"{MOST_BYTES / 1e6:.0f} MB. Use fewer texts, or save the table and its Python code."
        )
