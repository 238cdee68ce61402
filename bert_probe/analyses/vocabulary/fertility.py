"""How a vocabulary cuts a text up: into how many pieces each of its words."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import regex

from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Trace
from bert_probe.text.pieces import visible

_WORD = regex.compile(r"[\w\p{M}]+(?:['’][\w\p{M}]+)*|[^\w\s\p{M}]")
"""Letters, marks and digits, with apostrophes within; any other sign is a word of its own."""


@dataclass(frozen=True)
class SplitWord:
    """A word, or a sign by itself, and the pieces that it became.

    Attributes:
        text: as written.
        segment: 0 for the first text, 1 for the second.
        start, end: characters in it.
        pieces: at least one.
    """

    text: str
    segment: int
    start: int
    end: int
    pieces: tuple[Token, ...]

    @property
    def cut(self) -> str:
        """Its pieces, with spaces between."""
        return " ".join(visible(str(piece)) for piece in self.pieces)


@question("fragmentation")
class Fertility(Question):
    """Into how many pieces of the vocabulary each word of a text is cut.

    A word is a run of letters and digits, or a single sign, so that tokenizers which part words differently
    can be compared.
    """

    inputs = OneTrace()

    def of(self, trace: Trace) -> FertilityResult:
        """The words of a text, or of both texts of a pair, in reading order.

        Raises:
            EmptyTextError: spaces alone, of which some tokenizers make pieces.
        """
        words = cut_words(trace.encoding)
        if not words:
            raise EmptyTextError("The text holds only spaces. Write at least one word.")
        unknown = None if trace.made_by is None else trace.made_by.tokenizer.unk_token_id
        return FertilityResult(self.resolved(trace), InputRecord.of(trace), words, unknown)


@dataclass(frozen=True, eq=False, repr=False)
class FertilityResult(Result):
    """How a text was cut up.

    Attributes:
        words: those of which a piece was made; words of nothing that the tokenizer keeps are left out.
        unknown_id: id of the piece that stands for what the vocabulary does not know; None if it has none.
    """

    question: Fertility
    words: tuple[SplitWord, ...]
    unknown_id: int | None

    @property
    def pieces(self) -> int:
        """How many there are, special tokens left out."""
        return sum(len(word.pieces) for word in self.words)

    @property
    def fertility(self) -> float:
        """Pieces a word, 1 or more (Rust et al. 2021)."""
        return self.pieces / len(self.words)

    @property
    def continued(self) -> float:
        """The share of the words that are cut, 0 to 1 (Rust et al. 2021)."""
        return sum(len(word.pieces) > 1 for word in self.words) / len(self.words)

    @property
    def characters(self) -> float:
        """Characters a piece, spaces not counted."""
        return sum(word.end - word.start for word in self.words) / self.pieces

    @property
    def unknown(self) -> int:
        """Pieces that stand for what the vocabulary does not know."""
        return sum(piece.id == self.unknown_id for word in self.words for piece in word.pieces)

    @property
    def by_pieces(self) -> tuple[SplitWord, ...]:
        """The words, those of the most pieces first."""
        return tuple(sorted(self.words, key=lambda word: -len(word.pieces)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Words, pieces, pieces a word, the share of words that are cut, unknown pieces."""
        return {
            "words": len(self.words),
            "pieces": self.pieces,
            "fertility": self.fertility,
            "continued": self.continued,
            "unknown": self.unknown,
        }

    def frame(self) -> pd.DataFrame:
        """One row a word, in reading order: word, segment, start, end, pieces, cut."""
        return pd.DataFrame(
            {
                "word": pd.Series([word.text for word in self.words], dtype=object),
                "segment": [word.segment for word in self.words],
                "start": [word.start for word in self.words],
                "end": [word.end for word in self.words],
                "pieces": [len(word.pieces) for word in self.words],
                "cut": pd.Series([word.cut for word in self.words], dtype=object),
            }
        )


def cut_words(encoding: Encoding) -> tuple[SplitWord, ...]:
    """The words of both texts that became pieces. A piece is of the word in which it begins, or of the next
    one where it is nothing but the space before that."""
    found = []
    for segment, text in enumerate((encoding.text, encoding.pair or "")):
        spans = [match.span() for match in _WORD.finditer(text)]
        ends = [end for _, end in spans]
        members: list[list[Token]] = [[] for _ in spans]
        for token in encoding.tokens:
            if token.special or token.segment != segment or token.start is None or not spans:
                continue
            # A tokenizer may keep a space at the very end.
            members[min(bisect_right(ends, token.start), len(spans) - 1)].append(token)
        found += [
            SplitWord(text[start:end], segment, start, end, tuple(pieces))
            for (start, end), pieces in zip(spans, members, strict=True)
            if pieces
        ]
    return tuple(found)
