"""Show progress bars on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm

from bert_probe.model.progress import Progress, no_progress
from bert_probe.runtime import terminal

PATIENCE = 1.0
"""Seconds before a progress bar appears, so that short work shows none."""


@contextmanager
def terminal_bar(label: str, unit: str) -> Iterator[Progress]:
    """Show a progress bar on standard error during the block, and erase it at the end.

    Nothing is written if standard error is not a terminal, or within the first second. The displayed rate
    excludes work that was already done at the first report, for example by an earlier run.

    Args:
        label: description in front of the bar.
        unit: unit of the counts; "B" for bytes, which are shown as MB.
    """
    screen = terminal.direct(sys.stderr)
    if screen is None or not screen.isatty():
        yield no_progress
        return
    in_bytes = unit == "B"
    with tqdm(
        desc=label,
        unit=unit if in_bytes else f" {unit}",
        unit_scale=in_bytes,
        delay=PATIENCE,
        smoothing=0,
        miniters=0,
        leave=False,
        position=0,  # otherwise tqdm draws below other bars, even invisible bars of the hub client
        ncols=_columns(screen) - 1,
        nrows=24,  # otherwise tqdm writes nothing if a terminal reports 0 rows
        file=screen,
    ) as bar:
        bar.initial = None

        def progress(done: int, total: int) -> None:
            if bar.initial is None:
                bar.initial = done
            bar.n, bar.total = done, total or None
            bar.update(0)

        yield progress


def _columns(screen: TextIO) -> int:
    """Return the width of the terminal in columns, or 80 if it is unknown."""
    try:
        return os.get_terminal_size(screen.fileno()).columns or 80
    except OSError:
        return 80
