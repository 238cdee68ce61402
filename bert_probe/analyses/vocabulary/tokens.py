"""The tokens of a text, as the model reads them."""

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
    """The tokens of a text, with their words and character offsets."""

    inputs = OneTrace()

    def of(self, trace: Trace) -> TokensResult:
        """Return the tokens of a text, in the order of the model's input."""
        return TokensResult(self.resolved(trace), InputRecord.of(trace), trace.encoding)


@dataclass(frozen=True, eq=False, repr=False)
class TokensResult(Result):
    """The tokens of a text.

    Attributes:
        encoding: the text, its tokens, and the number of truncated tokens.
    """

    question: Tokens
    encoding: Encoding

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of both texts in reading order, without special tokens."""
        return self.encoding.words

    @property
    def split_words(self) -> tuple[Word, ...]:
        """The `words` that are split into several tokens."""
        return tuple(word for word in self.words if len(word.positions) > 1)

    @property
    def specials(self) -> int:
        """Number of special tokens."""
        return sum(token.special for token in self.encoding.tokens)

    @property
    def length_used(self) -> float | None:
        """The text's length as a share of the model's maximum, 0 to 1; None if the model has no limit."""
        limit = self.encoding.max_tokens
        return len(self.encoding) / limit if limit else None

    def frame(self) -> pd.DataFrame:
        """Return one row per token; see `token_table`."""
        return token_table(self.encoding)


def token_table(encoding: Encoding) -> pd.DataFrame:
    """Return one row per token: position, token, id, segment, word, start, end, special.

    ``word``, ``start`` and ``end`` are empty for special tokens.
    """
    tokens = encoding.tokens
    return pd.DataFrame(
        {
            "position": [token.position for token in tokens],
            frames.TOKEN: frames.plain_strings(tokens),
            "id": [token.id for token in tokens],
            "segment": [token.segment for token in tokens],
            "word": frames.nullable_integers([token.word for token in tokens]),
            "start": frames.nullable_integers([token.start for token in tokens]),
            "end": frames.nullable_integers([token.end for token in tokens]),
            "special": [token.special for token in tokens],
        }
    )
