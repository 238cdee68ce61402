"""What a report says of the machine it was written on, and its table."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.pairs import Line

_VERDICT = {True: "yes", False: "**no**", None: ""}


def described() -> str:
    """Processor, day and versions, in one line."""
    device = "CUDA" if torch.cuda.is_available() else "CPU"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "streamlit"))
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return f"{os.cpu_count()} cores, {device}; {today}; Python {platform.python_version()}, {libraries}."


def sections(report: Path) -> dict[str, str]:
    """Parts of a report as they stand, by their headings in small letters."""
    _, *parts = report.read_text(encoding="utf-8").split("\n## ")
    return {part.split("\n", 1)[0].lower(): f"\n## {part}" for part in parts}


def table(lines: Iterable[Line]) -> str:
    """Rows of a table in Markdown, one a line."""
    cells = ((line.what, line.rival, line.measured, line.target, _VERDICT[line.met]) for line in lines)
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
