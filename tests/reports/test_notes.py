"""Test references in notes, which may come from an untrusted view file or report."""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
import pytest

from bert_probe.errors import ReportError
from bert_probe.reports import tables


@pytest.mark.parametrize(
    "text", ["{{1," + " " * 2_000, "{{" + " " * 20_000, "{{1," * 5_000, "{{ 1, " * 3_000]
)
def test_unfinished_references_are_read_in_linear_time(text: str) -> None:
    start = time.process_time()
    tables.unchecked_numbers(text)
    assert time.process_time() - start < 1


def test_reference_with_spaces_is_not_unchecked() -> None:
    assert tables.unchecked_numbers("7 and {{ 3 ,  mean weight\n}} and 2.5") == ["7", "2.5"]


@pytest.mark.parametrize("joiner", [*".,e'_‘‚·․．﹒，٫٬‧⋅∙˙ꓸᴇе", "", *"\u200b\u0301\u115f\u3164\uffa0"])
def test_joined_references_are_unchecked(joiner: str) -> None:
    joined = "{{1, layer}}" + joiner + "{{2, head}}"
    assert tables.unchecked_numbers(f"We found {joined}.") == [joined]
    assert tables.unchecked_numbers(f"{joined}{joiner}{{{{3, head}}}}") == [
        f"{joined}{joiner}{{{{3, head}}}}"
    ]


@pytest.mark.parametrize("between", [*" –%％/：；×、和\n", ", ", " and ", " . "])
def test_separate_references_are_not_unchecked(between: str) -> None:
    assert tables.unchecked_numbers("{{1, layer}}" + between + "{{2, head}}") == []


def test_references_to_long_texts_are_limited() -> None:
    """A note of 20,000 characters could repeat a text a thousand times."""
    table = tables.ReportTable.of(pd.DataFrame({"text": ["a" * 30_000], "weight": [0.5]}))
    assert len(tables.render_note("{{1, text}}, {{1, weight}}", table)) == 30_008
    with pytest.raises(ReportError, match="have more than 100,000 characters"):
        tables.render_note("{{1, text}}" * 4, table)


def test_private_characters_in_a_note_are_not_references() -> None:
    assert tables.unchecked_numbers("a \ue000\ue001 b") == []
    assert tables.unchecked_numbers("4\ue000\ue001\ue000") == ["4", "\ue000\ue001\ue000"]


def test_digits_of_every_script_are_unchecked() -> None:
    assert tables.unchecked_numbers("９５.３ and ٩٥ %, ½, x² and 1,000.") == [
        "９５.３",
        "٩٥",
        "½",
        "²",
        "1,000",
    ]


def test_verified_number_is_isolated_from_bidirectional_text() -> None:
    css = (Path(tables.__file__).parent / "report.css").read_text(encoding="utf-8")
    rule = css.partition(".note data {")[2].partition("}")[0]
    assert "unicode-bidi: isolate;" in rule
    assert "direction: ltr;" in rule
