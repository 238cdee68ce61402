"""Test that earlier names of questions and of URL parameters are still read."""

from __future__ import annotations

import bert_probe
from bert_probe.core import earlier_names
from bert_probe.core.earlier_names import current_parameters, current_question
from bert_probe.core.question import QUESTIONS


def test_earlier_names_stand_for_questions_and_are_free() -> None:
    for earlier, name in earlier_names._QUESTIONS.items():
        assert earlier not in bert_probe.__all__
        assert getattr(bert_probe, current_question(earlier)) in QUESTIONS.values()
        assert current_question(name) == name


def test_earlier_parameters_and_values_are_replaced() -> None:
    earlier = {"why": "heads", "why_rows": "words", "sentences_part": "cosines", "layer": "3"}
    current = {
        "attribution": "heads",
        "faithfulness_rows": "words",
        "sentences_part": "scores",
        "layer": "3",
    }
    assert current_parameters(earlier) == current
    assert current_parameters(current) == current
    assert current_parameters({"why": "heads", "attribution": "words"}) == {"attribution": "words"}
    assert current_parameters({"sentences": "paste"}) == {"sentences_source": "paste"}
    assert current_parameters({"sentences": "A boat."}) == {"sentences": "A boat."}
