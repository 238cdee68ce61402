"""Decorators that add options for models, questions, texts and output files to commands."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn, cast, get_type_hints

import click

from bert_probe.core import files
from bert_probe.core.field_types import Choice, Dimensions, Flag
from bert_probe.core.field_types_of_lists import ListOf
from bert_probe.core.question import QUESTIONS, Question, field_type, option_name
from bert_probe.core.result import Result, save
from bert_probe.core.writing import reserved, write
from bert_probe.errors import (
    ExportError,
    FormatError,
    ProbeError,
    SelectionError,
    TooLongError,
    UnavailableError,
    WrittenElsewhereError,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import existing, expand_home
from bert_probe.model.trace import Trace
from bert_probe.runtime.terminal import SafeStream, exit_on_sigterm, terminal_bar, visible
from bert_probe.views.page import EXTENSIONS, Page, is_view_file

Command = Callable[..., Any]

MODEL_HELP = "Hub ID or local folder.  [default: the built-in model]"
REVISION_HELP = "Branch, tag or commit on the Hub."


@contextmanager
def reserve_outputs(files: Iterable[Path], force: bool) -> Iterator[None]:
    """Reserve output files for the duration of the block; see `reserved`.

    Raises:
        ExportError: see `reserved`. Also raised, even with `force`, if an output is an input file of the
            command, or is in the folder of a model or store that the command reads.
    """
    files = list(files)
    with exit_on_sigterm(), reserved(files, force):
        context = click.get_current_context(silent=True)
        if context is not None:
            context.meta[_OUTPUTS] = [*context.meta.get(_OUTPUTS, ()), *files]
            for parameter in context.command.params:
                if not isinstance(parameter.type, OutputPath):
                    value = context.params.get(parameter.name or "")
                    _check_inputs(*(value if isinstance(value, tuple) else (value,)))
        yield


_OUTPUTS: Final = f"{__name__}.outputs"
"""Key of the reserved output files in the context of a command."""


def _check_inputs(*arguments: object) -> None:
    """Raise an error if an argument names a file that the running command writes; see `_reads`."""
    context = click.get_current_context(silent=True)
    for output in context.meta.get(_OUTPUTS, ()) if context is not None else ():
        for argument in arguments:
            if isinstance(argument, str | Path) and any(
                _reads(path, output, isinstance(argument, Path)) for path in _paths(argument)
            ):
                raise ExportError(f"{output} is read by this command. Choose another file to write.")


def _paths(argument: str | Path) -> set[Path]:
    """Return all paths that an argument may refer to; names of models are used without surrounding spaces."""
    names = {str(argument), *([argument.strip()] if isinstance(argument, str) else [])}
    return {path for name in names for path in (Path(name), expand_home(name))}


def _reads(path: Path, file: Path, is_path: bool) -> bool:
    """Return whether an existing file is the input at a path, or is in a folder that is read.

    Args:
        path: the path of an input.
        file: the output file.
        is_path: whether the input is certainly a path. Otherwise it is a string, such as a model or a text,
            and a folder is read only if it is the folder of a model or a store.
    """
    try:
        if not path.is_dir():
            return file.is_file() and file.samefile(path)
        is_read = is_path or any((path / name).is_file() for name in ("config.json", "manifest.json"))
        return is_read and file.is_file() and file.resolve().is_relative_to(path.resolve())
    except (OSError, ValueError):  # a text that is not a path, or a file that cannot be read
        return False


class OutputPath(click.Path):
    """A parameter type for output paths that expands ~, because shells do not expand it in quoted paths."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path with ~ expanded as by `expand_home`. The ~ of ./~ is part of the name."""
        value = os.path.expanduser(value)  # noqa: PTH111 - a Path would drop ./
        path = cast(Path, super().convert(value, param, ctx))
        # An absolute path, in which no later function expands ~.
        return path.absolute() if str(path).startswith("~") else path


def open_checkpoint(model: str | None, revision: str | None, dtype: str) -> Checkpoint:
    """Open the model that the options name (see `load`), with a progress bar for downloads."""
    # Imported here because the import takes seconds, and not every command opens a model.
    from bert_probe.model.loading import load

    _check_inputs(model)  # the name can come from a view file or a store
    with terminal_bar("Downloading", "B") as progress:
        return load(model, revision, dtype=dtype, progress=progress)


def checkpoint_options(command: Command) -> Command:
    """Add options for model, dtype, truncation and output; open the model and pass it as ``checkpoint``."""

    @model_options
    @functools.wraps(command)
    def run(model: str | None, revision: str | None, dtype: str, **values: Any) -> Any:
        return command(checkpoint=open_checkpoint(model, revision, dtype), **values)

    return run


def other_checkpoint_options(command: Command) -> Command:
    """Add the options for an optional second model. Apply this decorator after `checkpoint_options`.

    The second model is opened in the dtype of the first model, and passed as ``other`` (None without one).
    """

    @click.option("--other", "other_name", metavar="ID_OR_FOLDER", help="Model to compare with.")
    @click.option("--other-revision", metavar="REV", help="Branch, tag or commit of this model on the Hub.")
    @functools.wraps(command)
    def run(checkpoint: Checkpoint, other_name: str | None, other_revision: str | None, **values: Any) -> Any:
        if other_revision is not None and other_name is None:
            raise SelectionError("--other-revision requires --other. Add --other, or omit --other-revision.")
        dtype = checkpoint.description.dtype
        other = None if other_name is None else open_checkpoint(other_name, other_revision, dtype)
        return command(checkpoint=checkpoint, other=other, **values)

    return run


def model_options(command: Command) -> Command:
    """Add the options of `checkpoint_options`, but pass their values instead of opening the model."""

    @click.option("--model", metavar="ID_OR_FOLDER", help=MODEL_HELP)
    @click.option("--revision", metavar="REV", help=REVISION_HELP)
    @_answer_options
    @functools.wraps(command)
    def run(**values: Any) -> Any:
        return command(**values)

    return run


def two_checkpoint_options(command: Command) -> Command:
    """Add MODEL_A and MODEL_B with their options, --dtype, --truncate and the output options.

    The models are opened and passed as ``checkpoint`` and ``other``.
    """

    @click.argument("model_a")
    @click.argument("model_b")
    @click.option("--revision-a", metavar="REV", help="Branch, tag or commit of MODEL_A on the Hub.")
    @click.option("--revision-b", metavar="REV", help="Branch, tag or commit of MODEL_B on the Hub.")
    @_answer_options
    @functools.wraps(command)
    def run(
        model_a: str, model_b: str, revision_a: str | None, revision_b: str | None, dtype: str, **values: Any
    ) -> Any:
        checkpoint = open_checkpoint(model_a, revision_a, dtype)
        return command(checkpoint=checkpoint, other=open_checkpoint(model_b, revision_b, dtype), **values)

    return run


dtype_option = click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float16", "bfloat16", "float64"]),
    default="auto",
    show_default=True,
    help="Data type of the weights and the computation; auto is float32.",
)


def _answer_options(command: Command) -> Command:
    """Add --dtype, --truncate, and the options of `output_options`."""

    @dtype_option
    @click.option("--truncate", is_flag=True, help="Truncate a text that is too long for the model.")
    @output_options
    @functools.wraps(command)
    def run(**values: Any) -> Any:
        with suggest_truncate_option():
            return command(**values)

    return run


@contextmanager
def suggest_truncate_option() -> Iterator[None]:
    """Add a hint about --truncate to the error message for a text that is too long."""
    try:
        yield
    except TooLongError as error:
        raise TooLongError(str(error).replace("turn on truncation", "add --truncate")) from None


def output_options(command: Command) -> Command:
    """Add the options for writing the result to standard output, a file, or a view file.

    The decorated command must return a `Result`, a table, or a `Page` (a figure).
    """

    @click.option(
        "--out",
        type=OutputPath(),
        metavar="FILE",
        help="Write the table to a .csv, .json, .npz or .parquet file, or the figure to an .html, .svg "
        "or .png file.",
    )
    @click.option("--force", is_flag=True, help="Overwrite existing files.")
    @click.option("--csv-safe", is_flag=True, help=files.CSV_SAFE_HELP)
    @click.option(
        "--save-view",
        type=OutputPath(),
        metavar="FILE",
        help="Also write a view file with the question, the model and the texts. View files can be opened "
        "with the commands ask, report and app --view.",
    )
    @functools.wraps(command)
    def run(out: Path | None, force: bool, csv_safe: bool, save_view: Path | None, **values: Any) -> None:
        if out is None:
            check_standard_output("Pass a file with --out.")
        has_own_format = out is not None and out.suffix.lower() == getattr(command, "own_extension", None)
        _check_output_options(out, force, csv_safe, save_view)
        if out is not None and is_view_file(out) and not has_own_format:
            _check_has_figure()
        with reserve_outputs(_output_files(out, has_own_format, save_view), force):
            result = command(**values)
            errors: list[ProbeError] = []  # raised after all outputs are written
            if save_view is not None:
                with _collected(errors):
                    _save_view(result, save_view, force)
            with _collected(errors):
                if out is not None and has_own_format:
                    save_or_rescue(lambda path: result.save(path, overwrite=force), out)
                elif out is not None:
                    _save_result(result, out, csv_safe, force)
        if out is None or has_own_format:
            with _collected(errors):
                print_bytes(files.to_bytes(_table_of(result), "csv", csv_safe))
        if errors:
            raise errors[0] if len(errors) == 1 else ExportError(" ".join(map(str, errors)))

    return run


@contextmanager
def _collected(errors: list[ProbeError]) -> Iterator[None]:
    """Add an error in the block to a list instead of raising it."""
    try:
        yield
    except ProbeError as error:
        errors.append(error)


def _save_result(result: Any, out: Path, csv_safe: bool, force: bool) -> None:
    """Write the figure or the table of a result, depending on the extension."""
    if is_view_file(out):
        page = _to_page(result, out.with_suffix(".csv").name)
        save_or_rescue(lambda path: page.save(path, overwrite=force), out)
    else:
        table = _table_of(result)
        save_or_rescue(lambda path: save(table, path, csv_safe, overwrite=force), out)


def _table_of(result: Any) -> Any:
    """Return the table of a result. Some commands return a table instead of a result."""
    return result.table() if isinstance(result, Result) else result


def save_or_rescue(write_to: Callable[[Path], object], path: Path) -> None:
    """Write a result to a path or, if this fails, to the system's temporary folder or the home folder.

    Args:
        write_to: writes the result to a path, which is a file or a folder.
        path: the path that the user chose.

    Raises:
        ExportError: the path cannot be written; the message names the path that was written instead.
    """
    try:
        write_to(path)
    except WrittenElsewhereError:
        raise
    except ExportError as error:
        _rescue(write_to, path.name, error)


def _rescue(write_to: Callable[[Path], object], name: str, error: ExportError) -> NoReturn:
    """Write a result elsewhere, and raise an error that names its path; if that fails too, raise `error`."""
    if isinstance(error, FormatError):
        name = Path(name).with_suffix(".parquet").name
    # The temporary folder may be missing or full, too.
    for parent in (tempfile.gettempdir, Path.home):
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix="bert-probe-", dir=parent()))
            write_to(folder / name)
        except (ExportError, OSError, RuntimeError):  # RuntimeError: there is no home folder
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            raise WrittenElsewhereError(f"{error} The result is in {folder / name}.") from None
    raise error


def _save_view(result: Any, file: Path, force: bool) -> None:
    if isinstance(result, Page):
        raise UnavailableError(
            "This figure cannot be saved as a view file. Omit --save-view, or write the table."
        )
    if not isinstance(result, Result):
        raise UnavailableError("This table cannot be saved as a view file. Omit --save-view.")
    from bert_probe.reports.view_files import ViewFile

    content = ViewFile.of(result).to_bytes()
    save_or_rescue(lambda path: write({path: content}, overwrite=force), file)


def own_extension(extension: str) -> Callable[[Command], Command]:
    """Return a decorator for commands whose result writes files with this extension in its own method `save`.

    It must be the innermost decorator of the command.
    """

    def decorate(command: Command) -> Command:
        command.own_extension = extension  # type: ignore[attr-defined]
        return command

    return decorate


def _check_output_options(out: Path | None, force: bool, csv_safe: bool, save_view: Path | None) -> None:
    """Raise an error for incompatible options before the computation starts."""
    if out is None and force and save_view is None:
        raise SelectionError("--force requires --out FILE. Add --out, or omit --force.")
    if out is not None and csv_safe and out.suffix.lower() != ".csv":
        raise SelectionError(f"--csv-safe applies to CSV files only, not to {out.name}. Omit --csv-safe.")


def _output_files(out: Path | None, has_own_format: bool, save_view: Path | None) -> list[Path]:
    """Return all files that a command writes."""
    views = [] if save_view is None else [save_view]
    if out is None:
        return views
    if has_own_format:
        return [*files.with_metadata_file(out), *views]
    if is_view_file(out):
        return [out, *views]
    try:
        return [*files.output_paths(out), *views]
    except ExportError as error:
        # Add the extensions of figures, which `output_paths` does not know, to its message.
        raise ExportError(str(error).replace(" in .csv", f" in {', '.join(EXTENSIONS)}, .csv")) from None


def is_picture_requested() -> bool:
    """Return whether the options of the running command request a figure."""
    out = click.get_current_context().params["out"]
    return out is not None and is_view_file(out)


_NO_FIGURE = "has no figure. Choose another extension for --out, such as .csv."


def _check_has_figure() -> None:
    """Raise an error before the computation if no result of the running command has a figure."""
    context, names = click.get_current_context(), list[str]()
    while context.parent is not None:
        names, context = [str(context.info_name), *names], context.parent
    questions = [question for question in QUESTIONS.values() if question.command == " ".join(names)]
    # Imported here because the module imports many analyses, which only figures need.
    from bert_probe.views.pictures import PICTURES

    results = [get_type_hints(question.of)["return"] for question in questions]  # type: ignore[attr-defined]
    if results and not PICTURES.keys() & results:
        raise UnavailableError(f"The result of {' '.join(names)} {_NO_FIGURE}")


def _to_page(result: Any, table_name: str) -> Page:
    """Convert the result of a command to a figure. If it has none, save its table in a temporary folder.

    Args:
        table_name: the name of the table.
    """
    if isinstance(result, Page):
        return result
    from bert_probe.views import pictures

    if isinstance(result, Result) and pictures.is_drawn(result):
        return pictures.page(result)
    table = _table_of(result)
    _rescue(lambda path: save(table, path), table_name, ExportError(f"This result {_NO_FIGURE}"))


def question_options(cls: type[Question], *excluded: str) -> Callable[[Command], Command]:
    """Add an option for each field of a question.

    Apply this decorator between the decorators for models and for texts.

    Options that the user passes are collected in the dict ``arguments`` by field name. Layers and heads are
    checked against the command's checkpoint or store. Several of these decorators fill the same dict.

    Args:
        cls: the class of the question.
        excluded: names of fields for which no option is added, because the command already has one.
    """
    included = [
        field
        for field in fields(cls)
        if (option_name(field) or field.metadata["positional"]) and field.name not in excluded
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            sizes = _dimensions(values)
            arguments = values.pop("arguments", {})  # filled if the command has options of another question
            for field in included:
                text = values.pop(_parameter_name(field))
                if text not in (None, False, ()):
                    arguments[field.name] = _read_value(field, text, sizes)
            return command(arguments=arguments, **values)

        decorated: Command = run
        for field in reversed(included):
            decorated = _option(field)(decorated)
        return decorated

    return decorate


def _dimensions(values: Mapping[str, Any]) -> Dimensions:
    """Return the number of layers and the number of heads of the command's store or model.

    Both numbers are 0 if the command has no store and no model.
    """
    if "store" in values:
        return cast(Dimensions, values["store"].sizes)
    if "checkpoint" in values:
        return cast(Dimensions, values["checkpoint"].description)
    return SimpleNamespace(layers=0, heads=0)


def _parameter_name(field: Field[Any]) -> str:
    """Return the click parameter name of a field. The prefix avoids conflicts with other parameters."""
    return f"field_{field.name}"


def _option(field: Field[Any]) -> Callable[[Command], Command]:
    kind, help_text = field_type(field), field.metadata["about"]
    if field.metadata["positional"]:
        return click.argument(_parameter_name(field), metavar=field.name.upper())
    names = (_parameter_name(field), option_name(field))
    if isinstance(kind, Flag):
        return click.option(*names, is_flag=True, help=help_text)
    is_required = field.default is MISSING
    if isinstance(kind, Choice):
        # Only show the default: `arguments` must contain only options that the user passes.
        default = "" if is_required else f"  [default: {field.default}]"
        return click.option(
            *names, type=click.Choice(kind.words), help=help_text + default, required=is_required
        )
    is_list = isinstance(kind, ListOf)
    return click.option(*names, metavar=kind.metavar, help=help_text, required=is_required, multiple=is_list)


def _read_value(field: Field[Any], text: Any, sizes: Dimensions) -> Any:
    kind = field_type(field)
    if isinstance(kind, Flag):
        return not field.default
    if isinstance(kind, ListOf):
        return tuple(kind.kind.read(field.name, element, sizes) for element in text)
    return kind.read(field.name, text, sizes)


def text_options(command: Command) -> Command:
    """Add TEXT and --pair, trace the text, and pass the trace as ``trace``."""

    @click.argument("text")
    @pair_option
    @functools.wraps(command)
    def run(checkpoint: Checkpoint, text: str, pair: str | None, truncate: bool, **values: Any) -> Any:
        parts = read_text(text), None if pair is None else read_text(pair)
        return command(trace=with_notice(checkpoint.trace(*parts, truncate)), **values)

    return run


def read_text(text: str) -> str:
    """Return the text unchanged; for a FASTA record, return its sequence and print its header to stderr.

    Raises:
        TextError: the text has several FASTA records, or invalid lines.
    """
    from bert_probe.text.formats import single_record

    record = single_record(text)
    if record is None:
        return text
    click.echo(f"The text is FASTA: its header, {record.name[:100]}, is not part of the input.", err=True)
    return record.sequence


def with_notice(trace: Trace) -> Trace:
    """Return the trace unchanged; print a note to stderr if the model does not know most of its tokens."""
    from bert_probe.analyses.vocabulary.tokens import find_unknown_tokens

    unknown = find_unknown_tokens(trace)
    if unknown is not None:
        click.echo(f"Note: {unknown}", err=True)
    return trace


def check_standard_output(advice: str) -> None:
    """Raise an error with advice if standard output is closed. Call this before a long computation."""
    if sys.stdout is None:
        raise ExportError(f"Standard output is closed. {advice}")


def print_bytes(content: bytes) -> None:
    """Write a CSV table to standard output or, if this fails, to a new folder; see `save_or_rescue`."""
    try:
        check_standard_output("The table cannot be printed.")
        assert isinstance(sys.stdout, SafeStream)  # always true, because `main` has replaced standard output
        # Write bytes, because the encoding of standard output may lack characters of the tokens.
        sys.stdout.write_bytes(content)
    except ExportError as error:
        _rescue(lambda path: write({path: content}), "table.csv", error)


def print_message(message: str) -> None:
    """Write a line to standard error, separate from the table on standard output."""
    click.echo(f"bert-probe: {visible(message)}", err=True)


pair_option = click.option(
    "--pair", metavar="TEXT", help="Second text, encoded together with TEXT as a sentence pair."
)
as_named_option = click.option(
    "--as-named",
    is_flag=True,
    help="Read files in the format of their extension, even if they look like another format.",
)


YES = click.option(
    "--yes", is_flag=True, help="Open the models named in the file without asking for confirmation."
)


def confirm(origin: str, name: str, label: str) -> None:
    """Ask the user for consent to open a model, and return if the user agrees.

    Args:
        origin: the source that names the model, such as "The file".
        name: folder or Hub ID of the model.
        label: display name of the model, with its revision.

    Raises:
        SelectionError: standard input is not a terminal.
        click.Abort: the user declines.
    """
    folder = existing(name)
    is_local = folder is not None and folder.is_dir()
    location = "a folder on this machine" if is_local else "which would be loaded from the Hub"
    message = visible(f"{origin} names the model {label}, {location}.")
    if sys.stdin is None or not sys.stdin.isatty():
        raise SelectionError(f"{message} Pass --yes to open it, or another model with --model.")
    click.confirm(f"{message} Open it?", abort=True, err=True)
