"""Which heads attend from one word to another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pandas as pd

from bert_probe.core.field_types import Dimensions, FieldType, Schema
from bert_probe.core.field_types_of_words import TokenSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.trace import Array, Trace, read_only, resolve
from bert_probe.text.words import Unit, find_word, word_lens, word_name

Word = int | str
"""A word by its name, see `find_word`, or by the position of one of its tokens."""


class WordPairs(FieldType):
    """Pairs of words, (query, key). In an address 11-9,4-5 by position, or ground-left by name."""

    metavar = "QUERY-KEY,…"

    def check(self, name: str, value: Any) -> tuple[tuple[Word, Word], ...]:
        """A pair at least."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SelectionError(f"{name} must be a list of (query, key), not {value!r}.")
        if not value:
            raise SelectionError("No pair of words is given. Choose a query and a key.")
        for pair in value:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise SelectionError(f"{name} must be a list of (query, key), not of {pair!r}.")
        return tuple((_checked(query), _checked(key)) for query, key in value)

    def resolve(self, name: str, value: Any, trace: Trace) -> tuple[tuple[str, str], ...]:  # noqa: ARG002
        """Names that find the same words, which the command line takes too."""
        query_keys = [[word_name(trace, word_of(trace, word)) for word in pair] for pair in value]
        return tuple((query, key) for query, key in query_keys)

    def to_json(self, value: Any) -> list[list[Word]]:
        """A list of pairs."""
        return [[*pair] for pair in value]

    @property
    def schema(self) -> Schema:
        """A list of pairs."""
        pair = {"type": "array", "items": TokenSelector().schema, "minItems": 2, "maxItems": 2}
        return {"type": "array", "items": pair, "minItems": 1}

    def write(self, value: Any) -> str:
        """With a dash between query and key, and commas between pairs."""
        return ",".join("-".join(map(_written, pair)) for pair in value)

    def read(self, name: str, text: str, sizes: Dimensions) -> tuple[tuple[Word, Word], ...]:  # noqa: ARG002
        """What `write` wrote."""
        pairs = []
        for one in text.split(","):
            query, dash, key = one.partition("-")
            if not (query and dash and key):
                raise SelectionError(f"{one!r} is no pair of words. Write query-key, for example 4-2.")
            pairs.append((_read(query), _read(key)))
        return self.check(name, pairs)


@question("find")
class FindHeads(Question):
    """All heads, by how much they attend from one word to another; pieces are merged into words.

    Attributes:
        pairs: (query, key) words, by name as in "ground" or "it:2", or by the position of a token of
            theirs; several are averaged.
    """

    inputs = OneTrace()

    pairs: Sequence[tuple[Word, Word]] = param(WordPairs(), key="find_pairs", option="")

    def of(self, trace: Trace) -> FindHeadsResult:
        """How much each head attends from each pair's query word to its key word.

        Raises:
            SelectionError: no such word in this text, or several and no number.
        """
        lens = word_lens(trace)
        place = {unit.positions: index for index, unit in enumerate(lens.units)}
        words = tuple((word_of(trace, query), word_of(trace, key)) for query, key in self.pairs)
        weights, ranks = [], []
        for layer in range(trace.layers):
            merged = lens.merge(trace.attention(layer))
            rows = np.stack([merged[:, place[query.positions]] for query, _ in words])
            keys = [place[key.positions] for _, key in words]
            weight = np.stack([row[:, key] for row, key in zip(rows, keys, strict=True)])
            weights.append(weight.mean(axis=0, dtype=np.float64))
            ranks.append(np.mean(1 + (rows > weight[..., None]).sum(axis=-1), axis=0))
        return FindHeadsResult(
            self.resolved(trace),
            InputRecord.of(trace),
            words,
            read_only(np.stack(weights)),
            read_only(np.stack(ranks)),
        )

    def options(self) -> list[str]:
        """A --query and a --key for each pair."""
        return [part for query, key in self.pairs for part in ("--query", str(query), "--key", str(key))]


@dataclass(frozen=True)
class HeadScore:
    """How much a head attends from one word to another.

    Attributes:
        layer, head: from 0.
        weight: attention from the query word to the key word, mean over the pairs asked for.
        rank: place of the key word in the query word's row, 1 for the largest; mean over the pairs.
    """

    layer: int
    head: int
    weight: float
    rank: float


@dataclass(frozen=True, eq=False, repr=False)
class FindHeadsResult(Result):
    """Every head's attention from the query words to the key words.

    Attributes:
        words: (query, key) of each pair.
        weights: attention from query to key, mean over the pairs, float64 [layer, head], 0 to 1.
        ranks: place of the key in the query's row, 1 for the largest; mean over the pairs, [layer, head].
    """

    question: FindHeads
    words: tuple[tuple[Unit, Unit], ...]
    weights: Array
    ranks: Array

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.weights.shape != self.ranks.shape:
            raise ShapeError(
                f"weights and ranks have shapes {self.weights.shape} and {self.ranks.shape}; both must be "
                "[layer, head]."
            )

    @property
    def ranked(self) -> tuple[HeadScore, ...]:
        """All heads, those that attend most from query to key first."""
        best = np.argsort(-self.weights, axis=None, kind="stable")
        places = zip(*np.unravel_index(best, self.weights.shape), strict=True)
        return tuple(
            HeadScore(int(layer), int(head), float(self.weights[layer, head]), float(self.ranks[layer, head]))
            for layer, head in places
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Where the words stand: the positions of each pair's tokens."""
        return {"positions": [[[*word.positions] for word in pair] for pair in self.words]}

    def frame(self) -> pd.DataFrame:
        """A row for each head, best first: layer, head, weight, rank_in_row."""
        found = self.ranked
        return pd.DataFrame(
            {
                "layer": [one.layer + 1 for one in found],
                "head": [one.head + 1 for one in found],
                "weight": [one.weight for one in found],
                "rank_in_row": [int(one.rank) if one.rank.is_integer() else one.rank for one in found],
            }
        )


def word_of(trace: Trace, word: Word) -> Unit:
    """The word that is meant.

    Raises:
        SelectionError: this text has no such word or position.
    """
    if isinstance(word, str):
        return find_word(trace, word)
    position = resolve(word, len(trace.tokens), "token")
    return next(unit for unit in word_lens(trace).units if position in unit.positions)


def _checked(word: Any) -> Word:
    if isinstance(word, str):
        return str(word)
    if isinstance(word, bool) or not isinstance(word, int | np.integer) or word < 0:
        raise SelectionError(f"A word is given by its name, or its position from 0, not as {word!r}.")
    return int(word)


def _written(word: Word) -> str:
    """A position in digits; a name with all that could be mistaken for something else escaped."""
    if isinstance(word, int):
        return str(word)
    if word.isascii() and word.isdigit():
        return "".join(f"%{ord(digit):02X}" for digit in word)
    return quote(word, safe="").replace("-", "%2D")


def _read(written: str) -> Word:
    return int(written) if re.fullmatch("[0-9]{1,9}", written) else unquote(written)
