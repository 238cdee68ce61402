"""Test that progress bars appear only on a terminal and only for long work."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr

import pytest

from bert_probe.cli.main import main
from bert_probe.errors import NetworkError
from bert_probe.model import loading
from bert_probe.model.progress import Progress, no_progress
from bert_probe.runtime.terminal import PATIENCE, terminal_bar
from tests.helpers.terminal import Terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances the clock of the progress bar."""
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def test_bar_of_long_work_is_drawn_and_erased(clock: Callable[[float], None]) -> None:
    with redirect_stderr(Terminal()) as terminal, terminal_bar("Profiling", "sentences") as report:
        report(0, 400)
        clock(PATIENCE - 0.25)
        report(100, 400)
        assert terminal.getvalue() == ""
        clock(1.25)
        report(200, 400)
        assert terminal.seen.startswith("Profiling:  50%|")
        assert "| 200/400 [00:02<" in terminal.seen
        assert "sentences/s]" in terminal.seen
        clock(1)
        report(400, 400)
        assert "| 400/400 [00:03<" in terminal.seen
    assert terminal.seen == ""


def test_first_report_does_not_count_for_the_rate(clock: Callable[[float], None]) -> None:
    with redirect_stderr(Terminal()) as terminal, terminal_bar("Reading", "sentences") as progress:
        progress(6000, 10_000)
        clock(2)
        progress(6200, 10_000)
        clock(2)
        progress(6400, 10_000)
        assert "| 6400/10000 [00:04<00:36, 100.00 sentences/s]" in terminal.seen


def test_short_work_writes_nothing(clock: Callable[[float], None]) -> None:
    with redirect_stderr(Terminal()) as terminal, terminal_bar("Profiling", "sentences") as report:
        for done in range(11):
            clock(PATIENCE / 20)
            report(done, 10)
    assert terminal.getvalue() == ""


def test_bytes_are_shown_as_megabytes(clock: Callable[[float], None]) -> None:
    with redirect_stderr(Terminal()) as terminal, terminal_bar("Downloading", "B") as progress:
        clock(2)
        progress(1_500_000, 0)
        assert "Downloading: 1.50MB [00:02" in terminal.seen
        clock(1)
        progress(3_000_000, 12_000_000)
        assert "Downloading:  25%|" in terminal.seen
        assert "| 3.00M/12.0M [" in terminal.seen


@pytest.mark.parametrize(("columns", "expected"), [(0, 79), (40, 39)])
def test_bar_has_the_width_of_the_terminal(
    columns: int, expected: int, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(terminal, "fileno", lambda: 2)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((columns, columns)))
    with redirect_stderr(terminal), terminal_bar("Profiling", "sentences") as progress:
        progress(0, 400)
        clock(2)
        progress(200, 400)
        assert len(terminal.seen) == expected


def test_bar_is_erased_after_an_error(clock: Callable[[float], None]) -> None:
    terminal = Terminal()

    def interrupted() -> None:
        with redirect_stderr(terminal), terminal_bar("Profiling", "sentences") as progress:
            clock(2)
            progress(1, 2)
            assert terminal.seen
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.seen == ""


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_nothing_is_written_without_a_terminal(
    stream: io.StringIO | None, clock: Callable[[float], None]
) -> None:
    with redirect_stderr(stream), terminal_bar("Profiling", "sentences") as progress:
        clock(5)
        progress(1, 2)
    assert progress is no_progress
    assert stream is None or stream.getvalue() == ""


def test_download_bar_bypasses_the_safe_stream(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[str] = []

    def load(_model: str, _revision: None, dtype: str, progress: Progress) -> None:
        assert dtype == "auto"
        clock(2)
        progress(3_000_000, 12_000_000)
        bars.append(terminal.seen)
        raise NetworkError("The network is gone.")

    monkeypatch.setattr(loading, "load", load)
    terminal = Terminal()
    with redirect_stderr(terminal), pytest.raises(SystemExit):
        main(["attention", "a", "--model", "someone/else"])
    assert bars[0].startswith("Downloading:  25%|")
    assert terminal.seen == "bert-probe: The network is gone."
