"""A question: a frozen description of an analysis, without a model or a text.

A question can be used as a cache key. Several representations are derived from its fields:
`Question.address` returns URL parameters, `Question.to_json` the JSON for HTTP and provenance, `repr` Python
code, and `Question.options` command-line options.
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
"""Analysis name → question class. Importing the module of an analysis adds its entry."""


def param(
    kind: FieldType,
    default: Any = MISSING,
    *,
    key: str | None = None,
    option: str | None = None,
    about: str = "",
    display_only: bool = False,
    positional: bool = False,
    kw_only: bool = False,
) -> Any:
    """Return a field of a question, for use in the class body.

    Args:
        kind: the type of the field.
        default: the default value; without one, the field is required.
        key: name of the URL parameter; by default, the name of the field.
        option: the command-line option; by default, derived from the name of the field. Pass "" if the field
            is not available on the command line.
        about: one line of help.
        display_only: whether the field selects what the table shows, and does not change the computation.
        positional: whether the field is a positional argument on the command line, before the inputs.
        kw_only: whether Python accepts the field only by its name.
    """
    metadata = {
        "kind": kind,
        "key": key,
        "option": "" if positional else option,
        "about": about,
        "display_only": display_only,
        "positional": positional,
    }
    return field(default=default, metadata=metadata, kw_only=kw_only)


def field_type(field: Field[Any]) -> FieldType:
    """Return the type of a question's field."""
    kind: FieldType = field.metadata["kind"]
    return kind


def url_key(field: Field[Any]) -> str:
    """Return the name of a field's URL parameter."""
    return field.metadata["key"] or field.name


def option_name(field: Field[Any]) -> str:
    """Return a field's command-line option, or "" if it has none."""
    option: str | None = field.metadata["option"]
    return f"--{field.name.replace('_', '-')}" if option is None else option


def _with_type_checks(method: Callable[..., R], types: Sequence[type]) -> Callable[..., R]:
    """Wrap a method so that it checks the types of its arguments and reports missing optional packages."""
    parameters = signature(method)
    names = list(parameters.parameters)[1:]

    @wraps(method)
    def checked(*arguments: Any, **keywords: Any) -> R:
        bound = parameters.bind(*arguments, **keywords).arguments
        for name, expected in zip(names, types, strict=False):
            value = bound.get(name)
            if value is not None and not isinstance(value, expected):
                raise SubjectError(
                    f"{type(arguments[0]).__name__} needs a {expected.__name__}, not a "
                    f"{type(value).__name__}. bert_probe.load returns a Checkpoint, whose method trace "
                    "returns a Trace."
                )
        with extras.explain_missing():
            return method(*arguments, **keywords)

    return checked


@dataclass_transform(frozen_default=True, field_specifiers=(param,))
def question(
    analysis: str, command: str | None = None, *, is_analysis: bool = True
) -> Callable[[type[Q]], type[Q]]:
    """Return a decorator that turns a class with `param` fields into a question.

    Args:
        analysis: name of the analysis in provenance, JSON and cache keys.
        command: name of the command that runs the analysis, by default `analysis`.
        is_analysis: whether to add the class to `QUESTIONS`, which contains only questions that return a
            table.
    """

    def decorate(cls: type[Q]) -> type[Q]:
        question_class: Any = dataclass(frozen=True, repr=False)(cls)
        question_class.analysis, question_class.command = analysis, command or analysis
        question_class.has_progress = "progress" in signature(question_class.of).parameters
        question_class.of = _with_type_checks(question_class.of, question_class.inputs.types)
        assert analysis not in QUESTIONS, f"two question classes have the name {analysis}"
        if is_analysis:
            QUESTIONS[analysis] = question_class
        return question_class  # type: ignore[no-any-return]

    return decorate


@dataclass(frozen=True, repr=False)
class Question:
    """Base class of all questions. Questions of one class with equal fields are equal and have the same hash.

    The method ``of`` computes the result for the `inputs`, such as a `Trace` or a `Checkpoint`.
    """

    analysis: ClassVar[str]
    command: ClassVar[str]
    inputs: ClassVar[Inputs]
    """Description of the inputs that the method ``of`` takes."""
    has_progress: ClassVar[bool]
    """Whether the method ``of`` has a parameter ``progress``."""
    is_training: ClassVar[bool] = False
    """Whether the method ``of`` trains weights, which a public server does not do."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            # Bypass the frozen dataclass during initialization.
            object.__setattr__(self, spec.name, field_type(spec).check(spec.name, getattr(self, spec.name)))

    def __repr__(self) -> str:
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in self._non_default_fields()]
        return f"{type(self).__name__}({', '.join(values)})"

    def _non_default_fields(self) -> list[Field[Any]]:
        return [field for field in fields(self) if getattr(self, field.name) != field.default]

    def check_limits(self, *inputs: Any) -> None:
        """Raise UnavailableError if the arguments of `of` are too large for a server.

        The HTTP API and the web app call this method. Python and the command line do not limit inputs.
        """

    def check_memory(self, *inputs: Any) -> None:
        """Raise OutOfMemoryError if the table for the arguments of `of` needs more memory than is available.

        The command line calls this method before the computation.
        """

    def resolved(self, trace: Trace) -> Self:
        """Return the question with 0-based indices for one text in place of negative indices and words.

        Raises:
            SelectionError: the text or its model does not have a selected layer, head, token or word.
        """
        values = {
            field.name: field_type(field).resolve(field.name, getattr(self, field.name), trace)
            for field in fields(self)
        }
        return replace(self, **values)

    def to_json(self) -> dict[str, Any]:
        """Return all fields in JSON form, as used in provenance and HTTP; layers and heads count from 1."""
        values = {field.name: field_type(field).to_json(getattr(self, field.name)) for field in fields(self)}
        return {"analysis": self.analysis, **values}

    def non_default_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, in the JSON form of `to_json`."""
        values = self.to_json()
        return {
            field.name: values[field.name] for field in self._non_default_fields() if field.name in values
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any], sizes: Dimensions) -> Self:
        """Return the question that a record from `to_json` describes; missing fields get their defaults.

        Raises:
            SelectionError: a field is unknown or invalid, a field without a default is missing, the record is
                of another analysis, or the model does not have the layer or head.
        """
        fields_by_name = {field.name: field for field in fields(cls)}
        unknown = [name for name in record if name not in fields_by_name and name != "analysis"]
        if unknown:
            raise SelectionError(
                f"{cls.analysis} has no field {unknown[0][:100]!r}. "
                f"Its fields are: {', '.join(fields_by_name) or 'none'}."
            )
        if record.get("analysis", cls.analysis) != cls.analysis:
            raise SelectionError(
                f"analysis must be {cls.analysis!r} or omitted, not {str(record['analysis'])[:100]!r}."
            )
        values = {
            name: field_type(field).from_json(name, record[name], sizes)
            for name, field in fields_by_name.items()
            if name in record
        }
        cls._check_required(values)
        return cls(**values)

    def address(self) -> dict[str, str]:
        """Return URL parameters for the fields that differ from their defaults."""
        return {
            url_key(field): field_type(field).write(getattr(self, field.name))
            for field in self._non_default_fields()
        }

    @classmethod
    def from_address(cls, parameters: Mapping[str, str], sizes: Dimensions) -> Self:
        """Return the question that URL parameters describe; parameters of other questions are ignored.

        Raises:
            SelectionError: a value is invalid, or the model does not have the layer or head.
        """
        values = {
            field.name: field_type(field).read(field.name, parameters[url_key(field)], sizes)
            for field in fields(cls)
            if url_key(field) in parameters
        }
        cls._check_required(values)
        return cls(**values)

    @classmethod
    def _check_required(cls, values: Mapping[str, Any]) -> None:
        missing = [
            field.name for field in fields(cls) if field.default is MISSING and field.name not in values
        ]
        if missing:
            raise SelectionError(f"{cls.analysis} needs a value for {', '.join(missing)}. Pass this value.")

    def options(self) -> list[str]:
        """Return the command-line options for the fields that differ from their defaults."""
        words: list[str] = []
        for spec in self._non_default_fields():
            if option_name(spec):
                words += field_type(spec).options(option_name(spec), getattr(self, spec.name))
        return words

    def arguments(self) -> list[str]:
        """Return the positional arguments of the command line that precede the inputs."""
        positional = [spec for spec in fields(self) if spec.metadata["positional"]]
        return [field_type(spec).write(getattr(self, spec.name)) for spec in positional]
