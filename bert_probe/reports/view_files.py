"""View files: JSON files with the question, models, inputs and page of a view, for recomputing the view.

A view file contains no results. View files may come from untrusted sources, so their complete content is
checked during reading, without opening a model.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, Self

import bert_probe
from bert_probe.core.earlier_names import current_parameters, current_question
from bert_probe.core.inputs import DOCUMENTS, JUDGMENTS, TABLE, TAGGED, Inputs, InputValues
from bert_probe.core.provenance import describe_file, hash_sentences, model_name
from bert_probe.core.question import QUESTIONS, Question, field_type, url_key
from bert_probe.errors import ProbeError, ReportError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.lengths import check_trace_bytes
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Trace
from bert_probe.reports.json_reader import MAX_BYTES, parse_document, parse_object, read_bytes
from bert_probe.text.datasets import to_file
from bert_probe.text.documents import DocumentList, parse_documents
from bert_probe.text.labeled_texts import KINDS, LabeledTexts, parse_labeled_texts
from bert_probe.text.retrieval_data import Judgments, parse_judgments
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences
from bert_probe.views.built import PARAMETERS

if TYPE_CHECKING:
    from bert_probe.core.result import Result


FORMAT: Final = 1
"""Version of the file format; later versions are rejected."""

KIND: Final = "bert_probe_view"
"""JSON key that identifies a view file; its value is the version of the format."""

ENDING: Final = ".view.json"


_TEXTS_AT_ONCE: Final = 8
"""Number of texts of a view that are traced before the size of their traces is checked."""


@dataclass(frozen=True)
class ModelReference:
    """A reference to a model by name and digests, without the loaded model.

    Attributes:
        name: Hub ID or folder; "" for the built-in model.
        revision: commit on the hub, or "".
        dtype: data type of the model's weights.
        weights_sha256: see `Description`; "" if unknown.
        outputs_sha256: see `Description`; "" if unknown.
    """

    name: str = ""
    revision: str = ""
    dtype: str = "float32"
    weights_sha256: str = ""
    outputs_sha256: str = ""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Create a reference to an opened model."""
        description = checkpoint.description
        return cls(
            "" if description.name == BUILT_IN else description.name,
            description.revision or "",
            description.dtype,
            description.weights_sha256,
            description.outputs_sha256,
        )

    @property
    def is_built_in(self) -> bool:
        """Return whether the model is the built-in model, which can be opened without consent."""
        return self.name in ("", BUILT_IN)

    @property
    def shown(self) -> str:
        """Return the display name of the model: its name and revision."""
        return f"{self.name or BUILT_IN}{f' at {self.revision}' if self.revision else ''}"

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint has the referenced weights; unknown digests match all weights."""
        description = checkpoint.description
        digests = (
            (self.weights_sha256, description.weights_sha256),
            (self.outputs_sha256, description.outputs_sha256),
        )
        return all(stated == actual for stated, actual in digests if stated)


@dataclass(frozen=True)
class TextInput:
    """An input text or text pair, and whether it is truncated to the model's maximum length."""

    text: str
    pair: str | None = None
    truncate: bool = False


@dataclass(frozen=True)
class AnsweredView:
    """The answer to a view's question.

    Attributes:
        result: the result of the question.
        traces: traces of the input texts; empty if the inputs are sentences or files.
    """

    result: Result
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True)
class ViewFile:
    """The content of a view file.

    Attributes:
        question: public name of the question's class; "" for a page without a question.
        asked: all fields of the question as URL parameters.
        models: one model, or two models to compare.
        texts: input texts of the question.
        sentences: input sentences, for questions about many sentences.
        files: tagged sentences or labeled texts, by argument name.
        truncate: whether sentences, or texts of files, are truncated.
        drawn: parameters of an attention picture that the view shows instead of the question's own picture:
            "as" is "lines" or "model"; the other keys are URL parameters, see `views.selection.to_address`.
        page: page of the app that shows the view; "" for none.
        address: URL parameters of the page, with complete texts.
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
        """Create a view file from which a result can be recomputed.

        Args:
            result: the result of a question.
            data: input sentences or rows of input files that the result does not store, by argument name.

        Raises:
            UnavailableError: the model or attention exists only in memory, the result comes from a store, the
                inputs are not available or too large, or the question is not in `QUESTIONS`.
        """
        inputs, question = result.inputs, result.question
        if inputs.store:
            raise UnavailableError(
                "Results from a corpus store cannot be saved in a view file. Save the table or the command."
            )
        if "vectors_sha256" in inputs.sentences:
            raise UnavailableError(
                "Results from stored vectors cannot be saved in a view file, because the file would "
                "have to contain the vectors. Save the table or the command."
            )
        if type(question) not in QUESTIONS.values():
            raise UnavailableError(
                f"A view file cannot contain the question {type(question).__name__}. Save the table or the "
                "command."
            )
        for model in inputs.models:
            if model.get("origin") in ("given", "in memory"):
                raise UnavailableError(
                    "A model in memory cannot be opened again, so its results cannot be saved in a view "
                    "file. Save the model to a folder, or save the table."
                )
        return cls(
            type(question).__name__,
            {
                url_key(field): field_type(field).write(getattr(question, field.name))
                for field in fields(question)
            },
            tuple(map(_model_reference, inputs.models)),
            tuple(
                TextInput(text["text"], text["pair"], bool(text["tokens_dropped"])) for text in inputs.texts
            ),
            _find_sentences(result, data or {}),
            make_attachments(data or {}, inputs.sentences.get("files", {})),
            bool(inputs.sentences.get("tokens_dropped")),
        )

    def on(self, page: str, address: Mapping[str, str]) -> Self:
        """Return a copy with the page of the app that shows the view, and the page's URL parameters."""
        return replace(self, page=page, address=dict(address))

    def to_bytes(self) -> bytes:
        """Serialize the view to the bytes of a file."""
        text = json.dumps({KIND: FORMAT} | self.to_json(), ensure_ascii=False, indent=1)
        return f"{text}\n".encode("utf-8", "backslashreplace")

    def to_json(self) -> dict[str, Any]:
        """Return the view as a JSON object without empty values."""
        values = {
            "question": self.question,
            "asked": dict(self.asked),
            "models": [_changed_fields(model) for model in self.models],
            "texts": [_changed_fields(text) for text in self.texts],
            "sentences": list(self.sentences),
            "files": {name: file.to_json() for name, file in self.files.items()},
            "truncate": self.truncate,
            "drawn": dict(self.drawn),
            "page": self.page,
            "address": dict(self.address),
        }
        return {name: value for name, value in values.items() if value or name == "models"}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse and check the JSON of a view file.

        Raises:
            ReportError: the value is not a view file.
        """
        with parse_object(value, "A view file") as parsed:
            view = cls(
                current_question(parsed.text("question")),
                current_parameters(parsed.text_map("asked")),
                tuple(map(_parse_model, parsed.array("models"))) or (ModelReference(),),
                tuple(map(_parse_text, parsed.array("texts"))),
                tuple(parsed.strings("sentences")),
                {name: Attachment.from_json(file) for name, file in parsed.mapping("files").items()},
                parsed.flag("truncate"),
                current_parameters(parsed.text_map("drawn")),
                parsed.text("page"),
                current_parameters(parsed.text_map("address")),
            )
        if not view.question and not view.page:
            raise ReportError("This view has neither a question nor a page, so there is nothing to show.")
        keys = {url_key(field) for field in fields(find_question(view.question))} if view.question else {}
        for key in view.asked:
            if key not in keys:
                raise ReportError(f"This view has a field {key[:60]!r} that its question does not have.")
        for key in view.drawn:
            if key != "as" and key not in PARAMETERS:
                raise ReportError(f"This view has the picture option {key[:60]!r}, which does not exist.")
        view._check_files()
        if len(view.models) > 2:
            raise ReportError(f"This view has {len(view.models)} models, but at most 2 are allowed.")
        return view

    def _check_files(self) -> None:
        """Check the total size of the files, and the name and format of each file.

        Raises:
            ReportError: the files are too large, a file is not named after its argument, or the argument does
                not accept the format of its file.
        """
        check_size(
            sum(len(file.content.encode("utf-8", "replace")) for file in self.files.values()), ReportError
        )
        arguments = find_question(self.question).inputs.files if self.question else {}
        for name, file in self.files.items():
            path = PurePath(file.file)
            if path.stem != name:
                raise ReportError(
                    f"This view has the file {file.file[:60]!r} for its argument {name[:60]}. The file "
                    "name must be the name of the argument, followed by the file extension."
                )
            if name in arguments and _FORMATS[path.suffix] not in arguments[name].formats:
                suffixes = [suffix for suffix in _FORMATS if _FORMATS[suffix] in arguments[name].formats]
                raise ReportError(
                    f"This view has the file {file.file[:60]!r}, but the file for the argument {name} of "
                    f"{self.question} must end in {' or '.join(suffixes)}. Choose another view file."
                )

    def asked_of(self, checkpoint: Checkpoint) -> Question:
        """Create the question of the view, and check its fields against a model.

        Raises:
            SelectionError: a layer, head or choice does not exist.
            UnavailableError: the view has no question.
        """
        if not self.question:
            raise UnavailableError("This view file has a page but no question. Open the file in the app.")
        return find_question(self.question).from_address(self.asked, checkpoint.description)

    def answer(
        self, *checkpoints: Checkpoint, progress: Progress = no_progress, is_limited: bool = False
    ) -> AnsweredView:
        """Answer the question of the view.

        Args:
            checkpoints: the opened `models`, in the same order.
            progress: progress callback; ignored for questions without progress.
            is_limited: whether the limits of the app (`Question.check_limits`) apply.

        Raises:
            ReportError, ProbeError: the question does not fit the inputs, or it cannot be answered for them.
        """
        question: Any = self.asked_of(checkpoints[0])
        if not self._fits(question.inputs):
            raise self._input_error()
        texts = [(text.text, text.pair, text.truncate) for text in self.texts]
        traces: list[Trace] = []
        for start in range(0, max(1, len(texts)), _TEXTS_AT_ONCE):
            traces += question.inputs.traces(checkpoints, texts[start : start + _TEXTS_AT_ONCE])
            check_trace_bytes([trace.nbytes for trace in traces])
        files = {name: file.rows() for name, file in self.files.items()}
        sentences = question.inputs.restore_list(list(self.sentences))
        callback: dict[str, Any] = {"progress": progress} if question.has_progress else {}
        values = InputValues(checkpoints, traces, sentences, files, self.truncate)
        arguments = question.inputs.arguments(values)
        if is_limited:
            question.check_limits(*arguments)
        return AnsweredView(question.of(*arguments, **callback), tuple(traces))

    def _fits(self, inputs: Inputs) -> bool:
        """Return whether the view has exactly the inputs that a question requires or allows."""
        min_texts, max_texts = inputs.texts
        required = {name for name, file in inputs.files.items() if file.is_required}
        has_rows = bool(self.sentences) != bool(self.files) if inputs.has_sentences else not self.sentences
        return (
            inputs.models <= len(self.models) <= inputs.models + inputs.has_other
            and min_texts <= len(self.texts) <= (len(self.texts) if max_texts is None else max_texts)
            and required <= self.files.keys() <= inputs.files.keys()
            and has_rows
        )

    def _input_error(self) -> ReportError:
        inputs = f"{len(self.sentences):,} sentences" if self.sentences else f"{len(self.texts)} texts"
        files = f"{len(self.files)} files, " if self.files else ""
        return ReportError(
            f"{self.question} does not fit the inputs of a view: {files}{inputs}, {len(self.models)} models."
        )


def read(content: bytes, name: str = "The file") -> ViewFile:
    """Parse the content of a view file.

    Args:
        content: the content of the file.
        name: the name of the file, for error messages.

    Raises:
        ReportError: the file is not a view file, is too large, or has a later format.
    """
    return ViewFile.from_json(parse_document(content, name, KIND, FORMAT))


def read_view_file(path: Path) -> ViewFile:
    """Read a view file from disk.

    Raises:
        ReportError: the file cannot be read, or is not a view file.
    """
    return read(read_bytes(path, MAX_BYTES), path.name)


def find_question(name: str) -> type[Question]:
    """Return the question class with the public name `name`.

    Raises:
        ReportError: no question class has this name.
    """
    question = getattr(bert_probe, name) if name in bert_probe.__all__ else None
    if not isinstance(question, type) or question not in QUESTIONS.values():
        raise ReportError(
            f"The question {name[:60]!r} does not exist in this version of BERT Probe. Update BERT Probe."
        )
    return question


def _model_reference(model: Mapping[str, Any]) -> ModelReference:
    return ModelReference(
        model_name(model) or "",
        model.get("revision") or "",
        model.get("dtype", "float32"),
        model.get("weights_sha256", ""),
        model.get("outputs_sha256", ""),
    )


def _find_sentences(result: Result, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the input sentences of a result, from the result itself or from ``data``."""
    record = result.inputs.sentences
    digest = record.get("sentences_sha256", record.get("vectors_sha256"))
    if digest is None:
        return ()
    for candidate in (getattr(result, "sentences", None), *data.values()):
        if isinstance(candidate, tuple):
            sentences = tuple(map(str, candidate))
            if hash_sentences(sentences) == digest:
                check_size(sum(len(sentence.encode("utf-8", "surrogatepass")) for sentence in sentences))
                return sentences
    raise UnavailableError(
        "This result does not contain its sentences, so it cannot be saved in a view file. Save the table, "
        "or save the Python code next to the input file."
    )


def _changed_fields(value: ModelReference | TextInput) -> dict[str, Any]:
    """Return the fields of an object whose values differ from the defaults."""
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }


def _parse_model(value: Any) -> ModelReference:
    with parse_object(value, "A model in this file") as parsed:
        texts = {field.name: parsed.text(field.name) for field in fields(ModelReference)}
    return ModelReference(**{name: text for name, text in texts.items() if text})


def _parse_text(value: Any) -> TextInput:
    with parse_object(value, "A text in this file") as parsed:
        return TextInput(parsed.text("text"), parsed.optional_text("pair"), parsed.flag("truncate"))


_SETTINGS: Final = {"words 1": "whole words", "component heads": "the output of each head"}
"""Maps a field and its value, as in a URL, to the wording that the app's pages use for this setting."""


def describe_question(view: ViewFile) -> tuple[str, str]:
    """Return the display name of a view's question, and a description of its non-default fields."""
    if not view.question:
        return "", ""
    question = find_question(view.question)
    settings = []
    for spec in fields(question):
        value = view.asked.get(url_key(spec), "")
        default = "" if spec.default is MISSING else field_type(spec).write(spec.default)
        if value not in ("", default):
            name = spec.name.replace("_", " ")
            settings.append(_SETTINGS.get(f"{name} {value}", f"{name} {value}"))
    title = question.analysis.replace("-", " ")
    return f"{title[:1].upper()}{title[1:]}", ", ".join(settings)


def describe_inputs(view: ViewFile) -> str:
    """Return the number of sentences, the names of the files, or the start of each text; "" without any."""
    texts = [part for text in view.texts for part in (text.text, text.pair) if part]
    if view.sentences:
        return f"{len(view.sentences):,} sentences"
    if view.files:
        return ", ".join(file.file for file in view.files.values())
    return " + ".join(f"“{text if len(text) <= 80 else text[:79] + '…'}”" for text in texts)


MOST_BYTES: Final = 3_000_000
"""Maximum size of all files or sentences of a view in bytes, enough for two treebanks of 2,000 sentences."""

Rows = LabeledTexts | Sequence[TaggedSentence] | DocumentList | Judgments

_FORMATS: Final = {
    ".csv": TABLE,
    ".conll": TAGGED,
    ".conllu": TAGGED,
    ".jsonl": DOCUMENTS,
    ".tsv": JUDGMENTS,
}
"""The format of an attachment, by file extension; see `FileInput`."""


@dataclass(frozen=True)
class Attachment:
    """A complete input file within a view file.

    Attributes:
        file: name of the file, whose extension determines the format.
        content: text of the file.
        kind: type of the labels in a table, one of `KINDS`; "" for other files.
    """

    file: str
    content: str
    kind: str = ""

    @classmethod
    def of(cls, rows: Rows, record: Mapping[str, Any]) -> Self:
        """Create an attachment from the input rows of a question.

        Args:
            rows: labeled texts or tagged sentences.
            record: provenance of the file in the result.

        Raises:
            UnavailableError: writing the rows to a file would change them, for example because a word ends
                with a space.
        """
        attachment = cls(record["file"], to_file(rows).decode(), record.get("kind", ""))
        try:
            digest = describe_file("", attachment.rows())["sha256"]
        except ProbeError:
            digest = ""
        if digest != record["sha256"]:
            raise UnavailableError(
                f"The content of {attachment.file} differs from the data of the question, or changes when "
                "it is written to a file, so it cannot be saved in a view file. Save the table, or save the "
                "Python code next to the input file."
            )
        return attachment

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse and check the JSON of an attachment.

        Raises:
            ReportError: the value is not an attachment, or the file name is not safe.
        """
        with parse_object(value, "A file in this view") as parsed:
            attachment = cls(parsed.text("file"), parsed.text("content"), parsed.text("kind"))
        name, kind = attachment.file, attachment.kind
        if name != PurePath(name).name or not name or "\\" in name or "\0" in name:
            raise ReportError(
                f"A file in this view has the name {name[:60]!r}, which is not a valid file name."
            )
        # Other extensions are unsafe: a report's ZIP contains this file next to code.py, which users may run.
        if PurePath(name).suffix not in _FORMATS:
            raise ReportError(
                f"A file in this view has the name {name[:60]!r}, but the name must end in "
                f"{', '.join(_FORMATS)}."
            )
        if (PurePath(name).suffix == ".csv") != (kind in KINDS):
            raise ReportError(f"{name[:60]} in this view has an invalid label type, {kind[:60]!r}.")
        return attachment

    def to_json(self) -> dict[str, str]:
        """Return the attachment as a JSON object."""
        values = {"file": self.file, "content": self.content, "kind": self.kind}
        return {name: value for name, value in values.items() if value}

    def standard(self) -> Self:
        """Return the attachment with the content that `of` writes for its rows, such as no further columns.

        Raises:
            ProbeError: the attachment cannot be parsed, or that content cannot.
        """
        standard = replace(self, content=to_file(self.rows()).decode("utf-8", "surrogatepass"))
        standard.rows()
        return standard

    def rows(self) -> Rows:
        """Parse the rows of the attached file.

        Raises:
            TextError: the file cannot be parsed.
            EmptyTextError: the file has no rows.
        """
        content = self.content.encode("utf-8", "surrogatepass")
        if self.kind:
            return parse_labeled_texts(content, self.file, self.kind)
        if PurePath(self.file).suffix == ".jsonl":
            return parse_documents(io.BytesIO(content), self.file)
        if PurePath(self.file).suffix == ".tsv":
            return parse_judgments(content, self.file)
        return parse_tagged_sentences(content, self.file)


def make_attachments(
    data: Mapping[str, Rows], records: Mapping[str, Mapping[str, Any]]
) -> dict[str, Attachment]:
    """Return an attachment for each input file of a result, by argument name.

    Args:
        data: input rows of the question, by argument name.
        records: provenance of each file in the result, by argument name.

    Raises:
        UnavailableError: a file is missing, writing its rows would change them, or the files together are too
            large.
    """
    if not records.keys() <= data.keys():
        raise UnavailableError(
            "This result does not contain its input file, so it cannot be saved in a view file. Save the "
            "table, or save the Python code next to the input file."
        )
    attachments = {name: Attachment.of(data[name], record) for name, record in records.items()}
    contents = (attachment.content for attachment in attachments.values())
    check_size(sum(len(content.encode("utf-8", "surrogatepass")) for content in contents))
    return attachments


def check_size(count: int, error: type[ProbeError] = UnavailableError) -> None:
    """Raise `error` if a view's inputs, which have `count` bytes, exceed `MOST_BYTES`."""
    if count > MOST_BYTES:
        raise error(
            f"The input texts have {count / 1e6:.1f} MB, but a view file can have at most "
            f"{MOST_BYTES / 1e6:.0f} MB. Use fewer texts, or save the table and its Python code."
        )
