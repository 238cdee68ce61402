"""Commands on view files and reports: a view asked again, several made into a report, a report checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from bert_probe.cli.consent import YES, confirm
from bert_probe.cli.options import OutputPath, opened, print_bytes, reserving, written_out
from bert_probe.core import files
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError, SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.reports.drafts import Draft, DraftEntry, read_any
from bert_probe.reports.json_reader import MAX_BYTES, read_bytes
from bert_probe.reports.numbers import NamedModels
from bert_probe.reports.reading import read_report
from bert_probe.reports.report import Report, check_ending
from bert_probe.reports.verification import verify as verified
from bert_probe.reports.view_files import ModelReference, read_view_file
from bert_probe.runtime import terminal
from bert_probe.runtime.progress import terminal_bar

_FILE = click.Path(path_type=Path)
_MODEL = click.option(
    "--model", metavar="ID_OR_FOLDER", help="Open this one instead of the model that the file names."
)


@click.command()
@click.argument("view", type=_FILE)
@_MODEL
@YES
@written_out
def ask(view: Path, model: str | None, yes: bool) -> Result:
    """Ask again what a view file asks.

    The app and every command write such files (--save-view); they hold the question, the texts and the name
    of the model, and no numbers. A model that is not the built-in is opened only with your consent.
    """
    asked = read_view_file(view)
    checkpoints = NamedModels(_opener(model, yes)).of(asked)
    for name, checkpoint in zip(asked.models, checkpoints, strict=True):
        if not name.fits(checkpoint):
            _say(f"The view was made with other weights of {name.shown}: {name.weights_sha256[:12]}….")
    with terminal_bar("Asking", "steps") as progress:
        return asked.answer(*checkpoints, progress=progress).result


@click.command()
@click.argument("views", nargs=-1, required=True, type=_FILE, metavar="VIEW...")
@click.option(
    "--out", required=True, type=OutputPath(), metavar="FILE", help="A .html page, or a .zip of files."
)
@click.option("--title", metavar="TEXT", help="Of the report.")
@click.option(
    "--note",
    "noted",
    multiple=True,
    metavar="N:TEXT",
    help="A note on the Nth view; {{3, weight}} is the number in row 3 of its table's column weight.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@YES
def report(
    views: tuple[Path, ...], out: Path, title: str | None, noted: tuple[str, ...], force: bool, yes: bool
) -> None:
    """Make a report of VIEWs: pictures, tables, notes and code, in one page or a ZIP.

    A VIEW is a view file, or a tray file of the app, which holds several with their notes. The page opens
    from a disk without a network; a ZIP holds it, and beside it data (Parquet), pictures (SVG) and a
    manifest with SHA-256 and versions.
    """
    check_ending(out)
    with reserving([out], force):
        tray = _noted(_tray(views), noted)
        tray = replace(tray, title=title) if title is not None else tray
        with terminal_bar("Computing", "views") as progress:
            made = Report.of(tray, NamedModels(_opener(None, yes)), progress)
        made.save(out, overwrite=force)
    _say(f"{len(made.items)} views in {out}.")


@click.command()
@click.argument("file", type=_FILE, metavar="REPORT")
@_MODEL
@YES
@click.pass_context
def verify(context: click.Context, file: Path, model: str | None, yes: bool) -> None:
    """Compute every number of a REPORT again, and say which differ and by how much.

    A line for each difference goes to standard output; the status is 1 if there is any. Tolerances are
    worked out from the model's own float32 error; see docs/report.md.
    """
    stated = read_report(file)
    with terminal_bar("Computing", "views") as progress:
        verdict = verified(stated, NamedModels(_opener(model, yes)), progress)
    print_bytes(files.to_bytes(verdict.frame(), "csv"))
    for remark in verdict.remarks:
        _say(remark)
    found = len(verdict.differences)
    _say(
        f"{len(stated.views)} views, {verdict.numbers:,} numbers computed again: "
        + (f"{found:,} differences." if found else "nothing differs.")
    )
    if found:
        context.exit(1)


def _tray(places: tuple[Path, ...]) -> Draft:
    """View files and trays, in their order."""
    title = ""
    entries: list[DraftEntry] = []
    for place in places:
        held = read_any(read_bytes(place, MAX_BYTES), place.name)
        if isinstance(held, Draft):
            title, entries = title or held.title, [*entries, *held.entries]
        else:
            entries.append(DraftEntry(held))
    return Draft(title, tuple(entries))


def _noted(tray: Draft, noted: tuple[str, ...]) -> Draft:
    entries = list(tray.entries)
    for one in noted:
        number, colon, note = one.partition(":")
        if not colon or not re.fullmatch("[0-9]{1,4}", number) or not 1 <= int(number) <= len(entries):
            raise SelectionError(
                f"--note {one[:40]!r} names no view. Write the number of one, 1 to {len(entries)}, a colon "
                "and the text."
            )
        entries[int(number) - 1] = replace(entries[int(number) - 1], note=note.strip())
    return replace(tray, entries=tuple(entries))


def _opener(instead: str | None, yes: bool) -> Callable[[ModelReference], Checkpoint]:
    """What opens the models that a file names: it may be a stranger's, so nothing but the built-in is opened
    without the reader's consent.

    Args:
        instead: the model that the reader names.
    """

    taken: set[str] = set()

    def open_named(named: ModelReference) -> Checkpoint:
        if instead is not None:
            taken.add(named.weights_sha256)
            if len(taken) > 1:
                raise SelectionError("The file names two models, and --model only one. Leave it out.")
            return opened(instead, None, named.dtype)
        if not (named.is_built_in or yes):
            confirm("The file", named.name, named.shown)
        try:
            return opened(named.name or None, named.revision or None, named.dtype)
        except ProbeError as error:
            raise type(error)(f"{error} With --model you can name it where it is here.") from None

    return open_named


def _say(sentence: str) -> None:
    """A line beside the table."""
    click.echo(f"bert-probe: {terminal.visible(sentence)}", err=True)
