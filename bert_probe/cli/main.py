"""The command line: tables on standard output, or in a file.

Layers and heads count from 1 here; layer 0 is the output of the embeddings. Bad input is one line on
standard error and exit status 2.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from bert_probe.cli import attention, heads, pairs, parameters, sentences, steps, vectors
from bert_probe.cli.app import app
from bert_probe.errors import ProbeError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def commands() -> None:
    """Open a transformer encoder and see what it does with your text.

    Tables go to standard output as CSV, or to a file with --out.
    """


for _command in (
    app,
    vectors.tokens,
    attention.attention,
    attention.rollout,
    heads.heads,
    heads.find,
    heads.ablate,
    steps.steps,
    vectors.embeddings,
    vectors.anatomy,
    vectors.pooler,
    parameters.parameters,
    pairs.similarity,
    pairs.baseline,
    pairs.compare,
    pairs.context,
    sentences.sentences,
):
    commands.add_command(_command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command; every failure that a person can mend is one line and status 2."""
    try:
        commands.main(args=arguments, prog_name="bert-probe", standalone_mode=False)
    except ProbeError as error:
        _fail(str(error))
    except NoArgsIsHelpError as error:
        sys.stdout.write(f"{error.format_message()}\n")
    except click.NoSuchOption as error:
        _fail(f"{_sentence(error)} Put -- before a text that begins with a dash, or see bert-probe --help.")
    except click.ClickException as error:
        _fail(f"{_sentence(error)} See bert-probe --help.")
    except click.Abort:
        _fail("Interrupted.")
    sys.exit(0)


def _sentence(error: click.ClickException) -> str:
    message = error.format_message()
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"bert-probe: {' '.join(message.split())}\n")
    sys.exit(2)
