"""Test JSON parsing that rejects duplicate keys."""

from __future__ import annotations

import pytest

from bert_probe.text import strict_json


def test_json_without_duplicates_is_read_as_by_python() -> None:
    text = '{"a": [1, 2.5, {"a": null}], "b": {"a": "é"}, "": NaN}'
    assert strict_json.loads(text, parse_constant=str) == {
        "a": [1, 2.5, {"a": None}],
        "b": {"a": "é"},
        "": "NaN",
    }


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '[{"b": {"a": 1, "\\u0061": 2}}]'])
def test_duplicate_key_is_named(text: str) -> None:
    with pytest.raises(strict_json.DuplicateKeyError, match='the key "a" occurs twice; write the key once'):
        strict_json.loads(text)


@pytest.mark.parametrize("text", ["1" * 5_000, '{"a": [-' + "1" * 5_000 + "]}"])
def test_integer_with_too_many_digits_is_refused(text: str) -> None:
    with pytest.raises(strict_json.LongNumberError) as caught:
        strict_json.loads(text)
    assert str(caught.value) == "a number has 5,000 digits, but at most 4,300 are allowed"


def test_long_key_is_shortened() -> None:
    key = "a" * 10_000
    with pytest.raises(strict_json.DuplicateKeyError) as caught:
        strict_json.loads(f'{{"{key}": 1, "{key}": 2}}')
    assert len(str(caught.value)) < 120
