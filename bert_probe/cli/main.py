"""The command line: tables on standard output, or in a file.

Layers and heads count from 1 here; layer 0 is the output of the embeddings. Bad input is one line on
standard error and exit status 2; Ctrl+C is one line and status 130, as shells have it. A check that finds
something ends with status 1.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from bert_probe.cli.lazy_commands import CommandGroup, LazyCommand
from bert_probe.core import extras
from bert_probe.errors import ProbeError
from bert_probe.runtime import terminal

INTERRUPTED = 130

COMMANDS = {
    "app": ("app", "Open the app in a browser; Ctrl+C stops it."),
    "ask": ("reports", "Ask again what a view file asks."),
    "attention": ("attention", "Attention weights of a head, or averaged over a layer's heads."),
    "corpus": ("corpus", "Read many sentences once into a store of tables, and ask it."),
    "evaluate": ("evaluate", "How well the trained head of the model in FOLDER answers the texts of DATA."),
    "faithfulness": (
        "why",
        "How well each attribution method predicts what removing words of TEXT does to the answer.",
    ),
    "find": ("attention", "Heads that attend most from one word to another, best first."),
    "head-attribution": (
        "why",
        "How one number of the model's answer for TEXT changes without each head, or each layer's heads.",
    ),
    "lens": (
        "lens",
        "What the trained head predicts from each layer's vectors, at masks or at all tokens of TEXT.",
    ),
    "mcp": (
        "mcp",
        "Serve all questions as tools for agents (Model Context Protocol) over standard input and output.",
    ),
    "parameters": ("parameters", "Every parameter of the model: name, group, shape, count, type, bytes."),
    "predict": ("predict", "What the model's trained head answers for TEXT."),
    "report": ("reports", "Make a report of VIEWs: pictures, tables, notes and code, in one page or a ZIP."),
    "rollout": (
        "attention",
        "How much of each token reaches each other one through all layers of attention.",
    ),
    "tokens": ("tokens", "Tokens of TEXT: id, segment, word, place in the text."),
    "train": ("train", "Teach a model a task on DATA, and save it in a folder that every command opens."),
    "tune-lens": ("lens", "Train a tuned lens on the lines of FILE (UTF-8) and print its losses."),
    "verify": ("reports", "Compute every number of a REPORT again, and say which differ and by how much."),
    "why": ("why", "Which tokens or words one number of the model's answer for TEXT depends on."),
}
"""Name of a hand-written command → its module and its first sentence. The others are derived, see `derived`.

A module is imported when one of its commands is called: most need torch, which alone takes seconds.
"""

_DIFF = CommandGroup(
    "diff",
    prefix="diff ",
    has_derived=True,
    help="Compare two models: heads, vectors, answers or tokens of a TEXT, layers over a FILE, parameters.",
)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    commands=[*(LazyCommand(name, *about) for name, about in COMMANDS.items()), _DIFF],
    has_derived=True,
)
def commands() -> None:
    """Open a transformer encoder and see what it does with your text.

    Tables go to standard output as CSV, or to a file with --out.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command; every failure that a person can mend is one line and status 2."""
    with terminal.streams():
        sys.exit(_status(arguments))


def _status(arguments: list[str] | None) -> int:
    try:
        with extras.explain_missing():
            return _run(arguments)
    except ProbeError as error:
        return _told(str(error))
    except click.NoSuchOption as error:
        return _told(
            f"{_sentence(error)} Put -- before a text that begins with a dash, or see bert-probe --help."
        )
    except click.ClickException as error:
        return _told(f"{_sentence(error)} See bert-probe --help.")
    except (click.Abort, KeyboardInterrupt) as error:
        return _told(str(error) or "Interrupted.", INTERRUPTED)


def _run(arguments: list[str] | None) -> int:
    try:
        ended = commands.main(args=arguments, prog_name="bert-probe", standalone_mode=False)
    except NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    return ended if isinstance(ended, int) else 0  # the status that a command ended with by itself


def _sentence(error: click.ClickException) -> str:
    message = error.format_message().replace("\n\t", " ")  # click lists choices one a line
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _told(message: str, status: int = 2) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"bert-probe: {terminal.visible(message)}\n")
        sys.stderr.flush()
    return status
