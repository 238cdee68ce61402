"""Test the attention search against loops over the raw model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

import bert_probe
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.text.tagged_sentences import TaggedSentence
from tests.helpers import treebank
from tests.helpers.command_line import bert_probe as run
from tests.helpers.exactness import assert_rounded
from tests.helpers.gate import PROVE, prove_unless
from tests.helpers.stores import EXTRA, Loops, loops

Stores = Callable[[str], bert_probe.Store]
HEADS = ((0, 0), (-1, 1))


Read = tuple[bert_probe.Store, list[tuple[int, TaggedSentence, Loops]]]
"""A store, and (row number, sentence, loops over the raw model) for each of its rows."""


class Pair(NamedTuple):
    weight: float
    row: int
    query: int
    key: int
    query_word: str
    key_word: str


@pytest.fixture(scope="module", params=["tokens", "words"])
def read(request: pytest.FixtureRequest, stores: Stores) -> Read:
    """Return a store, and the reference values of the raw model for each of its rows."""
    store = stores(request.param)
    sentences = [*treebank.SAILING, *treebank.SLEEPING, *treebank.read(EXTRA)]
    return store, [*zip((1, 2, 3, 4, 5, 7), sentences, loops(store, sentences), strict=True)]


def loop_pairs(
    read: Read,
    head: tuple[int, int],
    fits: Callable[[TaggedSentence, int, int], bool],
) -> list[Pair]:
    """Return the expected word pairs of a head, computed with a loop and sorted by descending weight.

    Args:
        fits: function that returns whether a search matches (sentence, query word index, key word index).
    """
    best: dict[tuple[int, int, int], Pair] = {}
    for row, sentence, raw in read[1]:
        for query, keys in enumerate(raw.weights[head]):
            key = int(keys.argmax())
            first, other = raw.words[query], raw.words[key]
            if first is None or other is None or first == other or not fits(sentence, first, other):
                continue
            pair = Pair(keys[key], row, query + 1, key + 1, sentence.words[first], sentence.words[other])
            before = best.get((row, first, other))
            if before is None or pair.weight > before.weight:
                best[row, first, other] = pair
    return sorted(best.values(), key=lambda pair: -pair.weight)


def check(
    read: Read,
    question: bert_probe.AttentionSearch,
    fits: Callable[[TaggedSentence, int, int], bool],
) -> int:
    """Assert that a search returns the same pairs as `loop_pairs`, and return the number of pairs."""
    expected = loop_pairs(read, question.head, fits)
    table = question.of(read[0]).table()
    assert table["rank"].tolist() == [*range(1, len(expected) + 1)]
    if expected:
        assert_rounded(table["weight"], [pair.weight for pair in expected], 4)
    columns = ["row", "query", "key", "query_word", "key_word"]
    assert table[columns].to_numpy().tolist() == [list(pair[1:]) for pair in expected]
    return len(expected)


@pytest.mark.gate(cases=1)
def test_pairs_by_tag_match_raw_model(
    read: Read,
) -> None:
    result = 0
    tags = (("VERB", "NOUN"), ("NOUN", "NOUN"), ("DET", None), (None, "VERB"))
    for head, (query, key) in product(HEADS, tags) if PROVE else zip(HEADS * 2, tags, strict=True):

        def fits(
            sentence: TaggedSentence,
            first: int,
            other: int,
            query: str | None = query,
            key: str | None = key,
        ) -> bool:
            return query in (None, sentence.tags[first]) and key in (None, sentence.tags[other])

        result += check(read, bert_probe.AttentionSearch(head, query, key, top=1000), fits)
    assert result > (20 if PROVE else 10)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("relation", prove_unless({"obj:lvc"}, ["obj", "obj:lvc"]))
def test_pairs_by_relation_match_raw_model(read: Read, relation: str) -> None:
    def fits(sentence: TaggedSentence, first: int, other: int) -> bool:
        return any(
            sentence.heads[dependent] == head
            and (
                sentence.relations[dependent] == relation
                or sentence.relations[dependent].startswith(f"{relation}:")
            )
            for dependent, head in ((first, other), (other, first))
        )

    heads = [(layer, 0) for layer in range(read[0].sizes.layers)]
    assert sum(
        check(read, bert_probe.AttentionSearch(head, relation=relation, top=1000), fits) for head in heads
    )


@pytest.mark.prove
def test_top_and_minimum_weight_limit_pairs(stores: Stores) -> None:
    store = stores("tokens")
    every = bert_probe.AttentionSearch((0, 0), key_pos="NOUN", top=100).of(store).table()
    assert len(every) > 2
    assert len(bert_probe.AttentionSearch((0, 0), key_pos="NOUN", top=2).of(store).sentences) == 2
    middle = float(every["weight"][1])
    result = bert_probe.AttentionSearch((0, 0), key_pos="NOUN", min_weight=middle).of(store)
    assert result.weights.tolist() == every["weight"].tolist()[:2]
    with pytest.raises(ShapeError, match="All columns must have"):
        replace(result, queries=result.queries[:1])


def test_link_opens_pair_in_head_view(stores: Stores) -> None:
    for name in ("tokens", "words"):
        row = bert_probe.AttentionSearch((1, 0), key_pos="NOUN").of(stores(name)).table().iloc[0]
        link = urlsplit(row["link"])
        arguments = {key: value for key, (value,) in parse_qs(link.query).items()}
        assert link.path == "/attention"
        assert arguments.pop("model") == str(stores(name).checkpoint(trust=True).folder)
        assert arguments.pop("dtype") == "float64"
        where = {"pins": f"query.{row['query'] - 1}"} if name == "tokens" else {"words": "1"}
        assert arguments == {"a": row["text"], "layer": "2", "head": "1", **where}


@pytest.mark.gate(cases=2)
@pytest.mark.usefixtures("in_store_folder")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "The search needs a tag or a relation."),
        (["--query-pos", "VRB"], "has the tag VRB. Available tags: ADP, ADV, DET, NOUN, NUM,"),
        (["--key-pos", "' OR 1=1 --"], "has the tag ' OR 1=1 --."),
        (["--relation", "ob"], "has the relation ob. Available relations: advmod, case, det,"),
        (["--query-pos", "NOUN", "--min-weight", "2"], "0 to 1"),
        (["--query-pos", "NOUN", "--top", "0"], "1 to 10000"),
    ],
)
def test_invalid_search_raises_readable_error(words: list[str], message: str) -> None:
    assert message in run("corpus", "find", "tokens", "--head", "1.1", *words).refusal


def test_store_without_tags_or_relations_is_refused(
    family: Callable[[str], bert_probe.Checkpoint], tmp_path: Path
) -> None:
    for name, content, question, message in (
        ("a.txt", "A boat.", {"key_pos": "NOUN"}, "have no tags. Build a store of CoNLL-U files"),
        (
            "a.conll",
            "A DET\nboat NOUN\n",
            {"relation": "det"},
            "have no relations. Build a store of CoNLL-U",
        ),
    ):
        file = tmp_path / name
        file.write_text(content, encoding="utf-8")
        gather = bert_probe.IngestConfig(keep=("neighbors",))
        store = bert_probe.build_corpus(family("bert"), gather, [file], tmp_path / f"{name}-store")
        with pytest.raises(UnavailableError, match=message):
            bert_probe.AttentionSearch((0, 0), **question).of(store)
    assert isinstance(bert_probe.AttentionSearch((0, 0), key_pos="NOUN").of(store), Result)
    with pytest.raises(SelectionError, match="no layer 9"):
        bert_probe.AttentionSearch((9, 0), key_pos="NOUN").of(store)
