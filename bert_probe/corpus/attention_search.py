"""Rows of a store in which a head looks from a word of one kind to a word of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bert_probe.core.field_types import FieldType, Number, Optional
from bert_probe.core.field_types_of_lists import OneHead
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.columns import SentenceRow, links, ranked, sentences
from bert_probe.corpus.head_rows import MOST_ROWS
from bert_probe.corpus.head_summary import resolved
from bert_probe.corpus.ingest import NEIGHBOURS
from bert_probe.corpus.sql import StoreTables, literal, opened
from bert_probe.corpus.store import Store
from bert_probe.corpus.table_files import reading
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only


@question("corpus find", is_analysis=False)
class AttentionSearch(Question):
    """Pairs of words of which a head looks from the one to the other: its strongest weight lies there.

    Tags and relations are those of the file, CoNLL or CoNLL-U. Where the store is of tokens, each piece of a
    word looks by itself, at a piece; of several that look from one word to another the strongest is told.
    What looks at a special token, at its own word, or at what is no word of the file, is no pair.

    Attributes:
        head: (layer, head) from 0.
        query_pos: tag of the word that looks; None for any.
        key_pos: tag of the word that it looks at; None for any.
        relation: between the two, whichever of them depends on the other; obj is also obj:lvc. None for any.
        top: so many pairs at most, those of the largest weights.
        least: pairs of at least this weight.
    """

    inputs = OneStore()

    head: tuple[int, int] = param(OneHead(), about="The head, such as 3.1.")
    query_pos: str | None = param(Optional(FieldType()), default=None, about="Tag of the word that looks.")
    key_pos: str | None = param(
        Optional(FieldType()), default=None, about="Tag of the word that it looks at."
    )
    relation: str | None = param(
        Optional(FieldType()),
        default=None,
        about="Relation between the two, such as obj, in either direction.",
    )
    top: int = param(Number(1, MOST_ROWS), default=20, about="So many at most, of the largest weights.")
    least: float = param(
        Number(0, 1, whole=False), default=0.0, about="Only those of at least this weight, 0 to 1."
    )

    def of(self, store: Store, report: Progress = no_progress) -> AttentionSearchResult:
        """The pairs, the largest weight first, then in the order of the store.

        Args:
            report: told how many seconds it has been running.

        Raises:
            SelectionError: a head that is not there, or neither a tag nor a relation.
            UnavailableError: a store without neighbours, or whose words have no tags, or no such tag or
                relation.
        """
        if self.query_pos is None and self.key_pos is None and self.relation is None:
            raise SelectionError(
                "Neither a tag nor a relation is given. Name the tag of one of the words, or a relation."
            )
        ((layer, head),) = resolved([self.head], store)
        store.files(NEIGHBOURS)
        with opened(store) as tables:
            self._check_named(store, tables)
            table = tables.select(self._sql(layer, head), report=report)
            rows = table["row"].to_pylist()
            spans = _spans(tables, rows)
        found = sentences(store, rows)
        with reading(store.folder.name):
            query_words, key_words = (
                _written(found, spans, table[name].to_pylist()) for name in ("query_word", "key_word")
            )
        queries, keys, weights = (table[name].to_numpy() for name in ("query", "key", "weight"))
        shown = {"layer": str(layer + 1), "head": str(head + 1)}
        # Words of a file may be others than those of the head view: only tokens are pinned there.
        pins = [{} if store.question.words else {"pins": f"query.{query - 1}"} for query in queries]
        return AttentionSearchResult(
            replace(self, head=(layer, head)),
            store.inputs,
            found,
            queries,
            keys,
            weights,
            query_words,
            key_words,
            tuple(links(store, found, [shown | pin for pin in pins])),
        )

    def _check_named(self, store: Store, tables: StoreTables) -> None:
        """Refuse tags and relations that no word has."""
        name = store.folder.name
        tags, relations = (
            tables.select(f"SELECT DISTINCT {one} FROM tokens WHERE {one} IS NOT NULL ORDER BY 1")
            .column(0)
            .to_pylist()
            for one in ("tag", "relation")
        )
        if not tags:
            raise UnavailableError(
                f"The words of {name} have no tags. Run the corpus on CoNLL-U files, keeping {NEIGHBOURS}."
            )
        for tag in (self.query_pos, self.key_pos):
            if tag is not None and tag not in tags:
                raise SelectionError(f"No word of {name} has the tag {tag}. There are {_some(tags)}.")
        if self.relation is None:
            return
        if not relations:
            raise UnavailableError(
                f"The words of {name} have no relations. Run the corpus on CoNLL-U files, which have them."
            )
        if not any(
            relation == self.relation or relation.startswith(f"{self.relation}:") for relation in relations
        ):
            raise SelectionError(
                f"No word of {name} has the relation {self.relation}. There are {_some(relations)}."
            )

    def _sql(self, layer: int, head: int) -> str:
        """The query of the pairs; layers and heads from 0."""
        wanted = [f"n.layer = {layer + 1} AND n.head = {head + 1} AND n.weight >= {self.least!r}"]
        for side, tag in (("q", self.query_pos), ("k", self.key_pos)):
            wanted.append(f"{side}.tag IS NOT NULL" if tag is None else f"{side}.tag = {literal(tag)}")
        if self.relation is not None:
            ways = [_depends(one, other, self.relation) for one, other in ("qk", "kq")]
            wanted.append(f"({' OR '.join(ways)})")
        return f"""
            SELECT n.row, n.query, n.key, n.weight, q.word AS query_word, k.word AS key_word
            FROM neighbours n
            JOIN tokens q ON q.row = n.row AND q.position = n.query
            JOIN tokens k ON k.row = n.row AND k.position = n.key AND k.word <> q.word
            WHERE {" AND ".join(wanted)}
            QUALIFY row_number() OVER (
                PARTITION BY n.row, q.word, k.word ORDER BY n.weight DESC, n.query, n.key
            ) = 1
            ORDER BY n.weight DESC, n.row, n.query, n.key LIMIT {self.top}
        """


def _depends(one: str, other: str, relation: str) -> str:
    """That one depends on the other by a relation, or by one within it."""
    within = f"{one}.relation = {literal(relation)} OR starts_with({one}.relation, {literal(f'{relation}:')})"
    return f"({one}.head = {other}.word AND ({within}))"


_Pair = tuple[int, int]


def _spans(tables: StoreTables, rows: Sequence[int]) -> dict[_Pair, _Pair]:
    """Row, number of a word → where its first piece begins and its last one ends, in characters."""
    if not rows:
        return {}
    table = tables.select(
        f"""
        SELECT row, word, min(start), max("end") FROM tokens
        WHERE row IN ({", ".join(map(str, sorted(set(rows))))}) AND tag IS NOT NULL GROUP BY row, word
        """,
    )
    every = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return {(row, word): (start, end) for row, word, start, end in every}


def _written(
    found: Sequence[SentenceRow], spans: Mapping[_Pair, _Pair], words: Sequence[int]
) -> tuple[str, ...]:
    """Words as they stand in their texts."""
    return tuple(
        one.text[slice(*spans[one.row, word])].strip() for one, word in zip(found, words, strict=True)
    )


def _some(names: Sequence[str], most: int = 40) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionSearchResult(Result):
    """Pairs of words of which a head looks from the one to the other.

    Attributes:
        sentences: of each pair the row that it stands in.
        queries, keys: positions of the tokens from 1, or of the words where the store is of words, [pair].
        weights: of the query's attention what the key gets, [pair].
        query_words, key_words: as they stand in the text.
        links: of each the address, within the app, of the head on it; "" for a model in memory.
    """

    question: AttentionSearch
    sentences: tuple[SentenceRow, ...]
    queries: Array
    keys: Array
    weights: Array
    query_words: tuple[str, ...]
    key_words: tuple[str, ...]
    links: tuple[str, ...]

    def __post_init__(self) -> None:
        every = (self.queries, self.keys, self.weights, self.query_words, self.key_words, self.links)
        if {len(one) for one in every} != {len(self.sentences)}:
            raise ShapeError(f"{[len(one) for one in every]} are not of {len(self.sentences)} pairs.")
        for one in (self.queries, self.keys, self.weights):
            read_only(one)

    def frame(self) -> pd.DataFrame:
        """A line a pair: rank, row, file, line, weight, query, key, query_word, key_word, text, link."""
        return pd.DataFrame(
            {
                **ranked(self.sentences),
                "weight": self.weights,
                "query": self.queries,
                "key": self.keys,
                "query_word": list(self.query_words),
                "key_word": list(self.key_words),
                "text": [sentence.text for sentence in self.sentences],
                "link": list(self.links),
            }
        )
