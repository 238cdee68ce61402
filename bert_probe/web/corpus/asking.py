"""Questions on a store that take a while."""

from __future__ import annotations

from typing import Any

from bert_probe.results.question import Question
from bert_probe.run.cache import key_of
from bert_probe.web import jobs, store


def answered(
    key: str, label: str, unit: str, asked: Question, *subjects: Any, limits: tuple[Any, ...] = ()
) -> Any:
    """The answer, from a job that begins at once; None while there is none.

    Args:
        key, label, unit: see `jobs.run`.
        subjects: the store, and the text where one is asked about.
        limits: what else the question is given, which changes no answer.
    """
    of: Any = asked
    return jobs.run(
        key,
        key_of(asked, *subjects),
        label,
        lambda report: store.answers.of(of.of, *subjects, *limits, report=report),
        unit,
        start=True,
    )
