"""A question: what is asked, as a value, with no model and no text in it.

All its spellings follow from its fields: the value itself is the key of a cache and the cause of a job;
`Question.address` its address, `Question.plain` JSON and provenance, `repr` Python, `Question.options` shell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from bert_probe.core import extras
from bert_probe.core.field_types import Dimensions, FieldType
from bert_probe.core.inputs import Inputs
from bert_probe.errors import SelectionError, SubjectError
from bert_probe.model.trace import Trace

Q = TypeVar("Q")
R = TypeVar("R")

QUESTIONS: dict[str, type[Question]] = {}
"""Name of an analysis → its question; filled as the analyses are imported."""


def param(
    kind: FieldType,
    default: Any = MISSING,
    *,
    key: str | None = None,
    option: str | None = None,
    about: str = "",
    display_only: bool = False,
) -> Any:
    """A field of a question.

    Args:
        kind: how it is checked and written.
        default: what is meant where nothing is said.
        key: its parameter in an address; its own name unless given.
        option: its option on the command line; from its name unless given, "" for an argument or none at all.
        about: a line of help.
        display_only: whether the field selects what the table shows and changes no computed number.
    """
    metadata = {"kind": kind, "key": key, "option": option, "about": about, "display_only": display_only}
    return field(default=default, metadata=metadata)


def field_type(one: Field[Any]) -> FieldType:
    """How a field is checked and written."""
    kind: FieldType = one.metadata["kind"]
    return kind


def url_key(one: Field[Any]) -> str:
    """A field's parameter in an address."""
    return one.metadata["key"] or one.name


def option_name(one: Field[Any]) -> str:
    """A field's option on the command line, "" where it has none."""
    given: str | None = one.metadata["option"]
    return f"--{one.name.replace('_', '-')}" if given is None else given


def _with_type_checks(of: Callable[..., R], types: Sequence[type]) -> Callable[..., R]:
    """Return the method `of`, which refuses a model in place of a text and names an extra that is missing."""
    parameters = signature(of)
    names = list(parameters.parameters)[1:]

    @wraps(of)
    def checked(*arguments: Any, **keywords: Any) -> R:
        bound = parameters.bind(*arguments, **keywords).arguments
        for name, expected in zip(names, types, strict=False):
            value = bound.get(name)
            if value is not None and not isinstance(value, expected):
                raise SubjectError(
                    f"{type(arguments[0]).__name__} is asked of a {expected.__name__}, and a "
                    f"{type(value).__name__} was given. A Checkpoint comes from load, a Trace from its "
                    "method trace."
                )
        with extras.explain_missing():
            return of(*arguments, **keywords)

    return checked


@dataclass_transform(frozen_default=True, field_specifiers=(param,))
def question(
    analysis: str, command: str | None = None, *, is_analysis: bool = True
) -> Callable[[type[Q]], type[Q]]:
    """Make a class of `param` fields a question.

    Args:
        analysis: what is asked, in a word or two: in provenance, JSON and caches.
        command: of the command line that answers it; the same word unless given.
        is_analysis: it stands in `QUESTIONS`, whose answers are tables made of numbers of a model as it is.
    """

    def made(cls: type[Q]) -> type[Q]:
        whole: Any = dataclass(frozen=True, repr=False)(cls)
        whole.analysis, whole.command = analysis, command or analysis
        whole.has_progress = "progress" in signature(whole.of).parameters
        whole.of = _with_type_checks(whole.of, whole.inputs.types)
        assert analysis not in QUESTIONS, f"two questions are called {analysis}"
        if is_analysis:
            QUESTIONS[analysis] = whole
        return whole  # type: ignore[no-any-return]

    return made


@dataclass(frozen=True, repr=False)
class Question:
    """Base of all questions. Two are equal if they ask the same; equal ones have one hash.

    Its method ``of`` answers it for its `inputs`, such as a `Trace` or a `Checkpoint`.
    """

    analysis: ClassVar[str]
    command: ClassVar[str]
    inputs: ClassVar[Inputs]
    """What it is asked of."""
    has_progress: ClassVar[bool]
    """Whether its method ``of`` takes a callback ``progress``, because it may take long."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            # Bypass the frozen dataclass during initialization.
            object.__setattr__(self, spec.name, field_type(spec).check(spec.name, getattr(self, spec.name)))

    def __repr__(self) -> str:
        given = [f"{one.name}={getattr(self, one.name)!r}" for one in self._unusual()]
        return f"{type(self).__name__}({', '.join(given)})"

    def _unusual(self) -> list[Field[Any]]:
        """Fields that differ from what is meant where nothing is said."""
        return [field for field in fields(self) if getattr(self, field.name) != field.default]

    def resolved(self, trace: Trace) -> Self:
        """The same question about this text, with every "last" and every word as an index from 0.

        Raises:
            SelectionError: the text or its model has no such thing.
        """
        found = {
            field.name: field_type(field).resolve(field.name, getattr(self, field.name), trace)
            for field in fields(self)
        }
        return replace(self, **found)

    def to_json(self) -> dict[str, Any]:
        """All fields for JSON, and so for provenance and HTTP; layers and heads count from 1."""
        values = {field.name: field_type(field).to_json(getattr(self, field.name)) for field in fields(self)}
        return {"analysis": self.analysis, **values}

    def non_default_json(self) -> dict[str, Any]:
        """Return `to_json` of the fields that differ from their defaults."""
        plain = self.to_json()
        return {one.name: plain[one.name] for one in self._unusual() if one.name in plain}

    @classmethod
    def from_json(cls, given: Mapping[str, Any], sizes: Dimensions) -> Self:
        """The question that `plain` gave; what is left out is as usual.

        Raises:
            SelectionError: a field that is not there, or something that this model does not have.
        """
        known = {field.name: field for field in fields(cls)}
        unknown = [name for name in given if name not in known and name != "analysis"]
        if unknown or given.get("analysis", cls.analysis) != cls.analysis:
            wrong = unknown[0] if unknown else str(given["analysis"])
            raise SelectionError(
                f"{cls.analysis} knows no {wrong[:100]!r}; it has {', '.join(known) or 'no fields'}."
            )
        values = {
            name: field_type(one).from_json(name, given[name], sizes)
            for name, one in known.items()
            if name in given
        }
        cls._check_all_there(values)
        return cls(**values)

    def address(self) -> dict[str, str]:
        """Parameters of an address, as people count; what is as usual is left out."""
        return {url_key(one): field_type(one).write(getattr(self, one.name)) for one in self._unusual()}

    @classmethod
    def from_address(cls, given: Mapping[str, str], sizes: Dimensions) -> Self:
        """The question of an address; parameters of others are passed over.

        Raises:
            SelectionError: something that this model does not have.
        """
        values = {
            field.name: field_type(field).read(field.name, given[url_key(field)], sizes)
            for field in fields(cls)
            if url_key(field) in given
        }
        cls._check_all_there(values)
        return cls(**values)

    @classmethod
    def _check_all_there(cls, values: Mapping[str, Any]) -> None:
        missing = [
            field.name for field in fields(cls) if field.default is MISSING and field.name not in values
        ]
        if missing:
            raise SelectionError(f"{', '.join(missing)} must be given for {cls.analysis}.")

    def options(self) -> list[str]:
        """Words of the command line, as people count."""
        words: list[str] = []
        for one in self._unusual():
            if option_name(one):
                words += field_type(one).options(option_name(one), getattr(self, one.name))
        return words

    def arguments(self) -> list[str]:
        """Words of the command line that come before the texts, for a question that has any."""
        return []
