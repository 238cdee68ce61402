"""CoNLL and CoNLL-U: a word a line, a blank line after each sentence. A fault costs its sentence alone."""

from __future__ import annotations

from collections.abc import Iterator

from bert_probe.corpus.formats.row import FileRow, refused
from bert_probe.corpus.lines import MAX_LINE, InputLine
from bert_probe.text.tagged_sentences import BlockReader, block_reader
from bert_probe.text.validation import ValidationErrors


def treebank_rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:  # noqa: ARG001
    """The sentences of CoNLL-U."""
    return _rows(lines, name, treebank=True)


def column_rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:  # noqa: ARG001
    """The sentences of CoNLL."""
    return _rows(lines, name, treebank=False)


def places(lines: Iterator[InputLine], treebank: bool) -> Iterator[int]:
    """The line that each sentence begins on, comments included: as many as there are rows, found sooner."""
    reader = block_reader(treebank)
    for block in _blocks(lines):
        # A word of its own, or a fault, makes a row; all else is looked at as a whole.
        if any(line.trouble or _begins(line.text or "") for line in block) or _row(reader, block, ""):
            yield block[0].number


def _begins(line: str) -> bool:
    number, tab, _ = line.partition("\t")
    return bool(tab) and number.isdecimal()


def _rows(lines: Iterator[InputLine], name: str, treebank: bool) -> Iterator[FileRow]:
    reader = block_reader(treebank)
    for block in _blocks(lines):
        if row := _row(reader, block, name):
            yield row


def _row(reader: BlockReader, block: list[InputLine], name: str) -> FileRow | None:
    """What a block says; None where it holds no words."""
    faults = ValidationErrors(name)
    for line in block:
        if line.trouble:
            faults.add(line.number, line.trouble)
    sentence = None
    if not faults.count:
        sentence = reader.sentence([(line.number, line.text or "") for line in block], faults)
    if faults.count:
        number, what = faults.found[0]
        return refused(number, f"{what[0].upper()}{what[1:].rstrip('.')}.")
    return None if sentence is None else FileRow(sentence.line, sentence.text, sentence)


def _blocks(lines: Iterator[InputLine]) -> Iterator[list[InputLine]]:
    """Lines between blank ones. Of one that is too long, the line that makes it so stands for the rest."""
    block: list[InputLine] = []
    size = 0
    for line in lines:
        if line.trouble or (line.text and line.text.strip()):
            before, size = size, size + len(line.text or "")
            if size <= MAX_LINE:
                block.append(line)
            elif before <= MAX_LINE:
                block.append(
                    InputLine(line.number, None, f"The sentence is longer than {MAX_LINE:,} characters.")
                )
        else:
            if block:
                yield block
            block, size = [], 0
    if block:
        yield block
