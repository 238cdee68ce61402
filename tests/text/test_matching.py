"""Searching a vocabulary, and expressions that would never end."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from bert_probe.errors import SelectionError
from bert_probe.text import matching
from bert_probe.text.pieces import Marks, Pieces, read

NAMES = ("Ġriver", "driver", "ĠRiver", "ing", "Ġ2024", "Ġ" + "a" * 60 + "b")
_MARKS = Marks("", "Ġ", True)
PIECES = Pieces(
    _MARKS,
    NAMES,
    tuple(read(name, _MARKS)[0] for name in NAMES),
    ("word",) * len(NAMES),
    ("Latin",) * len(NAMES),
    {name: number for number, name in enumerate(NAMES)},
)
ENDLESS = ("(a+)+$", "(a|a)*$", "(.*a){30}c", "(a?){50}a{50}c", "(?:a{1,40}){1,40}c")


def found(search: str, match: str, case: bool = False) -> list[str]:
    return [NAMES[one] for one in matching.matching(PIECES, search, match, case)]


@pytest.mark.parametrize(
    ("search", "match", "case", "names"),
    [
        ("", "exact", False, list(NAMES)),
        ("river", "exact", False, ["Ġriver", "ĠRiver"]),
        ("river", "exact", True, ["Ġriver"]),
        ("Ġriver", "exact", True, ["Ġriver"]),
        ("RIV", "contains", False, ["Ġriver", "driver", "ĠRiver"]),
        ("riv", "prefix", False, ["Ġriver", "ĠRiver"]),
        ("Ġ2", "prefix", False, ["Ġ2024"]),
        (r"^\p{Lu}", "regex", True, ["ĠRiver"]),
        ("^Ġ[^a]", "regex", False, ["Ġriver", "ĠRiver", "Ġ2024"]),
        (r"^\d+$", "regex", False, ["Ġ2024"]),
        ("^d?river$", "regex", False, ["Ġriver", "driver", "ĠRiver"]),
        (".", "contains", False, []),
    ],
)
def test_a_search_by_hand(search: str, match: str, case: bool, names: list[str]) -> None:
    assert sorted(found(search, match, case)) == sorted(names)


@pytest.mark.parametrize("expression", ENDLESS)
def test_an_expression_that_would_not_end_is_given_up_in_time(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "SECONDS", 0.1)
    began = time.monotonic()
    with suppress(SelectionError):
        found(expression, "regex")
    assert time.monotonic() - began < 2


def test_at_least_one_of_them_would_not_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "SECONDS", 0.1)
    with pytest.raises(SelectionError, match=r"takes more than 0\.1 s for 6 pieces, so it was given up"):
        found(r"(a|aa)+\d\1", "regex")


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ("(", "This regular expression cannot be read: missing )"),
        ("*a", "This regular expression cannot be read: nothing to repeat at character 1"),
        (r"\p{Nonsense}", "This regular expression cannot be read"),
        ("a" * 201, "201 characters are searched for; 200 can be given."),
    ],
)
def test_what_cannot_be_searched_for_is_a_sentence(search: str, sentence: str) -> None:
    with pytest.raises(SelectionError) as caught:
        matching.check(search, "regex")
    assert str(caught.value).startswith(sentence)
