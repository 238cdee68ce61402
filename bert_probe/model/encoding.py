"""Tokenize text into tokens and model inputs, with the character span of every token."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from bert_probe.errors import EmptyTextError, TokenizerError
from bert_probe.model.lengths import (
    check_text,
    check_trace_tokens,
    kept_positions,
    max_input_tokens,
    too_many_tokens,
)
from bert_probe.model.token_positions import find_positions, without_marks

SPACE = "␣"
"""Character displayed for each space of a token that consists of spaces only."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Convert a panic of the tokenizers library, or an error of the class Exception, to a TokenizerError.

    Raises:
        TokenizerError: the library panicked, for example because a regular expression took too many steps, or
            reported an error, such as an unknown word without an unknown token.
    """
    try:
        yield
    except BaseException as error:
        # Compare the names, because pyo3 does not export its exception class. A panic is not an `Exception`.
        if type(error).__name__ != "PanicException" and type(error) is not Exception:
            raise
        message = " ".join(str(error).split())[:300].rstrip(".")
        raise TokenizerError(
            f"The tokenizer failed: {message}. Use another tokenizer, or another text."
        ) from None


class Token(str):
    """A token: its vocabulary string, and its position in the input and the text.

    The class is a subclass of ``str``, so that lists of tokens equal lists of strings and can label a table.

    Attributes:
        position: index in the model's input, from 0.
        id: vocabulary id; -1 for a token of external attention without an id.
        segment: 0 for a token of the first text, 1 for a token of the second text of a pair.
        word: index of the word within its text, from 0; None for special tokens.
        start, end: span ``text[start:end]`` in the token's text; None for special tokens.
        special: whether the tokenizer added the token ([CLS], [SEP], <s>).
        split_word: whether the token's word has more than one token.
        display: readable form, without the vocabulary's space markers.
        residue: number of the residue (or nucleotide), from 1, in a text with one token per residue; None for
            special tokens, and in all other texts.
    """

    position: int
    id: int
    segment: int
    word: int | None
    start: int | None
    end: int | None
    special: bool
    split_word: bool
    display: str
    residue: int | None = None

    def __new__(cls, token: str, **attributes: Any) -> Self:
        """Create a token from its vocabulary string and the attributes of the class."""
        self = super().__new__(cls, token)
        self.__dict__.update(attributes)
        return self

    def continues(self, previous: Token) -> bool:
        """Return whether this token belongs to the same word as the token before it."""
        return self.word is not None and (self.segment, self.word) == (previous.segment, previous.word)

    @property
    def token(self) -> str:
        """Return the vocabulary string as a plain `str`."""
        return str(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A Token is read-only, so {name} cannot be set.")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_token, (str(self), self.__dict__)


def _unpickle_token(token: str, attributes: dict[str, Any]) -> Token:
    return Token(token, **attributes)


@dataclass(frozen=True)
class Word:
    """A word of the text, with the positions of its tokens.

    Attributes:
        text: the word as written in the text.
        segment, index: index of the text (0 or 1), and index of the word in this text, from 0.
        positions: positions of the word's tokens in the model's input, at least one.
    """

    text: str
    segment: int
    index: int
    positions: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Encoding:
    """A tokenized input of the model.

    Attributes:
        text, pair: the original texts.
        tokens: the tokens in input order.
        inputs: the model inputs by name, as read-only int64 arrays of shape [token].
        max_tokens: maximum number of input tokens; None for no limit.
        dropped: number of tokens removed by truncation.
    """

    text: str
    pair: str | None
    tokens: tuple[Token, ...]
    inputs: Mapping[str, np.ndarray]
    max_tokens: int | None
    dropped: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Return the size of texts, tokens and inputs in bytes."""
        texts = sum(sys.getsizeof(text) for text in (self.text, self.pair))
        # The other attributes of a token are numbers or None, whose size is ignored.
        tokens = sum(
            sys.getsizeof(token) + sys.getsizeof(token.__dict__) + sys.getsizeof(token.display)
            for token in self.tokens
        )
        return texts + tokens + sum(values.nbytes for values in self.inputs.values())

    @property
    def ids(self) -> list[int]:
        """Return the vocabulary ids in input order."""
        return [token.id for token in self.tokens]

    @property
    def words(self) -> tuple[Word, ...]:
        """Return the words of both texts in reading order, without special tokens."""
        word_tokens: dict[tuple[int, int], list[Token]] = {}
        for token in self.tokens:
            if token.word is not None:
                word_tokens.setdefault((token.segment, token.word), []).append(token)
        texts = (self.text, self.pair or "")

        def word_text(segment: int, tokens: list[Token]) -> str:
            # Strip the space before the word, which may belong to the first token or be the first token.
            text = texts[segment][tokens[0].start : tokens[-1].end]
            return text.strip() or text

        return tuple(
            Word(
                text=word_text(segment, tokens),
                segment=segment,
                index=word,
                positions=tuple(token.position for token in tokens),
            )
            for (segment, word), tokens in word_tokens.items()
        )


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """The model inputs of a text without `Token` objects, which saves memory for many texts.

    Attributes:
        inputs: as in `Encoding`.
        dropped: number of tokens removed by truncation.
    """

    inputs: Mapping[str, np.ndarray]
    dropped: int

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])

    @property
    def key(self) -> bytes:
        """The token IDs as bytes, which are equal for texts that the model cannot distinguish.

        The bytes are big-endian, so texts of equal length are sorted by their token IDs.
        """
        return self.inputs["input_ids"].astype(">u4").tobytes()


@dataclass(frozen=True, eq=False)
class _TokenizerOutput:
    """A tokenizer's output for a text or a text pair; every list has one item per token.

    Attributes:
        input_lists: possible model inputs, by name.
        texts: index of the token's text, 0 or 1; None for a token that the tokenizer added.
        words: index of the token's word within its text.
        spans: character span of the token.
        added: whether the tokenizer added the token.
    """

    input_lists: Mapping[str, list[int]]
    texts: list[int | None]
    words: list[int | None]
    spans: list[tuple[int, int]]
    added: list[bool]

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, positions: list[int]) -> Self:
        """Return a copy of the output that contains only the tokens at `positions`."""

        def at_positions(values: list[Any]) -> list[Any]:
            return [values[position] for position in positions]

        input_lists = {name: at_positions(values) for name, values in self.input_lists.items()}
        return type(self)(
            input_lists,
            at_positions(self.texts),
            at_positions(self.words),
            at_positions(self.spans),
            at_positions(self.added),
        )


class Encoder:
    """A tokenizer combined with the model's limits. Threads may use it concurrently.

    Args:
        tokenizer: a Hugging Face tokenizer; for slow tokenizers, see `token_positions`.
        max_tokens: maximum number of input tokens of the model, special tokens included; None for no limit.
        vocabulary_size: number of rows of the model's word embedding.
        input_names: argument names of the model's forward method.
        segments: number of rows of the model's token type embedding; None without this embedding.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_tokens: int | None,
        vocabulary_size: int,
        input_names: frozenset[str],
        segments: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self._vocabulary_size = vocabulary_size
        self._input_names = input_names
        self._segments = segments
        self._byte_level = is_byte_level(tokenizer)

    def encode(
        self, text: str, pair: str | None = None, truncate: bool = False, max_tokens: int | None = None
    ) -> Encoding:
        """Tokenize a text, or a text and its pair.

        Args:
            pair: the second text.
            truncate: truncate an input that is too long instead of raising TooLongError.
            max_tokens: maximum number of input tokens; by default, the model's limit.

        Raises:
            EmptyTextError: a text has no tokens: it is empty, or has only spaces or control characters.
            TooLongError: the input has more tokens than the limit, and ``truncate`` is False; a text has more
                than `MAX_CHARACTERS` characters; or the model has no limit, and the input has more tokens
                than a public server supports.
            TextError: a text is not a string, has more than `MAX_SPACES` consecutive spaces, or cannot be
                encoded in UTF-8.
        """
        texts = (text,) if pair is None else (text, pair)
        pieces, dropped = self._tokenize_within(texts, max_tokens, truncate)
        return self._encoding(pieces, texts, self._limit(max_tokens), dropped)

    def windows(self, text: str, pair: str, overlap: int) -> list[Encoding]:
        """Tokenize a text and its pair; split the pair into overlapping windows if the input is too long.

        Args:
            overlap: number of tokens that consecutive windows share, limited to half a window.

        Raises:
            TooLongError: the text alone uses up the token limit.
            EmptyTextError, TextError: see `encode`.
        """
        output, positions, starts, room = self._plan_windows(text, pair, overlap)
        others = [position for position, number in enumerate(output.texts) if number != 1]
        encodings = []
        for start in starts:
            kept = positions[start : start + room]
            window = output.select(sorted([*others, *kept]))
            dropped = len(positions) - len(kept)
            encodings.append(self._encoding(window, (text, pair), self._limit(), dropped))
        return encodings

    def count_windows(self, text: str, pair: str, overlap: int) -> tuple[int, int]:
        """Return the number of windows that `windows` returns, and the number of the pair's tokens in each.

        Arguments and errors are the same as for `windows`.
        """
        _, _, starts, room = self._plan_windows(text, pair, overlap)
        return len(starts), room

    def _plan_windows(
        self, text: str, pair: str, overlap: int
    ) -> tuple[_TokenizerOutput, list[int], range, int]:
        """Return the tokens of both texts, the positions of the pair's tokens, and windows over the latter.

        The windows are given by the indices at which they start, and by their length.
        """
        texts = (text, pair)
        for part in texts:
            check_text(part)
        output, limit = self._tokenize(texts), self._limit()
        self._check_not_empty(output, texts)
        positions = [position for position, number in enumerate(output.texts) if number == 1]
        room = min(limit - (len(output) - len(positions)), len(positions))
        if room < 1:
            raise too_many_tokens(len(output) - len(positions) + 1, limit)
        if self.max_tokens is None:
            check_trace_tokens(len(output) - len(positions) + room)
        step = room - min(overlap, room // 2)
        return output, positions, range(0, len(positions) - room + step, step), room

    def spans(self, encoding: Encoding) -> list[tuple[int, int]]:
        """Return the tokenizer's character span of each token, which may include a leading space."""
        texts = (encoding.text,) if encoding.pair is None else (encoding.text, encoding.pair)
        return self._tokenize_within(texts, encoding.max_tokens, truncate=True)[0].spans

    def _limit(self, max_tokens: int | None = None) -> int:
        """Return the maximum number of input tokens, by default the model's limit."""
        return max_input_tokens(self.max_tokens if max_tokens is None else max_tokens)

    def _encoding(
        self, pieces: _TokenizerOutput, texts: tuple[str, ...], limit: int, dropped: int
    ) -> Encoding:
        pair = texts[1] if len(texts) > 1 else None
        return Encoding(texts[0], pair, self._tokens(pieces, texts), self._inputs(pieces), limit, dropped)

    def inputs(
        self, text: str, max_tokens: int | None = None, truncate: bool = False, pair: str | None = None
    ) -> ModelInputs:
        """Return the model inputs that `encode` produces, without the tokens.

        Arguments and errors are the same as for `encode`.
        """
        texts = (text,) if pair is None else (text, pair)
        pieces, dropped = self._tokenize_within(texts, max_tokens, truncate)
        return ModelInputs(self._inputs(pieces), dropped)

    def _tokenize_within(
        self, texts: tuple[str, ...], max_tokens: int | None, truncate: bool
    ) -> tuple[_TokenizerOutput, int]:
        """Tokenize texts within a token limit; return the output and the number of dropped tokens."""
        for part in texts:
            check_text(part)
        output, limit = self._tokenize(texts), self._limit(max_tokens)
        self._check_not_empty(output, texts)
        if max_tokens is None and self.max_tokens is None and (truncate or len(output) <= limit):
            # Most models without a limit add a bias to each attention score.
            check_trace_tokens(min(len(output), limit))
        if len(output) <= limit:
            return output, 0
        if not truncate:
            raise too_many_tokens(len(output), limit)
        truncated = output.select(kept_positions(output.texts, limit, self.tokenizer.truncation_side))
        self._check_not_empty(truncated, texts)
        return truncated, len(output) - len(truncated)

    def _inputs(self, pieces: _TokenizerOutput) -> Mapping[str, np.ndarray]:
        max_id = max(pieces.input_lists["input_ids"])
        if max_id >= self._vocabulary_size:
            raise TokenizerError(
                f"The tokenizer returned id {max_id:,}, but the largest id in the model's vocabulary is "
                f"{self._vocabulary_size - 1:,}. Use the tokenizer that belongs to these weights."
            )
        inputs = {
            name: np.asarray(values, dtype=np.int64)
            for name, values in pieces.input_lists.items()
            if name in self._input_names
        }
        segments = inputs.get("token_type_ids")
        if self._segments is not None and segments is not None and segments.max() >= self._segments:
            raise TokenizerError(
                f"The tokenizer returned token type {segments.max():,}, but the largest token type of the "
                f"model is {self._segments - 1:,}. Use a single text, or the tokenizer that belongs to these "
                "weights."
            )
        for values in inputs.values():
            values.flags.writeable = False
        return MappingProxyType(inputs)

    def _tokenize(self, texts: tuple[str, ...]) -> _TokenizerOutput:
        # The tokenizer must not truncate, because it would store the limit as a setting for all threads.
        with panics_as_errors():
            encoded = self.tokenizer(
                *texts,
                padding=False,
                truncation=False,
                return_special_tokens_mask=True,
                return_attention_mask=True,
                verbose=False,
            )
        # EsmTokenizer without an end token (Nucleotide Transformer) reports a flag for the missing token,
        # too.
        flags = encoded["special_tokens_mask"][: len(encoded["input_ids"])]
        added = [bool(flag) for flag in flags]
        positions = (
            encoded.encodings[0]
            if self.tokenizer.is_fast
            else find_positions(self.tokenizer, texts, encoded["input_ids"], added)
        )
        return _TokenizerOutput(
            dict(encoded), positions.sequence_ids, positions.word_ids, positions.offsets, added
        )

    @staticmethod
    def _check_not_empty(pieces: _TokenizerOutput, texts: tuple[str, ...]) -> None:
        texts_with_tokens = set(pieces.texts)
        for index, part in enumerate(texts):
            if index in texts_with_tokens:
                continue
            subject = "The text" if len(texts) == 1 else f"Sentence {'AB'[index]}"
            if not part.strip():
                problem = "is empty" if not part else "contains only spaces"
            else:
                problem = "has no tokens, because the tokenizer or the truncation removes all its characters"
            raise EmptyTextError(f"{subject} {problem}. Write at least one word.")

    def _tokens(self, pieces: _TokenizerOutput, texts: tuple[str, ...]) -> tuple[Token, ...]:
        ids = pieces.input_lists["input_ids"]
        types = pieces.input_lists.get("token_type_ids")
        strings = self.tokenizer.convert_ids_to_tokens(ids)
        residues = self._residues(pieces, texts)
        of_word = Counter(zip(pieces.texts, pieces.words, strict=True))
        tokens: list[Token] = []
        segment = 0
        for position, (string, sequence, word, span, added) in enumerate(
            zip(strings, pieces.texts, pieces.words, pieces.spans, pieces.added, strict=True)
        ):
            is_special = added or sequence is None
            if sequence is not None:
                segment = sequence
            elif types is not None and len(texts) > 1:
                segment = types[position]
            start, end = (None, None) if is_special else trim_span(texts[segment], *span)
            tokens.append(
                Token(
                    string,
                    position=position,
                    id=ids[position],
                    segment=segment,
                    word=None if is_special else word,
                    start=start,
                    end=end,
                    special=is_special,
                    split_word=not is_special and word is not None and of_word[sequence, word] > 1,
                    display=self._display(string, is_special),
                    residue=residues.get(position),
                )
            )
        return tuple(tokens)

    def _residues(self, pieces: _TokenizerOutput, texts: tuple[str, ...]) -> Mapping[int, int]:
        """Return a dict from token position to residue number (from 1) for texts with one token per residue.

        A text has one token per residue if each token is one letter, and the letters cover the text except
        for spaces. A mask token counts as one residue. The dict has no entries for tokens of other texts.
        """
        numbers: dict[int, int] = {}
        mask_id = self.tokenizer.mask_token_id
        for segment, text in enumerate(texts):
            positions = [place for place, number in enumerate(pieces.texts) if number == segment]
            spans = [trim_span(text, *pieces.spans[place]) for place in positions]
            masks = [pieces.input_lists["input_ids"][place] == mask_id for place in positions]
            if len(positions) > 1 and are_residues(text, spans, masks):
                first = 1 + sum(len(part) for part in text[: spans[0][0]].split())
                numbers |= {place: first + index for index, place in enumerate(positions)}
        return numbers

    def _display(self, token: str, special: bool) -> str:
        if special:
            return token
        display = from_bytes(token) if self._byte_level else token.replace("▁", " ")
        if not self.tokenizer.is_fast:
            display = without_marks(display)
        return display.strip(" ") or SPACE * len(display) or token


_RESIDUE = re.compile(r"[A-Za-z*.-]")
"""A residue or nucleotide in one-letter code, a stop, or a gap."""


def are_residues(text: str, spans: Sequence[tuple[int, int]], masks: Sequence[bool]) -> bool:
    """Return whether each token of a text is one residue, with nothing but spaces between the tokens.

    Args:
        text: the text.
        spans: character span of each token, in order.
        masks: whether each token is a mask token, which may have a name of any length.
    """
    gaps = zip([end for _, end in spans], [start for start, _ in spans[1:]], strict=False)
    return all(
        is_mask or _RESIDUE.fullmatch(text[start:end])
        for (start, end), is_mask in zip(spans, masks, strict=True)
    ) and not any(text[end:start].strip() for end, start in gaps)


def trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without the surrounding spaces that some tokenizers count as part of a token."""
    covered = text[start:end]
    stripped = covered.strip()
    if not stripped:
        return start, end
    start += len(covered) - len(covered.lstrip())
    return start, start + len(stripped)


def is_byte_level(tokenizer: Any) -> bool:
    """Return whether a tokenizer is byte-level: its vocabulary writes each byte as one character."""
    return tokenizer.is_fast and "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's mapping from characters to bytes (Radford et al. 2019).

    Printable bytes map to themselves; all other bytes map to the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    nonprintable = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(nonprintable)}


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the tokens with these IDs; "[ID 90]" for an ID of the model that the tokenizer does not have."""
    strings = tokenizer.convert_ids_to_tokens(list(ids))
    return [f"[ID {id_}]" if string is None else string for id_, string in zip(ids, strings, strict=True)]


def from_bytes(token: str) -> str:
    """Decode a byte-level token for display; an added token, which is not byte-level, is unchanged.

    If the bytes do not form complete characters, all bytes of the token are shown, as in ⟨F0 9F⟩.
    """
    raw = _bytes(token)
    if raw is None:
        return token
    try:
        return raw.decode("utf-8").replace("\n", "⏎").replace("\t", "⇥")
    except UnicodeDecodeError:
        return f"⟨{raw.hex(' ').upper()}⟩"


def is_whole(token: str) -> bool:
    """Return whether the bytes of a byte-level token form complete characters."""
    raw = _bytes(token)
    try:
        return raw is None or bool(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _bytes(token: str) -> bytes | None:
    """Return the bytes of a token; None for an added token, which is not byte-level."""
    table = _byte_of_character()
    if any(character not in table for character in token):
        return None
    return bytes(table[character] for character in token)
