"""The sentences of a corpus, as a stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_probe.text.tagged import TaggedSentence


@dataclass(frozen=True, slots=True)
class Record:
    """A sentence where it stands.

    Attributes:
        row: from 1, over all inputs; what cannot be read counts too.
        file, line: where it stands; lines count from 1.
        text: None where it cannot be read.
        tagged: of CoNLL-U.
        trouble: why there is no text.
    """

    row: int
    file: str
    line: int
    text: str | None
    tagged: TaggedSentence | None = None
    trouble: str = ""


@dataclass(frozen=True)
class InputFile:
    """A file, and what tells whether it has changed."""

    name: str
    path: Path
    size: int
    sha256: str


def find_inputs(given: Sequence[str | Path], column: str | None = None) -> tuple[Path, ...]:  # noqa: ARG001
    """Files of text."""
    return tuple(Path(one) for one in given)


def described(files: Sequence[Path]) -> tuple[InputFile, ...]:
    """Their digests."""
    every = [(one, one.read_bytes()) for one in files]
    return tuple(InputFile(one.name, one, len(read), hashlib.sha256(read).hexdigest()) for one, read in every)


def records(files: Sequence[Path], column: str | None = None) -> Iterator[Record]:  # noqa: ARG001
    """A line each."""
    row = 0
    for file in files:
        for line, text in enumerate(file.read_text("utf-8").split("\n"), 1):
            if text.strip():
                row += 1
                yield Record(row, file.name, line, text.strip())
