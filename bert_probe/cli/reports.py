"""Commands for view files and reports: recompute a view, create a report, verify a report."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from bert_probe.cli.options import (
    YES,
    OutputPath,
    check_standard_output,
    confirm,
    open_checkpoint,
    output_options,
    print_bytes,
    print_message,
    reserve_outputs,
    save_or_rescue,
)
from bert_probe.core import files
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError, SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.reports.drafts import Draft, DraftEntry, read_any
from bert_probe.reports.json_reader import MAX_BYTES, read_bytes
from bert_probe.reports.numbers import NamedModels
from bert_probe.reports.reading import read_report
from bert_probe.reports.report import Report, check_ending
from bert_probe.reports.verification import verify as verify_report
from bert_probe.reports.view_files import ModelReference, read_view_file
from bert_probe.runtime.terminal import terminal_bar

_FILE = click.Path(path_type=Path)
_MODEL = click.option(
    "--model", metavar="ID_OR_FOLDER", help="Model to open instead of the model that the file names."
)


@click.command()
@click.argument("view", type=_FILE)
@_MODEL
@YES
@output_options
def ask(view: Path, model: str | None, yes: bool) -> Result:
    """Recompute the view that a view file describes, and print its table.

    The app and most commands (--save-view) write view files. View files contain the question, the texts and
    the name of the model, but no results. Models other than the built-in model are opened only after you
    agree.
    """
    view_file = read_view_file(view)
    checkpoints = NamedModels(_opener(model, yes)).of(view_file)
    for reference, checkpoint in zip(view_file.models, checkpoints, strict=True):
        if not reference.fits(checkpoint):
            print_message(
                f"The weights of {reference.shown} differ from those with which the view was created "
                f"(SHA-256 {reference.weights_sha256[:12]}…)."
            )
    with terminal_bar("Computing", "steps") as progress:
        return view_file.answer(*checkpoints, progress=progress).result


@click.command()
@click.argument("views", nargs=-1, required=True, type=_FILE, metavar="VIEW...")
@click.option(
    "--out",
    required=True,
    type=OutputPath(),
    metavar="FILE",
    help="Output file of the report: an .html page, or a .zip archive.",
)
@click.option("--title", metavar="TEXT", help="Title of the report.")
@click.option(
    "--note",
    "notes",
    multiple=True,
    metavar="N:TEXT",
    help="Add the note TEXT to view number N. In a note, {{3, weight}} is replaced by the value in row 3, "
    "column weight of the view's table.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@YES
def report(
    views: tuple[Path, ...], out: Path, title: str | None, notes: tuple[str, ...], force: bool, yes: bool
) -> None:
    """Make a report of VIEWs with figures, tables, notes and code: an HTML page or a ZIP.

    A VIEW is a view file, or a draft of a report saved in the app. The page opens from disk without a
    network. A ZIP contains the page, data (Parquet), figures (SVG), and a manifest with SHA-256 digests and
    versions.
    """
    check_ending(out)
    with reserve_outputs([out], force):
        draft = _add_notes(_read_draft(views), notes)
        draft = replace(draft, title=title) if title is not None else draft
        with terminal_bar("Computing", "views") as progress:
            content = Report.of(draft, NamedModels(_opener(None, yes)), progress)
        save_or_rescue(lambda path: content.save(path, overwrite=force), out)
    print_message(f"Saved {_count(len(content.items), 'view')} in {out}.")


@click.command()
@click.argument("file", type=_FILE, metavar="REPORT")
@_MODEL
@YES
@click.pass_context
def verify(context: click.Context, file: Path, model: str | None, yes: bool) -> None:
    """Recompute every number of a REPORT, and list the differences.

    Prints a row for each difference, and exits with status 1 if there are any. Tolerances are derived from
    the model's float32 rounding error; see docs/report.md.
    """
    check_standard_output("Redirect it to a file.")
    report = read_report(file)
    with terminal_bar("Computing", "views") as progress:
        verification = verify_report(report, NamedModels(_opener(model, yes)), progress)
    print_bytes(files.to_bytes(verification.frame(), "csv"))
    for remark in verification.remarks:
        print_message(remark)
    differences = len(verification.differences)
    print_message(
        f"Recomputed {_count(len(report.views), 'view')} and {_count(verification.numbers, 'number')}: "
        f"{_count(differences, 'difference') if differences else 'no differences'}."
    )
    if differences:
        context.exit(1)


def _read_draft(paths: tuple[Path, ...]) -> Draft:
    """Combine view files and drafts, in this order, into one draft with the first nonempty title."""
    title = ""
    entries: list[DraftEntry] = []
    for path in paths:
        content = read_any(read_bytes(path, MAX_BYTES), path.name)
        if isinstance(content, Draft):
            title, entries = title or content.title, [*entries, *content.entries]
        else:
            entries.append(DraftEntry(content))
    return Draft(title, tuple(entries))


def _add_notes(draft: Draft, notes: tuple[str, ...]) -> Draft:
    entries = list(draft.entries)
    for argument in notes:
        number, colon, note = argument.partition(":")
        if not colon or not re.fullmatch("[0-9]{1,4}", number) or not 1 <= int(number) <= len(entries):
            raise SelectionError(
                f"--note must have the form NUMBER:TEXT, where NUMBER is a view from 1 to {len(entries)}, "
                f"not {argument[:40]!r}."
            )
        entries[int(number) - 1] = replace(entries[int(number) - 1], note=note.strip())
    return replace(draft, entries=tuple(entries))


def _opener(replacement: str | None, yes: bool) -> Callable[[ModelReference], Checkpoint]:
    """Return a function that opens the models named in a view file or a report.

    The file may be untrusted, so models other than the built-in model are opened only after confirmation.

    Args:
        replacement: the model that --model names, used in place of the file's model; None without --model.
        yes: whether to open models without confirmation.
    """

    replaced: set[str] = set()

    def open_reference(reference: ModelReference) -> Checkpoint:
        if replacement is not None:
            replaced.add(reference.weights_sha256)
            if len(replaced) > 1:
                raise SelectionError("--model replaces a single model, but the file names two. Omit --model.")
            return open_checkpoint(replacement, None, reference.dtype)
        if not (reference.is_built_in or yes):
            confirm("The file", reference.name, reference.shown)
        try:
            return open_checkpoint(reference.name or None, reference.revision or None, reference.dtype)
        except ProbeError as error:
            raise type(error)(f"{error} Pass the folder of the model on this machine with --model.") from None

    return open_reference


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
