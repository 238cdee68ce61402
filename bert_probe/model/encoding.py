"""Text in, tokens out: what the model is given and where each piece came from."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from bert_probe.errors import EmptyTextError, TokenizerError
from bert_probe.model.byte_level import from_bytes, is_byte_level
from bert_probe.model.lengths import check_text, kept, most_tokens, too_many

SPACE = "␣"
"""How a token of nothing but spaces is shown."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a panic of the tokenizers library, which is not an `Exception`, as an error of the checkpoint.

    Raises:
        TokenizerError: it panicked, for example because a regular expression takes too many steps.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3 exports no class to compare with
            raise
        sentence = " ".join(str(error).split())[:300].rstrip(".")
        raise TokenizerError(
            f"The tokenizer stopped with an error: {sentence}. Use another tokenizer, or another text."
        ) from None


class Token(str):
    """A token: its vocabulary string, and where it stands.

    A ``str``, so that a list of tokens compares with a list of strings and labels a table.

    Attributes:
        position: index in the model's input, from 0.
        id: row in the vocabulary; -1 for a token that was given without one.
        segment: 0 for the first text, 1 for the second (its pair).
        word: index of the word within its text, from 0; None for special tokens.
        start, end: span ``text[start:end]`` in the text it came from; None for special tokens.
        special: added by the tokenizer ([CLS], [SEP], <s>), not part of the text.
        split_word: its word has more than one piece.
        display: the token as a person reads it, without the vocabulary's space markers.
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

    def __new__(cls, token: str, **attributes: Any) -> Self:
        """The vocabulary string with the attributes above."""
        self = super().__new__(cls, token)
        self.__dict__.update(attributes)
        return self

    def continues(self, before: Token) -> bool:
        """Whether it belongs to the same word as the token before it."""
        return self.word is not None and (self.segment, self.word) == (before.segment, before.word)

    @property
    def token(self) -> str:
        """The vocabulary string alone."""
        return str(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A token is read-only; {name} cannot be set.")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_token, (str(self), self.__dict__)


def _unpickle_token(token: str, attributes: dict[str, Any]) -> Token:
    return Token(token, **attributes)


@dataclass(frozen=True)
class Word:
    """A word of the text and the tokens it became.

    Attributes:
        text: the word as written.
        segment, index: which text, and which word of it, from 0.
        positions: token positions in the model's input, at least one.
    """

    text: str
    segment: int
    index: int
    positions: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Encoding:
    """One input of the model.

    Attributes:
        text, pair: what was given.
        tokens: in input order.
        inputs: what goes to the model, name → int64 [token], read-only.
        max_tokens: the longest input that is read; None where nobody set a limit.
        dropped: tokens cut off by truncation, 0 unless it was asked for and needed.
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
        """Bytes of texts, tokens and inputs."""
        texts = sum(sys.getsizeof(text) for text in (self.text, self.pair))
        # A token's own attributes are numbers, but for how it is shown.
        tokens = sum(
            sys.getsizeof(token) + sys.getsizeof(token.__dict__) + sys.getsizeof(token.display)
            for token in self.tokens
        )
        return texts + tokens + sum(values.nbytes for values in self.inputs.values())

    @property
    def ids(self) -> list[int]:
        """Vocabulary ids in input order."""
        return [token.id for token in self.tokens]

    @property
    def words(self) -> tuple[Word, ...]:
        """Words of both texts in reading order; special tokens belong to none."""
        members: dict[tuple[int, int], list[Token]] = {}
        for token in self.tokens:
            if token.word is not None:
                members.setdefault((token.segment, token.word), []).append(token)
        texts = (self.text, self.pair or "")

        def written(segment: int, pieces: list[Token]) -> str:
            # The first piece may be the space before the word, and nothing else.
            text = texts[segment][pieces[0].start : pieces[-1].end]
            return text.strip() or text

        return tuple(
            Word(
                text=written(segment, pieces),
                segment=segment,
                index=word,
                positions=tuple(piece.position for piece in pieces),
            )
            for (segment, word), pieces in members.items()
        )


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """What a text becomes for the model, and nothing more: many texts take little room.

    Attributes:
        inputs: as in `Encoding`.
        dropped: tokens cut off.
    """

    inputs: Mapping[str, np.ndarray]
    dropped: int

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])


@dataclass(frozen=True, eq=False)
class _TokenizerOutput:
    """What a tokenizer makes of a text, or of a text and its pair: everything is a list over the tokens.

    Attributes:
        named: what the model may be given, by name.
        texts: the text it is of, 0 or 1; None for a token that the tokenizer added.
        words: the word it is of, within its text.
        spans: characters it covers.
        added: whether the tokenizer added it.
    """

    named: Mapping[str, list[int]]
    texts: list[int | None]
    words: list[int | None]
    spans: list[tuple[int, int]]
    added: list[bool]

    def __len__(self) -> int:
        return len(self.texts)

    def at(self, places: list[int]) -> Self:
        """Those at some places."""

        def chosen(values: list[Any]) -> list[Any]:
            return [values[place] for place in places]

        named = {name: chosen(values) for name, values in self.named.items()}
        return type(self)(
            named, chosen(self.texts), chosen(self.words), chosen(self.spans), chosen(self.added)
        )


class Encoder:
    """A tokenizer with the model's limits; threads may use it at once, and none waits for another.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        max_tokens: the longest input the model accepts, special tokens included; None for no limit.
        vocabulary_size: rows of the model's word embedding.
        input_names: arguments that the model's forward pass takes.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_tokens: int | None,
        vocabulary_size: int,
        input_names: frozenset[str],
    ) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self._vocabulary_size = vocabulary_size
        self._input_names = input_names
        self._byte_level = is_byte_level(tokenizer)

    def encode(
        self, text: str, pair: str | None = None, truncate: bool = False, max_tokens: int | None = None
    ) -> Encoding:
        """Tokenize a text, or a text and its pair.

        Args:
            max_tokens: a limit below the model's own.

        Raises:
            EmptyTextError: a text without any token: empty, only spaces, only control characters.
            TooLongError: more tokens than the model accepts, unless ``truncate``.
            TextError: not a string, or one that UTF-8 cannot hold.
        """
        texts = (text,) if pair is None else (text, pair)
        limit = self.max_tokens if max_tokens is None else max_tokens
        pieces, dropped = self._fitted(texts, limit, truncate)
        return self._encoding(pieces, texts, dropped)

    def windows(self, text: str, pair: str, overlap: int) -> list[Encoding]:
        """A text and its pair; where the model has no room for all of the pair, in windows of this.

        Args:
            overlap: tokens of the pair that a window shares with the one before; half a window at most.

        Raises:
            TooLongError: the text leaves no room for the pair.
            EmptyTextError, TextError: as `encode`.
        """
        texts = (text, pair)
        for part in texts:
            check_text(part)
        whole, limit = self._tokenize(texts), most_tokens(self.max_tokens)
        self._check_not_empty(whole, texts)
        places = [place for place, number in enumerate(whole.texts) if number == 1]
        room = min(limit - (len(whole) - len(places)), len(places))
        if room < 1:
            raise too_many(len(whole) - len(places) + 1, self.max_tokens)
        step = room - min(overlap, room // 2)
        found = []
        for start in range(0, len(places) - room + step, step):
            left_out = {*places} - {*places[start : start + room]}
            cut = whole.at([place for place in range(len(whole)) if place not in left_out])
            found.append(self._encoding(cut, texts, len(left_out)))
        return found

    def spans(self, encoding: Encoding) -> list[tuple[int, int]]:
        """Characters of each token as the tokenizer counts them: those of a token may begin with a space."""
        texts = (encoding.text,) if encoding.pair is None else (encoding.text, encoding.pair)
        return self._fitted(texts, self.max_tokens, truncate=True)[0].spans

    def _encoding(self, pieces: _TokenizerOutput, texts: tuple[str, ...], dropped: int) -> Encoding:
        pair, limit = texts[1] if len(texts) > 1 else None, most_tokens(self.max_tokens)
        return Encoding(texts[0], pair, self._tokens(pieces, texts), self._inputs(pieces), limit, dropped)

    def inputs(
        self, text: str, max_tokens: int | None = None, truncate: bool = False, pair: str | None = None
    ) -> ModelInputs:
        """What `encode` gives to the model, without the tokens; takes and raises the same."""
        limit = self.max_tokens if max_tokens is None else max_tokens
        texts = (text,) if pair is None else (text, pair)
        pieces, dropped = self._fitted(texts, limit, truncate)
        return ModelInputs(self._inputs(pieces), dropped)

    def _fitted(
        self, texts: tuple[str, ...], accepted: int | None, truncate: bool
    ) -> tuple[_TokenizerOutput, int]:
        """Texts tokenized within a limit, and the number of tokens that were cut off for it."""
        for part in texts:
            check_text(part)
        whole, limit = self._tokenize(texts), most_tokens(accepted)
        self._check_not_empty(whole, texts)
        if len(whole) <= limit:
            return whole, 0
        if not truncate:
            raise too_many(len(whole), accepted)
        cut = whole.at(kept(whole.texts, limit, self.tokenizer.truncation_side))
        self._check_not_empty(cut, texts)
        return cut, len(whole) - len(cut)

    def _inputs(self, pieces: _TokenizerOutput) -> Mapping[str, np.ndarray]:
        top = max(pieces.named["input_ids"])
        if top >= self._vocabulary_size:
            raise TokenizerError(
                f"The tokenizer gives id {top:,}, but the model's vocabulary ends at "
                f"{self._vocabulary_size - 1:,}. Use the tokenizer that belongs to these weights."
            )
        inputs = {
            name: np.asarray(values, dtype=np.int64)
            for name, values in pieces.named.items()
            if name in self._input_names
        }
        for values in inputs.values():
            values.flags.writeable = False
        return MappingProxyType(inputs)

    def _tokenize(self, texts: tuple[str, ...]) -> _TokenizerOutput:
        # Never cut by the tokenizer: it would keep that as a setting, and threads would have to take turns.
        with panics_as_errors():
            encoded = self.tokenizer(
                *texts,
                padding=False,
                truncation=False,
                return_special_tokens_mask=True,
                return_attention_mask=True,
                verbose=False,
            )
        fast = encoded.encodings[0]
        return _TokenizerOutput(
            dict(encoded),
            fast.sequence_ids,
            fast.word_ids,
            fast.offsets,
            [bool(one) for one in encoded["special_tokens_mask"]],
        )

    @staticmethod
    def _check_not_empty(pieces: _TokenizerOutput, texts: tuple[str, ...]) -> None:
        present = set(pieces.texts)
        for number, part in enumerate(texts):
            if number in present:
                continue
            which = "The text" if len(texts) == 1 else f"Sentence {'AB'[number]}"
            if not part.strip():
                what = "is empty" if not part else "holds only spaces"
            else:
                what = "holds no character this model's tokenizer keeps, or no room is left for it"
            raise EmptyTextError(f"{which} {what}. Write at least one word.")

    def _tokens(self, pieces: _TokenizerOutput, texts: tuple[str, ...]) -> tuple[Token, ...]:
        ids = pieces.named["input_ids"]
        types = pieces.named.get("token_type_ids")
        strings = self.tokenizer.convert_ids_to_tokens(ids)
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
            start, end = (None, None) if is_special else _trim(texts[segment], *span)
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
                )
            )
        return tuple(tokens)

    def _display(self, token: str, special: bool) -> str:
        if special:
            return token
        shown = from_bytes(token) if self._byte_level else token.replace("▁", " ")
        return shown.strip(" ") or SPACE * len(shown) or token


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the spaces that some tokenizers count into a token."""
    piece = text[start:end]
    bare = piece.strip()
    if not bare:
        return start, end
    start += len(piece) - len(piece.lstrip())
    return start, start + len(bare)
