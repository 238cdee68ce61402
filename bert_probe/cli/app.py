"""The command that starts the app."""

from __future__ import annotations

from pathlib import Path

import click

from bert_probe.runtime.imports import long_lived_imports


@click.command("app")
@click.option("--port", type=click.IntRange(1, 65535), default=8501, show_default=True, help="Port.")
@click.option("--host", metavar="ADDRESS", help="Address to listen at; else this machine alone.")
@click.option(
    "--allow",
    "names",
    multiple=True,
    metavar="NAME",
    help="A name that others call it by, when it listens to more than this machine.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Holds the token that programs on other machines need for the HTTP API.",
)
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A store, or a folder of stores, that the page Corpus may open; else corpora/, if that is here.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@click.option(
    "--view",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Begin with the view, or the report's views, of a file.",
)
def app(
    port: int,
    host: str | None,
    names: tuple[str, ...],
    token_file: Path | None,
    corpora: tuple[Path, ...],
    no_browser: bool,
    view: Path | None,
) -> None:
    """Open the app in a browser; Ctrl+C stops it.

    It needs no network, and answers to this machine only. With --host 0.0.0.0 others reach it by the
    names that --allow gives; anyone who does can open models by folder or hub id, and save trained ones.
    """
    # The web server takes a second to import, which no other command should wait for.
    with long_lived_imports():
        from bert_probe.server.start import start

    content = None if view is None else _checked(view)
    start(
        port,
        host,
        names,
        browser=not no_browser,
        token_file=token_file,
        view=content,
        corpora=corpora,
    )


def _checked(view: Path) -> bytes:
    """What a view file holds; what is wrong with it is said here, and not in the browser."""
    from bert_probe.reports.drafts import read_any
    from bert_probe.reports.json_reader import MAX_BYTES, read_bytes

    content = read_bytes(view, MAX_BYTES)
    read_any(content, view.name)
    return content
