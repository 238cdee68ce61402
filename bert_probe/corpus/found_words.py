"""The words that positions of a store stand for, as its sentences have them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_probe.corpus.store import Store
from bert_probe.corpus.tables import ROWS, TOKENS

_KEPT = 16
"""Shards whose sentences and words are kept in memory: some 3 MB each at 2,000 rows."""

_COLUMNS = ("row", "position", "word", "start", "end", "special")


@dataclass(frozen=True)
class FoundWord:
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


class FoundWords:
    """Looks positions up, a shard at a time; the last few shards are kept."""

    def __init__(self, store: Store) -> None:
        self._per_shard = int(store.manifest["shard_rows"])
        places = zip(store.shards, store.files(ROWS), store.files(TOKENS), strict=True)
        self._files = {one.number: files for one, *files in places}
        self._shards: OrderedDict[int, _Shard] = OrderedDict()
        self._lock = Lock()

    def word(self, row: int, position: int) -> FoundWord | None:
        """The word at a position, both from 1; None for a special token."""
        return self._shard((row - 1) // self._per_shard).word(row, position)

    def text(self, row: int) -> str:
        """A sentence."""
        return self._shard((row - 1) // self._per_shard).text(row)

    def _shard(self, number: int) -> _Shard:
        with self._lock:
            found = self._shards.pop(number, None) or _Shard(*map(str, self._files[number]))
            self._shards[number] = found
            if len(self._shards) > _KEPT:
                self._shards.popitem(last=False)
            return found


class _Shard:
    """The sentences of a shard, and where their words stand."""

    def __init__(self, rows: str, tokens: str) -> None:
        # The paths alone say nothing: a folder called a=b is no column.
        texts = pq.read_table(rows, columns=["row", "text"], partitioning=None)
        self._rows, self._texts = texts["row"].to_numpy(), texts["text"]
        words = pq.read_table(tokens, columns=[*_COLUMNS], partitioning=None)
        self._ends = np.searchsorted(words["row"].to_numpy(), self._rows, side="right")
        self._words = {name: words[name].combine_chunks() for name in _COLUMNS[2:]}

    def text(self, row: int) -> str:
        """A sentence."""
        text: str = self._texts[self._place(row)].as_py()
        return text

    def word(self, row: int, position: int) -> FoundWord | None:
        """See `FoundWords`."""
        place = self._place(row)
        start = int(self._ends[place - 1]) if place else 0
        columns = {name: self._within(name, start, int(self._ends[place])) for name in self._words}
        if columns["special"][position - 1]:
            return None
        text, words = self.text(row), _spans(columns)
        mine = next(span for span, positions in words.items() if position - 1 in positions)
        names = [text[slice(*span)].strip() for span in words]
        name = text[slice(*mine)].strip()
        same = [span for span, other in zip(words, names, strict=True) if other == name]
        named = name if len(same) == 1 else f"{name}:{same.index(mine) + 1}"
        return FoundWord(text, named, *mine)

    def _place(self, row: int) -> int:
        return int(np.searchsorted(self._rows, row))

    def _within(self, name: str, start: int, end: int) -> list[int | None]:
        column: pa.Array = self._words[name]
        found: list[int | None] = column.slice(start, end - start).to_pylist()
        return found


def _spans(columns: dict[str, list[int | None]]) -> dict[tuple[int, int], set[int]]:
    """Of every word of a sentence the span, and which positions it has, from 0; in order."""
    words: dict[object, tuple[int, int, set[int]]] = {}
    for place, (word, start, end) in enumerate(
        zip(columns["word"], columns["start"], columns["end"], strict=True)
    ):
        if start is None or end is None:
            continue
        alone = ("of no word", place)
        first, last, places = words.get(word or alone, (start, end, set()))
        words[word or alone] = min(first, start), max(last, end), {*places, place}
    return {(first, last): places for first, last, places in words.values()}
