"""Commands that start servers: app and mcp."""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

import click

from bert_probe import __version__
from bert_probe.core import extras
from bert_probe.core.extras import long_lived_imports
from bert_probe.errors import ExportError


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
    help="Host name by which other machines can reach the app if --host is set; can be repeated.",
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
    help="Corpus store, or folder of stores, that the Corpus page can open; can be repeated.  [default: "
    "corpora/]",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@click.option(
    "--playground",
    default="",
    metavar="URL",
    help="URL of the playground of a static site; pages link to it with the current texts.  [default: "
    "BERT_PROBE_PLAYGROUND, or no links]",
)
@click.option(
    "--public",
    is_flag=True,
    help="Run a public server: its users can use only the models of --models, and nothing is trained or "
    "saved.",
)
@click.option(
    "--models",
    metavar="NAMES",
    envvar="BERT_PROBE_MODELS",
    help="Models that a public server offers, separated by commas; folders or Hub IDs.  [default: the "
    "built-in model]",
)
@click.option(
    "--frame-ancestors",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    envvar="BERT_PROBE_FRAME_ANCESTORS",
    help="Origin whose pages may show a public server in a frame; can be repeated.",
)
@click.option(
    "--trusted-proxies",
    type=click.IntRange(0, 10),
    metavar="N",
    envvar="BERT_PROBE_TRUSTED_PROXIES",
    help="Number of proxies in front of a public server; each appends to X-Forwarded-For.  [default: 0]",
)
@click.option(
    "--view",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="View file or report to open when the app starts.",
)
def app(
    port: int,
    host: str | None,
    names: tuple[str, ...],
    token_file: Path | None,
    corpora: tuple[Path, ...],
    no_browser: bool,
    view: Path | None,
    playground: str,
    public: bool,
    models: str | None,
    origins: tuple[str, ...],
    trusted_proxies: int | None,
) -> None:
    """Open the app in a browser; Ctrl+C stops it.

    The app works offline and listens on this machine only. With --host 0.0.0.0, other machines reach it under
    the names passed with --allow; their users can open models by folder or Hub ID, and save trained models.
    With --public they can use the models of --models only, and nothing is trained or saved.
    """
    public_options = {"--models": models, "--frame-ancestors": origins, "--trusted-proxies": trusted_proxies}
    for option, value in public_options.items():
        if value and not public:
            raise click.UsageError(f"{option} configures a public server. Add --public, or omit this option.")
    extras.require_extra("app")
    # Imported here because importing the web server takes a second, and other commands do not need it.
    with long_lived_imports():
        from bert_probe.runtime import permissions
        from bert_probe.server import access
        from bert_probe.server.start import start

    allowed = None
    if public:
        has_token = bool(access.token(token_file))
        allowed = permissions.public((models or "").split(","), origins, trusted_proxies or 0, has_token)

    content = None if view is None else _read_checked(view)
    start(
        port,
        host,
        names,
        browser=not no_browser,
        token_file=token_file,
        view=content,
        corpora=corpora,
        allowed=allowed,
        playground=playground.strip(),
    )


def _read_checked(view: Path) -> bytes:
    """Return the content of a view file or report, after checking the file before a browser opens."""
    from bert_probe.reports.drafts import read_any
    from bert_probe.reports.json_reader import MAX_BYTES, read_bytes

    content = read_bytes(view, MAX_BYTES)
    read_any(content, view.name)
    return content


@click.command("mcp")
@click.option("--only", multiple=True, metavar="NAME", help="Serve only this question; can be repeated.")
@click.option(
    "--models",
    metavar="NAMES",
    help="Allow only these models, separated by commas, and apply the limits of a public server.",
)
def mcp(only: tuple[str, ...], models: str | None) -> None:
    """Serve all questions as tools for agents (Model Context Protocol) over standard input and output.

    The agent's program starts and stops the server. The server uses the network only if a request names a
    model of the Hub that is not in the local cache.
    """
    extras.require("mcp")
    incoming, outgoing = _take_streams()
    with long_lived_imports():
        import anyio

        from bert_probe.api import agents
        from bert_probe.model import lengths
        from bert_probe.runtime import permissions, shared_cache

    if models is not None:
        permissions.set_current(permissions.public(models.split(",")))
        lengths.limit_tasks(permissions.current().task_bytes)
    shared_cache.limit_traces(agents.MAX_TRACE_BYTES)
    server = agents.build_server(agents.select_questions(only), __version__)
    failure = ""
    # Ctrl+C ends the process like other signals. By default, asyncio would wait for the current calls.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        anyio.run(agents.serve, server, incoming, outgoing)
    except* OSError as group:
        failure = str(_first(group).strerror)
    if failure:
        # Redirect the output, so that flushing it at exit raises no further error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), outgoing.fileno())
        raise ExportError(f"Standard output cannot be written: {failure}. The client may have exited.")
    sys.exit(0)


def _take_streams() -> tuple[BinaryIO, TextIOWrapper]:
    """Take over standard input and output, so that no other code can read or write them.

    Raises:
        ExportError: standard input or output is closed.
    """
    try:
        incoming = os.fdopen(os.dup(0), "rb")
        outgoing = os.fdopen(os.dup(1), "wb")
    except OSError:
        raise ExportError(
            "Standard input or output is closed. Start bert-probe mcp from an MCP client."
        ) from None
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return incoming, TextIOWrapper(outgoing, encoding="utf-8", newline="\n")


def _first(group: BaseExceptionGroup[OSError]) -> OSError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, OSError)
    return error
