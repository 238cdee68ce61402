"""CoNLL and CoNLL-U: a word a line, a blank line after each sentence. A fault costs its sentence alone."""

from __future__ import annotations

from collections.abc import Iterator

from bert_probe.corpus.formats.row import Row, refused
from bert_probe.corpus.lines import MAX_LINE, Line
from bert_probe.text.faults import Faults
from bert_probe.text.tagged import block_reader


def treebank_rows(lines: Iterator[Line], name: str, column: str | None) -> Iterator[Row]:  # noqa: ARG001
    """The sentences of CoNLL-U."""
    return _rows(lines, name, treebank=True)


def column_rows(lines: Iterator[Line], name: str, column: str | None) -> Iterator[Row]:  # noqa: ARG001
    """The sentences of CoNLL."""
    return _rows(lines, name, treebank=False)


def _rows(lines: Iterator[Line], name: str, treebank: bool) -> Iterator[Row]:
    reader = block_reader(treebank)
    for block in _blocks(lines):
        faults = Faults(name)
        for line in block:
            if line.trouble:
                faults.add(line.number, line.trouble)
        sentence = None
        if not faults.count:
            sentence = reader.sentence([(line.number, line.text or "") for line in block], faults)
        if faults.count:
            number, what = faults.found[0]
            yield refused(number, f"{what[0].upper()}{what[1:].rstrip('.')}.")
        elif sentence is not None:
            yield Row(sentence.line, sentence.text, sentence)


def _blocks(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Lines between blank ones. Of one that is too long, the line that makes it so stands for the rest."""
    block: list[Line] = []
    size = 0
    for line in lines:
        if line.trouble or (line.text and line.text.strip()):
            before, size = size, size + len(line.text or "")
            if size <= MAX_LINE:
                block.append(line)
            elif before <= MAX_LINE:
                block.append(Line(line.number, None, f"The sentence is longer than {MAX_LINE:,} characters."))
        else:
            if block:
                yield block
            block, size = [], 0
    if block:
        yield block
