"""Test corpus stores: killed builds, a full disk, a million rows, and stores from untrusted sources."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import bert_probe
from benchmarks.pairs import Line
from benchmarks.proof.theme import Run
from benchmarks.trace_cost import text_of
from bert_probe.corpus.build import build_corpus, verify_corpus
from bert_probe.corpus.heads import write_summary
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.corpus.schema import MANIFEST, layouts
from bert_probe.corpus.store import open_corpus, write_json, write_shard
from tests.helpers.broken_stores import (
    WRONG,
    Change,
    cast_column,
    edit,
    error_messages,
    flip_bytes,
    member_paths,
    rewrite,
    set_null,
)
from tests.helpers.families import build
from tests.helpers.treebank import SAILING_FILE, SLEEPING_FILE

KILLS = 3
SENTENCES, SHARD = 3_000, 50
MILLION, SHARD_ROWS = 1_000_000, 2_000
OPENS = 5
TARGET = 2.0

_OPENED = """
import sys, time
from bert_probe import HeadHistograms, open_corpus  # which imports torch
start = time.perf_counter()
store = open_corpus(sys.argv[1])
found = HeadHistograms("entropy_bits").of(store)
print(time.perf_counter() - start, store.rows, int(found.statistics.bins.sum()))
"""


def lines(run: Run) -> Iterator[Line]:
    folder = run.folder / "bert"
    build("bert", folder)
    yield _killed(run, folder)
    yield _no_room(run, folder)
    yield _million(run, folder)
    yield _hostile(run, folder)


def _killed(run: Run, model: Path) -> Line:
    file, out = run.folder / "lines.txt", run.folder / "resumed"
    lots = run.lots("kills")
    file.write_text("".join(f"{text_of(lots.randint(4, 30))} {number}\n" for number in range(SENTENCES)))
    straight = build_corpus(
        bert_probe.load(model), IngestConfig(), [file], run.folder / "straight", shard_rows=SHARD
    )
    command = _command(file, out, model)
    kills = sorted(lots.sample(range(1, len(straight.shards) - 1), KILLS))
    ended = []
    for kill in kills:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, env=_environment())
        while process.poll() is None and _shards(out) < kill:
            time.sleep(0.001)
        time.sleep(lots.random() * 0.05)  # kill the process at a random point within the next steps
        process.send_signal(signal.SIGKILL)
        status = process.wait()
        if status != -signal.SIGKILL:
            run.failed(f"The run ended with status {status} before it was killed in shard {kill}.")
        ended.append(f"{open_corpus(out).rows:,}")
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    if done.returncode:
        run.failed(f"A killed run cannot be continued: {done.stderr[-300:]}")
    resumed = open_corpus(out)
    rows = resumed.table("rows").to_table()["row"].to_pylist()
    if rows != list(range(1, SENTENCES + 1)):
        run.failed(f"The resumed store has {len(rows):,} rows, {len(set(rows)):,} of them different.")
    for name in straight.layouts:
        if not resumed.table(name).to_table().equals(straight.table(name).to_table()):
            run.failed(f"Table {name} of the resumed store differs from that of the uninterrupted store.")
    if left := [path.name for path in out.rglob("*.part")]:
        run.failed(f"Partial files remain: {', '.join(left)}")
    same = resumed.digest == straight.digest
    return Line(
        f"A run over {SENTENCES:,} sentences killed (SIGKILL) {KILLS} times, and continued",
        "random moments; compared with an uninterrupted store, row by row and byte by byte",
        f"killed with {', '.join(ended)} rows; {'the same' if same else 'another'} store, "
        f"no row missing or repeated",
        "the same store",
        same and not run.failures,
    )


def _no_room(run: Run, model: Path) -> Line:
    """Build a store on a full disk, which a limit on the file size simulates."""
    file, out = run.folder / "lines.txt", run.folder / "full"
    done = subprocess.run(
        _command(file, out, model),
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    left = [path.name for path in out.rglob("*") if path.suffix == ".part" or path.parent.name == "shards"]
    message = done.stderr.strip().splitlines()[-1:]
    if done.returncode != 2 or left or "cannot be written" not in "".join(message):
        run.failed(f"No room for a shard: status {done.returncode}, {message}, left {left}")
    return Line(
        "No space for the first shard",
        "files of at most 100 kB",
        "".join(message).replace(str(run.folder), "…"),
        "an error message, no partial files",
        not left and done.returncode == 2,
    )


def _hostile(run: Run, model: Path) -> Line:
    original, folder = run.folder / "whole", run.folder / "hostile"
    file, checkpoint = run.folder / "tagged.conllu", bert_probe.load(model)
    file.write_text(SAILING_FILE + SLEEPING_FILE, "utf-8")
    config = IngestConfig(keep=("profiles", "vectors", "neighbors"))
    store = build_corpus(checkpoint, config, [file], original, shard_rows=2)
    every = [*_changes_of_json(original), *_changes_of_tables(store)]
    sampled = run.lots("hostile stores").sample(every, run.times(len(every)))
    refused = 0
    for name, change in sampled:
        if run.left < 0:
            break
        shutil.copytree(original, folder)
        change(folder)
        try:
            refused += bool(list(error_messages(folder, checkpoint)))
        except Exception as error:  # anything other than a ProbeError is a failure
            run.failed(f"{name}: {type(error).__name__} {error}")
        shutil.rmtree(folder)
    if unnoticed := _unnoticed(original):
        run.failed(f"Changed bytes that corpus verify does not detect: {', '.join(unnoticed)}")
    return Line(
        f"Untrusted stores: {len(sampled):,} changes of a value, a type or a column",
        "each opened, and all questions computed; then 200 bytes of each table changed",
        f"{refused:,} refused with a sentence, the others opened; corpus verify detects all changed bytes",
        "no traceback, all changes detected",
        not run.failures,
    )


def _changes_of_json(original: Path) -> Iterator[tuple[str, Change]]:
    """Yield modifications that remove a member of a JSON file of a store, or give it an invalid value."""
    for name in ("manifest.json", "shards/00000.json"):
        for path in member_paths(json.loads((original / name).read_text())):
            for value in ((), *((wrong,) for wrong in WRONG)):

                def change(copy: Path, name: str = name, path: str = path, value: Any = value) -> None:
                    edit(copy / name, path, *value)

                yield f"{name}, {path} = {value!r}", change


def _changes_of_tables(store: bert_probe.Store) -> Iterator[tuple[str, Change]]:
    """Yield modifications that write a null to a column of a table, or change the type of the column."""
    for table, layout in store.layouts.items():
        for column in layout.schema.names:
            for way in (set_null(column), cast_column(column, pa.date32())):

                def change(copy: Path, table: str = table, way: Any = way) -> None:
                    rewrite(copy, table, way)

                yield f"{table}.{column}, {way.__qualname__}", change


def _unnoticed(original: Path) -> list[str]:
    """Return the tables in which `verify_corpus` does not detect changed bytes."""
    unnoticed = []
    for path in sorted((*original.rglob("*.parquet"), *original.rglob("*.arrow"))):
        name, before = path.relative_to(original).as_posix(), path.read_bytes()
        flip_bytes(path)
        if [difference.file for difference in verify_corpus(original).differences] != [name]:
            unnoticed.append(name)
        path.write_bytes(before)
    return unnoticed


def _million(run: Run, model: Path) -> Line:
    """Measure the time to open a large store, which consists of copies of one shard with new row numbers."""
    file, folder = run.folder / "some.txt", run.folder / "million"
    lots = run.lots("million")
    file.write_text("".join(f"{text_of(lots.randint(4, 12))}\n" for _ in range(SHARD_ROWS)))
    small = build_corpus(
        bert_probe.load(model), IngestConfig(keep=("profiles",)), [file], run.folder / "small"
    )
    layout = layouts(small.question, small.manifest["sizes"]["hidden_size"])
    tables = {name: small.table(name).to_table() for name in layout}
    count = run.times(MILLION) // SHARD_ROWS
    write_json(folder / MANIFEST, {**small.manifest, "records": count * SHARD_ROWS})
    for number in range(count):
        first = number * SHARD_ROWS
        write_shard(folder, number, first + 1, SHARD_ROWS, _moved(tables, first), layout)
    write_summary(open_corpus(folder))
    took = []
    for _ in range(OPENS):
        done = subprocess.run(
            [sys.executable, "-c", _OPENED, str(folder)], capture_output=True, text=True, check=True
        )
        seconds, rows, binned = done.stdout.split()
        took.append(float(seconds))
        heads = small.sizes.layers * small.sizes.heads
        if (int(rows), int(binned)) != (count * SHARD_ROWS, count * SHARD_ROWS * heads):
            run.failed(f"The store has {rows} rows, and histograms of {binned}.")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    middle = statistics.median(took)
    return Line(
        f"A store of {count * SHARD_ROWS:,} rows, opened, with the histograms of all heads",
        f"{count:,} shards, {size / 1e9:.1f} GB; a new process each time, without imports",
        f"{middle:.2f} s (median of {OPENS}; longest {max(took):.2f} s)",
        f"at most {TARGET:.0f} s",
        middle <= TARGET,
    )


def _moved(tables: Mapping[str, pa.Table], by: int) -> dict[str, pa.Table]:
    """Return copies of the tables with row numbers increased by `by`."""
    moved = {}
    for name, table in tables.items():
        if "row" in table.column_names:
            place = table.schema.get_field_index("row")
            table = table.set_column(place, table.schema.field(place), pc.add(table["row"], by))
        moved[name] = table
    return moved


def _command(file: Path, out: Path, model: Path) -> list[str]:
    arguments = [str(file), f"--out={out}", f"--model={model}", f"--shard-rows={SHARD}"]
    return [sys.executable, "-m", "bert_probe", "corpus", "run", *arguments]


def _environment() -> dict[str, Any]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def _shards(folder: Path) -> int:
    return len(list((folder / "shards").glob("[0-9]*.json")))
