"""A corpus read into a store: whole or not at all, and gone on with where it was."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bert_probe
from bert_probe.core.writing import is_lock_file
from bert_probe.corpus import extract, workers
from bert_probe.corpus.build import build_corpus, reserved_store
from bert_probe.corpus.ingest import IngestConfig
from bert_probe.corpus.store import open_corpus, write_shard
from bert_probe.errors import (
    CheckpointError,
    EmptyTextError,
    ExportError,
    SelectionError,
    StoreError,
    TextError,
)
from bert_probe.model.progress import Cancelled, Progress, no_progress
from bert_probe.training.saving import reserved, write_folder
from tests.helpers.command_line import bert_probe as run
from tests.helpers.families import SENTENCES
from tests.helpers.unprivileged import as_nobody, read_only_folder

Checkpoints = Callable[[str], bert_probe.Checkpoint]
QUESTION = IngestConfig(keep=("profiles", "vectors", "neighbours"))
LINES = [f"{text} {number}" for number in range(4) for text in SENTENCES]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.txt"
    file.write_bytes("\n".join([*LINES[:5], "broken \udcff", *LINES[5:]]).encode("utf-8", "surrogateescape"))
    return file


def made(checkpoint: bert_probe.Checkpoint, lines: Path, name: str, **more: object) -> bert_probe.Store:
    return build_corpus(checkpoint, QUESTION, [lines], lines.with_name(name), shard_rows=6, **more)


def tables(store: bert_probe.Store) -> dict[str, pa.Table]:
    return {name: store.table(name).to_table() for name in store.layouts}


def test_a_run_that_is_ended_goes_on_where_it_was(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")
    straight = made(checkpoint, lines, "straight")
    assert (straight.rows, straight.refusals, len(straight.shards)) == (len(LINES), 1, 5)
    assert straight.finished
    for ending in (0, 7, 13, 20):

        def ended(done: int, total: int, ending: int = ending) -> None:
            if total and done >= ending:
                raise Cancelled

        with pytest.raises(Cancelled):
            made(checkpoint, lines, "resumed", report=ended)
        assert not open_corpus(lines.with_name("resumed")).finished
    resumed = made(checkpoint, lines, "resumed")
    assert resumed.finished
    assert tables(resumed) == tables(straight)
    assert resumed.digest == straight.digest
    assert not list(resumed.folder.rglob("*.part"))


def test_what_a_killed_run_left_half_written_is_no_part_of_it(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")
    store = made(checkpoint, lines, "store")
    digest = store.digest
    # The files of a shard are there, and a half one, but not what is written last of it.
    (store.folder / "shards" / "00002.json").unlink()
    (store.folder / "vectors" / ".00002.arrow.ab12.part").write_bytes(b"half")
    (store.folder / "vectors" / "00002.arrow").write_bytes(b"cut")
    left = open_corpus(store.folder)
    assert not left.finished
    assert 2 not in [shard.number for shard in left.shards]
    assert left.table("rows").count_rows() == left.rows == len(LINES) - 6
    again = made(checkpoint, lines, "store")
    assert (again.digest, again.rows) == (digest, len(LINES))
    assert not list(store.folder.rglob("*.part"))


def test_a_finished_store_is_not_computed_again(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")
    made(checkpoint, lines, "store")
    told: list[object] = []
    assert made(checkpoint, lines, "store", told=told.append).finished
    assert told == []


def test_several_workers_make_the_same_store(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")
    progress: list[tuple[int, int]] = []
    told: list[dict[str, int]] = []
    several = made(
        checkpoint,
        lines,
        "several",
        workers=3,
        report=lambda *done: progress.append(done),
        told=lambda one: told.append(dict(one)),
    )
    assert sorted(one["shard"] for one in told) == [0, 1, 2, 3, 4]
    assert max(progress) == (len(LINES) + 1, len(LINES) + 1)
    for name, table in tables(made(checkpoint, lines, "alone")).items():
        assert tables(several)[name].equals(table), name


def test_a_worker_that_fails_ends_the_run(
    family: Checkpoints, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = extract.gathered

    def failing(*given: object) -> object:
        if given[2][0].row == 7:
            raise StoreError("The disk is full.")
        return gathered(*given)

    monkeypatch.setattr(workers, "gathered", failing)
    with pytest.raises(StoreError, match="The disk is full"):
        made(family("bert"), lines, "store", workers=2)
    monkeypatch.undo()
    assert made(family("bert"), lines, "store").rows == len(LINES)


@pytest.mark.parametrize("count", [1, 2])
def test_control_c_says_how_to_go_on(
    count: int, family: Checkpoints, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = lines.with_name("store")
    write, running_now = write_shard, threading.active_count()

    def interrupted(*given: Any) -> object:
        if given[1] == 2:
            raise KeyboardInterrupt
        return write(*given)

    monkeypatch.setattr(workers, "write_shard", interrupted)
    asked = ["corpus", "run", str(lines), f"--out={out}", f"--workers={count}", "--shard-rows=6"]
    ended = run(*asked, f"--model={family('bert').folder}")
    assert (ended.status, ended.out) == (130, b"")
    kept = open_corpus(out).records
    assert ended.err == (
        f"bert-probe: Interrupted. {kept} of {len(LINES) + 1} sentences are in {out}. "
        "The same command goes on.\n"
    )
    assert kept >= (12 if count == 1 else 6)
    assert threading.active_count() == running_now  # nobody writes any more


def test_a_full_disk_is_a_sentence_and_leaves_nothing_half(
    family: Checkpoints, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pq.write_table

    def full(table: pa.Table, part: Path, **options: Any) -> None:
        if "00002" in part.name and part.parent.name == "profiles":
            part.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(table, part, **options)

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StoreError, match=r"No space left on device\. Make room, or choose another place"):
        made(family("bert"), lines, "store")
    monkeypatch.undo()
    folder = lines.with_name("store")
    assert open_corpus(folder).records == 12
    assert not list(folder.rglob("*.part"))
    assert made(family("bert"), lines, "store").finished


def test_each_part_of_the_work_is_seen(family: Checkpoints, lines: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def watch(label: str, unit: str) -> Iterator[Progress]:
        told = seen.setdefault(f"{label} {unit}", [])
        yield lambda *done: told.append(done)

    made(family("bert"), lines, "store", watch=watch)
    size, count = lines.stat().st_size, len(LINES) + 1
    assert list(seen) == ["Looking through B", "Counting sentences", "Reading sentences"]
    assert seen["Looking through B"] == [(size, size)]
    assert seen["Reading sentences"][0] == (0, count)
    assert seen["Reading sentences"][-1] == (count, count)


def test_another_question_does_not_go_on_with_a_store(family: Checkpoints, lines: Path) -> None:
    checkpoint, folder = family("bert"), lines.with_name("store")
    made(checkpoint, lines, "store")
    with pytest.raises(SelectionError, match="begun with other layers, or other things to keep"):
        build_corpus(checkpoint, IngestConfig(keep=("profiles",)), [lines], folder, shard_rows=6)
    with pytest.raises(SelectionError, match="another number of rows in a shard"):
        build_corpus(checkpoint, QUESTION, [lines], folder, shard_rows=7)
    with pytest.raises(SelectionError, match="begun with another model"):
        build_corpus(family("roberta"), QUESTION, [lines], folder, shard_rows=6)
    lines.write_text("Another line.")
    with pytest.raises(SelectionError, match="begun with other inputs"):
        build_corpus(checkpoint, QUESTION, [lines], folder, shard_rows=6)
    assert open_corpus(folder).rows == len(LINES)


def test_two_runs_do_not_write_one_store(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")

    def second(done: int, _: int) -> None:
        if done:
            made(checkpoint, lines, "store")

    with pytest.raises(StoreError, match="is being written by another command"):
        made(checkpoint, lines, "store", report=second)


def test_store_that_training_reserved_is_refused(family: Checkpoints, lines: Path) -> None:
    folder = lines.with_name("mine")
    with reserved(folder, False):
        refused = ThreadPoolExecutor(1).submit(made, family("bert"), lines, "mine")
        with pytest.raises(StoreError, match="is being written by another command"):
            refused.result()
    with reserved_store(folder):
        refused = ThreadPoolExecutor(1).submit(write_folder, folder, lambda _: None)
        with pytest.raises(ExportError, match="is being written by another command"):
            refused.result()
        made(family("bert"), lines, "mine")
    assert open_corpus(folder).finished
    assert not list(folder.parent.glob(".bert-probe*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("caf\udce9", "is not UTF-8"),
        ("lines.txt", "cannot be written|holds other things"),
        ("a\0b", "cannot be written"),
        ("loop", "cannot be written"),
    ],
)
def test_store_that_cannot_be_written_is_refused_before_the_inputs_are_read(
    family: Checkpoints, lines: Path, name: str, message: str
) -> None:
    (lines.parent / "loop").symlink_to("loop")
    before = sorted(path.name for path in lines.parent.iterdir())
    with pytest.raises(StoreError, match=message):
        build_corpus(
            family("bert"), QUESTION, [lines], lines.parent / name, watch=Mock(side_effect=AssertionError)
        )
    assert sorted(path.name for path in lines.parent.iterdir()) == before


def test_failed_run_leaves_no_empty_folder(family: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(EmptyTextError):
        build_corpus(family("bert"), QUESTION, [tmp_path / "empty.txt"], tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_store_in_a_folder_whose_parent_is_read_only_is_written() -> None:
    with read_only_folder() as folder:

        def reserve(place: Path) -> None:
            with reserved_store(place):
                assert [*map(is_lock_file, place.iterdir())] == [True]

        assert as_nobody(lambda: reserve(folder / "open")) == "done"
        assert "cannot be written: Permission denied" in as_nobody(lambda: reserve(folder / "new"))
        assert [*(folder / "open").iterdir()] == []


def test_input_that_changes_while_it_is_read_ends_the_run(family: Checkpoints, lines: Path) -> None:
    content = lines.read_bytes()

    def changed(done: int, total: int) -> None:
        if total and done >= 6 and lines.read_bytes() == content:
            lines.write_bytes(content.replace(b"0", b"9"))

    with pytest.raises(TextError, match=r"lines\.txt changed while it was read"):
        made(family("bert"), lines, "store", report=changed)
    store = open_corpus(lines.with_name("store"))
    assert store.records == 6
    assert "9" not in "".join(store.table("rows").to_table()["text"].to_pylist())


def test_input_of_another_format_is_refused_unless_forced(family: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text('{"text": "We left."}\n{"text": "We came."}\n')
    with pytest.raises(TextError, match=r"a\.txt is read as plain text, but it looks like JSON lines"):
        build_corpus(family("bert"), QUESTION, [tmp_path], tmp_path / "store")
    assert build_corpus(family("bert"), QUESTION, [tmp_path], tmp_path / "store", as_named=True).rows == 2


def test_a_folder_of_other_things_is_left_alone(family: Checkpoints, lines: Path) -> None:
    folder = lines.with_name("mine")
    folder.mkdir()
    (folder / "thesis.txt").write_text("Years.")
    with pytest.raises(StoreError, match="holds other things than a store"):
        made(family("bert"), lines, "mine")
    assert [one.name for one in folder.iterdir()] == ["thesis.txt"]
    with pytest.raises(StoreError, match="cannot be written"):
        build_corpus(family("bert"), QUESTION, [lines], folder / "thesis.txt" / "store")


def test_an_empty_corpus_is_none(family: Checkpoints, tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.write_text("\n \n")
    with pytest.raises(EmptyTextError, match="hold no sentences"):
        build_corpus(family("bert"), QUESTION, [file], tmp_path / "store")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "is not there, or is broken"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "is not there, or is broken"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "is no store of a corpus"),
        (lambda folder: _edit(folder / "manifest.json", version=2), "version 2 of a store"),
        (lambda folder: (folder / "rows" / "00001.parquet").unlink(), "is gone or was cut"),
        (lambda folder: (folder / "vectors" / "00001.arrow").write_bytes(b"ARROW1"), "is gone or was cut"),
    ],
)
def test_a_broken_store_is_told(
    change: Callable[[Path], object], said: str, family: Checkpoints, lines: Path
) -> None:
    store = made(family("bert"), lines, "store")
    change(store.folder)
    with pytest.raises(StoreError, match=said):
        open_corpus(store.folder)


def _edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_store_opens_its_own_model(family: Checkpoints, lines: Path) -> None:
    store = made(family("bert"), lines, "store")
    weights = family("bert").description.weights_sha256
    assert store.checkpoint(trust=True).description.weights_sha256 == weights
    assert store.checkpoint(family("bert").folder).description.weights_sha256 == weights
    with pytest.raises(CheckpointError, match=r"was made with .* of digest"):
        store.check(family("roberta"))


def _append(file: Path) -> None:
    with file.open("a") as stream:
        stream.write("\none more line")


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _replace(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes().replace(b"river", b"RIVER"))
    other.replace(file)


def _write_in_place(file: Path) -> None:
    status = file.stat()
    file.write_bytes(file.read_bytes().replace(b"river", b"RIVER"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def _write_in_place_and_set_time_back(file: Path) -> None:
    status = file.stat()
    _write_in_place(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = (_append, _truncate, _replace, _write_in_place, _write_in_place_and_set_time_back, Path.unlink)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", [0, 1, 2])
def test_input_that_changes_while_it_is_read_is_refused(
    change: Callable[[Path], object], moment: int, family: Checkpoints, lines: Path
) -> None:
    """Before the first shard, after it, and after the second."""
    before = lines.read_bytes()
    shards: list[object] = []

    @contextmanager
    def watch(label: str, _unit: str) -> Iterator[Progress]:
        yield no_progress
        if moment == 0 and label == "Looking through":
            change(lines)

    def told(event: object) -> None:
        shards.append(event)
        if len(shards) == moment:
            change(lines)

    with pytest.raises(TextError, match=r"changed while it was read|cannot be opened"):
        made(family("bert"), lines, "store", watch=watch, told=told)
    assert len(shards) == moment
    if moment:
        store = open_corpus(lines.with_name("store"))
        texts = store.table("rows").to_table()["text"].to_pylist()
        assert all(text in before.decode(errors="replace").splitlines() for text in texts)


def test_input_that_is_only_touched_is_read_on(family: Checkpoints, lines: Path) -> None:
    store = made(family("bert"), lines, "store", told=lambda _: os.utime(lines))
    assert store.finished
