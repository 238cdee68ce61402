"""Inputs of questions: the models, texts and files that each question needs.

The command line, the HTTP API with its schema, agent tools, code snippets and view files are derived from the
`inputs` of a question and its fields.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from bert_probe.core.provenance import (
    InputRecord,
    config_name,
    end_of_options,
    load_expression,
    model_arguments,
    model_options,
    read_expression,
    trace_statement,
    truncate_argument,
)
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Trace
from bert_probe.text.documents import Document, DocumentList, document_of_line, parse_documents
from bert_probe.text.labeled_texts import parse_labeled_texts
from bert_probe.text.retrieval_data import parse_judgments
from bert_probe.text.sentence_files import parse_sentences, read_sentences
from bert_probe.text.tables import is_table
from bert_probe.text.tagged_sentences import parse_tagged_sentences

SENTENCES_FILE, DOCUMENTS_FILE = "sentences.txt", "documents.jsonl"
"""File names in code snippets that read sentences or documents from a file."""

HELD_OUT_HELP = "File with the evaluation data; by default, a fifth of DATA is held out."
LABELED_HELP = "A table of labeled texts instead of FILE."

Texts = tuple[int, int | None]
"""(minimum, maximum) number of texts; the maximum is None if it is unlimited."""
Text = tuple[str, str | None, bool]
"""(text, second text of a sentence pair or None, whether to truncate texts that are too long)."""
TABLE, TAGGED, DOCUMENTS, JUDGMENTS = "table", "tagged", "documents", "judgments"
"""Formats of a `FileInput`: labeled texts, CoNLL or CoNLL-U, documents or queries, relevance judgments."""


@dataclass(frozen=True)
class InputValues:
    """Input values of a question, as read by an interface such as the command line or the HTTP API.

    Attributes:
        checkpoints: one checkpoint per model.
        traces: one trace per text; for two models, one trace per text and model.
        sentences: many sentences, or labeled texts if the question accepts them.
        files: rows of each `FileInput`, by argument name; an optional file may be missing.
        truncate: whether texts that are too long are truncated.
    """

    checkpoints: Sequence[Checkpoint] = ()
    traces: Sequence[Trace] = ()
    sentences: Any = ()
    files: Mapping[str, Any] = field(default_factory=dict)
    truncate: bool = False


@dataclass(frozen=True)
class FileInput:
    """A file that a question reads, such as labeled texts or tagged sentences.

    Attributes:
        option: the command-line option for the file; "" for a positional argument.
        is_required: whether the question needs the file.
        formats: the accepted formats: `TABLE`, `TAGGED` or both; `DOCUMENTS`; or `JUDGMENTS`.
        help: one line for the command line and the HTTP schema.
    """

    option: str = ""
    is_required: bool = True
    formats: tuple[str, ...] = (TABLE, TAGGED)
    help: str = ""

    def parse(self, content: bytes, name: str, kind: str | None = None) -> Any:
        """Parse the rows from the contents of a file.

        Args:
            kind: type of the labels in a table; see `parse_labeled_texts`.
        """
        if DOCUMENTS in self.formats:
            return parse_documents(io.BytesIO(content), name)
        if JUDGMENTS in self.formats:
            return parse_judgments(content, name)
        if TAGGED in self.formats and not (TABLE in self.formats and is_table(name)):
            return parse_tagged_sentences(content, name)
        return parse_labeled_texts(content, name, kind)


@dataclass(frozen=True)
class Inputs:
    """Base class of the types of inputs, such as one text, two models or a corpus store.

    Attributes:
        texts: smallest and largest number of texts that the model reads.
        models: number of models.
        has_other: whether the question accepts an optional second model for comparison.
        has_sentences: whether the question reads many sentences or documents.
        list_name: name of the sentences or documents in Python and in an HTTP request.
        list_file: name of the file of sentences or documents in code snippets.
        list_option: command-line option for the file of sentences or documents; "" for a positional argument.
        has_list: whether a request may contain the sentences or documents as a list instead of a file.
        can_truncate: whether the inputs include texts that can be truncated.
        can_skip: whether invalid rows of the file of documents can be skipped.
        has_folder: whether the command line accepts a folder in the BEIR layout instead of single files.
        types: types of the first positional arguments of `Question.of`.
    """

    texts: ClassVar[Texts] = (0, 0)
    models: ClassVar[int] = 1
    has_other: ClassVar[bool] = False
    has_sentences: ClassVar[bool] = False
    list_name: ClassVar[str] = "sentences"
    list_file: ClassVar[str] = SENTENCES_FILE
    list_option: ClassVar[str] = ""
    has_list: ClassVar[bool] = True
    can_truncate: ClassVar[bool] = True
    can_skip: ClassVar[bool] = False
    has_folder: ClassVar[bool] = False
    types: ClassVar[tuple[type, ...]] = ()

    def read_list(
        self, file: Path, column: str | None, as_named: bool, progress: Progress
    ) -> tuple[str, ...]:
        """Read the sentences of a file. For documents, use `read_documents`."""
        del progress  # only a subclass that reads files of vectors reports progress
        return read_sentences(file, column, as_named)

    def parse_list(self, content: bytes, name: str, skip_broken: bool = False) -> tuple[str, ...]:  # noqa: ARG002
        """Parse sentences or documents from the contents of a file."""
        return parse_sentences(content, name)

    def restore_list(self, lines: Sequence[str]) -> Sequence[str]:
        """Parse sentences or documents from the lines in a view file."""
        return lines

    @property
    def files(self) -> Mapping[str, FileInput]:
        """The `FileInput` of each argument of `Question.of` that is read from a file, by argument name."""
        return {}

    def traces(self, checkpoints: Sequence[Checkpoint], texts: Sequence[Text]) -> list[Trace]:
        """Return one trace per text and model."""
        return [checkpoint.trace(*text) for text in texts for checkpoint in checkpoints]

    def arguments(self, values: InputValues) -> list[Any]:
        """Return the positional arguments of `Question.of`."""
        raise NotImplementedError

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the statements that create the arguments of `Question.of`, and the arguments as code."""
        raise NotImplementedError

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return the command-line arguments that follow the options of the question.

        Args:
            leading: values of the question's positional fields, which are part of the returned arguments.
            record: the inputs of a result.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class OneTrace(Inputs):
    """One text, or a text pair that the model reads as one input."""

    texts: ClassVar[Texts] = (1, 1)
    types: ClassVar[tuple[type, ...]] = (Trace,)
    names: ClassVar[tuple[str, ...]] = ("trace",)
    """Variable names of the traces in Python snippets."""

    def arguments(self, values: InputValues) -> list[Any]:
        """Return the traces as the arguments of `Question.of`."""
        return list(values.traces)

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the statements that load the model and trace each text, and the names of the traces."""
        names = self.names if len(record.texts) == len(self.names) else ("trace",)
        if record.model.get("origin") == "given":
            lines = [
                f"{name} = bert_probe.from_attention(weights, tokens)  # your attention" for name in names
            ]
            return lines, ", ".join(names)
        traces = [
            trace_statement(name, "checkpoint", text) for name, text in zip(names, record.texts, strict=True)
        ]
        return [f"checkpoint = {load_expression(record.model)}", *traces], ", ".join(names)

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return `--pair` and the second text of a pair, the question's own arguments, and the text."""
        options: list[str] = []
        words = list(leading)
        for number, text in enumerate(record.texts):
            option = self._option(number)
            options += [self._pair_option(number), text["pair"]] if text["pair"] is not None else []
            options += [option, text["text"]] if option else []
            words += [] if option else [text["text"]]
        return [*options, *end_of_options(words)]

    def _option(self, number: int) -> str:  # noqa: ARG002
        return ""

    def _pair_option(self, number: int) -> str:  # noqa: ARG002
        return "--pair"


@dataclass(frozen=True)
class OneOrTwoTraces(OneTrace):
    """One text, or two texts that are read separately.

    Attributes:
        second: the command-line option for the second text; "" for a positional argument.
    """

    second: str = ""

    texts = (1, 2)
    types = (Trace, Trace)
    names = ("a", "b")

    def _option(self, number: int) -> str:
        return self.second if number else ""


@dataclass(frozen=True)
class TwoTraces(OneOrTwoTraces):
    """Two texts that are read separately.

    Attributes:
        pair_options: for each text, the command-line option for the second text of its sentence pair; empty
            if sentence pairs are not supported.
    """

    pair_options: tuple[str, ...] = ()

    texts = (2, 2)

    def _pair_option(self, number: int) -> str:
        return self.pair_options[number] if self.pair_options else "--pair"


@dataclass(frozen=True)
class ManyTraces(OneTrace):
    """Two or more texts, each read separately.

    Attributes:
        option: the command-line option for a text, which is repeated for each text.
    """

    option: str = "--text"

    texts = (2, None)
    types = ()

    def traces(self, checkpoints: Sequence[Checkpoint], texts: Sequence[Text]) -> list[Trace]:
        """Return the trace of each text by the only checkpoint; the texts are traced in batches."""
        pairs = [(text, pair) for text, pair, _ in texts]
        return checkpoints[0].traces(pairs, any(truncate for *_, truncate in texts))

    def arguments(self, values: InputValues) -> list[Any]:
        """Return all traces as a single argument, a list."""
        return [list(values.traces)]

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the statements that load the model and trace all texts, and the name of the list."""
        pairs = [(text["text"], text["pair"]) for text in record.texts]
        arguments = [repr([text if pair is None else (text, pair) for text, pair in pairs])]
        arguments += ["truncate=True"] if any(text["tokens_dropped"] for text in record.texts) else []
        return [
            f"checkpoint = {load_expression(record.model)}",
            f"traces = checkpoint.traces({', '.join(arguments)})",
        ], "traces"

    def _option(self, number: int) -> str:  # noqa: ARG002
        return self.option


@dataclass(frozen=True)
class OneCheckpoint(Inputs):
    """A model, without a text."""

    types = (Checkpoint,)
    can_truncate = False

    def arguments(self, values: InputValues) -> list[Any]:
        """Return the checkpoint as the only argument of `Question.of`."""
        return list(values.checkpoints)

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the statement that loads the model, and the name of the variable that it assigns."""
        return [f"checkpoint = {load_expression(record.model)}"], "checkpoint"

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:  # noqa: ARG002
        """Return only the values of the question's positional fields; the model is passed as an option."""
        return end_of_options(leading)


@dataclass(frozen=True)
class SentenceList(Inputs):
    """Many sentences, each read separately.

    Attributes:
        labeled_option: the command-line option for a table of labeled texts that replaces the sentences; ""
            if there is no such option.
    """

    labeled_option: str = ""

    types = (Checkpoint,)
    has_sentences = True

    @property
    def files(self) -> Mapping[str, FileInput]:
        """The optional table of labeled texts that replaces the sentences."""
        return (
            {"rows": FileInput(self.labeled_option, False, (TABLE,), LABELED_HELP)}
            if self.labeled_option
            else {}
        )

    def arguments(self, values: InputValues) -> list[Any]:
        """Return the checkpoint, the sentences, and a flag that states whether to truncate them."""
        rows = values.files.get("rows", values.sentences)
        return [*values.checkpoints, rows, values.truncate]

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return statements that load the model and read the sentences, and the arguments as code."""
        files = record.sentences.get("files", {})
        lines = [f"{name} = {read_expression(file)}" for name, file in files.items()]
        if not files:
            lines = [f"sentences = bert_probe.read_sentences({SENTENCES_FILE!r})"]
        arguments = ["checkpoint", *(files or ["sentences"]), *truncate_argument(record)]
        return [f"checkpoint = {load_expression(record.model)}", *lines], ", ".join(arguments)

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return the question's arguments and the sentence file, or the option and file of labeled texts."""
        files = record.sentences.get("files", {})
        if files:
            return [self.labeled_option, files["rows"]["file"]]
        return end_of_options([*leading, SENTENCES_FILE])


@dataclass(frozen=True)
class Documents(SentenceList):
    """Documents to search, each with an optional ID and title."""

    list_name = "documents"
    list_file = DOCUMENTS_FILE
    list_option = "--documents"
    can_skip = True
    variable: ClassVar[str] = "documents"
    """Variable name of the documents in Python snippets."""
    reader: ClassVar[str] = "read_documents"
    """Name of the function in `bert_probe` that reads the documents from a file."""

    def parse_list(self, content: bytes, name: str, skip_broken: bool = False) -> DocumentList:
        """Parse documents from the contents of a file."""
        return parse_documents(io.BytesIO(content), name, skip_broken)

    def restore_list(self, lines: Sequence[str]) -> Sequence[Document]:
        """Parse the documents from lines that `Document.line` returned.

        Raises:
            TextError: a line does not have the format of `Document.line`.
        """
        documents = []
        for number, line in enumerate(lines, 1):
            try:
                documents.append(document_of_line(line))
            except TextError as error:
                raise TextError(f"Document {number:,}: {error}") from None
        return documents

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return statements that load the model and read the documents, and the arguments as code."""
        lines = [
            f"checkpoint = {load_expression(record.model)}",
            f"{self.variable} = bert_probe.{self.reader}({self.file(record)!r})",
        ]
        return lines, ", ".join(["checkpoint", self.variable, *truncate_argument(record)])

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return command-line arguments: the option for documents, its file, and the values `leading`."""
        return [self.list_option, self.file(record), *end_of_options(leading)]

    def file(self, record: InputRecord) -> str:  # noqa: ARG002
        """Return the name of the file of documents in code snippets."""
        return self.list_file


@dataclass(frozen=True)
class DocumentFile(Documents):
    """Documents without a query. The question itself handles documents that are too long for the model."""

    list_option = ""
    can_truncate = False

    def arguments(self, values: InputValues) -> list[Any]:
        """Return the checkpoint and the documents."""
        return [*values.checkpoints, values.sentences]

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:  # noqa: ARG002
        """Return the values of the question's positional fields, and the file of the documents."""
        return end_of_options([*leading, DOCUMENTS_FILE])


@dataclass(frozen=True)
class Files(Inputs):
    """Input type of questions that read files, such as labeled texts, tagged sentences or documents.

    Attributes:
        files_by_name: the `FileInput` of each argument of `Question.of` that is read from a file, by argument
            name.
    """

    files_by_name: Mapping[str, FileInput]

    types = (Checkpoint,)

    @property
    def files(self) -> Mapping[str, FileInput]:
        """The `FileInput` of each argument of `Question.of` that is read from a file, by argument name."""
        return self.files_by_name

    def __hash__(self) -> int:
        return hash(tuple(self.files_by_name.items()))

    def arguments(self, values: InputValues) -> list[Any]:
        """Return the checkpoints, the rows of each file (None if missing), and whether to truncate texts."""
        return [
            *values.checkpoints,
            *(values.files.get(name) for name in self.files_by_name),
            values.truncate,
        ]

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return statements that load the model and read each file, and the arguments as code."""
        files = record.sentences["files"]
        lines = [f"checkpoint = {load_expression(record.model)}"]
        lines += [f"{name} = {read_expression(file)}" for name, file in files.items()]
        by_keyword = [*files] != [*self.files_by_name][: len(files)]
        arguments = [f"{name}={name}" if by_keyword else name for name in files]
        return lines, ", ".join(["checkpoint", *arguments, *truncate_argument(record)])

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return the question's own arguments (`leading`), and the file names, each after its option."""
        words: list[str] = []
        for name, file in record.sentences["files"].items():
            option = self.files_by_name[name].option
            words += [option, file["file"]] if option else [file["file"]]
        return [*leading, *words]


@dataclass(frozen=True)
class TwoCheckpoints(Inputs):
    """Two models, without a text."""

    models = 2
    types: ClassVar[tuple[type, ...]] = (Checkpoint, Checkpoint)
    can_truncate = False

    def arguments(self, values: InputValues) -> list[Any]:
        """Return both checkpoints as the arguments of `Question.of`."""
        return list(values.checkpoints)

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the statements that load both models, and the names of the checkpoints."""
        return load_two(record), "checkpoint, other"

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return the names of both models, and the question's own arguments (`leading`)."""
        return end_of_options([*_names_of_two(record), *leading])


@dataclass(frozen=True)
class TwoModelTraces(TwoCheckpoints):
    """One text, read by two models."""

    texts = (1, 1)
    types = (Trace, Trace)
    can_truncate = True

    def arguments(self, values: InputValues) -> list[Any]:
        """Return the traces of the text from both models."""
        return list(values.traces)

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return statements that load both models and trace the text with each, and the trace names."""
        (text,) = record.texts
        sides = (("a", "checkpoint"), ("b", "other"))
        return [*load_two(record), *(trace_statement(*side, text) for side in sides)], "a, b"

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return arguments of a command: `--pair` with its text, both model names, `leading` and the text."""
        (text,) = record.texts
        options = [] if text["pair"] is None else ["--pair", text["pair"]]
        return [*options, *end_of_options([*_names_of_two(record), *leading, text["text"]])]


@dataclass(frozen=True)
class TwoModelSentences(TwoCheckpoints):
    """Many sentences, read by two models."""

    has_sentences = True
    can_truncate = True

    def arguments(self, values: InputValues) -> list[Any]:
        """Return both checkpoints, the sentences, and a flag that states whether to truncate them."""
        return [*values.checkpoints, values.sentences, values.truncate]

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return statements that load both models and read the sentences, and the arguments as code."""
        lines = [*load_two(record), f"sentences = bert_probe.read_sentences({SENTENCES_FILE!r})"]
        return lines, ", ".join(["checkpoint", "other", "sentences", *truncate_argument(record)])

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return the names of both models, the question's own arguments, and the sentence file."""
        return end_of_options([*_names_of_two(record), *leading, SENTENCES_FILE])


@dataclass(frozen=True)
class Configs(Inputs):
    """Configs of models, with or without weights."""

    can_truncate = False

    def arguments(self, values: InputValues) -> list[Any]:
        """Return the checkpoints as the arguments of `Question.of`."""
        return list(values.checkpoints)

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return an empty list of statements, and the expressions that open the models."""
        models = [
            load_expression(model)
            if "weights_sha256" in model
            else f"bert_probe.open_config({config_name(model)!r})"
            for model in record.configs
        ]
        return [], ", ".join(models)


@dataclass(frozen=True)
class OneStore(Inputs):
    """A corpus store, without a text."""

    can_truncate = False

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the statement that opens the store, and the name of the store."""
        return [f"store = bert_probe.open_corpus({record.store['store']!r})"], "store"

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return the folder of the store, and the question's own arguments (`leading`)."""
        return end_of_options([record.store["store"], *leading])


@dataclass(frozen=True)
class StoreAndTrace(OneStore):
    """A corpus store and a text that its model reads."""

    texts = (1, 1)

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return statements that open the store and trace the text, and the names of both variables."""
        lines, store = super().python(record)
        model = ", ".join(model_arguments(record.model))
        (text,) = record.texts
        lines += [f"checkpoint = store.checkpoint({model})", trace_statement("trace", "checkpoint", text)]
        return lines, f"{store}, trace"

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return the options for the text and the model, the folder of the store, and `leading`."""
        (text,) = record.texts
        truncate = ["--truncate"] if text["tokens_dropped"] else []
        return ["--text", text["text"], *truncate, *model_options(record), *super().words(leading, record)]


def load_two(record: InputRecord) -> list[str]:
    """Return Python statements that load both models of a record."""
    return [
        f"checkpoint = {load_expression(record.model)}",
        f"other = {load_expression(record.other, 'other_model')}",
    ]


def _names_of_two(record: InputRecord) -> list[str]:
    return [str(model["model"]) for model in record.models]
