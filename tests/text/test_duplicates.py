"""Test the groups of texts that must be in the same split."""

from __future__ import annotations

import sys
import unicodedata
from itertools import combinations
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from tokenizers.normalizers import BertNormalizer

from bert_probe.text.duplicates import group_rows, pair_key, text_key


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_groups_are_connected_components(rows: list[tuple[int, int]]) -> None:
    groups = group_rows([first for first, _ in rows], [second for _, second in rows])
    expected = [*range(len(rows))]
    for _ in rows:
        for a, b in combinations(range(len(rows)), 2):
            if rows[a][0] == rows[b][0] or rows[a][1] == rows[b][1]:
                expected[a] = expected[b] = min(expected[a], expected[b])
    assert groups == expected


def test_long_chain_is_one_group() -> None:
    size = 50_000
    assert (
        group_rows([index // 2 for index in range(size)], [-(-index // 2) for index in range(size)])
        == [0] * size
    )


def test_details_that_models_ignore_do_not_count() -> None:
    variants = [
        "A new café!",
        "a new café !",
        "A  NEW\tCAFE\u0301!",
        "\u200ba new caf\u00e9\x00!",
        "a new cafe!",
    ]
    assert {*map(text_key, variants)} == {"anewcafe!"}
    assert text_key("Straße ①") == text_key("STRASSE 1")
    assert text_key("good") != text_key("good.")
    assert pair_key("A", "B") == pair_key("b", "a") != pair_key("a", None)
    assert pair_key("a", "a") != pair_key("a", None)


@given(st.text(max_size=12), st.data())
def test_texts_that_differ_for_key_differ_for_normalizer_of_bert(text: str, data: st.DataObject) -> None:
    """The key is at least as coarse as the normalization of an uncased BERT model."""
    changed = "".join(
        data.draw(
            st.sampled_from(
                [sign, sign.upper(), sign.lower(), unicodedata.normalize("NFD", sign), f"{sign} "]
            )
        )
        for sign in text
    )
    normalize = BertNormalizer().normalize_str
    if normalize(text).split() == normalize(changed).split():
        assert text_key(text) == text_key(changed)


@given(st.text(st.sampled_from("a\u0301\u0327\u302e\U0001d165\u0f73\u0344e\u0345\uff9e"), max_size=300))
def test_long_sequences_of_accents_are_not_normalized(text: str) -> None:
    """The time to normalize a sequence of accents is quadratic in its length."""
    normalize, longest = unicodedata.normalize, 0

    def record(form: str, given: str) -> str:
        nonlocal longest
        runs = "".join("x" if unicodedata.combining(sign) else " " for sign in given).split()
        longest = max([longest, *map(len, runs)])
        return normalize(form, given)  # type: ignore[arg-type]

    with patch.object(unicodedata, "normalize", record):
        key = text_key(text)
    assert longest <= 3
    assert key == "".join(sign for sign in normalize("NFKD", text) if not unicodedata.combining(sign))


def test_key_does_not_depend_on_the_case_of_any_character() -> None:
    normalize = BertNormalizer().normalize_str
    for sign in map(chr, range(sys.maxunicode + 1)):
        if not unicodedata.category(sign).startswith("C"):
            key = text_key(sign)
            assert key == text_key(normalize(sign)), ascii(sign)
            assert key == text_key(key), ascii(sign)
