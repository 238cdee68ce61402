"""Test limits of fields: a short request must not take minutes or gigabytes of memory."""

from __future__ import annotations

import pytest

from bert_probe import AttentionLong, FillMask, FindHeads, HeadAblation, HeadMeans, WordInContext
from bert_probe.core.field_types import MAX_ITEMS
from bert_probe.core.field_types_of_lists import MAX_INDICES
from bert_probe.core.question import Question
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint


@pytest.mark.parametrize(
    ("question", "values"),
    [
        (FindHeads, {"pairs": [(1, 2)] * (MAX_ITEMS + 1)}),
        (FillMask, {"targets": [f"w{number}" for number in range(MAX_ITEMS + 1)]}),
        (WordInContext, {"words": ["river"] * (MAX_ITEMS + 1)}),
        (HeadMeans, {"resamples": 20_001}),
    ],
)
def test_values_beyond_a_limit_are_refused(question: type[Question], values: dict[str, object]) -> None:
    with pytest.raises(SelectionError, match=r"at most 1,000|1 to 20000"):
        question(**values)


def test_layers_and_heads_are_read_once(minilm: Checkpoint) -> None:
    question = AttentionLong(layers=[0, 5, -1, 0], heads=[1] * 2000)
    assert (question.layers, question.heads) == ((0, 5, -1), (1,))
    assert question.of(minilm.trace("a boat")).question.layers == (0, 5)


@pytest.mark.parametrize(
    ("question", "values"),
    [
        (HeadAblation, {"heads": ["1"] * (MAX_INDICES + 1)}),
        (HeadAblation, {"heads": ["1.1"] * (MAX_INDICES + 1)}),
        (AttentionLong, {"layers": [1] * (MAX_INDICES + 1)}),
        (AttentionLong, {"heads": [1] * (MAX_INDICES + 1)}),
    ],
)
def test_long_lists_of_a_request_are_refused(
    question: type[Question], values: dict[str, object], minilm: Checkpoint
) -> None:
    sizes = minilm.description
    with pytest.raises(SelectionError, match=r"has 10,001 entries, but at most 10,000 are allowed"):
        question.from_json(values, sizes)
    ((name, entries),) = values.items()
    assert isinstance(entries, list)
    shortened = question.from_json({name: entries[:-1]}, sizes)
    assert len(getattr(shortened, name)) == (12 if entries[0] == "1" else 1)
