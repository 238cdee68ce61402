"""Register the questions that the HTTP API and agent tools answer, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from inspect import getdoc
from pkgutil import walk_packages

from bert_probe import analyses
from bert_probe.core.field_types import FileName, Optional
from bert_probe.core.inputs import Inputs
from bert_probe.core.question import QUESTIONS, Question, field_type
from bert_probe.core.snippets import url_name
from bert_probe.runtime import permissions


@dataclass(frozen=True)
class RegisteredQuestion:
    """A question that the API and agent tools answer.

    Attributes:
        name: name in URLs, such as attention-long-form.
        question: class of the question.
    """

    name: str
    question: type[Question]

    @property
    def inputs(self) -> Inputs:
        """The inputs that the question needs."""
        return self.question.inputs

    @property
    def has_progress(self) -> bool:
        """Whether the question may take long and reports progress."""
        return self.question.has_progress

    @property
    def file_fields(self) -> frozenset[str]:
        """Fields that name a file on the server; a request must not set them."""
        types = {field.name: field_type(field) for field in fields(self.question)}
        return frozenset(
            name
            for name, kind in types.items()
            if isinstance(kind.kind if isinstance(kind, Optional) else kind, FileName)
        )

    @property
    def summary(self) -> str:
        """The first paragraph of the question's docstring, on one line."""
        return " ".join((getdoc(self.question) or "").partition("\n\n")[0].split())


def registered_questions() -> Mapping[str, RegisteredQuestion]:
    """Return the questions that users of this server may ask, by name.

    The first call takes seconds, because it imports all analyses.
    """
    questions = _all_questions()
    if permissions.current().can_train:
        return questions
    return {name: question for name, question in questions.items() if not question.question.is_training}


@cache
def _all_questions() -> Mapping[str, RegisteredQuestion]:
    for module in walk_packages(analyses.__path__, f"{analyses.__name__}."):
        import_module(module.name)
    import_module("bert_probe.corpus.vector_search")
    questions = [RegisteredQuestion(url_name(analysis), question) for analysis, question in QUESTIONS.items()]
    return {question.name: question for question in sorted(questions, key=lambda question: question.name)}
