"""A view as a file: what was asked, of which model and texts, and the page that showed it, in JSON.

It holds no number of an answer: from it the question is asked again. What a stranger wrote is checked here,
and nothing is opened by reading it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from inspect import signature
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, Self

import bert_probe
from bert_probe.core.inputs import Inputs, InputValues, model_name
from bert_probe.core.provenance import digest_of
from bert_probe.core.question import QUESTIONS, Question, field_type, url_key
from bert_probe.errors import ReportError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Trace
from bert_probe.reports.attachments import Attachment, check_size, held_of
from bert_probe.reports.json_reader import MOST_BYTES, bytes_of, contents, given

if TYPE_CHECKING:
    from bert_probe.core.result import Result

FORMAT: Final = 1
"""Of the file; a later one is refused."""

KIND: Final = "bert_probe_view"
"""The key that tells a view file, and holds its format."""

ENDING: Final = ".view.json"


@dataclass(frozen=True)
class ModelReference:
    """A model as a view names it; nothing of it is opened yet.

    Attributes:
        name: a hub id or a folder; "" for the built-in.
        revision: the hub's commit, or "".
        dtype: what it computed in.
        weights_sha256, outputs_sha256: see `Description`; "" where they are not known.
    """

    name: str = ""
    revision: str = ""
    dtype: str = "float32"
    weights_sha256: str = ""
    outputs_sha256: str = ""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Return the name of an opened model."""
        about = checkpoint.description
        return cls(
            "" if about.name == BUILT_IN else about.name,
            about.revision or "",
            about.dtype,
            about.weights_sha256,
            about.outputs_sha256,
        )

    @property
    def is_built_in(self) -> bool:
        """Whether it comes with the package, so that nobody need be asked before it is opened."""
        return self.name in ("", BUILT_IN)

    @property
    def shown(self) -> str:
        """What people call it."""
        return f"{self.name or BUILT_IN}{f' at {self.revision}' if self.revision else ''}"

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint has the very weights that are named."""
        about = checkpoint.description
        stated = (self.weights_sha256, about.weights_sha256), (self.outputs_sha256, about.outputs_sha256)
        return all(here == there for here, there in stated if here)


@dataclass(frozen=True)
class TextInput:
    """A text as a model was given it."""

    text: str
    pair: str | None = None
    truncate: bool = False


@dataclass(frozen=True)
class AnsweredView:
    """A view's answer.

    Attributes:
        traces: of its texts, where it was asked of such.
    """

    result: Result
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True)
class ViewFile:
    """What a view is of.

    Attributes:
        question: public name of the question's class; "" for a page that answers none.
        asked: its fields, all of them, as they stand in an address.
        models: one, or two that are compared.
        texts: those that were read.
        sentences: many, each read by itself, of a question that is asked of such.
        files: tagged sentences or labelled texts, by the argument of the question that they are.
        truncate: whether sentences were cut, or texts of files.
        drawn: how attention is drawn, where that is not the question's own picture: "as" is lines or model,
            the rest is as in an address, see `views.view.to_address`.
        page, address: the page of the app that shows it and its parameters, texts whole; "" for none.
    """

    question: str = ""
    asked: Mapping[str, str] = field(default_factory=dict)
    models: tuple[ModelReference, ...] = (ModelReference(),)
    texts: tuple[TextInput, ...] = ()
    sentences: tuple[str, ...] = ()
    files: Mapping[str, Attachment] = field(default_factory=dict)
    truncate: bool = False
    drawn: Mapping[str, str] = field(default_factory=dict)
    page: str = ""
    address: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Result, data: Mapping[str, Any] | None = None) -> Self:
        """The view of a result, which asks the same again.

        Args:
            data: many sentences or files that were asked about, by the name of their argument, where the
                result itself does not hold them.

        Raises:
            UnavailableError: a model in memory, attention that was given, a store, or sentences that are not
                at hand or too many.
        """
        subject, question = result.inputs, result.question
        if subject.store:
            raise UnavailableError(
                "A store is asked where it lies, and no view file holds one. Save the table or the command."
            )
        for model in subject.models:
            if model.get("origin") in ("given", "in memory"):
                raise UnavailableError(
                    "What is only in memory cannot be opened again, so no view file can ask for it. Save the "
                    "model into a folder, or save the table."
                )
        return cls(
            type(question).__name__,
            {
                url_key(field): field_type(field).write(getattr(question, field.name))
                for field in fields(question)
            },
            tuple(_model_of(model) for model in subject.models),
            tuple(
                TextInput(text["text"], text["pair"], bool(text["tokens_dropped"])) for text in subject.texts
            ),
            _sentences_of(result, data or {}),
            held_of(data or {}, subject.sentences.get("files", {})),
            bool(subject.sentences.get("tokens_dropped")),
        )

    def on(self, page: str, address: Mapping[str, str]) -> Self:
        """The same, with the page that shows it."""
        return replace(self, page=page, address=dict(address))

    def to_bytes(self) -> bytes:
        """The file."""
        text = json.dumps({KIND: FORMAT} | self.to_json(), ensure_ascii=False, indent=1)
        return f"{text}\n".encode("utf-8", "backslashreplace")

    def to_json(self) -> dict[str, Any]:
        """All that it says, for JSON; what it has nothing to say of is left out."""
        said = {
            "question": self.question,
            "asked": dict(self.asked),
            "models": [_said(model) for model in self.models],
            "texts": [_said(text) for text in self.texts],
            "sentences": list(self.sentences),
            "files": {name: one.to_json() for name, one in self.files.items()},
            "truncate": self.truncate,
            "drawn": dict(self.drawn),
            "page": self.page,
            "address": dict(self.address),
        }
        return {name: value for name, value in said.items() if value or name == "models"}

    @classmethod
    def from_json(cls, held: Any) -> Self:
        """What `plain` made, checked.

        Raises:
            ReportError: no view.
        """
        with given(held, "A view file") as one:
            view = cls(
                one.text("question"),
                one.texts("asked"),
                tuple(map(_named, one.several("models"))) or (ModelReference(),),
                tuple(map(_text, one.several("texts"))),
                tuple(one.strings("sentences")),
                {name: Attachment.from_json(file) for name, file in one.record("files").items()},
                one.flag("truncate"),
                one.texts("drawn"),
                one.text("page"),
                one.texts("address"),
            )
        if not view.question and not view.page:
            raise ReportError("This view names neither a question nor a page, so there is nothing to show.")
        fields_asked = (
            {url_key(field) for field in fields(question_named(view.question))} if view.question else {}
        )
        for key in view.asked:
            if key not in fields_asked:
                raise ReportError(f"This view asks with {key[:60]!r}, which its question does not have.")
        check_size(
            sum(len(file.content.encode("utf-8", "replace")) for file in view.files.values()), ReportError
        )
        for name, held in view.files.items():
            if PurePath(held.file).stem != name:
                raise ReportError(
                    f"This view calls the file of its {name[:60]} {held.file[:60]!r}. It must be called as "
                    "that, with the ending of its format."
                )
        if len(view.models) > 2:
            raise ReportError(f"This view names {len(view.models)} models; one or two can be asked.")
        return view

    def asked_of(self, checkpoint: Checkpoint) -> Question:
        """The question itself, as this model can be asked it.

        Raises:
            SelectionError: a layer, head or choice that there is not.
            UnavailableError: a view that asks no question.
        """
        if not self.question:
            raise UnavailableError("This view file names a page and no question. Open it in the app.")
        return question_named(self.question).from_address(self.asked, checkpoint.description)

    def answer(self, *checkpoints: Checkpoint, report: Progress = no_progress) -> AnsweredView:
        """Ask it.

        Args:
            checkpoints: opened `models`, in their order.

        Raises:
            ProbeError: what the question raises for these texts.
        """
        question: Any = self.asked_of(checkpoints[0])
        if not self._fits(question.inputs):
            raise self._unfit()
        traces = [
            checkpoint.trace(text.text, text.pair, text.truncate)
            for text in self.texts
            for checkpoint in checkpoints
        ]
        files = {name: file.rows() for name, file in self.files.items()}
        values = InputValues(checkpoints, traces, list(self.sentences), files, self.truncate)
        callback: dict[str, Any] = {"report": report} if "report" in signature(question.of).parameters else {}
        return AnsweredView(question.of(*question.inputs.arguments(values), **callback), tuple(traces))

    def _fits(self, inputs: Inputs) -> bool:
        """Return whether the view names what a question with these inputs needs, and nothing else."""
        least, most = inputs.texts
        required = {name for name, file in inputs.files.items() if file.is_required}
        has_rows = bool(self.sentences) != bool(self.files) if inputs.has_sentences else not self.sentences
        return (
            len(self.models) == inputs.models
            and least <= len(self.texts) <= (len(self.texts) if most is None else most)
            and required <= self.files.keys() <= inputs.files.keys()
            and has_rows
        )

    def _unfit(self) -> ReportError:
        told = f"{len(self.sentences):,} sentences" if self.sentences else f"{len(self.texts)} texts"
        told = f"{len(self.files)} files, {told}" if self.files else told
        return ReportError(
            f"{self.question} cannot be asked of what this view names: {told} and {len(self.models)} models."
        )


def read(content: bytes, name: str = "The file") -> ViewFile:
    """A view file.

    Raises:
        ReportError: it is none, too large, or of a later format.
    """
    return ViewFile.from_json(contents(content, name, KIND, FORMAT))


def read_file(path: Path) -> ViewFile:
    """A view file from the disk.

    Raises:
        ReportError: it cannot be read, or is none.
    """
    return read(bytes_of(path, MOST_BYTES), path.name)


def question_named(name: str) -> type[Question]:
    """The question of a public name.

    Raises:
        ReportError: there is none.
    """
    found = getattr(bert_probe, name) if name in bert_probe.__all__ else None
    if not isinstance(found, type) or found not in QUESTIONS.values():
        raise ReportError(f"There is no question {name[:60]!r} here. Update BERT Probe, or take another.")
    return found


def _model_of(model: Mapping[str, Any]) -> ModelReference:
    return ModelReference(
        model_name(model) or "",
        model.get("revision") or "",
        model.get("dtype", "float32"),
        model.get("weights_sha256", ""),
        model.get("outputs_sha256", ""),
    )


def _sentences_of(result: Result, data: Mapping[str, Any]) -> tuple[str, ...]:
    """The sentences that were asked about, from the result, or else from what it was asked of.

    Raises:
        UnavailableError: they are not at hand, or too many.
    """
    digest = result.inputs.sentences.get("sentences_sha256")
    if digest is None:
        return ()
    for held in (getattr(result, "sentences", None), *data.values()):
        if isinstance(held, tuple) and digest_of(tuple(map(str, held))) == digest:
            check_size(sum(len(str(one).encode("utf-8", "surrogatepass")) for one in held))
            return tuple(map(str, held))
    raise UnavailableError(
        f"{type(result.question).__name__} was asked of sentences, which are not at hand any more. Save its "
        "table, or its lines of Python beside the file."
    )


def _said(value: ModelReference | TextInput) -> dict[str, Any]:
    """Fields that differ from the usual."""
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }


def _named(held: Any) -> ModelReference:
    with given(held, "A model in this file") as one:
        return ModelReference(*(one.text(name) or usual for name, usual in _USUAL.items()))


_USUAL: Final = {field.name: str(field.default) for field in fields(ModelReference)}


def _text(held: Any) -> TextInput:
    with given(held, "A text in this file") as one:
        return TextInput(one.text("text"), one.optional("pair"), one.flag("truncate"))


def asked_in(view: ViewFile) -> tuple[str, str]:
    """What a view asks, and what is unusual about it, for people; both "" where it asks nothing."""
    if not view.question:
        return "", ""
    asked = question_named(view.question)
    said = []
    for spec in fields(asked):
        value = view.asked.get(url_key(spec), "")
        usual = "" if spec.default is MISSING else field_type(spec).write(spec.default)
        if value not in ("", usual):
            said.append(f"{spec.name.replace('_', ' ')} {value}")
    return f"{asked.analysis[:1].upper()}{asked.analysis[1:]}", ", ".join(said)


def subject_of(view: ViewFile) -> str:
    """The texts of a view in a line, for people; "" where it has none."""
    texts = [part for text in view.texts for part in (text.text, text.pair) if part]
    if view.sentences:
        return f"{len(view.sentences):,} sentences"
    if view.files:
        return ", ".join(file.file for file in view.files.values())
    return " + ".join(f"“{text if len(text) <= 80 else text[:79] + '…'}”" for text in texts)
