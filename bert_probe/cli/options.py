"""What the commands share: opening the model, the options of a question, texts, printing the answer."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import click

from bert_probe.core import files
from bert_probe.core.field_types import Choice, Dimensions, Flag
from bert_probe.core.field_types_of_lists import ListOf
from bert_probe.core.question import Question, field_type, option_name
from bert_probe.core.result import Result, save
from bert_probe.core.writing import reserved, write
from bert_probe.errors import ExportError, SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import terminal
from bert_probe.runtime.interrupt import exit_on_sigterm
from bert_probe.runtime.progress import terminal_bar
from bert_probe.views.page import EXTENSIONS, Page, is_view_file

Command = Callable[..., Any]


@contextmanager
def reserving(files: Iterable[Path], force: bool) -> Iterator[None]:
    """Reserve output files until the block ends, however it ends; see `reserved`.

    Raises:
        ExportError: also if an output is a file that the command reads, even with `force`, or a file of a
            model or a store that it reads.
    """
    files = list(files)
    with exit_on_sigterm(), reserved(files, force):
        _check_inputs(files)
        yield


def _check_inputs(outputs: Iterable[Path]) -> None:
    """Refuse to overwrite a file that is an argument of the running command."""
    context = click.get_current_context(silent=True)
    if context is None:
        return
    for parameter in context.command.params:
        value = None if isinstance(parameter.type, OutputPath) else context.params.get(parameter.name or "")
        for written in value if isinstance(value, tuple) else (value,):
            for output in outputs if isinstance(written, str | Path) else ():
                with suppress(OSError, ValueError):  # a text, or a file that does not exist
                    if output.is_file() and (output.samefile(written) or _belongs_to(output, Path(written))):
                        raise ExportError(f"{output} is read by this command. Choose another file to write.")


def _belongs_to(file: Path, folder: Path) -> bool:
    """Return whether a file lies in the folder of a model or a store."""
    is_read = any((folder / name).is_file() for name in ("config.json", "manifest.json"))
    return is_read and file.resolve().is_relative_to(folder.resolve())


class OutputPath(click.Path):
    """The path of an output, in which the shell left a ~ unexpanded because it was quoted."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path with ~ expanded."""
        return super().convert(os.path.expanduser(value), param, ctx)  # noqa: PTH111 - keeps ~ of an unknown user


def common(command: Command) -> Command:
    """Options that every command takes: open the model first, write the table of the answer last."""

    @naming_a_model
    @functools.wraps(command)
    def run(model: str | None, revision: str | None, dtype: str, **given: Any) -> Any:
        return command(checkpoint=opened(model, revision, dtype), **given)

    return run


def opened(model: str | None, revision: str | None, dtype: str) -> Checkpoint:
    """The model that the options name; see `load`. A download is seen on the terminal."""
    # What a model runs in takes seconds to import, which a command that runs none should not wait for.
    from bert_probe.model.loading import load

    with terminal_bar("Downloading", "B") as progress:
        return load(model, revision, dtype=dtype, progress=progress)


def naming_a_model(command: Command) -> Command:
    """The same options for a command that opens the model itself, if it needs it; it returns an answer or a
    table, and is told the file that this goes to, if any."""

    @click.option("--model", metavar="ID_OR_FOLDER", help="Hub id or local folder; else the built-in.")
    @click.option("--revision", metavar="REV", help="Branch, tag or commit on the hub.")
    @answering
    @functools.wraps(command)
    def run(**given: Any) -> Any:
        return command(**given)

    return run


def two_models(command: Command) -> Command:
    """MODEL_A and MODEL_B, opened as ``checkpoint`` and ``other``, and the options of every command."""

    @click.argument("model_a")
    @click.argument("model_b")
    @click.option("--revision-a", metavar="REV", help="Branch, tag or commit of MODEL_A on the hub.")
    @click.option("--revision-b", metavar="REV", help="Branch, tag or commit of MODEL_B on the hub.")
    @answering
    @functools.wraps(command)
    def run(
        model_a: str, model_b: str, revision_a: str | None, revision_b: str | None, dtype: str, **given: Any
    ) -> Any:
        checkpoint, other = opened(model_a, revision_a, dtype), opened(model_b, revision_b, dtype)
        return command(checkpoint=checkpoint, other=other, **given)

    return run


def answering(command: Command) -> Command:
    """The options of every command that answers, whatever models it opens: what these compute in, and where
    the answer goes."""

    @click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "float16", "bfloat16", "float64"]),
        default="auto",
        help="What the model computes in; auto is float32.",
    )
    @click.option("--truncate", is_flag=True, help="Cut a text that is too long.")
    @written_out
    @functools.wraps(command)
    def run(**given: Any) -> Any:
        return command(**given)

    return run


def written_out(command: Command) -> Command:
    """Where an answer goes: standard output, or a file; and the file by which it is asked again."""

    @click.option(
        "--out",
        type=OutputPath(),
        metavar="FILE",
        help="Write to a .csv, .json, .npz or .parquet file; the picture to .html, .svg or .png.",
    )
    @click.option("--force", is_flag=True, help="Replace files that are there.")
    @click.option("--csv-safe", is_flag=True, help=files.CSV_SAFE_HELP)
    @click.option(
        "--save-view",
        type=OutputPath(),
        metavar="FILE",
        help="Write what was asked, and of whom, to a view file: for ask, report, and the app's --view.",
    )
    @functools.wraps(command)
    def run(out: Path | None, force: bool, csv_safe: bool, save_view: Path | None, **given: Any) -> None:
        own = out is not None and out.suffix.lower() == getattr(command, "writes", None)
        _check(out, force, csv_safe, save_view)
        with reserving(_outputs(out, own, save_view), force):
            result = command(**given)
            if save_view is not None:
                _save_view(result, save_view, force)
            if out is not None and own:
                result.save(out, overwrite=force)
                out = None  # the table goes where it does without
            if out is not None and is_view_file(out):
                _drawn(result).save(out, overwrite=force)
                return
            table = result.table() if isinstance(result, Result) else result
            if out is not None:
                save(table, out, csv_safe, overwrite=force)
                return
        print_bytes(files.to_bytes(table, "csv", csv_safe))

    return run


def _save_view(result: Any, file: Path, force: bool) -> None:
    if not isinstance(result, Result):
        raise UnavailableError(
            "There is no view file of this picture. Leave --save-view out, or ask for the table."
        )
    from bert_probe.reports.view_files import ViewFile

    write({file: ViewFile.of(result).to_bytes()}, overwrite=force)


def writing(ending: str) -> Callable[[Command], Command]:
    """For a command whose answers can be written in a way of their own; stands next to its function."""

    def decorate(command: Command) -> Command:
        command.writes = ending  # type: ignore[attr-defined]
        return command

    return decorate


def _check(out: Path | None, force: bool, csv_safe: bool, save_view: Path | None) -> None:
    """Refuse options that do not fit together, before anything is computed."""
    if out is None and force and save_view is None:
        raise SelectionError("--force goes with --out FILE. Add it, or leave --force out.")
    if out is not None and csv_safe and out.suffix.lower() != ".csv":
        raise SelectionError(f"--csv-safe is for CSV; {out.name} holds text exactly. Leave it out.")


def _outputs(out: Path | None, own: bool, save_view: Path | None) -> list[Path]:
    """Return all files that a command writes."""
    views = [] if save_view is None else [save_view]
    if out is None:
        return views
    if own:
        return [*files.with_metadata_file(out), *views]
    return [*([out] if is_view_file(out) else _places(out)), *views]


def _places(out: Path) -> list[Path]:
    """The files of a table; an unknown ending is told with those of pictures."""
    try:
        return files.output_paths(out)
    except ExportError as error:
        raise ExportError(str(error).replace(" in .csv", f" in {', '.join(EXTENSIONS)}, .csv")) from None


def picture_asked() -> bool:
    """Whether the command that runs is to write a picture."""
    out = click.get_current_context().params["out"]
    return out is not None and is_view_file(out)


def _drawn(result: Any) -> Page:
    """The picture of what a command returns, which may be a page already."""
    if isinstance(result, Page):
        return result
    if not isinstance(result, Result):
        raise UnavailableError("There is no picture of this table. Give --out another ending, such as .csv.")
    # Not above: a command that draws nothing needs few of the analyses.
    from bert_probe.views import pictures

    return pictures.page(result)


def asking(cls: type[Question], *left_out: str) -> Callable[[Command], Command]:
    """Options for the fields of a question, but for some; stands between `common` and the texts.

    The command gets what was given as its argument ``param``: arguments for the question, or for another
    one that has such fields too. They are read against its checkpoint, or against its store.
    """
    taken = [field for field in fields(cls) if option_name(field) and field.name not in left_out]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> Any:
            sizes = given["store"].sizes if "store" in given else given["checkpoint"].description
            values = given.pop("asked", {})  # of another question of the same command
            for one in taken:
                written = given.pop(_parameter(one))
                if written not in (None, False, ()):
                    values[one.name] = _value(one, written, sizes)
            return command(asked=values, **given)

        decorated: Command = run
        for one in reversed(taken):
            decorated = _option(one)(decorated)
        return decorated

    return decorate


def _parameter(one: Field[Any]) -> str:
    """Name that click gives the option's value; no argument of a command is called so."""
    return f"asked_{one.name}"


def _option(one: Field[Any]) -> Callable[[Command], Command]:
    kind, about = field_type(one), one.metadata["about"]
    names = (_parameter(one), option_name(one))
    if isinstance(kind, Flag):
        return click.option(*names, is_flag=True, help=about)
    needed = one.default is MISSING
    if isinstance(kind, Choice):
        # No default of click's own: what is not given is left to the question.
        more = "" if needed else f"  [default: {one.default}]"
        return click.option(*names, type=click.Choice(kind.words), help=about + more, required=needed)
    several = isinstance(kind, ListOf)
    return click.option(*names, metavar=kind.metavar, help=about, required=needed, multiple=several)


def _value(one: Field[Any], written: Any, sizes: Dimensions) -> Any:
    kind = field_type(one)
    if isinstance(kind, Flag):
        return not one.default
    if isinstance(kind, ListOf):
        return tuple(kind.kind.read(one.name, text, sizes) for text in written)
    return kind.read(one.name, written, sizes)


def one_text(command: Command) -> Command:
    """TEXT and --pair; the command gets their ``trace``."""

    @click.argument("text")
    @pair_option
    @functools.wraps(command)
    def run(checkpoint: Checkpoint, text: str, pair: str | None, truncate: bool, **given: Any) -> Any:
        return command(trace=checkpoint.trace(text, pair, truncate), **given)

    return run


def two_texts(command: Command) -> Command:
    """TEXT_A and TEXT_B, each read by itself; the command gets their traces ``a`` and ``b``."""

    @click.argument("text_a")
    @click.argument("text_b")
    @functools.wraps(command)
    def run(checkpoint: Checkpoint, text_a: str, text_b: str, truncate: bool, **given: Any) -> Any:
        a, b = (checkpoint.trace(text, truncate=truncate) for text in (text_a, text_b))
        return command(a=a, b=b, **given)

    return run


def print_bytes(content: bytes) -> None:
    """Bytes to standard output: tokens may be any Unicode, whatever the terminal's own encoding."""
    if sys.stdout is None:
        raise ExportError("Standard output is closed. Give a file with --out.")
    assert isinstance(sys.stdout, terminal.SafeStream)  # made so by `main`
    sys.stdout.write_bytes(content)


pair_option = click.option("--pair", metavar="TEXT", help="A second text, in the same input.")
as_named_option = click.option(
    "--as-named", is_flag=True, help="Read files as their endings say, even if they look like another format."
)
