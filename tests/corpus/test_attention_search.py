"""Pairs of words of which a head looks from the one to the other: what loops over the raw model give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from tests.helpers.stores import EXTRA, Loops, loops

Stores = Callable[[str], bert_probe.Store]
HEADS = ((0, 0), (-1, 1))


Read = tuple[bert_probe.Store, list[tuple[int, TaggedSentence, Loops]]]
"""A store, and of each of its rows the number, the sentence, and the raw model's numbers."""


class Pair(NamedTuple):
    weight: float
    row: int
    query: int
    key: int
    query_word: str
    key_word: str


@pytest.fixture(scope="module", params=["tokens", "words"])
def read(request: pytest.FixtureRequest, stores: Stores) -> Read:
    """A store, and what the raw model gives for each of its rows."""
    store = stores(request.param)
    sentences = [*treebank.SAILING, *treebank.SLEEPING, *treebank.read(EXTRA)]
    return store, [*zip((1, 2, 3, 4, 5, 7), sentences, loops(store, sentences), strict=True)]


def looked(
    read: Read,
    head: tuple[int, int],
    fits: Callable[[TaggedSentence, int, int], bool],
) -> list[Pair]:
    """What a loop finds, the largest weight first."""
    best: dict[tuple[int, int, int], Pair] = {}
    for row, sentence, raw in read[1]:
        for query, keys in enumerate(raw.weights[head]):
            key = int(keys.argmax())
            one, other = raw.words[query], raw.words[key]
            if one is None or other is None or one == other or not fits(sentence, one, other):
                continue
            pair = Pair(keys[key], row, query + 1, key + 1, sentence.words[one], sentence.words[other])
            before = best.get((row, one, other))
            if before is None or pair.weight > before.weight:
                best[row, one, other] = pair
    return sorted(best.values(), key=lambda pair: -pair.weight)


def check(
    read: Read,
    asked: bert_probe.AttentionSearch,
    fits: Callable[[TaggedSentence, int, int], bool],
) -> int:
    """The answer is what a loop finds; returns how many pairs."""
    expected = looked(read, asked.head, fits)
    table = asked.of(read[0]).table()
    assert table["rank"].tolist() == [*range(1, len(expected) + 1)]
    if expected:
        assert_rounded(table["weight"], [one.weight for one in expected], 4)
    columns = ["row", "query", "key", "query_word", "key_word"]
    assert table[columns].to_numpy().tolist() == [list(one[1:]) for one in expected]
    return len(expected)


def test_a_head_looks_from_tag_to_tag(
    read: Read,
) -> None:
    found = 0
    for head in HEADS:
        for query, key in (("VERB", "NOUN"), ("NOUN", "NOUN"), ("DET", None), (None, "VERB")):

            def fits(
                sentence: TaggedSentence,
                one: int,
                other: int,
                query: str | None = query,
                key: str | None = key,
            ) -> bool:
                return query in (None, sentence.tags[one]) and key in (None, sentence.tags[other])

            found += check(read, bert_probe.AttentionSearch(head, query, key, top=1000), fits)
    assert found > 20


@pytest.mark.parametrize("relation", ["obj", "obj:lvc"])
def test_a_head_looks_along_a_relation(read: Read, relation: str) -> None:
    def fits(sentence: TaggedSentence, one: int, other: int) -> bool:
        return any(
            sentence.heads[dependent] == head
            and (
                sentence.relations[dependent] == relation
                or sentence.relations[dependent].startswith(f"{relation}:")
            )
            for dependent, head in ((one, other), (other, one))
        )

    heads = [(layer, 0) for layer in range(read[0].sizes.layers)]
    assert sum(
        check(read, bert_probe.AttentionSearch(head, relation=relation, top=1000), fits) for head in heads
    )


def test_few_and_strong_ones(stores: Stores) -> None:
    store = stores("tokens")
    every = bert_probe.AttentionSearch((0, 0), key_pos="NOUN", top=100).of(store).table()
    assert len(every) > 2
    assert len(bert_probe.AttentionSearch((0, 0), key_pos="NOUN", top=2).of(store).sentences) == 2
    middle = float(every["weight"][1])
    found = bert_probe.AttentionSearch((0, 0), key_pos="NOUN", least=middle).of(store)
    assert found.weights.tolist() == every["weight"].tolist()[:2]
    with pytest.raises(ShapeError, match="are not of"):
        replace(found, queries=found.queries[:1])


def test_a_pair_opens_in_the_head_view(stores: Stores) -> None:
    for name in ("tokens", "words"):
        one = bert_probe.AttentionSearch((1, 0), key_pos="NOUN").of(stores(name)).table().iloc[0]
        link = urlsplit(one["link"])
        given = {key: value for key, (value,) in parse_qs(link.query).items()}
        assert link.path == "/attention"
        assert given.pop("model") == str(stores(name).checkpoint(trust=True).folder)
        where = {"pins": f"query.{one['query'] - 1}"} if name == "tokens" else {"words": "1"}
        assert given == {"a": one["text"], "layer": "2", "head": "1", **where}


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Neither a tag nor a relation is given."),
        (["--query-pos", "VRB"], "has the tag VRB. There are ADP, ADV, DET, NOUN, NUM,"),
        (["--key-pos", "' OR 1=1 --"], "has the tag ' OR 1=1 --."),
        (["--relation", "ob"], "has the relation ob. There are advmod, case, det,"),
        (["--query-pos", "NOUN", "--least", "2"], "0 to 1"),
        (["--query-pos", "NOUN", "--top", "0"], "1 to 10000"),
    ],
)
def test_what_cannot_be_found_is_a_sentence(words: list[str], said: str) -> None:
    assert said in run("corpus", "find", "tokens", "--head", "1.1", *words).refusal


def test_words_without_tags_or_relations_say_so(
    family: Callable[[str], bert_probe.Checkpoint], tmp_path: Path
) -> None:
    for name, content, asked, said in (
        ("a.txt", "A boat.", {"key_pos": "NOUN"}, "have no tags. Run the corpus on CoNLL-U files"),
        (
            "a.conll",
            "A DET\nboat NOUN\n",
            {"relation": "det"},
            "have no relations. Run the corpus on CoNLL-U",
        ),
    ):
        file = tmp_path / name
        file.write_text(content, encoding="utf-8")
        gather = bert_probe.IngestConfig(keep=("neighbours",))
        store = bert_probe.build_corpus(family("bert"), gather, [file], tmp_path / f"{name}-store")
        with pytest.raises(UnavailableError, match=said):
            bert_probe.AttentionSearch((0, 0), **asked).of(store)
    assert isinstance(bert_probe.AttentionSearch((0, 0), key_pos="NOUN").of(store), Result)
    with pytest.raises(SelectionError, match="no layer 9"):
        bert_probe.AttentionSearch((9, 0), key_pos="NOUN").of(store)
