"""What is served: every question that is asked of models, by name, with what it is asked of.

Nothing is written down here for one question or another: all of it follows from the signature of `of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from inspect import getdoc, signature
from pkgutil import walk_packages
from typing import Any, Final

from bert_probe import analyses
from bert_probe.analyses.comparison.model_change import ModelChange
from bert_probe.core.field_types import FileName, Optional
from bert_probe.core.question import QUESTIONS, Question, field_type
from bert_probe.core.snippets import name_of

TEXT, OTHER_TEXT, TEXTS, MODEL, SENTENCES, FILE, CUT, REPORT = (
    "Trace",
    "Trace | None",
    "Sequence[Trace]",
    "Checkpoint",
    "Sequence[str]",
    "file",
    "bool",
    "Report",
)
"""What an argument of `of` is, by its annotation."""

_EITHER: Final = "Sequence[str] | LabeledTexts"
"""Many sentences, or a file of them with labels."""
_FILES: Final = ("Sequence[TaggedSentence]", "Rows", "reading.Texts")


@dataclass(frozen=True)
class RegisteredQuestion:
    """A question of the API.

    Attributes:
        name: in addresses, such as attention-in-long-form.
        question: its class.
        arguments: what `of` is given, in order: name → what it is.
        files: of those, which are files, and whether each has to be given.
        models: how many models are asked, one or two.
    """

    name: str
    question: type[Question]
    arguments: Mapping[str, str]
    files: Mapping[str, bool]
    models: int

    @property
    def texts(self) -> tuple[int, int | None]:
        """How many texts it is asked of: at least, and at most; None for any number."""
        kinds = list(self.arguments.values())
        if TEXTS in kinds:
            return 2, None
        if self.models > 1:
            return (1, 1) if TEXT in kinds else (0, 0)
        least = kinds.count(TEXT)
        return least, least + kinds.count(OTHER_TEXT)

    @property
    def sentences(self) -> bool:
        """Whether it is asked of many sentences."""
        return SENTENCES in self.arguments.values()

    @property
    def reports(self) -> bool:
        """Whether it may take long enough to tell how far it is."""
        return REPORT in self.arguments.values()

    @property
    def shut(self) -> frozenset[str]:
        """Fields that name a file of the machine that answers, which nobody outside of it may choose."""
        return frozenset(field.name for field in fields(self.question) if _names_a_file(field_type(field)))

    @property
    def summary(self) -> str:
        """What it is, in a sentence."""
        return " ".join((getdoc(self.question) or "").partition("\n\n")[0].split())


@cache
def served() -> Mapping[str, RegisteredQuestion]:
    """All of them, by name; imports what they are made of, which takes seconds."""
    for module in walk_packages(analyses.__path__, f"{analyses.__name__}."):
        import_module(module.name)
    every = [_served(analysis, question) for analysis, question in QUESTIONS.items()]
    return {one.name: one for one in sorted(every, key=lambda one: one.name)}


def _served(analysis: str, question: type[Question]) -> RegisteredQuestion:
    of: Any = question
    arguments, files = {}, {}
    for name, parameter in list(signature(of.of).parameters.items())[1:]:
        said = str(parameter.annotation)
        if said.removesuffix(" | None") in _FILES:
            files[name] = not said.endswith(" | None")
            said = FILE
        if said == _EITHER:
            files[name], said = False, SENTENCES
        if said in (TEXT, OTHER_TEXT, TEXTS, MODEL, SENTENCES, FILE, CUT, REPORT):
            arguments[name] = said
    models = 2 if issubclass(question, ModelChange) else 1
    return RegisteredQuestion(name_of(analysis), question, arguments, files, models)


def _names_a_file(kind: object) -> bool:
    return isinstance(kind.kind if isinstance(kind, Optional) else kind, FileName)
