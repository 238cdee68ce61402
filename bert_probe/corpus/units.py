"""The tokens or words of a padded batch as arrays, with the properties that head measures need."""

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
    """Tokens or words ("units") of several texts.

    All arrays but the lengths are [text, unit], and 0 beyond the end of a text.

    Attributes:
        lengths: number of units of each text, int64 [text].
        names: an integer for each distinct string, int64.
        words: index of the unit's word, from 0 in each text, int64; a unit outside of words is its own word.
        segments: 0 for the first text, 1 for the second text of a pair, int64.
        separators: whether the unit is a special token other than the first, bool.
        signs: whether the unit is punctuation, bool.
        pieces: number of tokens in the unit, int64; 1 for a token.
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
        """Create the units of texts whose tokens are measured."""
        tokens = [token for encoding in encodings for token in encoding.tokens]
        return cls.of_columns(
            [len(encoding) for encoding in encodings],
            _number_strings(str(token) for token in tokens),
            [-1 if token.word is None else token.word for token in tokens],
            [token.segment for token in tokens],
            [token.special for token in tokens],
            [_is_sign(str(token)) for token in tokens],
        )

    @classmethod
    def of_words(cls, lenses: Sequence[WordLens]) -> Self:
        """Create the units of texts whose tokens are merged into words; special tokens stay."""
        units = [unit for lens in lenses for unit in lens.units]
        return cls.of_columns(
            [len(lens.units) for lens in lenses],
            _number_strings(str(unit) for unit in units),
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
        """Create units from columns over all texts, one text after the other.

        Args:
            lengths: number of units of each text.
            names: an integer for each distinct string, such as the token's id.
            words: index of the word within its text or pair; -1 outside of words.
            segments: 0 for the first text, 1 for the second text of a pair.
            special: whether the unit is a special token.
            signs: whether the string is all punctuation; ignored for special tokens.
            pieces: number of tokens in each unit.
        """
        sizes = np.asarray(lengths)
        is_unit = np.arange(sizes.max()) < sizes[:, None]
        is_first = np.zeros(len(names), dtype=bool)
        is_first[np.cumsum(sizes) - sizes] = True
        word, segment, is_special = np.asarray(words), np.asarray(segments), np.asarray(special, dtype=bool)
        starts_word = is_first | (word < 0)
        starts_word[1:] |= (word[1:] != word[:-1]) | (segment[1:] != segment[:-1])
        number = np.cumsum(starts_word)

        def padded(column: Any, dtype: type) -> torch.Tensor:
            rows: Array = np.zeros(is_unit.shape, dtype)
            rows[is_unit] = column
            return torch.from_numpy(rows)

        return cls(
            torch.from_numpy(sizes.astype(np.int64)),
            padded(names, np.int64),
            padded(number - np.repeat(number[is_first], sizes), np.int64),
            padded(segment, np.int64),
            padded(is_special & ~is_first, np.bool_),
            padded(np.asarray(signs, dtype=bool) & ~is_special, np.bool_),
            padded(pieces, np.int64),
        )

    def to(self, device: torch.device) -> Self:
        """Return a copy on a device."""
        return type(self)(*(column.to(device) for column in self.__dict__.values()))

    def part(self, texts: slice) -> Self:
        """Return some of the texts, padded to the longest of them."""
        length = int(self.lengths[texts].max())
        columns = (column[texts] for column in self.__dict__.values())
        return type(self)(*(column if column.ndim == 1 else column[:, :length] for column in columns))

    @property
    def longest(self) -> int:
        """Number of units of the longest text, to which the others are padded."""
        return self.names.shape[1]


def _number_strings(strings: Iterable[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(string, len(numbers)) for string in strings]


@lru_cache(maxsize=2**16)
def _is_sign(string: str) -> bool:
    return is_punctuation(Unit(string, (0,), 0, special=False))
