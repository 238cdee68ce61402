"""The words that positions of a store stand for, as its sentences have them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bert_probe.corpus.store import Store
from bert_probe.corpus.table_files import reading
from bert_probe.corpus.tables import ROWS, TOKENS

_KEPT = 16
"""Shards whose sentences and words are kept in memory: some 3 MB each at 2,000 rows."""

_COLUMNS = ("row", "text", "word", "start", "end", "special")


@dataclass(frozen=True)
class WordMatch:
    """A word where it stands.

    Attributes:
        text: its sentence.
        word: the word that the position is of, as it is written; WORD:2 is its second occurrence there.
        start, end: the span of it in the sentence.
    """

    text: str
    word: str
    start: int
    end: int


class WordLookup:
    """Looks positions up, a shard at a time; the last few shards are kept."""

    def __init__(self, store: Store) -> None:
        self._shard_of = store.shard_of  # not the store, see `searching.Opened`
        self._name = store.folder.name
        self._files = [*zip(store.files(ROWS), store.files(TOKENS), strict=True)]
        self._shards: OrderedDict[int, _ShardWords] = OrderedDict()
        self._lock = Lock()

    def word(self, row: int, position: int) -> WordMatch | None:
        """The word at a position, both from 1; None for a special token."""
        with reading(self._name):
            return self._shard(self._shard_of(row)).word(row, position)

    def text(self, row: int) -> str:
        """A sentence."""
        with reading(self._name):
            return self._shard(self._shard_of(row)).text(row)

    def _shard(self, number: int) -> _ShardWords:
        with self._lock:
            found = self._shards.pop(number, None) or _ShardWords(*map(str, self._files[number]))
            self._shards[number] = found
            if len(self._shards) > _KEPT:
                self._shards.popitem(last=False)
            return found


class _ShardWords:
    """The sentences of a shard, and where their words stand."""

    def __init__(self, rows: str, tokens: str) -> None:
        # The paths alone say nothing: a folder called a=b is no column.
        texts = pq.read_table(rows, columns=["row", "text"], partitioning=None)
        self._rows, self._texts = texts["row"].to_numpy(), texts["text"]
        words = pq.read_table(tokens, columns=[*_COLUMNS], partitioning=None)
        self._ends = np.searchsorted(words["row"].to_numpy(), self._rows, side="right")
        self._words = words.drop_columns("row")

    def text(self, row: int) -> str:
        """A sentence."""
        text = self._texts[self._place(row)].as_py()
        if not isinstance(text, str):
            raise ValueError(f"row {row} has no text")
        return text

    def word(self, row: int, position: int) -> WordMatch | None:
        """See `WordLookup`."""
        place = self._place(row)
        start = int(self._ends[place - 1]) if place else 0
        lines = self._words.slice(start, int(self._ends[place]) - start).to_pylist()
        if lines[position - 1]["special"]:
            return None
        text, words = self.text(row), _words(lines)
        names = [_name(text, word) for word in words]
        (mine,) = (number for number, word in enumerate(words) if position - 1 in word)
        same = [number for number, name in enumerate(names) if name == names[mine]]
        named = names[mine] if len(same) == 1 else f"{names[mine]}:{same.index(mine) + 1}"
        return WordMatch(text, named, *_span(words[mine]))

    def _place(self, row: int) -> int:
        return int(np.searchsorted(self._rows, row))


_Lines = dict[int, dict[str, Any]]
"""Tokens of a word, or of none, by their positions from 0: what the table says of each."""


def _words(lines: list[dict[str, Any]]) -> list[_Lines]:
    """The words of a sentence in order; what is of none is one by itself."""
    words: dict[object, _Lines] = {}
    for place, line in enumerate(lines):
        key = ("of no word", place) if line["word"] is None else line["word"]
        words.setdefault(key, {})[place] = line
    return [*words.values()]


def _name(text: str, word: _Lines) -> str:
    """As it is written in the text; a special token by its own name."""
    (*_, last) = word.values()
    return str(last["text"]) if last["special"] else text[slice(*_span(word))].strip()


def _span(word: _Lines) -> tuple[int, int]:
    return min(line["start"] for line in word.values()), max(line["end"] for line in word.values())
