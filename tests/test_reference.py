"""Test that docs/reference.md is up to date with the code that generates it."""

from __future__ import annotations

import runpy

import bert_probe
from bert_probe.core.question import Question
from tests.helpers.installed import ROOT


def test_reference_matches_code() -> None:
    generated = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["reference"]()
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == generated, "run `make reference`"


def test_reference_has_an_entry_for_each_public_name() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for name in bert_probe.__all__:
        assert f"\n### {name}\n" in text or f"\n- `{name}`: " in text, name
        value = getattr(bert_probe, name)
        if isinstance(value, type) and issubclass(value, Question) and value is not Question:
            assert f"bert-probe {value.command} --help" in text, name
