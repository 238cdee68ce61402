"""An example of every question, with what it is asked of; tests of all questions go over these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bert_probe.analyses.attention import Attention, AttentionLong
from bert_probe.analyses.reach import Reach
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.results.question import Question

TEXT = "The unhappiest boats cross the wide river at night."
OTHER = "The unhappiest boats cross the wide valley at dawn."
SENTENCES = (TEXT, OTHER, "A small boat crosses the river.", "Nobody can read a map at night.")


def one_trace(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (checkpoint.trace(TEXT),)


def two_traces(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint.trace(TEXT), checkpoint.trace(OTHER)


def the_model(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (checkpoint,)


def many_sentences(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint, SENTENCES


@dataclass(frozen=True)
class Example:
    """A question, whom it is asked of, and for each of its fields another value that it could have.

    Attributes:
        asked: the question.
        subjects: makes what `of` gets.
        others: field → another value; all fields must be there.
    """

    asked: Question
    subjects: Callable[[Checkpoint], tuple[Any, ...]]
    others: dict[str, Any] = field(default_factory=dict)


_SHARED = {"measure": "value-norm", "words": True, "specials": False, "renormalise": True, "residual": 0.25}

EXAMPLES = (
    Example(Attention(layer=2, head=3), one_trace, {"layer": 4, "head": "mean", **_SHARED}),
    Example(
        Attention(layer=2, measure="rollout", words=True, residual=0.25, specials=False),
        one_trace,
        {"layer": 4, "head": 2, **_SHARED, "words": False, "specials": True, "residual": 0.5},
    ),
    Example(AttentionLong([1, 2], [0]), one_trace, {"layers": [3], "heads": [1], **_SHARED}),
    Example(Reach("river"), one_trace, {"token": 3, "direction": "into", "words": True, "residual": 0.25}),
)
