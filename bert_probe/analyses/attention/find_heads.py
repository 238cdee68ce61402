"""Search for the attention heads that attend most from one word of a text to another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pandas as pd

from bert_probe.core.field_types import (
    MAX_ITEMS,
    Dimensions,
    FieldType,
    Schema,
    TokenSelector,
    check_item_count,
)
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.trace import Array, Trace, read_only, resolve_index
from bert_probe.text.words import Unit, find_word, word_lens, word_name

Word = int | str
"""Type of a word selection: the word's name (see `find_word`) or the position of one of its tokens."""


class WordPairs(FieldType):
    """Field type of (query, key) word pairs, written as positions ("11-9,4-5") or names ("ground-left")."""

    metavar = "QUERY-KEY,…"

    def check(self, name: str, value: Any) -> tuple[tuple[Word, Word], ...]:
        """Check that the value is a nonempty list of word pairs, and return the pairs as tuples."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SelectionError(f"{name} must be a list of (query, key) pairs, not {value!r}.")
        if not value:
            raise SelectionError(
                "There are no word pairs. Pass at least one pair of a query word and a key word."
            )
        check_item_count(name, value)
        for pair in value:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise SelectionError(f"{name} must be a list of (query, key) pairs, but contains {pair!r}.")
        return tuple((_check_word(query), _check_word(key)) for query, key in value)

    def resolve(self, name: str, value: Any, trace: Trace) -> tuple[tuple[str, str], ...]:  # noqa: ARG002
        """Return the pairs with each word as a name, such as "ground" or "it:2", instead of a position."""
        query_keys = [[word_name(trace, select_word(trace, word)) for word in pair] for pair in value]
        return tuple((query, key) for query, key in query_keys)

    def to_json(self, value: Any) -> list[list[Word]]:
        """Return the word pairs as lists, for JSON."""
        return [[*pair] for pair in value]

    @property
    def schema(self) -> Schema:
        """JSON Schema of a list of word pairs."""
        pair = {"type": "array", "items": TokenSelector().schema, "minItems": 2, "maxItems": 2}
        return {"type": "array", "items": pair, "minItems": 1, "maxItems": MAX_ITEMS}

    def write(self, value: Any) -> str:
        """Return the pairs as text, with a hyphen between query and key and commas between pairs."""
        return ",".join("-".join(map(_write_word, pair)) for pair in value)

    def read(self, name: str, text: str, sizes: Dimensions) -> tuple[tuple[Word, Word], ...]:  # noqa: ARG002
        """Parse the word pairs in a text that was written by `write`."""
        pairs = []
        for pair in text.split(","):
            query, hyphen, key = pair.partition("-")
            if not (query and hyphen and key):
                raise SelectionError(
                    f"{pair!r} is not a word pair. Write a pair as query-key, for example 4-2."
                )
            pairs.append((_read_word(query), _read_word(key)))
        return self.check(name, pairs)


@question("find heads", command="find")
class FindHeads(Question):
    """All heads, ranked by their attention from one word to another.

    Subword tokens are merged into words.

    Attributes:
        pairs: (query, key) word pairs. Each word is given by its name, such as "ground" or "it:2", or by the
            position of one of its tokens. The results are averaged over the pairs.
    """

    inputs = OneTrace()

    pairs: Sequence[tuple[Word, Word]] = param(WordPairs(), key="find_pairs", option="")

    def of(self, trace: Trace) -> FindHeadsResult:
        """Return the attention of each head from the query words to the key words.

        Raises:
            SelectionError: the text does not contain a word, or contains it several times and the given name
                does not specify the occurrence.
        """
        lens = word_lens(trace)
        indices = {unit.positions: index for index, unit in enumerate(lens.units)}
        words = tuple((select_word(trace, query), select_word(trace, key)) for query, key in self.pairs)
        keys = [indices[key.positions] for _, key in words]
        weights, ranks = (np.empty((trace.layers, trace.heads)) for _ in range(2))
        # A block of heads at a time, because the attention of all heads of a long text has hundreds of MB.
        count = max(1, _BLOCK_WEIGHTS // len(trace.tokens) ** 2)
        for layer, first in product(range(trace.layers), range(0, trace.heads, count)):
            heads = slice(first, first + count)
            merged = lens.merge(trace.attention_of(layer, heads))
            rows = np.stack([merged[:, indices[query.positions]] for query, _ in words])
            weight = np.stack([row[:, key] for row, key in zip(rows, keys, strict=True)])
            weights[layer, heads] = weight.mean(axis=0, dtype=np.float64)
            ranks[layer, heads] = np.mean(1 + (rows > weight[..., None]).sum(axis=-1), axis=0)
            del merged, rows
        return FindHeadsResult(
            self.resolved(trace), InputRecord.of(trace), words, read_only(weights), read_only(ranks)
        )

    def options(self) -> list[str]:
        """Return the command-line options, with --query and --key for each pair."""
        return [part for query, key in self.pairs for part in ("--query", str(query), "--key", str(key))]


_BLOCK_WEIGHTS = 2**24
"""Maximum number of attention weights between tokens that `FindHeads` merges at once; 67 MB in float32."""


@dataclass(frozen=True)
class HeadScore:
    """The attention of one head from the query words to the key words.

    Attributes:
        layer, head: indices from 0.
        weight: attention from the query word to the key word, 0 to 1, averaged over the pairs.
        rank: rank of the key word by its weight in the query word's row, from 1, averaged over the pairs.
    """

    layer: int
    head: int
    weight: float
    rank: float


@dataclass(frozen=True, eq=False, repr=False)
class FindHeadsResult(Result):
    """The attention of every head from the query words to the key words.

    Attributes:
        words: query word and key word of each pair.
        weights: attention from query to key, averaged over the pairs; float64, shape [layer, head], 0 to 1.
        ranks: rank of the key by its weight in the query's row, from 1, averaged over the pairs; shape
            [layer, head].
    """

    question: FindHeads
    words: tuple[tuple[Unit, Unit], ...]
    weights: Array
    ranks: Array

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.weights.shape != self.ranks.shape:
            raise ShapeError(
                f"weights and ranks must have shape [layer, head], not {self.weights.shape} and "
                f"{self.ranks.shape}."
            )

    @property
    def ranked(self) -> tuple[HeadScore, ...]:
        """Scores of all heads, by descending weight."""
        order = np.argsort(-self.weights, axis=None, kind="stable")
        indices = zip(*np.unravel_index(order, self.weights.shape), strict=True)
        return tuple(
            HeadScore(int(layer), int(head), float(self.weights[layer, head]), float(self.ranks[layer, head]))
            for layer, head in indices
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Token positions of the query word and of the key word of each pair."""
        return {"positions": [[[*word.positions] for word in pair] for pair in self.words]}

    @property
    def sort_order(self) -> SortOrder:
        """The order of the table, by descending weight."""
        return SortOrder("weight")

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each head, by descending weight.

        Columns: layer, head, weight, rank_in_row.
        """
        scores = self.ranked
        return pd.DataFrame(
            {
                "layer": [score.layer + 1 for score in scores],
                "head": [score.head + 1 for score in scores],
                "weight": [score.weight for score in scores],
                "rank_in_row": [
                    int(score.rank) if score.rank.is_integer() else score.rank for score in scores
                ],
            }
        )


def select_word(trace: Trace, word: Word) -> Unit:
    """Return the word of a text with the given name, or the word that contains the token at a position.

    Raises:
        SelectionError: the text does not contain the word or position.
    """
    if isinstance(word, str):
        return find_word(trace, word)
    position = resolve_index(word, len(trace.tokens), "token")
    return next(unit for unit in word_lens(trace).units if position in unit.positions)


def _check_word(word: Any) -> Word:
    if isinstance(word, str):
        return str(word)
    if isinstance(word, bool) or not isinstance(word, int | np.integer) or word < 0:
        raise SelectionError(
            f"{word!r} is neither a word nor a token position. Pass a word, or a token position from 0."
        )
    return int(word)


def _write_word(word: Word) -> str:
    """Return a position as digits, or a name percent-encoded so that it contains no hyphen."""
    if isinstance(word, int):
        return str(word)
    if word.isascii() and word.isdigit():
        return "".join(f"%{ord(digit):02X}" for digit in word)
    return quote(word, safe="").replace("-", "%2D")


def _read_word(text: str) -> Word:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else unquote(text)
