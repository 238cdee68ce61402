"""The command that starts the app."""

from __future__ import annotations

from pathlib import Path

import click

from bert_probe.runtime.imports import long_lived_imports


@click.command("app")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8501, show_default=True, help="Port to listen on."
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: this machine only]")
@click.option(
    "--allow",
    "names",
    multiple=True,
    metavar="NAME",
    help="Host name under which other machines reach the app, with --host; can be repeated.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the token that clients on other machines send to the HTTP API.",
)
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Store, or folder of stores, that the Corpus page can open; can be repeated.  [default: corpora/]",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@click.option(
    "--view",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="View file or report to open first.",
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

    The app works offline and listens on this machine only. With --host 0.0.0.0, other machines reach it under
    the names passed with --allow; their users can open models by folder or Hub ID, and save trained models.
    """
    # Imported here because the web server takes a second to import and other commands do not need it.
    with long_lived_imports():
        from bert_probe.server.start import start

    content = None if view is None else _read_checked(view)
    start(
        port,
        host,
        names,
        browser=not no_browser,
        token_file=token_file,
        view=content,
        corpora=corpora,
    )


def _read_checked(view: Path) -> bytes:
    """Return the content of a view file or report. Check it first, so that errors appear before the browser
    opens.
    """
    from bert_probe.reports.drafts import read_any
    from bert_probe.reports.json_reader import MAX_BYTES, read_bytes

    content = read_bytes(view, MAX_BYTES)
    read_any(content, view.name)
    return content
