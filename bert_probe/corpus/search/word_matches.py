"""Look up the word at a position of a store."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bert_probe.corpus.store import Store
from bert_probe.corpus.table_files import store_errors
from bert_probe.corpus.tables import ROWS, TOKENS

_CACHED_SHARDS = 16
"""Shards whose sentences and words are kept in memory, about 3 MB each at 2,000 rows."""

_COLUMNS = ("row", "text", "word", "start", "end", "special")


@dataclass(frozen=True)
class WordMatch:
    """A word in its sentence.

    Attributes:
        text: the sentence.
        word: the word as it is written; WORD:2 is its second occurrence in the sentence.
        start: index of its first character.
        end: index after its last character.
    """

    text: str
    word: str
    start: int
    end: int


class WordLookup:
    """Looks up words by row and position; caches the shards that were used last."""

    def __init__(self, store: Store) -> None:
        self._shard_of = store.shard_of  # no reference to the store, see `SearchCache`
        self._name = store.folder.name
        self._files = [*zip(store.files(ROWS), store.files(TOKENS), strict=True)]
        self._shards: OrderedDict[int, _ShardWords] = OrderedDict()
        self._lock = Lock()

    def word(self, row: int, position: int) -> WordMatch | None:
        """Return the word at a position of a row, both from 1; None for a special token."""
        with store_errors(self._name):
            return self._shard(self._shard_of(row)).word(row, position)

    def text(self, row: int) -> str:
        """Return the sentence of a row."""
        with store_errors(self._name):
            return self._shard(self._shard_of(row)).text(row)

    def _shard(self, number: int) -> _ShardWords:
        with self._lock:
            shard = self._shards.pop(number, None) or _ShardWords(*map(str, self._files[number]))
            self._shards[number] = shard  # moved to the end: used last
            if len(self._shards) > _CACHED_SHARDS:
                self._shards.popitem(last=False)
            return shard


class _ShardWords:
    """The sentences of a shard and the spans of their words."""

    def __init__(self, rows: str, tokens: str) -> None:
        # Without partitioning=None, a folder named a=b would become a column.
        texts = pq.read_table(rows, columns=["row", "text"], partitioning=None)
        self._rows, self._texts = texts["row"].to_numpy(), texts["text"]
        words = pq.read_table(tokens, columns=[*_COLUMNS], partitioning=None)
        self._ends = np.searchsorted(words["row"].to_numpy(), self._rows, side="right")
        self._words = words.drop_columns("row")

    def text(self, row: int) -> str:
        """Return the sentence of a row."""
        text = self._texts[self._index(row)].as_py()
        if not isinstance(text, str):
            raise ValueError(f"row {row} has no text")
        return text

    def word(self, row: int, position: int) -> WordMatch | None:
        """Return the word at a position, see `WordLookup.word`."""
        index = self._index(row)
        start = int(self._ends[index - 1]) if index else 0
        tokens = self._words.slice(start, int(self._ends[index]) - start).to_pylist()
        if tokens[position - 1]["special"]:
            return None
        text, words = self.text(row), _group_words(tokens)
        names = [_name(text, word) for word in words]
        (match,) = (number for number, word in enumerate(words) if position - 1 in word)
        occurrences = [number for number, name in enumerate(names) if name == names[match]]
        name = names[match]
        if len(occurrences) > 1:
            name = f"{name}:{occurrences.index(match) + 1}"
        return WordMatch(text, name, *_span(words[match]))

    def _index(self, row: int) -> int:
        return int(np.searchsorted(self._rows, row))


_Word = dict[int, dict[str, Any]]
"""The tokens of a word: position from 0 → row of the table of tokens."""


def _group_words(tokens: list[dict[str, Any]]) -> list[_Word]:
    """Return the words of a sentence in order; a token outside of words is its own word."""
    words: dict[object, _Word] = {}
    for position, token in enumerate(tokens):
        key = ("no word", position) if token["word"] is None else token["word"]
        words.setdefault(key, {})[position] = token
    return [*words.values()]


def _name(text: str, word: _Word) -> str:
    """Return a word as it is written in the text, or the name of a special token."""
    (*_, last) = word.values()
    return str(last["text"]) if last["special"] else text[slice(*_span(word))].strip()


def _span(word: _Word) -> tuple[int, int]:
    return min(token["start"] for token in word.values()), max(token["end"] for token in word.values())
