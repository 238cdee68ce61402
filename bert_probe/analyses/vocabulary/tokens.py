"""The tokens of a text, as the model reads them, and fertility: the number of tokens per word."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import regex

from bert_probe.core import frames
from bert_probe.core.inputs import OneTrace, TwoModelTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError, SelectionError
from bert_probe.model.encoding import Encoding, Token, Word
from bert_probe.model.trace import Trace
from bert_probe.text.pieces import visible

_WORD = regex.compile(r"[\w\p{M}]+(?:['’][\w\p{M}]+)*|[^\w\s\p{M}]")
"""Matches a word: a run of letters, marks and digits with inner apostrophes, or one other character."""


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
        """The words of the text or of the sentence pair, in reading order, without special tokens."""
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
        change: change to the text that leaves a smaller share of the tokens unknown, such as "a space between
            the letters"; "" if there is none.
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
            "not contain their characters."
        )
        if not self.change:
            return f"{problem} Use a model whose vocabulary fits the text."
        return f"{problem} A smaller share is unknown with {self.change}: {self.text[:40]}"


def find_unknown_tokens(trace: Trace) -> UnknownTokens | None:
    """Return a notice if more than half of the tokens of a text are unknown to the model, otherwise None.

    Protein models such as ProtBERT read one letter per word, so a sequence without spaces is one unknown
    word. If the text has only ASCII letters and spaces, spaces between the letters and upper case are tried,
    and the change with the smallest share of unknown tokens is suggested.
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


@dataclass(frozen=True)
class SplitWord:
    """A word or a single character, and its subword tokens.

    Attributes:
        text: the word.
        segment: 0 for a single text or the first text of a sentence pair, 1 for the second text.
        start, end: character offsets in the text.
        pieces: tokens of the word, at least one.
    """

    text: str
    segment: int
    start: int
    end: int
    pieces: tuple[Token, ...]

    @property
    def cut(self) -> str:
        """The tokens of the word, separated by spaces."""
        return " ".join(visible(str(piece)) for piece in self.pieces)


@question("fertility", command="fragmentation")
class Fertility(Question):
    """Number of subword tokens per word of a text.

    A word is a run of letters and digits, or a single other character. This definition does not depend on the
    tokenizer, so that tokenizers can be compared.
    """

    inputs = OneTrace()

    def of(self, trace: Trace) -> FertilityResult:
        """Return the words of a text, or of both texts of a sentence pair, in reading order.

        Raises:
            EmptyTextError: the text has only spaces, which some tokenizers encode as tokens.
        """
        words = cut_words(trace.encoding)
        if not words:
            raise EmptyTextError("The text has only spaces. Enter at least one word.")
        unknown = None if trace.made_by is None else trace.made_by.tokenizer.unk_token_id
        return FertilityResult(self.resolved(trace), InputRecord.of(trace), words, unknown)


@dataclass(frozen=True, eq=False, repr=False)
class FertilityResult(Result):
    """The words of a text or text pair, and their subword tokens.

    Attributes:
        words: words with at least one token; words that the tokenizer drops are left out.
        unknown_id: id of the token for unknown text; None if the vocabulary has no such token.
    """

    question: Fertility
    words: tuple[SplitWord, ...]
    unknown_id: int | None

    @property
    def pieces(self) -> int:
        """Total number of tokens of all words, without special tokens."""
        return sum(len(word.pieces) for word in self.words)

    @property
    def fertility(self) -> float:
        """Mean number of tokens per word, at least 1 (Rust et al. 2021)."""
        return self.pieces / len(self.words)

    @property
    def continued(self) -> float:
        """Share of the words that are split into several tokens, 0 to 1 (Rust et al. 2021)."""
        return sum(len(word.pieces) > 1 for word in self.words) / len(self.words)

    @property
    def characters(self) -> float:
        """Mean number of characters per token, without spaces."""
        return sum(word.end - word.start for word in self.words) / self.pieces

    @property
    def unknown(self) -> int:
        """Number of unknown tokens."""
        return sum(piece.id == self.unknown_id for word in self.words for piece in word.pieces)

    @property
    def by_pieces(self) -> tuple[SplitWord, ...]:
        """The words, sorted by descending number of tokens."""
        return tuple(sorted(self.words, key=lambda word: -len(word.pieces)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Numbers of words, tokens and unknown tokens, mean tokens per word, and share of split words."""
        return {
            "words": len(self.words),
            "pieces": self.pieces,
            "fertility": self.fertility,
            "continued": self.continued,
            "unknown": self.unknown,
        }

    def frame(self) -> pd.DataFrame:
        """Return one row per word, in reading order.

        Columns: word, segment, start, end, pieces (number of tokens), cut (the tokens).
        """
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
    """Return the words of a text or of a sentence pair, without words that have no token.

    A token belongs to the word in which it begins. A token that is only a space belongs to the next word.
    """
    words = []
    for segment, text in enumerate((encoding.text, encoding.pair or "")):
        spans = [match.span() for match in _WORD.finditer(text)]
        ends = [end for _, end in spans]
        members: list[list[Token]] = [[] for _ in spans]
        for token in encoding.tokens:
            if token.special or token.segment != segment or token.start is None or not spans:
                continue
            # Some tokenizers encode a space after the last word. Assign the space to this word.
            members[min(bisect_right(ends, token.start), len(spans) - 1)].append(token)
        words += [
            SplitWord(text[start:end], segment, start, end, tuple(pieces))
            for (start, end), pieces in zip(spans, members, strict=True)
            if pieces
        ]
    return tuple(words)


@question("fertility change", command="diff fertility")
class FertilityChange(Question):
    """The number of tokens per word in two models, whose vocabularies may differ."""

    inputs = TwoModelTraces()

    def of(self, a: Trace, b: Trace) -> FertilityChangeResult:
        """Compare the tokenizations of a text by two models.

        Raises:
            SelectionError: the traces come from different texts.
        """
        encoding_a, encoding_b = a.encoding, b.encoding
        if (encoding_a.text, encoding_a.pair) != (encoding_b.text, encoding_b.pair):
            raise SelectionError("The two models read different texts. Trace the same text with both models.")
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
        """Pairs (word in A, word in B) of words that start at the same place, in reading order."""
        words_b = {(word.segment, word.start): word for word in self.b.words}
        keyed = ((word, (word.segment, word.start)) for word in self.a.words)
        return tuple((word, words_b[key]) for word, key in keyed if key in words_b)

    @property
    def by_pieces(self) -> tuple[tuple[SplitWord, SplitWord], ...]:
        """The `words`, sorted by the larger of the two models' token counts, highest first."""
        return tuple(sorted(self.words, key=lambda pair: -max(len(word.pieces) for word in pair)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of both results, with the keys "a" and "b"; see `FertilityResult.metadata`."""
        return {"a": dict(self.a.metadata), "b": dict(self.b.metadata)}

    def frame(self) -> pd.DataFrame:
        """Return one row per word, in reading order.

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
