"""Click commands whose module or question class is imported only when the command is called."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from bert_probe.core.extras import long_lived_imports

if TYPE_CHECKING:
    from bert_probe.core.inputs import FileInput, Inputs, Text
    from bert_probe.core.question import Question
    from bert_probe.core.result import Result
    from bert_probe.text.documents import DocumentList


class LazyCommand(click.Command):
    """A placeholder for a command, whose module or question class is imported only when it is called."""

    def __init__(self, name: str, source: str | DerivedCommand, help_line: str, full_name: str = "") -> None:
        super().__init__(name, help=help_line)
        self._source = source
        self._full_name = full_name or name

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Import the actual command, and return its context instead of the context of the placeholder."""
        with long_lived_imports():
            if isinstance(self._source, str):
                module = import_module(f"bert_probe.cli.{self._source}")
                command: click.Command = getattr(module, str(self.name).replace("-", "_"))
            else:
                command = build(self._full_name, self._source)
        return command.make_context(*args, **kwargs)


class CommandGroup(click.Group):
    """A group of commands that can include commands derived from question classes.

    Attributes:
        prefix: common prefix of the full names of the derived commands, such as "diff "; "" includes all
            derived commands.
        has_derived: whether the group contains derived commands.
    """

    def __init__(self, *args: Any, prefix: str = "", has_derived: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prefix, self.has_derived = prefix, has_derived

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name; hand-written commands take precedence over derived commands."""
        command = super().get_command(ctx, cmd_name)
        if command is None and self.has_derived and cmd_name in self._derived():
            derived = self._derived()[cmd_name]
            command = LazyCommand(cmd_name, derived, derived.summary, f"{self.prefix}{cmd_name}")
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *(self._derived() if self.has_derived else ())})

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; on Ctrl+C, raise `Abort` without the empty line that click would print first."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort(*error.args) from None

    def _derived(self) -> Mapping[str, DerivedCommand]:
        commands = {
            name.removeprefix(self.prefix): derived
            for name, derived in derived_commands().items()
            if name.startswith(self.prefix)
        }
        return {name: derived for name, derived in commands.items() if " " not in name}


_PACKAGE = Path(__file__).resolve().parents[1]
_DEFINITION = re.compile(r'^@question\(.*?\)\nclass \w+\(.*?:\n    """.*?"""', re.MULTILINE | re.DOTALL)
"""Matches the decorator, class line and docstring of a question. Parsing a complete module is slower."""

Command = Callable[..., Any]


class DerivedCommand(NamedTuple):
    """A question from which a command is derived.

    Attributes:
        module: name of the module that defines the question, without the prefix "bert_probe.".
        class_name: name of the question's class.
        summary: first paragraph of the class docstring.
    """

    module: str
    class_name: str
    summary: str


@cache
def derived_commands() -> Mapping[str, DerivedCommand]:
    """Return a dict from command names to the questions from which these commands are derived.

    The modules of the questions are parsed instead of imported, because most of them import torch.
    """
    stub = ast.parse((_PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    commands: dict[str, DerivedCommand] = {}
    for module in sorted(
        {node.module for node in stub.body if isinstance(node, ast.ImportFrom) and node.module}
    ):
        path = _PACKAGE / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for definition in _DEFINITION.findall(file.read_text(encoding="utf-8")):
            (node,) = ast.parse(f"{definition}\n    pass").body
            name = _command_name(node)
            if name is not None and isinstance(node, ast.ClassDef):
                summary = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
                summary = summary.replace("`", "")
                commands.setdefault(name, DerivedCommand(module, node.name, summary))
    return commands


def _command_name(node: ast.stmt) -> str | None:
    """Return the command name from the `@question` decorator of a class; None for other statements."""
    for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
        if (
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Name)
            and decorator.func.id == "question"
        ):
            names = [keyword.value for keyword in decorator.keywords if keyword.arg == "command"]
            name = [*names, *decorator.args][0]
            return str(name.value) if isinstance(name, ast.Constant) else None
    return None


def build(name: str, derived: DerivedCommand) -> click.Command:
    """Import a question class, and return the command that is derived from it."""
    question: type[Question] = getattr(import_module(f"bert_probe.{derived.module}"), derived.class_name)
    return command_of(question, name.rpartition(" ")[2])


def command_of(question: type[Question], name: str) -> click.Command:
    """Create the command that computes the result of a question.

    Args:
        question: a class whose `inputs` are texts, sentences, files or models.
        name: the last word of the command's name.
    """
    from bert_probe.cli.options import (
        checkpoint_options,
        other_checkpoint_options,
        question_options,
        two_checkpoint_options,
    )

    def run(arguments: dict[str, Any], **values: Any) -> Result:
        return _answer(question(**arguments), values)

    model_decorator = two_checkpoint_options if question.inputs.models > 1 else checkpoint_options
    decorators = [model_decorator, question_options(question)]
    if question.inputs.has_other:
        decorators.insert(1, other_checkpoint_options)
    decorators += _parameters(question.inputs, name)
    command: Command = functools.reduce(
        lambda wrapped, decorate: decorate(wrapped), reversed(decorators), run
    )
    return click.command(name, help=_help(question))(command)


def _help(question: type[Question]) -> str:
    """Return the docstring of a question up to its first section, without backticks."""
    text = getdoc(question) or ""
    for section in ("\n\nAttributes:", "\n\nRaises:", "\n\n>>>"):
        text = text.partition(section)[0]
    return text.replace("`", "")


def _parameters(inputs: Inputs, name: str) -> list[Callable[[Command], Command]]:
    """Return decorators that add the arguments and options for the inputs of a command."""
    from bert_probe.cli.options import as_named_option, pair_option
    from bert_probe.core.inputs import ManyTraces

    path = click.Path(path_type=Path)
    min_texts, max_texts = inputs.texts
    parameters: list[Callable[[Command], Command]] = []
    if isinstance(inputs, ManyTraces):
        return [
            click.option(
                inputs.option,
                "texts",
                multiple=True,
                required=True,
                metavar="TEXT",
                help="One of the texts; pass this option two or more times.",
            )
        ]
    if max_texts == 1:
        parameters += [click.argument("text_a", metavar="TEXT"), pair_option]
    elif max_texts == 2:
        parameters.append(click.argument("text_a"))
        parameters.append(click.argument("text_b", required=min_texts == 2))
        if min_texts == 1:
            parameters.append(pair_option)
        for side, option in zip("ab", getattr(inputs, "pair_options", ()), strict=False):
            help_line = f"Second text, encoded together with TEXT_{side.upper()} as a sentence pair."
            parameters.append(click.option(option, f"pair_{side}", metavar="TEXT", help=help_line))
    parameters += _list_parameters(inputs, name)
    if inputs.has_folder:
        parameters.append(click.argument("folder", type=path, required=False))
    for argument, file in inputs.files.items():
        if file.option:
            parameters.append(click.option(file.option, argument, type=path, metavar="FILE", help=file.help))
        else:
            parameters.append(click.argument(argument, type=path))
    if inputs.has_sentences or inputs.files:
        parameters.append(as_named_option)
    if inputs.can_skip or inputs.has_folder:
        help_line = "Skip and list the rows that cannot be read, instead of rejecting the file."
        parameters.append(click.option("--skip-broken", is_flag=True, help=help_line))
    return parameters


def _list_parameters(inputs: Inputs, name: str) -> list[Callable[[Command], Command]]:
    """Return decorators that add the arguments and options for the sentences or documents of a command."""
    from bert_probe.core.inputs import Documents

    path = click.Path(path_type=Path)
    if inputs.list_option:
        help_line = (
            f"The {inputs.list_name}: a text file with one per line, a table, FASTA, a folder, or a corpus "
            "store."
        )
        if name == "search":
            help_line = f"{help_line[:-1].replace(' or a', ' a')}, or vectors (.parquet, .jsonl, .npz, .npy)."
        return [
            click.option(inputs.list_option, "file", type=path, required=True, metavar="FILE", help=help_line)
        ]
    if not inputs.has_sentences:
        return []
    parameters: list[Callable[[Command], Command]] = [
        click.argument("file", type=path, required=not getattr(inputs, "labeled_option", ""))
    ]
    if not isinstance(inputs, Documents):
        help_line = "Column of a .csv or .tsv file that contains the sentences.  [default: sentence or text]"
        parameters.append(click.option("--column", metavar="NAME", help=help_line))
    return parameters


def _answer(question: Any, values: dict[str, Any]) -> Result:
    """Read the inputs that command-line arguments name, and return the result of the question."""
    from bert_probe.cli.options import print_message, with_notice
    from bert_probe.core.inputs import InputValues
    from bert_probe.runtime.terminal import terminal_bar

    question = _use_vector_search(question, values)
    inputs, truncate = question.inputs, values["truncate"]
    other = values.get("other")
    checkpoints = [values["checkpoint"], *([] if other is None else [other])]
    traces = [with_notice(trace) for trace in inputs.traces(checkpoints, _texts(inputs, values))]
    sentences = _sentences(inputs, values) if inputs.has_sentences else ()
    paths = {name: values[name] for name in inputs.files if values[name] is not None}
    if inputs.has_folder:
        paths = _folder_files(inputs, values["folder"], paths)
    files = {
        name: _rows(inputs.files[name], path, values["as_named"], values.get("skip_broken", False))
        for name, path in paths.items()
    }
    arguments = inputs.arguments(InputValues(checkpoints, traces, sentences, files, truncate))
    question.check_memory(*arguments)
    if question.has_progress:
        with terminal_bar(question.command.capitalize(), "steps") as progress:
            result = cast("Result", question.of(*arguments, progress=progress))
    else:
        result = cast("Result", question.of(*arguments))
    for note in getattr(result, "notes", ()):
        print_message(note)
    return result


def _use_vector_search(question: Any, values: Mapping[str, Any]) -> Any:
    """Return a `VectorSearch` for a `Search` whose file contains vectors; return other questions unchanged.

    A store with sentence vectors also has texts. `Search` reads these texts if a scorer other than the
    bi-encoder is selected.

    Raises:
        SelectionError: a scorer needs the texts of the documents.
    """
    if question.analysis != "search":
        return question
    from bert_probe.analyses.retrieval.search import BI_ENCODER
    from bert_probe.corpus.vector_files import has_vectors
    from bert_probe.corpus.vector_search import VectorSearch
    from bert_probe.errors import SelectionError, TextError
    from bert_probe.text.sentence_files import is_file

    file: Path = values["file"]
    names = ("query", "count", "prompt", "document_prompt", "dimensions")
    vector_search = VectorSearch(**{name: getattr(question, name) for name in names})
    if _is_store(file):
        return vector_search if question.scorers == (BI_ENCODER,) and _has_vectors(file) else question
    if not is_file(file):
        return question
    try:
        with file.open("rb") as stream:
            if not has_vectors(file.name, stream):
                return question
    except OSError as error:
        raise TextError(f"{file} cannot be opened: {error.strerror}. Check the path.") from None
    if question.scorers != (BI_ENCODER,):
        raise SelectionError(
            f"{file.name} contains vectors, which only the scorer {BI_ENCODER} supports. Omit --scorers, "
            "or pass a file without vectors."
        )
    return vector_search


def _is_store(file: Path) -> bool:
    from bert_probe.text.sentence_files import is_file

    return is_file(file / "manifest.json")


def _has_vectors(folder: Path) -> bool:
    """Return whether a store has sentence vectors.

    If it has none, print a message that its texts are encoded for this search; otherwise, print a message if
    the store is incomplete.
    """
    from bert_probe.cli.corpus import print_incomplete
    from bert_probe.cli.options import print_message
    from bert_probe.corpus.inputs import SENTENCE_VECTORS
    from bert_probe.corpus.store import read_store

    store = read_store(folder)
    if store.has(SENTENCE_VECTORS):
        print_incomplete(store)
    else:
        print_message(
            f"{folder.name} has no sentence vectors, so its {store.rows:,} texts are encoded for this "
            f"search. Build it with --keep {SENTENCE_VECTORS} to encode them once."
        )
    return store.has(SENTENCE_VECTORS)


def _texts(inputs: Inputs, values: Mapping[str, Any]) -> list[Text]:
    from bert_probe.cli.options import read_text
    from bert_probe.errors import SelectionError

    truncate = values["truncate"]
    if inputs.texts[1] is None:
        return [(read_text(text), None, truncate) for text in values["texts"]]
    text_a, text_b, pair = values.get("text_a"), values.get("text_b"), values.get("pair")
    if text_b is not None and pair is not None:
        raise SelectionError("TEXT_B and --pair cannot be combined. Omit one of the two.")
    pair_a = values.get("pair_a") if pair is None else pair
    pairs = [(text_a, pair_a), (text_b, values.get("pair_b"))]
    return [
        (read_text(text), None if second is None else read_text(second), truncate)
        for text, second in pairs
        if text is not None
    ]


def _sentences(inputs: Inputs, values: Mapping[str, Any]) -> Any:
    """Read the sentences in FILE; return () if the option for labeled texts is passed instead."""
    from bert_probe.errors import SelectionError
    from bert_probe.runtime.terminal import terminal_bar

    options = [file.option for file in inputs.files.values()]
    passed = [file.option for name, file in inputs.files.items() if values[name] is not None]
    if values["file"] is None and not passed:
        raise SelectionError(f"Pass a FILE of sentences, or a table of labeled texts with {options[0]}.")
    if values["file"] is not None and passed:
        raise SelectionError(f"FILE and {passed[0]} cannot be combined. Omit one of the two.")
    column = values.get("column")
    if passed and column is not None:
        raise SelectionError("--column applies to FILE only. Omit --column.")
    if passed:
        return ()
    if inputs.can_skip:
        return _documents(values)
    with terminal_bar("Reading", "B") as progress:
        return inputs.read_list(values["file"], column, values["as_named"], progress)


def _documents(values: Mapping[str, Any]) -> DocumentList:
    """Return the documents in a file, a folder or a corpus store, and print which rows were skipped."""
    from bert_probe.cli.options import print_message
    from bert_probe.runtime.terminal import terminal_bar
    from bert_probe.text.documents import read_documents

    file: Path = values["file"]
    if _is_store(file):
        from bert_probe.cli.corpus import print_incomplete
        from bert_probe.corpus.store import open_corpus

        store = open_corpus(file)
        print_incomplete(store)
        return store.documents
    with terminal_bar("Reading", "B") as progress:
        documents = read_documents(file, values["as_named"], values["skip_broken"], progress)
    if documents.skipped_sentence:
        print_message(documents.skipped_sentence)
    return documents


def _folder_files(inputs: Inputs, folder: Path | None, paths: Mapping[str, Path]) -> dict[str, Path]:
    """Return a dict from argument names to input files. Options take precedence over files in the folder."""
    from bert_probe.errors import SelectionError
    from bert_probe.text.retrieval_data import find_retrieval_files

    if folder is not None and len(paths) < len(inputs.files):
        return {**find_retrieval_files(folder, paths), **paths}
    missing = [file.option for name, file in inputs.files.items() if name not in paths]
    if missing:
        raise SelectionError(f"Evaluation data is missing. Pass a FOLDER, or add {', '.join(missing)}.")
    return dict(paths)


def _rows(file: FileInput, path: Path, as_named: bool, skip_broken: bool) -> Any:
    from bert_probe.core.inputs import DOCUMENTS, JUDGMENTS, TABLE, TAGGED
    from bert_probe.text.labeled_texts import read_labeled_texts
    from bert_probe.text.retrieval_data import read_judgments
    from bert_probe.text.tables import is_table
    from bert_probe.text.tagged_sentences import read_tagged_sentences

    if DOCUMENTS in file.formats:
        return _documents({"file": path, "as_named": as_named, "skip_broken": skip_broken})
    if JUDGMENTS in file.formats:
        return read_judgments(path)
    if TAGGED not in file.formats or (TABLE in file.formats and is_table(path.name)):
        return read_labeled_texts(path, as_named=as_named)
    return read_tagged_sentences(path, as_named)
