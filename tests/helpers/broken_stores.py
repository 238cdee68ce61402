"""Named modifications that damage a store, like one from an untrusted source."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import bert_probe
from bert_probe.corpus.contexts import around, unrelated_cosines
from bert_probe.errors import ProbeError

TABLES = ("rows", "tokens", "profiles", "statistics", "vectors", "neighbors", "refusals")
Change = Callable[[Path], object]

WRONG: tuple[object, ...] = (None, True, -1, 1.5, 2**70, "", [], {}, "12", [None], {"a": {}})
"""Values to write into a manifest. Each is invalid for most members, by its type or its range."""


def edit(file: Path, path: str, *value: object) -> None:
    """Set or, without a value, remove a member of a JSON file; its path is, for example, "sizes.layers"."""
    content = json.loads(file.read_text())
    *parents, name = path.split(".")
    place: Any = content
    for parent in parents:
        place = place[parent]
    if value:
        place[name] = value[0]
    else:
        del place[name]
    file.write_text(json.dumps(content))


def member_paths(content: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yield the paths of all members of a JSON object."""
    for name, value in content.items():
        yield f"{within}{name}"
        if isinstance(value, dict):
            yield from member_paths(value, f"{within}{name}.")


def flip_bytes(file: Path, count: int = 200) -> None:
    """Change bytes in the middle of a file, but not its size or modification time."""
    status = file.stat()
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    for place in range(middle, min(middle + count, len(content))):
        content[place] ^= 0xFF
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def rewrite(folder: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite a table of the first shard, and update its size and digest in the shard's file."""
    file = next((folder / table).glob("00000.*"))
    if file.suffix == ".arrow":
        with pa.OSFile(str(file)) as source:
            old = pa.ipc.open_file(source).read_all()
        new = change(old)
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, new.schema) as writer:
            writer.write_table(new)
    else:
        pq.write_table(change(pq.read_table(file, partitioning=None)), file)
    shard = folder / "shards" / "00000.json"
    content = file.read_bytes()
    edit(shard, f"files.{table}.bytes", len(content))
    edit(shard, f"files.{table}.sha256", hashlib.sha256(content).hexdigest())


def set_null(name: str) -> Callable[[pa.Table], pa.Table]:
    """Return a function that sets the first cell of a table's column to null."""

    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        column = table.column(place)
        none = pa.nulls(min(1, len(column)), column.type)
        return table.set_column(
            place, table.schema.field(place), pa.chunked_array([none, *column[1:].chunks])
        )

    return change


def cast_column(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    """Return a function that replaces a table's column by nulls of another type."""

    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        return table.set_column(place, name, pa.nulls(len(table), kind))

    return change


def describe_store(store: bert_probe.Store) -> tuple[object, ...]:
    """Return all that pages and commands read from a store's JSON files."""
    return store.inputs, store.finished, store.tokens, store.digest, store.named_model, store.max_tokens


def error_messages(folder: Path, checkpoint: bert_probe.Checkpoint) -> Iterator[str]:
    """Run every kind of request on a store, and yield the messages of BERT Probe's errors."""
    try:
        store = bert_probe.open_corpus(folder)
        describe_store(store)
    except ProbeError as error:
        yield str(error)
        return
    layer = store.layers[-1]
    questions: tuple[Callable[[], object], ...] = (
        lambda: bert_probe.HeadStatistics().of(store).table(),
        lambda: bert_probe.HeadHistograms("entropy_bits").of(store).table(),
        lambda: bert_probe.HeadExamples((0, 0), "entropy_bits", "lowest").of(store).table(),
        lambda: bert_probe.AttentionSearch((0, 0), key_pos="NOUN").of(store).table(),
        lambda: bert_probe.SqlQuery("SELECT * FROM rows").of(store).table(),
        lambda: (
            bert_probe.NearestContexts("boat", every=True).of(store, checkpoint.trace("the boat")).table()
        ),
        lambda: around(store, layer, ((1, 2), (2, 2))),
        lambda: unrelated_cosines(store, layer),
    )
    for question in questions:
        try:
            question()
        except ProbeError as error:
            yield str(error)
