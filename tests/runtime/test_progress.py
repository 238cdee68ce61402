"""A progress bar on a terminal: seen only there, and only when the work takes its time."""

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
from bert_probe.runtime import progress
from bert_probe.runtime.progress import terminal_bar
from tests.helpers.terminal import Terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass for the bar."""
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def test_work_that_takes_longer_is_seen_and_wiped_away(clock: Callable[[float], None]) -> None:
    with redirect_stderr(Terminal()) as terminal, terminal_bar("Profiling", "sentences") as report:
        report(0, 400)
        clock(progress.PATIENCE - 0.25)
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


def test_what_was_done_before_counts_towards_no_rate(clock: Callable[[float], None]) -> None:
    with redirect_stderr(Terminal()) as terminal, terminal_bar("Reading", "sentences") as report:
        report(6000, 10_000)
        clock(2)
        report(6200, 10_000)
        clock(2)
        report(6400, 10_000)
        assert "| 6400/10000 [00:04<00:36, 100.00 sentences/s]" in terminal.seen


def test_short_work_writes_nothing(clock: Callable[[float], None]) -> None:
    with redirect_stderr(Terminal()) as terminal, terminal_bar("Profiling", "sentences") as report:
        for done in range(11):
            clock(progress.PATIENCE / 20)
            report(done, 10)
    assert terminal.getvalue() == ""


def test_bytes_are_shown_in_millions_and_an_unknown_total_is_no_share(clock: Callable[[float], None]) -> None:
    with redirect_stderr(Terminal()) as terminal, terminal_bar("Downloading", "B") as report:
        clock(2)
        report(1_500_000, 0)
        assert "Downloading: 1.50MB [00:02" in terminal.seen
        clock(1)
        report(3_000_000, 12_000_000)
        assert "Downloading:  25%|" in terminal.seen
        assert "| 3.00M/12.0M [" in terminal.seen


@pytest.mark.parametrize(("columns", "expected"), [(0, 79), (40, 39)])
def test_a_bar_is_as_wide_as_the_terminal_and_seen_where_that_is_unknown(
    columns: int, expected: int, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(terminal, "fileno", lambda: 2)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((columns, columns)))
    with redirect_stderr(terminal), terminal_bar("Profiling", "sentences") as report:
        report(0, 400)
        clock(2)
        report(200, 400)
        assert len(terminal.seen) == expected


def test_it_is_wiped_away_when_the_work_fails(clock: Callable[[float], None]) -> None:
    terminal = Terminal()

    def interrupted() -> None:
        with redirect_stderr(terminal), terminal_bar("Profiling", "sentences") as report:
            clock(2)
            report(1, 2)
            assert terminal.seen
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.seen == ""


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_where_no_terminal_is_nothing_is_written(
    stream: io.StringIO | None, clock: Callable[[float], None]
) -> None:
    with redirect_stderr(stream), terminal_bar("Profiling", "sentences") as report:
        clock(5)
        report(1, 2)
    assert report is no_progress
    assert stream is None or stream.getvalue() == ""


def test_a_download_is_seen_on_the_terminal_behind_what_filters_it(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def load(_model: str, _revision: None, dtype: str, progress: Progress) -> None:
        assert dtype == "auto"
        clock(2)
        progress(3_000_000, 12_000_000)
        drawn.append(terminal.seen)
        raise NetworkError("The network is gone.")

    monkeypatch.setattr(loading, "load", load)
    terminal = Terminal()
    with redirect_stderr(terminal), pytest.raises(SystemExit):
        main(["attention", "a", "--model", "someone/else"])
    assert drawn[0].startswith("Downloading:  25%|")
    assert terminal.seen == "bert-probe: The network is gone."
