"""Test building a corpus store: atomic shards, resumed builds, and errors."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bert_probe
from bert_probe import NearestContexts, VectorSearch
from bert_probe.core.writing import is_lock_file
from bert_probe.corpus import extract, workers
from bert_probe.corpus.build import build_corpus, reserved_store
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.corpus.origin import VectorSample
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
from bert_probe.training.saving import reserve_folder, write_folder
from tests.helpers.command_line import bert_probe as run
from tests.helpers.families import SENTENCES
from tests.helpers.folders import change_config
from tests.helpers.unprivileged import as_nobody, read_only_folder

Checkpoints = Callable[[str], bert_probe.Checkpoint]
QUESTION = IngestConfig(keep=("profiles", "vectors", "neighbors"))
LINES = [f"{text} {number}" for number in range(4) for text in SENTENCES]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.txt"
    file.write_bytes("\n".join([*LINES[:5], "broken \udcff", *LINES[5:]]).encode("utf-8", "surrogateescape"))
    return file


def build(checkpoint: bert_probe.Checkpoint, lines: Path, name: str, **more: object) -> bert_probe.Store:
    return build_corpus(checkpoint, QUESTION, [lines], lines.with_name(name), shard_rows=6, **more)


def tables(store: bert_probe.Store) -> dict[str, pa.Table]:
    return {name: store.table(name).to_table() for name in store.layouts}


def test_interrupted_run_can_be_continued(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")
    straight = build(checkpoint, lines, "straight")
    assert (straight.rows, straight.refusals, len(straight.shards)) == (len(LINES), 1, 5)
    assert straight.finished
    for ending in (0, 7, 13, 20):

        def ended(done: int, total: int, ending: int = ending) -> None:
            if total and done >= ending:
                raise Cancelled

        with pytest.raises(Cancelled):
            build(checkpoint, lines, "resumed", progress=ended)
        assert not open_corpus(lines.with_name("resumed")).finished
    resumed = build(checkpoint, lines, "resumed")
    assert resumed.finished
    assert tables(resumed) == tables(straight)
    assert resumed.digest == straight.digest
    assert not list(resumed.folder.rglob("*.part"))


def test_incomplete_shard_of_killed_run_is_ignored(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")
    store = build(checkpoint, lines, "store")
    digest = store.digest
    # The shard has table files, some of them incomplete, but not the JSON file, which is written last.
    (store.folder / "shards" / "00002.json").unlink()
    (store.folder / "vectors" / ".00002.arrow.0123ab12.part").write_bytes(b"half")
    (store.folder / "vectors" / "00002.arrow").write_bytes(b"cut")
    left = open_corpus(store.folder)
    assert not left.finished
    assert 2 not in [shard.number for shard in left.shards]
    assert left.table("rows").count_rows() == left.rows == len(LINES) - 6
    again = build(checkpoint, lines, "store")
    assert (again.digest, again.rows) == (digest, len(LINES))
    assert not list(store.folder.rglob("*.part"))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("keep", [("profiles", "vectors"), ("profiles", "vectors", "sentence_vectors")])
def test_commands_say_that_a_store_is_incomplete(
    keep: tuple[str, ...], minilm: bert_probe.Checkpoint, lines: Path
) -> None:
    folder = lines.with_name("store")
    question = IngestConfig(keep=keep, layers=(6,))
    build_corpus(minilm, question, [lines], folder, shard_rows=6)
    commands = (
        ("corpus", "heads", str(folder)),
        ("corpus", "health", str(folder), "--threshold", "0.9"),
        ("search", "a boat", "--documents", str(folder)),
        ("corpus", "query", str(folder), "SELECT 1"),
    )
    message = "bert-probe: This store is incomplete: it contains"
    for command in commands[:3]:
        assert message not in run(*command, built_in=minilm).err
    (folder / "shards" / "00002.json").unlink()
    for command in commands:
        result = run(*command, built_in=minilm)
        assert (result.status, result.err.count(message)) == (0, 1), command


def test_finished_store_is_not_computed_again(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")
    build(checkpoint, lines, "store")
    messages: list[object] = []
    assert build(checkpoint, lines, "store", on_shard=messages.append).finished
    assert messages == []


def test_several_workers_give_same_store(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")
    progress: list[tuple[int, int]] = []
    messages: list[dict[str, int]] = []
    several = build(
        checkpoint,
        lines,
        "several",
        workers=3,
        progress=lambda *done: progress.append(done),
        on_shard=lambda message: messages.append(dict(message)),
    )
    assert sorted(message["shard"] for message in messages) == [0, 1, 2, 3, 4]
    assert max(progress) == (len(LINES) + 1, len(LINES) + 1)
    for name, table in tables(build(checkpoint, lines, "alone")).items():
        assert tables(several)[name].equals(table), name


def test_failed_worker_ends_run(family: Checkpoints, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object) -> object:
        if args[2][0].row == 7:
            raise StoreError("The disk is full.")
        return extract.extract_tables(*args)

    monkeypatch.setattr(workers, "extract_tables", failing)
    with pytest.raises(StoreError, match="The disk is full"):
        build(family("bert"), lines, "store", workers=2)
    monkeypatch.undo()
    assert build(family("bert"), lines, "store").rows == len(LINES)


@pytest.mark.parametrize("count", [1, 2])
def test_control_c_explains_how_to_continue(
    count: int, family: Checkpoints, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = lines.with_name("store")
    write, running_now = write_shard, threading.active_count()

    def interrupted(*arguments: Any) -> object:
        if arguments[1] == 2:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(workers, "write_shard", interrupted)
    question = ["corpus", "run", str(lines), f"--out={out}", f"--workers={count}", "--shard-rows=6"]
    ended = run(*question, f"--model={family('bert').folder}")
    assert (ended.status, ended.out) == (130, b"")
    stored = open_corpus(out).records
    assert ended.err == (
        f"bert-probe: Interrupted. {stored} of {len(LINES) + 1} sentences are in {out}. "
        "Run the same command to continue.\n"
    )
    assert stored >= (12 if count == 1 else 6)
    assert threading.active_count() == running_now  # No worker is still writing.


def test_full_disk_raises_readable_error_without_partial_files(
    family: Checkpoints, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pq.write_table

    def full(table: pa.Table, part: Path, **options: Any) -> None:
        if "00002" in part.name and part.parent.name == "profiles":
            part.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(table, part, **options)

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(
        StoreError, match=r"No space left on device\. Free some space, or choose another path"
    ):
        build(family("bert"), lines, "store")
    monkeypatch.undo()
    folder = lines.with_name("store")
    assert open_corpus(folder).records == 12
    assert not list(folder.rglob("*.part"))
    assert build(family("bert"), lines, "store").finished


def test_each_phase_reports_progress(family: Checkpoints, lines: Path) -> None:
    events: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def watch(label: str, unit: str) -> Iterator[Progress]:
        messages = events.setdefault(f"{label} {unit}", [])
        yield lambda *done: messages.append(done)

    build(family("bert"), lines, "store", watch=watch)
    size, count = lines.stat().st_size, len(LINES) + 1
    assert list(events) == ["Hashing B", "Counting sentences", "Reading sentences"]
    assert events["Hashing B"] == [(size, size)]
    assert events["Reading sentences"][0] == (0, count)
    assert events["Reading sentences"][-1] == (count, count)


def test_other_configuration_cannot_continue_store(family: Checkpoints, lines: Path) -> None:
    checkpoint, folder = family("bert"), lines.with_name("store")
    build(checkpoint, lines, "store")
    with pytest.raises(SelectionError, match="started with different layers or tables"):
        build_corpus(checkpoint, IngestConfig(keep=("profiles",)), [lines], folder, shard_rows=6)
    with pytest.raises(SelectionError, match="a different number of rows per shard"):
        build_corpus(checkpoint, QUESTION, [lines], folder, shard_rows=7)
    with pytest.raises(SelectionError, match="started with a different model"):
        build_corpus(family("roberta"), QUESTION, [lines], folder, shard_rows=6)
    lines.write_text("Another line.")
    with pytest.raises(SelectionError, match="started with different inputs"):
        build_corpus(checkpoint, QUESTION, [lines], folder, shard_rows=6)
    assert open_corpus(folder).rows == len(LINES)


def test_concurrent_run_is_refused(family: Checkpoints, lines: Path) -> None:
    checkpoint = family("bert")

    def second(done: int, _: int) -> None:
        if done:
            build(checkpoint, lines, "store")

    with pytest.raises(StoreError, match="is being written by another command"):
        build(checkpoint, lines, "store", progress=second)


def test_store_reserved_by_training_is_refused(family: Checkpoints, lines: Path) -> None:
    folder = lines.with_name("mine")
    with reserve_folder(folder, False):
        refused = ThreadPoolExecutor(1).submit(build, family("bert"), lines, "mine")
        with pytest.raises(StoreError, match="is being written by another command"):
            refused.result()
    with reserved_store(folder):
        refused = ThreadPoolExecutor(1).submit(write_folder, folder, lambda _: None)
        with pytest.raises(ExportError, match="is being written by another command"):
            refused.result()
        build(family("bert"), lines, "mine")
    assert open_corpus(folder).finished
    assert not list(folder.parent.glob(".bert-probe*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("caf\udce9", "is not UTF-8"),
        ("lines.txt", "cannot be written|contains files"),
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

    with pytest.raises(TextError, match=r"lines\.txt changed during the run"):
        build(family("bert"), lines, "store", progress=changed)
    store = open_corpus(lines.with_name("store"))
    assert store.records == 6
    assert "9" not in "".join(store.table("rows").to_table()["text"].to_pylist())


def test_input_in_other_format_is_refused_unless_forced(family: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text('{"text": "We left."}\n{"text": "We came."}\n')
    with pytest.raises(TextError, match=r"a\.txt is read as plain text, but it looks like JSON lines"):
        build_corpus(family("bert"), QUESTION, [tmp_path], tmp_path / "store")
    assert build_corpus(family("bert"), QUESTION, [tmp_path], tmp_path / "store", as_named=True).rows == 2


def test_folder_with_other_files_is_refused(family: Checkpoints, lines: Path) -> None:
    folder = lines.with_name("mine")
    folder.mkdir()
    (folder / "thesis.txt").write_text("Years.")
    with pytest.raises(StoreError, match="contains files that do not belong to a store"):
        build(family("bert"), lines, "mine")
    assert [file.name for file in folder.iterdir()] == ["thesis.txt"]
    with pytest.raises(StoreError, match="cannot be written"):
        build_corpus(family("bert"), QUESTION, [lines], folder / "thesis.txt" / "store")


def test_run_that_was_killed_in_its_first_manifest_is_continued(family: Checkpoints, lines: Path) -> None:
    folder, reference = lines.with_name("store"), build(family("bert"), lines, "reference")
    folder.mkdir()
    partial = folder / ".manifest.json.0123abcd.part"
    partial.write_text("{")
    assert build(family("bert"), lines, "store").rows == reference.rows
    assert not partial.exists()


def test_partial_files_of_the_first_shard_are_removed(family: Checkpoints, lines: Path) -> None:
    store, folder = build(family("bert"), lines, "store"), lines.with_name("store")
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "manifest.json":
            file.unlink()
    partial = folder / ".heads.parquet.0123abcd.part"
    partial.write_text("PAR1")
    assert build(family("bert"), lines, "store").rows == store.rows
    assert not partial.exists()


def test_store_whose_folder_is_a_link_is_not_continued(family: Checkpoints, lines: Path) -> None:
    build(family("bert"), lines, "store")
    store, elsewhere = lines.with_name("store"), lines.with_name("elsewhere")
    (store / "rows").rename(elsewhere)
    (store / "rows").symlink_to(elsewhere)
    content = {file: file.read_bytes() for file in elsewhere.iterdir()}
    with pytest.raises(StoreError, match=r"rows is a symbolic link, and nothing is written"):
        build(family("bert"), lines, "store")
    assert {file: file.read_bytes() for file in elsewhere.iterdir()} == content
    assert open_corpus(store).records


def test_only_temporary_files_of_a_run_are_removed(family: Checkpoints, lines: Path) -> None:
    build(family("bert"), lines, "store")
    store = lines.with_name("store")
    kept, removed = store / ".movie.part", store / "rows" / ".00000.parquet.0123abcd.part"
    for file in (kept, removed):
        file.touch()
    build(family("bert"), lines, "store")
    assert [kept.exists(), removed.exists()] == [True, False]


def test_empty_corpus_is_refused(family: Checkpoints, tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.write_text("\n \n")
    with pytest.raises(EmptyTextError, match="contain no sentences"):
        build_corpus(family("bert"), QUESTION, [file], tmp_path / "store")


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "is missing or broken"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "is missing or broken"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "is not a corpus store"),
        (
            lambda folder: _edit(folder / "manifest.json", version=2),
            "store version 2, .* reads store version 3",
        ),
        (lambda folder: _edit(folder / "manifest.json", version=4), "store version 4"),
        (lambda folder: (folder / "rows" / "00001.parquet").unlink(), "is missing or truncated"),
        (
            lambda folder: (folder / "vectors" / "00001.arrow").write_bytes(b"ARROW1"),
            "is missing or truncated",
        ),
    ],
)
def test_broken_store_raises_readable_error(
    change: Callable[[Path], object], expected: str, family: Checkpoints, lines: Path
) -> None:
    store = build(family("bert"), lines, "store")
    change(store.folder)
    with pytest.raises(StoreError, match=expected):
        open_corpus(store.folder)


def _edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_store_opens_its_own_model(family: Checkpoints, lines: Path) -> None:
    store = build(family("bert"), lines, "store")
    weights = family("bert").description.weights_sha256
    assert store.checkpoint(trust=True).description.weights_sha256 == weights
    assert store.checkpoint(family("bert").folder).description.weights_sha256 == weights
    with pytest.raises(CheckpointError, match=r"was built with .* \(weights digest"):
        store.check(family("roberta"))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("words", [False, True])
def test_store_is_not_used_with_a_changed_tokenizer(words: bool, family: Checkpoints, lines: Path) -> None:
    folder = shutil.copytree(family("bert").folder or "", lines.with_name("model"))
    question = IngestConfig(keep=("vectors", "sentence_vectors"), words=words)

    def build_store() -> bert_probe.Store:
        return build_corpus(bert_probe.load(folder), question, [lines], lines.with_name("store"))

    store = build_store()
    original, vectors = store.checkpoint(trust=True), bert_probe.read_vectors(store.folder)
    word = original.encode(LINES[0]).tokens[1].display
    assert NearestContexts(word).of(store, original.trace(LINES[0])).contexts
    assert VectorSearch("a boat").of(original, vectors).documents

    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(
        json.dumps(tokenizer | {"normalizer": None, "pre_tokenizer": None})
    )
    changed = bert_probe.load(folder)
    expected = r"store was built with another tokenizer: .* splits row 1 into other tokens\. Open the model"
    with pytest.raises(CheckpointError, match=expected):
        store.checkpoint(trust=True)
    with pytest.raises(CheckpointError, match=expected):
        NearestContexts(word).of(store, changed.trace(LINES[0]))
    with pytest.raises(CheckpointError, match=expected):
        VectorSearch("a boat").of(changed, vectors)
    with pytest.raises(CheckpointError, match=expected):
        build_store()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("keep", [("vectors",), ("sentence_vectors",)])
def test_store_is_not_used_with_changed_settings(
    keep: tuple[str, ...], dtype: str, family: Checkpoints, lines: Path
) -> None:
    """The digest of the weights does not cover config.json."""
    folder = shutil.copytree(family("bert").folder or "", lines.with_name("model"))
    question = IngestConfig(keep=keep, dtype=dtype)
    store = build_corpus(bert_probe.load(folder), question, [lines], lines.with_name("store"))

    def use() -> None:
        checkpoint = bert_probe.load(folder)
        if keep == ("vectors",):
            word = checkpoint.encode(LINES[0]).tokens[1].display
            NearestContexts(word).of(store, checkpoint.trace(LINES[0]))
        else:
            VectorSearch("a boat").of(checkpoint, bert_probe.read_vectors(store.folder))

    use()
    change_config(folder, layer_norm_eps=1e-11)
    use()
    change_config(folder, hidden_act="relu")
    expected = (
        r"store was built with other settings of the model: .* another vector for row 2\. Open the model"
    )
    with pytest.raises(CheckpointError, match=expected):
        use()
    if keep == ("vectors",):
        with pytest.raises(CheckpointError, match=expected):
            build_corpus(bert_probe.load(folder), question, [lines], store.folder)


def check_settings(store: bert_probe.Store, checkpoint: bert_probe.Checkpoint) -> None:
    """Check a model with the vectors that a store contains: of tokens or of sentences."""
    if store.has("vectors"):
        store.check(checkpoint)
    else:
        VectorSearch("a boat").of(checkpoint, bert_probe.read_vectors(store.folder))


@pytest.mark.parametrize("keep", [("vectors",), ("sentence_vectors",)])
def test_settings_are_checked_with_a_long_row(
    keep: tuple[str, ...], family: Checkpoints, tmp_path: Path
) -> None:
    """An attention window changes only the vectors of texts that are longer than the window."""
    folder = shutil.copytree(family("mistral").folder or "", tmp_path / "model")
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(["boat", "a boat", "the boat " * 20, "the boat"]))
    store = build_corpus(bert_probe.load(folder), IngestConfig(keep=keep), [lines], tmp_path / "store")
    change_config(folder, sliding_window=2)
    checkpoint = bert_probe.load(folder)
    with pytest.raises(CheckpointError, match="another vector for row 3"):
        check_settings(store, checkpoint)


@pytest.mark.parametrize("keep", [("vectors",), ("sentence_vectors",)])
def test_settings_are_checked_if_all_rows_are_long(
    keep: tuple[str, ...], family: Checkpoints, tmp_path: Path
) -> None:
    folder = shutil.copytree(family("bert").folder or "", tmp_path / "model")
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(["the boat " * 130, "a river " * 127]))
    question = IngestConfig(keep=keep, truncate=True)
    store = build_corpus(bert_probe.load(folder), question, [lines], tmp_path / "store", shard_rows=1)
    store.check(bert_probe.load(folder))
    change_config(folder, hidden_act="relu")
    changed = bert_probe.load(folder)
    with pytest.raises(CheckpointError, match="other settings of the model"):
        check_settings(store, changed)


@pytest.mark.parametrize("shape", [(3, 4), (4, 3)])
def test_vectors_of_another_shape_show_that_the_store_is_broken(
    shape: tuple[int, int], family: Checkpoints
) -> None:
    sample = VectorSample("mine", 2, "text", "float32", np.ones(shape, np.float32))
    expected = rf"mine is broken: row 2 has vectors of shape \[{shape[0]}, {shape[1]}\] instead of \[4, 4\]"
    with pytest.raises(StoreError, match=expected):
        sample.check(family("bert"), np.ones((4, 4), np.float32))


def test_shard_whose_rows_were_refused_has_no_sentence_vectors(family: Checkpoints, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("a boat\n\u200b\nthe sea\n")
    question = IngestConfig(keep=("sentence_vectors",))
    store = build_corpus(family("bert"), question, [lines], tmp_path / "store", shard_rows=1)
    assert bert_probe.read_vectors(store.folder).vectors.shape == (2, 32)


def test_few_vectors_may_differ(family: Checkpoints) -> None:
    """In bfloat16, single vectors differ by more than 5% between batches."""
    checkpoint, vectors = family("bert"), np.eye(4, dtype=np.float32)
    stored = vectors.copy()
    stored[3] = np.inf  # out of the range of float16
    sample = VectorSample("store", 1, "text", checkpoint.description.dtype, stored)
    for scales in ([1, 1, 1], [1.04, 1, 0.96], [1, 1, 1.06]):
        sample.check(checkpoint, vectors * np.float32([*scales, 1])[:, None])
    with pytest.raises(CheckpointError, match="another vector for row 1"):
        sample.check(checkpoint, vectors * np.float32([1.06, 1, 0.94, 1])[:, None])


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


@pytest.mark.gate(cases=6)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", [0, 1, 2])
def test_input_that_changes_while_it_is_read_is_refused(
    change: Callable[[Path], object], moment: int, family: Checkpoints, lines: Path
) -> None:
    """The input file changes before the first shard, after the first, or after the second."""
    before = lines.read_bytes()
    shards: list[object] = []

    @contextmanager
    def watch(label: str, _unit: str) -> Iterator[Progress]:
        yield no_progress
        if moment == 0 and label == "Hashing":
            change(lines)

    def on_shard(event: object) -> None:
        shards.append(event)
        if len(shards) == moment:
            change(lines)

    with pytest.raises(TextError, match=r"changed during the run|cannot be opened"):
        build(family("bert"), lines, "store", watch=watch, on_shard=on_shard)
    assert len(shards) == moment
    if moment:
        store = open_corpus(lines.with_name("store"))
        texts = store.table("rows").to_table()["text"].to_pylist()
        assert all(text in before.decode(errors="replace").splitlines() for text in texts)


def test_touched_input_is_not_a_change(family: Checkpoints, lines: Path) -> None:
    store = build(family("bert"), lines, "store", on_shard=lambda _: os.utime(lines))
    assert store.finished


def test_sentences_of_a_store_are_documents_of_a_search(family: Checkpoints, lines: Path) -> None:
    store = build(family("bert"), lines, "store")
    rows = store.table("rows").to_table()
    assert [(document.id, str(document)) for document in store.documents] == [
        (str(row), text) for row, text in zip(rows["row"].to_pylist(), rows["text"].to_pylist(), strict=True)
    ]
    answer = run("search", "boat", "--documents", str(store.folder), "--scorers", "bm25")
    expected = bert_probe.Search("boat", ("bm25",)).of(family("bert"), store.documents).table()
    assert [record["document"] for record in answer.records] == list(expected["document"])
