"""Plain text: a sentence a line. Blank lines are no rows."""

from __future__ import annotations

from collections.abc import Iterator

from bert_probe.corpus.formats.row import FileRow, refused
from bert_probe.corpus.lines import InputLine


def rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:  # noqa: ARG001 - as all formats
    """The rows of a text, which has no name and no columns to be wrong."""
    for line in lines:
        if line.trouble or line.text is None:
            yield refused(line.number, line.trouble)
        elif text := line.text.strip():
            yield FileRow(line.number, text)
