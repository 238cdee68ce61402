"""The command for agents."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from io import TextIOWrapper

import click

from bert_probe import __version__
from bert_probe.errors import UnavailableError
from bert_probe.runtime.imports import imported_for_good


@click.command("mcp")
@click.option("--only", multiple=True, metavar="NAME", help="Offer this question alone; may be given again.")
def mcp(only: tuple[str, ...]) -> None:
    """Serve all questions as tools for agents (Model Context Protocol) over standard input and output.

    It needs no network and opens no port; the agent's program starts it and ends it.
    """
    if find_spec("mcp") is None:
        raise UnavailableError('Agents need the package mcp. Install it with pip install "bert-probe[mcp]".')
    # Nothing else may write between the messages, or read them.
    messages = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    out = TextIOWrapper(os.fdopen(os.dup(1), "wb"), encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    with imported_for_good():
        import anyio

        from bert_probe.api import agents, mcp_stdio
        from bert_probe.api.local_models import LocalModels

    server = agents.server(LocalModels(), agents.chosen(only), __version__)

    anyio.run(mcp_stdio.serve, server, messages, out)
    sys.exit(0)
