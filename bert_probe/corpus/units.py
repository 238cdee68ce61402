"""The tokens of a padded batch, or its words, as far as measures of heads ask about them: arrays alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch

from bert_probe.analyses.attention.head_measures import is_punctuation
from bert_probe.model.encoding import Encoding
from bert_probe.model.trace import Array
from bert_probe.text.words import Unit, WordLens


@dataclass(frozen=True, eq=False)
class Units:
    """Tokens or words of several texts; all but the lengths are [text, unit], and 0 beyond a text's end.

    Attributes:
        lengths: how many each text has, int64 [text].
        names: a number for each string, the same for the same one, int64.
        words: the word it is of, from 0 in each text, int64; what is of no word is one by itself.
        segments: 0 for the first text, 1 for its pair, int64.
        separators: special, and not the first; bool.
        signs: punctuation; bool.
        pieces: of how many tokens it is made, int64; 1 for a token.
    """

    lengths: torch.Tensor
    names: torch.Tensor
    words: torch.Tensor
    segments: torch.Tensor
    separators: torch.Tensor
    signs: torch.Tensor
    pieces: torch.Tensor

    @classmethod
    def of_tokens(cls, encodings: Sequence[Encoding]) -> Self:
        """The tokens of encoded texts."""
        tokens = [token for encoding in encodings for token in encoding.tokens]
        return cls.of_columns(
            [len(encoding) for encoding in encodings],
            _numbered(str(token) for token in tokens),
            [-1 if token.word is None else token.word for token in tokens],
            [token.segment for token in tokens],
            [token.special for token in tokens],
            [_is_sign(str(token)) for token in tokens],
        )

    @classmethod
    def of_words(cls, lenses: Sequence[WordLens]) -> Self:
        """The words and special tokens into which these merge the tokens of their texts."""
        units = [unit for lens in lenses for unit in lens.units]
        return cls.of_columns(
            [len(lens.units) for lens in lenses],
            _numbered(str(unit) for unit in units),
            [-1] * len(units),
            [unit.segment for unit in units],
            [unit.special for unit in units],
            [_is_sign(str(unit)) for unit in units],
            [len(unit.positions) for unit in units],
        )

    @classmethod
    def of_columns(
        cls,
        lengths: Sequence[int],
        names: Sequence[int] | Array,
        words: Sequence[int] | Array,
        segments: Sequence[int] | Array,
        special: Sequence[bool] | Array,
        signs: Sequence[bool] | Array,
        pieces: Sequence[int] | int = 1,
    ) -> Self:
        """The same of what a tokenizer gives, one text after the other, without an object for each token.

        Args:
            lengths: of each text.
            names: ids in the vocabulary will do, for tokens.
            words: within its own text or pair; -1 for what is of none.
            signs: whether the string is all punctuation, see `PunctuationIds`; a special one is none.
        """
        sizes = np.asarray(lengths)
        inside = np.arange(sizes.max()) < sizes[:, None]
        first = np.zeros(len(names), dtype=bool)
        first[np.cumsum(sizes) - sizes] = True
        word, segment, added = np.asarray(words), np.asarray(segments), np.asarray(special, dtype=bool)
        begins = first | (word < 0)
        begins[1:] |= (word[1:] != word[:-1]) | (segment[1:] != segment[:-1])
        number = np.cumsum(begins)

        def padded(column: Any, dtype: type) -> torch.Tensor:
            rows: Array = np.zeros(inside.shape, dtype)
            rows[inside] = column
            return torch.from_numpy(rows)

        return cls(
            torch.from_numpy(sizes.astype(np.int64)),
            padded(names, np.int64),
            padded(number - np.repeat(number[first], sizes), np.int64),
            padded(segment, np.int64),
            padded(added & ~first, np.bool_),
            padded(np.asarray(signs, dtype=bool) & ~added, np.bool_),
            padded(pieces, np.int64),
        )

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return type(self)(*(column.to(device) for column in self.__dict__.values()))

    def part(self, texts: slice) -> Self:
        """Some of the texts, without padding that none of them needs."""
        length = int(self.lengths[texts].max())
        columns = (column[texts] for column in self.__dict__.values())
        return type(self)(*(column if column.ndim == 1 else column[:, :length] for column in columns))

    @property
    def longest(self) -> int:
        """Units of the longest text, to which the others are padded."""
        return self.names.shape[1]


class PunctuationIds:
    """Which ids of a vocabulary are all punctuation; each is looked at once.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known = np.zeros(len(tokenizer), dtype=np.int8)

    def __call__(self, ids: Array) -> Array:
        """For each id, bool."""
        new = np.unique(ids[self._known[ids] == 0])
        for number, string in zip(new, self._tokenizer.convert_ids_to_tokens(new.tolist()), strict=True):
            self._known[number] = 1 if _is_sign(string) else -1
        found: Array = self._known[ids] > 0
        return found


def _numbered(strings: Iterable[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(string, len(numbers)) for string in strings]


@lru_cache(maxsize=2**16)
def _is_sign(string: str) -> bool:
    return is_punctuation(Unit(string, (0,), 0, special=False))
