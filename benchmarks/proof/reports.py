"""Test that `verify` reports every change of forged reports and rejects every hostile file."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

from benchmarks.pairs import Line
from benchmarks.proof.theme import Run
from bert_probe import Attention, Heads, Tokens
from bert_probe.errors import ProbeError
from bert_probe.model.loading import load
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.reading import read_report
from bert_probe.reports.report import Report
from bert_probe.reports.verification import verify
from bert_probe.reports.view_files import ViewFile
from tests.helpers import forgeries, hostile_reports
from tests.helpers.families import build
from tests.helpers.forgeries import RememberedModels, opener_of, render, reseal, unzip, zip_files

_ROOT = Path(__file__).parents[2]
TEXT = "the small boat crosses the wide river"
PAGES, LEAVES, ZIPS = 1_000, 1_000, 150
"""Numbers of forged pages, pages with one changed value in their data, and forged ZIPs, at scale 1."""
_BOMB = 1_000_000_000
_SPACE = 3_000_000_000
"""Limit in bytes on the address space of a process that reads a hostile file; torch takes over a gigabyte."""
_SECONDS = 30

Verify = Callable[[bytes], int]


def lines(run: Run) -> Iterator[Line]:
    report, models = _report(run)
    place = run.folder / "report"

    def verified(content: bytes) -> int:
        """Verify a report, and return the number of differences."""
        place.write_bytes(content)
        return len(verify(read_report(place), models).differences)

    for content in (report.html().encode(), report.zip()):
        if verified(content):
            run.failed("An unchanged report does not pass.")
    yield _line(run, "Pages with random changes of bytes or elements", _of_pages, report, verified, PAGES)
    yield _line(run, "Reports with one changed value in their data", _of_leaves, report, verified, LEAVES)
    yield _line(run, "ZIPs with random changes of one file", _of_zips, report, verified, ZIPS, _is_harmless)
    yield _hostile(run)


def _report(run: Run) -> tuple[Report, RememberedModels]:
    folder = run.folder / "bert"
    build("bert", folder)
    checkpoint = load(folder)
    models = RememberedModels(opener_of(checkpoint))
    trace = checkpoint.trace(TEXT)
    views = [
        ViewFile.of(result) for result in (Heads().of(trace), Attention(1, 2).of(trace), Tokens().of(trace))
    ]
    entries = [
        DraftEntry(view, "The first is {{1, layer}}." if number == 0 else "")
        for number, view in enumerate(views)
    ]
    return Report.of(Draft("A report", tuple(entries)), models), models


def _line(
    run: Run,
    title: str,
    forge: Callable[[Run, Report, int], Iterator[tuple[str, bytes]]],
    report: Report,
    verified: Verify,
    total: int,
    is_harmless: Callable[[Run, Report, bytes], bool] = lambda *_: False,
) -> Line:
    """Verify forged reports and return a result line; a report that is refused counts as detected.

    Args:
        is_harmless: whether a forged report may pass.
    """
    failed = len(run.failures)
    reported = refused = harmless = 0
    for name, content in forge(run, report, run.times(total)):
        if run.left < 0:
            run.failed(f"{title}: stopped at the time limit.")
            break
        try:
            verification = verified(content)
        except ProbeError:
            refused += 1
            continue
        except Exception as error:
            run.failed(f"{title}, {name}: {type(error).__name__}: {error}")
            continue
        reported += verification > 0
        if not verification and is_harmless(run, report, content):
            harmless += 1
        elif not verification:
            run.failed(f"{title}, {name}: passes.")
    return Line(
        title,
        "all digests of the file computed again",
        f"{reported + refused:,} reported, of which {refused:,} refused with a message; "
        f"{f'{harmless} pass with bytes of table.parquet that are not compared; ' if harmless else ''}"
        f"{len(run.failures) - failed} failures",
        "each is reported",
        len(run.failures) == failed,
    )


def _of_pages(run: Run, report: Report, total: int) -> Iterator[tuple[str, bytes]]:
    page, lots = report.html().encode(), run.lots("pages")
    for number in range(total):
        mutate = forgeries.mutate_elements if number % 2 else forgeries.mutate_bytes
        forged = reseal(mutate(page, lots))
        if forged != page:
            yield f"{mutate.__name__} {number}", forged


def _of_leaves(run: Run, report: Report, total: int) -> Iterator[tuple[str, bytes]]:
    stated = json.loads(json.dumps(report.stated))
    lots = run.lots("leaves")
    paths = forgeries.forgeable_paths(stated)
    for path in lots.sample(paths, min(total, len(paths))):
        try:
            content = render(forgeries.replace_leaf(stated, path, lots))
        except Exception:  # the forged data cannot be rendered as a page
            continue
        yield ".".join(map(str, path)), content


def _of_zips(run: Run, report: Report, total: int) -> Iterator[tuple[str, bytes]]:
    files, lots = unzip(report.zip()), run.lots("zips")
    names = [name for name in files if name != "manifest.json"]
    for number in range(total):
        name = lots.choice(names)
        content = forgeries.mutate_bytes(files[name], lots)
        content = reseal(content) if name.endswith(".html") else content
        if content != files[name]:
            yield f"{name} {number}", zip_files({**files, name: content})


def _is_harmless(run: Run, report: Report, content: bytes) -> bool:
    """Return whether a ZIP differs only in a Parquet file that DuckDB reads equally, or cannot read."""
    files, forged = unzip(report.zip()), unzip(content)
    changed = [name for name in files if forged[name] != files[name] and name != "manifest.json"]
    if not all(name.endswith(".parquet") for name in changed):
        return False
    try:
        return all(_as_read(run, forged[name]) == _as_read(run, files[name]) for name in changed)
    except duckdb.Error:
        return True


def _as_read(run: Run, content: bytes) -> list[object]:
    """Return the rows, aggregates and metadata that DuckDB reads from a Parquet file."""
    place = run.folder / "table.parquet"
    place.write_bytes(content)
    with duckdb.connect() as connection:
        rows = connection.execute(f"SELECT * FROM '{place}'").fetchall()
        names = [name for name, *_ in connection.description or []]
        aggregates = ", ".join(f'min("{name}"), max("{name}"), count("{name}")' for name in names)
        metadata = f"SELECT key, value FROM parquet_kv_metadata('{place}') WHERE key <> 'ARROW:schema'"
        return [
            names,
            repr(rows),
            repr(connection.execute(f"SELECT {aggregates}, count(*) FROM '{place}'").fetchall()),
            connection.execute(metadata).fetchall(),
        ]


def _hostile(run: Run) -> Line:
    """Verify hostile files with `bert-probe verify`, each in a process with limited memory and time."""
    failed, longest, peak = len(run.failures), 0.0, 0
    files = [*hostile_reports.hostile_pages(), *hostile_reports.hostile_zips(_BOMB)]
    files = files if run.scale == 1 else run.lots("hostile").sample(files, run.times(len(files)))
    done = 0
    for name, content in files:
        if run.left < 0:
            break
        place = run.folder / "hostile"
        place.write_bytes(content)
        start = time.monotonic()
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "bert_probe", "verify", str(place)],
                cwd=_ROOT,
                capture_output=True,
                timeout=_SECONDS,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_SPACE, _SPACE)),
            )
        except subprocess.TimeoutExpired:
            run.failed(f"{name}: not refused within {_SECONDS} s.")
            continue
        longest = max(longest, time.monotonic() - start)
        peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
        done += 1
        error = ended.stderr.decode(errors="replace")
        if ended.returncode != 2 or error.count("\n") != 1 or not error.startswith("bert-probe: "):
            run.failed(f"{name}: status {ended.returncode}, {error[-300:]}")
    return Line(
        "Hostile pages and ZIPs given to bert-probe verify",
        f"each in a process with {_SPACE / 1e9:.0f} GB of address space and {_SECONDS} s",
        f"{done} of {len(files)}, {len(run.failures) - failed} not refused; longest {longest:.1f} s, "
        f"peak memory {peak / 1e3:,.0f} MB",
        "a sentence, status 2",
        done == len(files) and len(run.failures) == failed,
    )
