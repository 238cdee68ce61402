"""Describe the machine, and read the tables of benchmark reports."""

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
    """Return processor, date and library versions on one line."""
    device = "CUDA" if torch.cuda.is_available() else "CPU"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "streamlit"))
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return f"{os.cpu_count()} cores, {device}; {today}; Python {platform.python_version()}, {libraries}."


def sections(report: Path) -> dict[str, str]:
    """Return the sections of an existing Markdown report by their headings in lower case."""
    _, *parts = report.read_text(encoding="utf-8").split("\n## ")
    return {part.split("\n", 1)[0].lower(): f"\n## {part}" for part in parts}


def table(lines: Iterable[Line]) -> str:
    """Return benchmark results as the rows of a Markdown table, without its header."""
    cells = ((line.what, line.rival, line.measured, line.target, _VERDICT[line.met]) for line in lines)
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
