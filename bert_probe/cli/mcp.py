"""The command that serves questions to agents."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import BinaryIO

import click

from bert_probe import __version__
from bert_probe.core import extras
from bert_probe.errors import ExportError
from bert_probe.runtime.imports import long_lived_imports


@click.command("mcp")
@click.option("--only", multiple=True, metavar="NAME", help="Offer only this question; can be repeated.")
def mcp(only: tuple[str, ...]) -> None:
    """Serve all questions as tools for agents (Model Context Protocol) over standard input and output.

    The server does not use the network; the agent's program starts and stops it.
    """
    extras.require("mcp")
    incoming, outgoing = _take_streams()
    with long_lived_imports():
        import anyio

        from bert_probe.api import agents, mcp_stdio
        from bert_probe.api.mcp_stdio import LocalModels

    server = agents.build_server(LocalModels(), agents.select_questions(only), __version__)
    failure = ""
    try:
        anyio.run(mcp_stdio.serve, server, incoming, outgoing)
    except* OSError as group:
        failure = str(_first(group).strerror)
    if failure:
        os.dup2(os.open(os.devnull, os.O_WRONLY), outgoing.fileno())  # the buffer is flushed at exit
        raise ExportError(f"Standard output cannot be written: {failure}. The client may have ended.")
    sys.exit(0)


def _take_streams() -> tuple[BinaryIO, TextIOWrapper]:
    """Take over standard input and output, so that no other code can read from or write to them.

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
