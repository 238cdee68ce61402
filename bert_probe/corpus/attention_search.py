"""Search a corpus store for word pairs with given tags or relation, ranked by the attention of one head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bert_probe.core.field_types import FieldType, Number, Optional
from bert_probe.core.field_types_of_lists import OneHead
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.heads import MAX_ROWS, resolved
from bert_probe.corpus.inputs import NEIGHBORS
from bert_probe.corpus.schema import store_errors
from bert_probe.corpus.sql import StoreTables, open_tables
from bert_probe.corpus.sql_child import literal
from bert_probe.corpus.store import SentenceRow, Store, links, rank_columns, sentences
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only

MAX_NAMES = 40
"""Maximum number of tags or relations that an error message lists."""


@question("attention search", command="corpus find", is_analysis=False)
class AttentionSearch(Question):
    """Search for pairs of words in which one head attends most from the first word to the second word.

    Tags and relations come from CoNLL or CoNLL-U files. If the store contains tokens instead of words, the
    weight of a word pair is the largest weight of its token pairs. Pairs within one word, and pairs that
    contain a special token or an untagged token, are left out.

    Attributes:
        head: (layer, head), both from 0.
        query_pos: tag of the word that attends. If None, any tag matches.
        key_pos: tag of the word that is attended to. If None, any tag matches.
        relation: dependency relation between the two words, in either direction; "obj" includes subtypes such
            as "obj:lvc". If None, any relation matches.
        top: maximum number of pairs. The pairs with the largest weights are returned.
        min_weight: minimum attention weight, 0 to 1.
    """

    inputs = OneStore()

    head: tuple[int, int] = param(OneHead(), about="Layer and head, such as 3.1.")
    query_pos: str | None = param(Optional(FieldType()), default=None, about="Tag of the word that attends.")
    key_pos: str | None = param(
        Optional(FieldType()), default=None, about="Tag of the word that is attended to."
    )
    relation: str | None = param(
        Optional(FieldType()),
        default=None,
        about="Dependency relation between the two words, such as obj, in either direction.",
    )
    top: int = param(
        Number(1, MAX_ROWS),
        default=20,
        about="Maximum number of pairs; those with the largest weights are listed.",
    )
    min_weight: float = param(Number(0, 1, integer=False), default=0.0, about="Minimum weight, 0 to 1.")

    def of(self, store: Store, progress: Progress = no_progress) -> AttentionSearchResult:
        """Return the matching word pairs in descending order of weight; ties are in the order of the store.

        Args:
            store: a store with neighbors and tags.
            progress: called with the number of seconds that the query has been running.

        Raises:
            SelectionError: the model does not have the head, no word in the store has the tag or relation, or
                the question has neither a tag nor a relation.
            UnavailableError: the store has no neighbors, or its words have no tags or relations.
        """
        if self.query_pos is None and self.key_pos is None and self.relation is None:
            raise SelectionError(
                "The search needs a tag or a relation. Pass the tag of at least one of the words, or a "
                "relation."
            )
        ((layer, head),) = resolved([self.head], store)
        store.files(NEIGHBORS)
        with open_tables(store) as tables:
            self._check_names(store, tables)
            pairs = tables.select(self._sql(layer, head), progress=progress)
            rows = pairs["row"].to_pylist()
            spans = _word_spans(tables, rows)
        ranking = sentences(store, rows)
        with store_errors(store.folder.name):
            query_words, key_words = (
                tuple(
                    sentence.text[slice(*spans[sentence.row, word])].strip()
                    for sentence, word in zip(ranking, pairs[name].to_pylist(), strict=True)
                )
                for name in ("query_word", "key_word")
            )
        queries, keys, weights = (pairs[name].to_numpy() for name in ("query", "key", "weight"))
        parameters = {"layer": str(layer + 1), "head": str(head + 1)}
        # The link selects the query only if it is a token, because the head view may split words differently.
        pins = [{} if store.question.words else {"pins": f"query.{query - 1}"} for query in queries]
        return AttentionSearchResult(
            replace(self, head=(layer, head)),
            store.inputs,
            ranking,
            queries,
            keys,
            weights,
            query_words,
            key_words,
            tuple(links(store, ranking, [parameters | pin for pin in pins])),
        )

    def _check_names(self, store: Store, tables: StoreTables) -> None:
        """Check that the requested tags and relation occur in the store."""
        name = store.folder.name
        tags, relations = (
            tables.select(f"SELECT DISTINCT {column} FROM tokens WHERE {column} IS NOT NULL ORDER BY 1")
            .column(0)
            .to_pylist()
            for column in ("tag", "relation")
        )
        if not tags:
            raise UnavailableError(
                f"The words of {name} have no tags. Build a store of CoNLL-U files, with the table "
                f"{NEIGHBORS}."
            )
        for tag in (self.query_pos, self.key_pos):
            if tag is not None and tag not in tags:
                raise SelectionError(
                    f"No word of {name} has the tag {tag}. Available tags: {_list_names(tags)}."
                )
        if self.relation is None:
            return
        if not relations:
            raise UnavailableError(
                f"The words of {name} have no relations. Build a store of CoNLL-U files, in which the words "
                "have relations."
            )
        if not any(
            relation == self.relation or relation.startswith(f"{self.relation}:") for relation in relations
        ):
            raise SelectionError(
                f"No word of {name} has the relation {self.relation}. Available relations: "
                f"{_list_names(relations)}."
            )

    def _sql(self, layer: int, head: int) -> str:
        """Return the SQL query that selects the word pairs; `layer` and `head` count from 0."""
        conditions = [f"n.layer = {layer + 1} AND n.head = {head + 1} AND n.weight >= {self.min_weight!r}"]
        for side, tag in (("q", self.query_pos), ("k", self.key_pos)):
            conditions.append(f"{side}.tag IS NOT NULL" if tag is None else f"{side}.tag = {literal(tag)}")
        if self.relation is not None:
            relation, subtypes = literal(self.relation), literal(f"{self.relation}:")
            directions = [
                f"({child}.head = {parent}.word AND "
                f"({child}.relation = {relation} OR starts_with({child}.relation, {subtypes})))"
                for child, parent in ("qk", "kq")
            ]
            conditions.append(f"({' OR '.join(directions)})")
        return f"""
            SELECT n.row, n.query, n.key, n.weight, q.word AS query_word, k.word AS key_word
            FROM neighbors n
            JOIN tokens q ON q.row = n.row AND q.position = n.query
            JOIN tokens k ON k.row = n.row AND k.position = n.key AND k.word <> q.word
            WHERE {" AND ".join(conditions)}
            QUALIFY row_number() OVER (
                PARTITION BY n.row, q.word, k.word ORDER BY n.weight DESC, n.query, n.key
            ) = 1
            ORDER BY n.weight DESC, n.row, n.query, n.key LIMIT {self.top}
        """


def _word_spans(tables: StoreTables, rows: Sequence[int]) -> Mapping[tuple[int, int], tuple[int, int]]:
    """Return a dict from (row, word number) to the character span (start, end) of each tagged word."""
    if not rows:
        return {}
    table = tables.select(
        f"""
        SELECT row, word, min(start), max("end") FROM tokens
        WHERE row IN ({", ".join(map(str, sorted(set(rows))))}) AND tag IS NOT NULL GROUP BY row, word
        """,
    )
    spans = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return {(row, word): (start, end) for row, word, start, end in spans}


def _list_names(names: Sequence[str]) -> str:
    hidden = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {hidden} more" if hidden > 0 else "")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionSearchResult(Result):
    """Word pairs in which one head attends from the first word (the query) to the second word (the key).

    Attributes:
        sentences: the sentence of each pair.
        queries: position of the token that attends in each pair, from 1; the position of the word if the
            store merges tokens into words.
        keys: position of the token or word that is attended to in each pair, from 1.
        weights: attention weight from query to key in each pair.
        query_words: word of each query, as written in the text.
        key_words: word of each key, as written in the text.
        links: URL of each pair's head view within the app; "" if the model is only in memory.
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
        columns = (self.queries, self.keys, self.weights, self.query_words, self.key_words, self.links)
        lengths = [len(column) for column in columns]
        if {*lengths} != {len(self.sentences)}:
            raise ShapeError(
                f"All columns must have {len(self.sentences)} entries, one per pair, not {lengths}."
            )
        for array in (self.queries, self.keys, self.weights):
            read_only(array)

    def frame(self) -> pd.DataFrame:
        """Return the word pairs as a table with one row per pair.

        Columns: rank, row, file, line, weight, query, key, query_word, key_word, text, link.
        """
        return pd.DataFrame(
            {
                **rank_columns(self.sentences),
                "weight": self.weights,
                "query": self.queries,
                "key": self.keys,
                "query_word": list(self.query_words),
                "key_word": list(self.key_words),
                "text": [sentence.text for sentence in self.sentences],
                "link": list(self.links),
            }
        )
