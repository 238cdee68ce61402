"""Functions that run commands in this process or in a shell, and read their output."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

# The modules agents and model_check bind `load` when they are imported, so not while it is replaced below.
from bert_probe.analyses.weights import model_check  # noqa: F401
from bert_probe.api import agents  # noqa: F401
from bert_probe.cli.main import main
from bert_probe.model import loading
from bert_probe.model.checkpoint import Checkpoint

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class CommandResult:
    """The outcome of a command.

    Attributes:
        status: exit status, 0 for success.
        out: bytes of standard output.
        err: text of standard error.
    """

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Return standard output as UTF-8."""
        return self.out.decode()

    @property
    def rows(self) -> list[list[str]]:
        """Return the printed table, header first, and assert that nothing else was printed."""
        assert (self.status, self.err) == (0, "")
        table = list(csv.reader(io.StringIO(self.text, newline="")))
        assert len({len(row) for row in table}) == 1, "each line has as many cells as the header"
        return table

    @property
    def records(self) -> list[dict[str, str]]:
        """Return the printed table as one dict per row."""
        header, *lines = self.rows
        return [dict(zip(header, line, strict=True)) for line in lines]

    @property
    def refusal(self) -> str:
        """Return the one-line error message, and assert that nothing else was printed."""
        assert (self.status, self.out) == (2, b"")
        assert self.err.startswith("bert-probe: ")
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        return self.err.removeprefix("bert-probe: ").rstrip("\n")


def bert_probe(
    *arguments: str, built_in: Checkpoint | None = None, checkpoints: Mapping[str, Checkpoint] = {}
) -> CommandResult:
    """Run a command like ``bert-probe``.

    Args:
        built_in: an opened checkpoint to use instead of opening the built-in model in float32 again.
        checkpoints: opened checkpoints to use instead of opening the folders again, by folder.
    """

    load = loading.load  # It returns models that are open already in tests with `share_opened_models`.

    def opened(model: str | None, revision: str | None, **more: str) -> Checkpoint:
        is_default = model is None and more.get("dtype", "auto") == "auto"
        if model in checkpoints:
            return checkpoints[model]
        return built_in if built_in and is_default else load(model, revision, **more)

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True)
    err = io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        stack.enter_context(patch.object(loading, "load", opened))
        try:
            main(list(arguments))
        except SystemExit as ended:
            status = ended.code
    assert isinstance(out.buffer, io.BytesIO)
    return CommandResult(int(status or 0), out.buffer.getvalue(), err.getvalue())


def run_in_shell(command: str, program: str = "-m bert_probe") -> subprocess.CompletedProcess[bytes]:
    """Run a command line in bash, where ``probe`` stands for the program."""
    prepared = f'probe() {{ "{sys.executable}" {program} "$@"; }}; set -o pipefail; {command}'
    return subprocess.run(["bash", "-c", prepared], cwd=ROOT, capture_output=True, check=False, timeout=120)
