"""Test splits into training and held-out examples."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert_probe.text.duplicates import groups_to_hold_out
from bert_probe.text.labeled_texts import LabeledText, LabeledTexts
from bert_probe.text.similarity_examples import SimilarityExample, split_groups
from bert_probe.training.schedule import LengthBuckets
from bert_probe.training.splits import label_notes, split, split_texts


@given(
    labels=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)), min_size=1, max_size=80),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    seed=st.integers(0, 3),
)
def test_split_is_disjoint_and_stratified(labels: list[tuple[str, int]], share: float, seed: int) -> None:
    data = LabeledTexts.of(
        "classes", [LabeledText(f"{label} {text}", None, label, 1) for label, text in labels]
    )
    trained, held_out = split_texts(data, share, seed)
    assert Counter(trained) + Counter(held_out) == Counter(data.rows)
    assert not {row.text for row in trained} & {row.text for row in held_out}
    texts = Counter(label for label, _ in set(labels))
    assert {row.label for row in trained} == set(texts)
    often = {label for label, count in texts.items() if count > 1}
    assert {row.label for row in held_out} == (often if share else set())
    assert split_texts(data, share, seed) == (trained, held_out)


def test_class_of_a_repeated_text_is_in_the_training_split() -> None:
    rows = [LabeledText(str(number), None, "ab"[number % 2], number) for number in range(20)]
    for index in range(20):
        repeated = [*rows, LabeledText(str(index), None, "A", 20)]
        for seed in range(5):
            trained, held_out = split_texts(LabeledTexts.of("classes", repeated), 0.2, seed)
            assert {row.label for row in trained} == {"a", "b", "A"}
            assert Counter(trained) + Counter(held_out) == Counter(repeated)
            assert not {row.text for row in trained} & {row.text for row in held_out}
            assert len(held_out) in (2, 3, 4)


def test_reversed_pair_is_in_the_same_split() -> None:
    """Also if the texts of several pairs form a chain; examples with the same first text stay together."""
    texts = [(f"{number}", f"{number + 1}") for number in range(0, 60, 2)]
    texts += [("0", "a"), ("a", "b"), ("b", "0"), ("c", "c")]
    pairs = [*texts, *(pair[::-1] for pair in texts)]
    rows = [SimilarityExample(pair, 1.0, line) for line, pair in enumerate(pairs, 1)]
    for seed in range(5):
        train, held_out = split(rows, 0.2, seed, split_groups(rows))
        assert len(held_out) >= 12
        assert Counter(train) + Counter(held_out) == Counter(rows)
        assert not {frozenset(row.texts) for row in train} & {frozenset(row.texts) for row in held_out}
        assert not {row.texts[0] for row in train} & {row.texts[0] for row in held_out}
    names = ["abc", "dbe", "fag", "bah", "cbi"]
    triplets = [SimilarityExample(tuple(texts), None, line) for line, texts in enumerate(names, 1)]
    assert split_groups(triplets) == [0, 1, 2, 0, 4], "anchor and positive are exchanged"


def test_variants_of_a_text_are_in_one_split() -> None:
    """Variants in case, spaces, accents and compatibility characters are the same text to many models."""
    texts = [f"Das  café {number}" for number in range(30)]
    variants = [*texts, *(text.upper() for text in texts), *(text.replace("é", "e\u0301") for text in texts)]
    variants += [text.replace("  ", "\u00a0").replace("é", "e") for text in texts]
    rows = [LabeledText(text, None, "ab"[index % 2], index) for index, text in enumerate(variants)]
    pairs = [SimilarityExample((row.text, f"{row.line}"), 1.0, row.line) for row in rows]
    pairs += [SimilarityExample((pair.texts[1], pair.texts[0].title()), 1.0, 9) for pair in pairs[:30]]
    for seed in range(5):
        train, held_out = split_texts(LabeledTexts.of("classes", rows), 0.2, seed)
        assert not {row.text.split()[-1] for row in train} & {row.text.split()[-1] for row in held_out}
        assert (len(train), len(held_out)) == (96, 24)
        trained, tested = split(pairs, 0.2, seed, split_groups(pairs))
        numbers = [
            {text.split()[-1] for row in part for text in row.texts if text.lower().startswith("das")}
            for part in (trained, tested)
        ]
        assert tested
        assert not numbers[0] & numbers[1]
    notes = label_notes(LabeledTexts.of("classes", [*rows[:30], LabeledText("DAS CAFE 0", None, "b", 99)]))
    assert notes == [
        "Some texts occur with different labels (ignoring case, spaces and accents): lines 0, 99."
    ]
    premises = [LabeledText(f"a {n}", f"b {n}", "entailment", n) for n in range(5)]
    reverse = [LabeledText(f"b {n}", f"a {n}", "neutral", 9 + n) for n in range(5)]
    assert label_notes(LabeledTexts.of("classes", premises + reverse)) == [], "reversed pairs are other pairs"


def test_large_group_does_not_fill_the_held_out_split() -> None:
    """A text that occurs more often than the share is used for training."""
    for seed in range(10):
        rows = [LabeledText("Good" if n < 300 else f"{n}", None, "ab"[n >= 500], n) for n in range(1000)]
        _, held_out = split_texts(LabeledTexts.of("classes", rows), 0.2, seed)
        assert Counter(row.label for row in held_out) == {"a": 100, "b": 100}
        two = [LabeledText("Good" if n < 30 else "Bad", None, "a", n) for n in range(50)]
        _, held_out = split_texts(LabeledTexts.of("classes", two), 0.2, seed)
        assert [row.text for row in held_out] == ["Bad"] * 20, "the smaller group, as one is held out"


@given(st.dictionaries(st.integers(), st.integers(1, 30), max_size=12), st.integers(1, 60))
def test_groups_to_hold_out_are_close_to_target(sizes: dict[int, int], target: int) -> None:
    held_out = groups_to_hold_out(sizes, target)
    assert bool(held_out) == (len(sizes) > 1)
    assert held_out < {*sizes} or not sizes
    if len(held_out) > 1:
        assert sum(sizes[group] for group in held_out) < 2 * target
    expected = {*range(min(19, max(1, (target + 1) // 3)))}
    assert groups_to_hold_out(dict.fromkeys(range(20), 3), target) == expected


def test_connected_pairs_are_split() -> None:
    """Symmetric pairs of few texts are one connected group, which cannot be split as a whole."""
    random = np.random.default_rng(0)
    pairs = {frozenset((n, int(random.integers(300)))) for n in range(300) for _ in range(2)}
    texts = [tuple(map(str, pair)) for pair in pairs if len(pair) == 2]
    single = [(f"x{n}", f"y{n}") for n in range(20)]
    rows = [
        SimilarityExample(pair, 1.0, line)
        for line, pair in enumerate([*texts, *(pair[::-1] for pair in texts), *single], 1)
    ]
    for seed in range(5):
        train, held_out = split(rows, 0.2, seed, split_groups(rows))
        assert abs(len(held_out) - 0.2 * len(rows)) <= 1
        assert not {frozenset(row.texts) for row in train} & {frozenset(row.texts) for row in held_out}


def test_share_is_held_out_of_each_class() -> None:
    rows = [LabeledText(str(number), None, "ab"[number % 4 == 0], number) for number in range(400)]
    data = LabeledTexts.of("classes", rows)
    _, held_out = split_texts(data, 0.2, 0)
    assert Counter(row.label for row in held_out) == {"a": 60, "b": 20}
    assert split_texts(data, 0.2, 1)[1] != held_out


@given(st.lists(st.integers(1, 5), min_size=1, max_size=60), st.integers(1, 8), st.booleans())
def test_each_epoch_has_every_text_once(lengths: list[int], batch: int, pads: bool) -> None:
    order = LengthBuckets(lengths, batch, 0, pads)
    for epoch in (list(order), list(order)):
        assert sorted(place for places in epoch for place in places) == list(range(len(lengths)))
        assert len(epoch) == len(order)
        assert max(map(len, epoch)) <= batch
        assert pads or all(len({lengths[place] for place in places}) == 1 for places in epoch)


def test_lookalike_labels_are_noted() -> None:
    labels = ["yes", "Yes", "no", "n\u200bo", "maybe"]
    rows = [LabeledText(f"text {i}", None, label, i) for i, label in enumerate(labels)]
    notes = label_notes(LabeledTexts.of("classes", rows))
    assert r"Some labels look the same but are different: 'Yes', 'yes', 'no', 'n\u200bo'." in notes
