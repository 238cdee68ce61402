"""The command line, which prints tables to standard output or writes them to a file.

Layers and heads count from 1; layer 0 is the output of the embeddings. For invalid input, a command prints
one line to standard error and exits with status 2. After Ctrl+C, it prints one line and exits with status
130, as in shells. A verification that finds differences exits with status 1.
"""

from __future__ import annotations

import sys
import tempfile
from typing import NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from bert_probe import __version__
from bert_probe.cli.lazy_commands import CommandGroup, LazyCommand
from bert_probe.core import extras
from bert_probe.errors import ProbeError
from bert_probe.runtime.terminal import use_safe_streams, visible

INTERRUPTED = 130

COMMANDS = {
    "app": ("app", "Open the app in a browser; Ctrl+C stops it."),
    "ask": ("reports", "Recompute the view that a view file describes, and print its table."),
    "attention": ("attention", "Print the attention weights of a head, or their mean over a layer's heads."),
    "check": ("checkpoints", "List which features work with a MODEL, and why the other features do not."),
    "convert": (
        "checkpoints",
        "Convert the pickled weights of a MODEL (pytorch_model.bin) to safetensors, in a new folder.",
    ),
    "evaluate": ("predict", "Measure how well the trained task head of a model predicts the labels of DATA."),
    "faithfulness": (
        "predict",
        "Measure how well each attribution method predicts the effect of removing words of TEXT.",
    ),
    "find": (
        "attention",
        "Rank the heads by their attention from one word to another, averaged over the word pairs.",
    ),
    "head-attribution": (
        "predict",
        "Measure how one output value for TEXT changes when one head or all heads of a layer are ablated.",
    ),
    "lens": (
        "predict",
        "Print what the task head predicts from each layer's vectors, at masks or at all tokens of TEXT.",
    ),
    "mcp": (
        "app",
        "Serve all questions as tools for agents (Model Context Protocol) over standard input and output.",
    ),
    "parameters": (
        "attention",
        "List the parameters of a model: name, group, shape, count, data type and bytes.",
    ),
    "predict": ("predict", "Print what the model's trained task head predicts for TEXT."),
    "report": (
        "reports",
        "Make a report of VIEWs with figures, tables, notes and code: an HTML page or a ZIP.",
    ),
    "rollout": (
        "attention",
        "Print the attention rollout: how much of each token reaches every other token through all layers.",
    ),
    "tokens": ("tokens", "List the tokens of TEXT with their ID, segment, word and character offsets."),
    "train": ("checkpoints", "Fine-tune a model on DATA, and save it in a folder."),
    "tune-lens": ("predict", "Train a tuned lens on the lines of FILE (UTF-8) and print its losses."),
    "verify": ("reports", "Recompute every number of a REPORT, and list the differences."),
    "why": (
        "predict",
        "Measure how much one output value for TEXT depends on each token or word.",
    ),
}
"""Name of a hand-written command → its module and the first sentence of its help. All other commands are
derived from questions; see `lazy_commands`.

A module is imported when one of its commands is called, because most import torch, which takes seconds.
"""

CORPUS_COMMANDS = {
    "run": ("corpus", "Read the sentences of INPUTs into a store of tokens, head measures and vectors."),
    "near": (
        "corpus",
        "Find the contexts in STORE whose vectors are nearest to the vector of a word in TEXT.",
    ),
    "query": ("corpus", "Run a SQL query over the tables of STORE with DuckDB."),
    "heads": ("corpus", "Print statistics of each head over all rows of STORE, or example rows of one head."),
    "health": (
        "corpus",
        "Find duplicates, outliers and hubs among text vectors, which may come from any model.",
    ),
    "histograms": ("corpus", "Print the histogram of a measure over all rows of STORE, for each head."),
    "verify": ("corpus", "Compare each file of STORE with its SHA-256 digest."),
    "find": (
        "corpus",
        "Find word pairs in STORE with the selected tags, such as DET and NOUN, sorted by a head's "
        "attention.",
    ),
}
"""Name of a subcommand of `corpus` → its module and the first sentence of its help."""

_CORPUS = CommandGroup(
    "corpus",
    commands=[LazyCommand(name, *source) for name, source in CORPUS_COMMANDS.items()],
    help="Run a model over many sentences once, save the results in a store, and query the store.",
)
_DIFF = CommandGroup(
    "diff",
    prefix="diff ",
    has_derived=True,
    help="Compare two models: heads, vectors, predictions and tokens of a text, layers, and parameters.",
)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    commands=[*(LazyCommand(name, *source) for name, source in COMMANDS.items()), _CORPUS, _DIFF],
    has_derived=True,
)
@click.version_option(__version__, "--version", prog_name="bert-probe", message="%(prog)s %(version)s")
def commands() -> None:
    """Look inside transformer encoders: attention, vectors, predictions and training.

    Tables are printed to standard output as CSV, or written to a file with --out.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command; for an error that the user can fix, print one line and exit with status 2."""
    try:
        with use_safe_streams():
            sys.exit(_status(arguments))
    except KeyboardInterrupt:  # a second Ctrl+C, after the message about the first
        sys.exit(INTERRUPTED)


def _status(arguments: list[str] | None) -> int:
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # torch could not be imported
        return _print_error(
            "No folder for temporary files can be written. Free some disk space, or set TMPDIR to a folder "
            "that can be written."
        )
    try:
        with extras.explain_missing():
            return _run(arguments)
    except ProbeError as error:
        return _print_error(str(error))
    except click.NoSuchOption as error:
        return _print_error(_no_such_option(error))
    except click.ClickException as error:
        return _print_error(f"{_sentence(error)} See bert-probe --help.")
    except (click.Abort, KeyboardInterrupt) as error:
        return _print_error(str(error) or "Interrupted.", INTERRUPTED)


def _run(arguments: list[str] | None) -> int:
    try:
        status = commands.main(args=arguments, prog_name="bert-probe", standalone_mode=False)
    except NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    return status if isinstance(status, int) else 0  # a command returns an integer to set its exit status


def _no_such_option(error: click.NoSuchOption) -> str:
    """Return the message for an unknown option, because click's message differs between versions."""
    similar = " or ".join(f"'{name}'" for name in sorted(error.possibilities or ()))
    suggestion = f" Did you mean {similar}?" if similar else ""
    return (
        f"No such option '{error.option_name}'.{suggestion} "
        "Put -- before a text that begins with a dash, or see bert-probe --help."
    )


def _sentence(error: click.ClickException) -> str:
    # join the choices, each of which click prints on its own line
    message = error.format_message().replace("\n\t", " ")
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _print_error(message: str, status: int = 2) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"bert-probe: {visible(message)}\n")
        sys.stderr.flush()
    return status
