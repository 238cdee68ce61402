"""The tokens of a text, as the model reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pandas as pd

from bert_probe.core import frames
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.model.encoding import Encoding, Token, Word
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


@dataclass(frozen=True)
class UnknownTokens:
    """A notice that most tokens of a text are unknown to the model.

    Attributes:
        count: number of unknown tokens.
        total: number of tokens, without special tokens.
        name: name of the unknown token, such as [UNK].
        change: change of the text that makes more tokens known, such as "a space between the letters"; "" if
            there is none.
        text: the text with this change; "" if there is none.
    """

    count: int
    total: int
    name: str
    change: str = ""
    text: str = ""

    def __str__(self) -> str:
        problem = (
            f"{self.count:,} of {self.total:,} tokens are {self.name}, because the model's vocabulary does "
            f"not "
            f"contain their characters."
        )
        if not self.change:
            return f"{problem} Use a model whose vocabulary fits the text."
        return f"{problem} More tokens are known with {self.change}: {self.text[:40]}"


def find_unknown_tokens(trace: Trace) -> UnknownTokens | None:
    """Return a description of the unknown tokens if they are more than half of the tokens of a text.

    Protein models such as ProtBERT read one letter per word, so a sequence without spaces is one unknown
    word. Spaces and upper case are tried, and the change with the fewest unknown tokens is suggested.
    """
    if trace.made_by is None or (unknown_id := trace.made_by.tokenizer.unk_token_id) is None:
        return None
    encoding, encode = trace.encoding, trace.made_by.encode

    def share(tokens: Iterable[Token]) -> tuple[int, int]:
        ids = [token.id for token in tokens if not token.special]
        return ids.count(unknown_id), len(ids)

    count, total = share(encoding.tokens)
    if 2 * count <= total:
        return None
    result = UnknownTokens(count, total, str(trace.made_by.tokenizer.unk_token))
    letters = "".join(encoding.text.split())
    changes = {
        "upper case": encoding.text.upper(),
        "a space between the letters": " ".join(letters),
        "a space between the letters, in upper case": " ".join(letters.upper()),
    }
    best = count / total
    for change, text in changes.items() if letters.isascii() and letters.isalpha() else ():
        unknown, number = share(encode(text, truncate=True).tokens)
        if unknown / number < best:
            best, result = unknown / number, replace(result, change=change, text=text)
    return result
