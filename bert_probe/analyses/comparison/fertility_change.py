"""Change of fertility: the number of tokens into which two models split each word of a text."""

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


@question("fertility change", command="diff fertility")
class FertilityChange(Question):
    """The number of tokens per word in two models, whose vocabularies may differ."""

    inputs = TwoModelTraces()

    def of(self, a: Trace, b: Trace) -> FertilityChangeResult:
        """Compare the tokenizations of a text.

        Raises:
            SelectionError: the traces come from different texts.
        """
        encoding_a, encoding_b = a.encoding, b.encoding
        if (encoding_a.text, encoding_a.pair) != (encoding_b.text, encoding_b.pair):
            raise SelectionError("The two models read different texts. Trace the same text with both.")
        inputs = InputRecord.of(a).with_other_model(InputRecord.of(b))
        return FertilityChangeResult(self, inputs, Fertility().of(a), Fertility().of(b))


@dataclass(frozen=True, eq=False, repr=False)
class FertilityChangeResult(Result):
    """The tokenization of a text by two models.

    Attributes:
        a, b: the fertility in each model.
    """

    question: FertilityChange
    a: FertilityResult
    b: FertilityResult

    @property
    def words(self) -> tuple[tuple[SplitWord, SplitWord], ...]:
        """The words that both models tokenize, in reading order."""
        words_b = {(word.segment, word.start): word for word in self.b.words}
        keyed = ((word, (word.segment, word.start)) for word in self.a.words)
        return tuple((word, words_b[key]) for word, key in keyed if key in words_b)

    @property
    def by_pieces(self) -> tuple[tuple[SplitWord, SplitWord], ...]:
        """The `words`, sorted by the larger of their two token counts, highest first."""
        return tuple(sorted(self.words, key=lambda pair: -max(len(word.pieces) for word in pair)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The fertility metadata of both models."""
        return {"a": dict(self.a.metadata), "b": dict(self.b.metadata)}

    def frame(self) -> pd.DataFrame:
        """Return one row per word.

        Columns: word, segment, start, end, pieces_a and pieces_b (token counts), cut_a and cut_b (tokens).
        """
        words = self.words
        return pd.DataFrame(
            {
                "word": pd.Series([word.text for word, _ in words], dtype=object),
                "segment": [word.segment for word, _ in words],
                "start": [word.start for word, _ in words],
                "end": [word.end for word, _ in words],
                "pieces_a": [len(word.pieces) for word, _ in words],
                "pieces_b": [len(word.pieces) for _, word in words],
                "cut_a": pd.Series([word.cut for word, _ in words], dtype=object),
                "cut_b": pd.Series([word.cut for _, word in words], dtype=object),
            }
        )
