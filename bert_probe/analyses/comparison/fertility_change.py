"""How two vocabularies cut the same text up, word by word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bert_probe.analyses.vocabulary.fertility import Fertility, FertilityResult, SplitWord
from bert_probe.core.inputs import TwoModelTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace


@question("change of fragmentation", command="diff fertility")
class FertilityChange(Question):
    """Into how many pieces each word of a text is cut by two models, whose vocabularies may differ."""

    inputs = TwoModelTraces()

    def of(self, a: Trace, b: Trace) -> FertilityChangeResult:
        """The same text in both, word by word.

        Raises:
            SelectionError: two texts.
        """
        one, other = a.encoding, b.encoding
        if (one.text, one.pair) != (other.text, other.pair):
            raise SelectionError(
                "Two vocabularies are compared on one text, and these are two. Give both the same."
            )
        subject = InputRecord.of(a).beside(InputRecord.of(b))
        return FertilityChangeResult(self, subject, Fertility().of(a), Fertility().of(b))


@dataclass(frozen=True, eq=False, repr=False)
class FertilityChangeResult(Result):
    """A text as two models cut it up.

    Attributes:
        a, b: in each of them.
    """

    question: FertilityChange
    a: FertilityResult
    b: FertilityResult

    @property
    def words(self) -> tuple[tuple[SplitWord, SplitWord], ...]:
        """The words of which both made pieces, in reading order."""
        theirs = {(word.segment, word.start): word for word in self.b.words}
        places = ((word, (word.segment, word.start)) for word in self.a.words)
        return tuple((word, theirs[place]) for word, place in places if place in theirs)

    @property
    def by_pieces(self) -> tuple[tuple[SplitWord, SplitWord], ...]:
        """The same, those of the most pieces in either first."""
        return tuple(sorted(self.words, key=lambda both: -max(len(word.pieces) for word in both)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is said of each of them."""
        return {"a": dict(self.a.metadata), "b": dict(self.b.metadata)}

    def frame(self) -> pd.DataFrame:
        """One row a word: word, segment, start, end, pieces_a, pieces_b, cut_a, cut_b."""
        both = self.words
        return pd.DataFrame(
            {
                "word": pd.Series([word.text for word, _ in both], dtype=object),
                "segment": [word.segment for word, _ in both],
                "start": [word.start for word, _ in both],
                "end": [word.end for word, _ in both],
                "pieces_a": [len(word.pieces) for word, _ in both],
                "pieces_b": [len(word.pieces) for _, word in both],
                "cut_a": pd.Series([word.cut for word, _ in both], dtype=object),
                "cut_b": pd.Series([word.cut for _, word in both], dtype=object),
            }
        )
