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
from bert_probe.errors import ProbeError
from bert_probe.runtime import terminal

INTERRUPTED = 130

COMMANDS = {
    "ablate": (
        "heads",
        "What changes in the last layer when heads are switched off: 1 − cosine of its vectors.",
    ),
    "anatomy": (
        "vectors",
        "A token's input vector taken apart: word, position, segment, their sum, LayerNorm.",
    ),
    "app": ("app", "Open the app in a browser; Ctrl+C stops it."),
    "ask": ("reports", "Ask again what a view file asks."),
    "attention": ("attention", "Attention weights of a head, or averaged over a layer's heads."),
    "baseline": (
        "pairs",
        "Cosine that unrelated tokens of the model reach, and one word in two sentences, at every layer.",
    ),
    "compare": (
        "pairs",
        "Heads whose attention differs between TEXT_A and TEXT_B, where these are the same; "
        "most changed first.",
    ),
    "context": ("pairs", "How alike WORD's vectors in several texts are, at every layer from 0."),
    "corpus": ("corpus", "Read many sentences once into a store of tables, and ask it."),
    "diff": (
        "diff",
        "What differs between two models on TEXT: heads, vectors, answers; their parameters; their layers.",
    ),
    "embeddings": ("vectors", "Vectors of the tokens, of [CLS], or of the pooler."),
    "evaluate": (
        "evaluate",
        "How well the trained head of the model in FOLDER answers the texts of DATA.",
    ),
    "find": ("heads", "Heads that attend most from one word to another, best first."),
    "fragmentation": (
        "vocabulary",
        "Into how many pieces of the vocabulary each word of TEXT is cut.",
    ),
    "heads": (
        "heads",
        "What each head does on TEXT: entropy, distance, where its attention goes, a label.",
    ),
    "lens": (
        "lens",
        "What the model's trained head makes of each layer's vectors, at the masks of TEXT or all tokens.",
    ),
    "map": (
        "layer_map",
        "Where each token of TEXT, and of TEXT_B, lies at every layer, on one plane of principal components.",
    ),
    "mcp": (
        "mcp",
        "Serve all questions as tools for agents (Model Context Protocol) over standard input and output.",
    ),
    "overview": (
        "overview",
        "What of TEXT is most worth a look, the most unusual first, with a link to its view in the app.",
    ),
    "padding": (
        "padding",
        "Texts as the model is given them in one batch, filled up to one length, or what that changes.",
    ),
    "parameters": ("parameters", "Every parameter of the model: name, group, shape, count, type, bytes."),
    "patch": (
        "pairs",
        "How much of TEXT_A's answer comes back when a part of its pass is put into TEXT_B's.",
    ),
    "pooler": ("vectors", "The pooler's output, step by step from [CLS], and the model's own."),
    "positions": (
        "positions",
        "How the model knows where a token stands: what it learned for each position.",
    ),
    "predict": ("predict", "What the model's trained head answers for TEXT."),
    "probe": ("probe", "How well the labels of DATA can be read off each layer's vectors by a linear map."),
    "relations": (
        "relations",
        "For each relation of a treebank the head that attends from a word to its syntactic head, or back.",
    ),
    "report": (
        "reports",
        "Make a report of VIEWs: pictures, tables, notes and code, in one page or a ZIP.",
    ),
    "rollout": (
        "attention",
        "How much of each token reaches each other one through all layers of attention.",
    ),
    "sentences": (
        "sentences",
        "Cosine of every two sentences of FILE: one a line, or a column of a table.",
    ),
    "similarity": (
        "pairs",
        "Cosine of every token of TEXT_A with every token of TEXT_B, or of TEXT_A with itself.",
    ),
    "steps": ("steps", "From q and k to each weight of one token in one head, step by step."),
    "tokens": ("tokens", "Tokens of TEXT: id, segment, word, place in the text."),
    "train": (
        "train",
        "Teach a model a task on DATA, and save it in a folder that every command opens.",
    ),
    "trees": (
        "trees",
        "How well the syntactic trees of DATA can be read off each layer's vectors by a linear map.",
    ),
    "verify": (
        "reports",
        "Compute every number of a REPORT again, and say which differ and by how much.",
    ),
    "vocabulary": (
        "vocabulary",
        "The pieces that the model knows, or those whose input vectors are nearest to one.",
    ),
    "why": (
        "why",
        "Which tokens, words or heads one number of the model's answer for TEXT depends on.",
    ),
}
"""Command → the module of this room that holds it, and its first sentence, for the list of all commands.

A module is imported when one of its commands is called: most need torch, which alone takes seconds.
"""


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    commands=[LazyCommand(name, *about) for name, about in COMMANDS.items()],
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
