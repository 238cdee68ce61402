"""The command line, in this process and in a shell: what a command writes, and how it ends."""

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

from bert_probe.cli.main import main
from bert_probe.model import loading
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.loading import load

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: 0 where all went well.
        out: the bytes on standard output.
        err: the text on standard error.
    """

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as UTF-8."""
        return self.out.decode()

    @property
    def rows(self) -> list[list[str]]:
        """The table that the command printed, header first; it must have printed nothing else."""
        assert (self.status, self.err) == (0, "")
        table = list(csv.reader(io.StringIO(self.text, newline="")))
        assert len({len(row) for row in table}) == 1, "each line has as many cells as the header"
        return table

    @property
    def records(self) -> list[dict[str, str]]:
        """The table, a dict a line."""
        header, *lines = self.rows
        return [dict(zip(header, line, strict=True)) for line in lines]

    @property
    def refusal(self) -> str:
        """The one line with which the command refused; it must have printed nothing else."""
        assert (self.status, self.out) == (2, b"")
        assert self.err.startswith("bert-probe: ")
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        return self.err.removeprefix("bert-probe: ").rstrip("\n")


def bert_probe(
    *arguments: str, built_in: Checkpoint | None = None, checkpoints: Mapping[str, Checkpoint] = {}
) -> Ended:
    """Run a command as ``bert-probe`` would.

    Args:
        built_in: stands for the built-in model in float32, which else is opened anew.
        there: folder → its checkpoint, likewise.
    """

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
    return Ended(int(status or 0), out.buffer.getvalue(), err.getvalue())


def in_shell(command: str, program: str = "-m bert_probe") -> subprocess.CompletedProcess[bytes]:
    """Run a command line as people do, in bash, where ``probe`` is the program."""
    prepared = f'probe() {{ "{sys.executable}" {program} "$@"; }}; set -o pipefail; {command}'
    return subprocess.run(["bash", "-c", prepared], cwd=ROOT, capture_output=True, check=False, timeout=120)
