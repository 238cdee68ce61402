"""The tokens of a text: the pieces of the vocabulary that the model reads."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from bert_probe.core import frames
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.model.encoding import Encoding, Word
from bert_probe.model.trace import Trace


@question("tokens")
class Tokens(Question):
    """Which pieces of the vocabulary a text becomes."""

    inputs = OneTrace()

    def of(self, trace: Trace) -> TokensResult:
        """Those of a text, in the order of the model's input."""
        return TokensResult(self.resolved(trace), InputRecord.of(trace), trace.encoding)


@dataclass(frozen=True, eq=False, repr=False)
class TokensResult(Result):
    """The tokens of a text.

    Attributes:
        encoding: the text, its tokens, and what was cut off.
    """

    question: Tokens
    encoding: Encoding

    @property
    def words(self) -> tuple[Word, ...]:
        """Words of both texts in reading order; special tokens belong to none."""
        return self.encoding.words

    @property
    def split_words(self) -> tuple[Word, ...]:
        """Those of the `words` that the vocabulary does not hold as a whole."""
        return tuple(word for word in self.words if len(word.positions) > 1)

    @property
    def specials(self) -> int:
        """How many tokens the tokenizer added."""
        return sum(token.special for token in self.encoding.tokens)

    @property
    def length_used(self) -> float | None:
        """The share of the longest input that this is, 0 to 1; None where the model has no limit."""
        most = self.encoding.max_tokens
        return len(self.encoding) / most if most else None

    def frame(self) -> pd.DataFrame:
        """See `table_of`."""
        return table_of(self.encoding)


def table_of(encoding: Encoding) -> pd.DataFrame:
    """One row a token: position, token, id, segment, word, start, end, special.

    ``word``, ``start`` and ``end`` are empty for special tokens.
    """
    tokens = encoding.tokens
    return pd.DataFrame(
        {
            "position": [token.position for token in tokens],
            frames.TOKEN: frames.names(tokens),
            "id": [token.id for token in tokens],
            "segment": [token.segment for token in tokens],
            "word": frames.optional([token.word for token in tokens]),
            "start": frames.optional([token.start for token in tokens]),
            "end": frames.optional([token.end for token in tokens]),
            "special": [token.special for token in tokens],
        }
    )
