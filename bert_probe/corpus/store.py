"""A store: a folder of tables, made of shards that are whole or not there; see docs/store.md."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.core.provenance import InputRecord
from bert_probe.corpus.ingest import NEIGHBOURS, PROFILES, VECTORS, IngestConfig
from bert_probe.corpus.manifest import SHARDS, read_manifest, read_shard
from bert_probe.corpus.table_files import TableFile
from bert_probe.corpus.tables import REFUSALS, ROWS, STATISTICS, TOKENS, Tables, TableSchema, layouts
from bert_probe.errors import CheckpointError, ProbeError, StoreError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import built_in_digest

_PART = ".part"


@dataclass(frozen=True)
class StoreDimensions:
    """What numbers of layers and heads are read against, as a checkpoint's description is."""

    layers: int
    heads: int


@dataclass(frozen=True)
class Shard:
    """What is written last of a shard, and says that it is there.

    Attributes:
        number: from 0.
        first: number of its first record, from 1; the others follow.
        records, rows, tokens, refusals: how many it holds; rows are the records that were read, tokens the
            units that its numbers are of.
        files: name of a table → bytes and SHA-256 of its file.
    """

    number: int
    first: int
    records: int
    rows: int
    tokens: int
    refusals: int
    files: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """Of its files, without their endings."""
        return f"{self.number:05}"


@dataclass(frozen=True, eq=False)
class Store:
    """A folder of tables that somebody gathered; reading it changes nothing.

    Attributes:
        folder: where it lies.
        manifest: what was asked, of which model and of which files.
        shards: those that are whole, in order.
    """

    folder: Path
    manifest: Mapping[str, Any]
    shards: tuple[Shard, ...]

    @cached_property
    def question(self) -> IngestConfig:
        """What was gathered of each sentence."""
        return IngestConfig.from_json(self.manifest["question"], self.sizes)

    @property
    def sizes(self) -> StoreDimensions:
        """Layers of the model, and heads in each."""
        return StoreDimensions(self.manifest["sizes"]["layers"], self.manifest["sizes"]["heads"])

    @property
    def max_tokens(self) -> int | None:
        """The longest input of the model."""
        longest: int | None = self.manifest["sizes"]["max_tokens"]
        return longest

    @cached_property
    def layouts(self) -> dict[str, TableSchema]:
        """Its tables."""
        return layouts(self.question, self.manifest["sizes"]["hidden_size"])

    @property
    def layers(self) -> tuple[int, ...]:
        """Whose vectors it holds, from 0, which is the output of the embeddings."""
        return (self.question.layers or ()) if self.has("vectors") else ()

    @property
    def finished(self) -> bool:
        """Whether all of the inputs have been read."""
        return self.records == int(self.manifest["records"])

    @property
    def records(self) -> int:
        """Those that have been read, or refused."""
        return sum(shard.records for shard in self.shards)

    @property
    def rows(self) -> int:
        """Sentences in it."""
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens in it, or words where pieces are merged."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def refusals(self) -> int:
        """Records that were not read."""
        return sum(shard.refusals for shard in self.shards)

    @cached_property
    def shard_of(self) -> Callable[[int], int]:
        """Row → which of the shards holds it, from 0, as `shards` and `files` have them.

        Whoever keeps this function does not keep the store.
        """
        firsts = [shard.first for shard in self.shards]
        return lambda row: bisect_right(firsts, row) - 1

    def has(self, table: str) -> bool:
        """Whether it holds such a table."""
        return table in self.layouts

    def files(self, table: str) -> list[Path]:
        """Those of a table, a shard each, in order.

        Raises:
            UnavailableError: it holds no such table.
        """
        if not self.has(table):
            raise UnavailableError(
                f"{self.folder.name} holds no {table}; it has {', '.join(self.layouts)}. "
                f"Run the corpus with --keep {','.join([*self.question.keep, table])}."
            )
        return [place(self.folder, table, self.layouts[table], shard.name) for shard in self.shards]

    def table(self, name: str) -> ds.Dataset:
        """A table of all shards, read as it is asked for.

        Raises:
            UnavailableError: it holds no such table.
        """
        layout = self.layouts.get(name)
        files = [str(file) for file in self.files(name)]
        assert layout is not None  # `files` saw to it
        kind = "ipc" if layout.ending == "arrow" else "parquet"
        return ds.dataset(files, layout.schema, format=kind)

    @property
    def unfamiliar_model(self) -> str | None:
        """The model that the manifest names, or None where the built-in model made the store.

        A manifest may be a stranger's, so `checkpoint` opens this model only with the consent of the reader.
        """
        model = self.manifest["model"]
        if model["weights_sha256"] == built_in_digest():
            return None
        revision = f" at {model['revision']}" if model["revision"] else ""
        return f"{model['model']}{revision}"

    def checkpoint(
        self,
        model: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        *,
        trust: bool = False,
        device: str = "auto",
    ) -> Checkpoint:
        """Open the model that the store was made with.

        Args:
            model, revision: opened instead of the model that the manifest names; the weights must be equal.
            trust: open the model that the manifest names. The built-in model is opened without it.

        Raises:
            CheckpointError: ``trust`` is needed, the model cannot be opened, or it has other weights.
        """
        about = self.manifest["model"]
        if model is None and self.unfamiliar_model is not None:
            if not trust:
                raise CheckpointError(
                    f"{self.folder.name} names the model {self.unfamiliar_model}, which is opened only if "
                    "you agree, as a store may be a stranger's. Name a model yourself, or pass trust=True."
                )
            model, revision = about["model"], about["revision"]
        from bert_probe.model.loading import load

        checkpoint = load(model, revision, device=device, dtype=about["dtype"])
        self.check(checkpoint)
        return checkpoint

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse another model than the one that it was made with.

        Raises:
            CheckpointError: it is another one.
        """
        theirs, ours = checkpoint.description.weights_sha256, self.manifest["model"]["weights_sha256"]
        if theirs != ours:
            raise CheckpointError(
                f"{self.folder.name} was made with {self.manifest['model']['model']} of digest {ours[:12]}…, "
                f"and {checkpoint.description.name} has {theirs[:12]}…. Open the model of that digest, or "
                "run the corpus again."
            )

    @property
    def inputs(self) -> InputRecord:
        """Who is asked where this store is."""
        return InputRecord.of_store(self.manifest["model"], self.folder.name, self.rows, self.digest)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all its shards' digests, and so of all numbers in it."""
        every = [dict(shard.files) for shard in self.shards]
        return hashlib.sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()


def open_corpus(folder: str | os.PathLike[str]) -> Store:
    """A store that is there, finished or not.

    Sizes, columns and numbers of rows of its files are compared with what the store says; all bytes only of
    files that were modified since. `verify_corpus` compares the bytes of all files.

    Raises:
        StoreError: no store, a newer one, or one whose files are gone, cut or changed.
    """
    store = read_store(folder)
    for file in table_files(store):
        if problem := file.problem():
            raise StoreError(
                f"{file.path} {problem}. Copy it again from where the store was made; or delete "
                f"{store.folder / SHARDS / file.path.stem}.json and run the corpus again, which makes this "
                "shard anew."
            )
    return store


def read_store(folder: str | os.PathLike[str]) -> Store:
    """Return a store of which only the JSON files are read.

    Raises:
        StoreError: one of them is not there, is broken, or contradicts another.
    """
    path = Path(folder)
    store = Store(path, read_manifest(path), ())
    try:
        tables = store.layouts
    except (ProbeError, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        reason = str(error)[:200] if isinstance(error, ProbeError) else "it is not one of corpus run"
        raise StoreError(f"The question in the manifest of {path} cannot be read: {reason}") from None
    if store.has(VECTORS) and not store.question.layers:
        raise StoreError(f"The question in the manifest of {path} keeps vectors, but of no layer.")
    store = replace(store, shards=shards_in(path, tables))
    for before, after in pairwise(store.shards):
        if after.first < before.first + before.records:
            raise StoreError(
                f"Shards {before.name} and {after.name} of {path} hold the same rows. Run the corpus again."
            )
    return store


def shards_in(folder: Path, tables: Mapping[str, TableSchema]) -> tuple[Shard, ...]:
    """Those that are whole, in order."""
    found = [Shard(**read_shard(file, tables)) for file in (folder / SHARDS).glob("[0-9]*.json")]
    return tuple(sorted(found, key=lambda one: one.number))


def table_files(store: Store) -> Iterator[TableFile]:
    """The files of a store's tables, shard by shard, with what is known of them."""
    heads = store.sizes.layers * store.sizes.heads
    for shard in store.shards:
        written = (store.folder / SHARDS / f"{shard.name}.json").stat().st_mtime_ns
        rows = {
            ROWS: shard.rows,
            TOKENS: shard.tokens,
            REFUSALS: shard.refusals,
            PROFILES: shard.rows * heads,
            STATISTICS: heads * len(MEASURES),
            VECTORS: shard.tokens * len(store.layers),
            NEIGHBOURS: shard.tokens * heads,
        }
        for table, layout in store.layouts.items():
            about = shard.files[table]
            path = place(store.folder, table, layout, shard.name)
            yield TableFile(path, layout, rows.get(table), about["bytes"], about["sha256"], written)


def place(folder: Path, table: str, layout: TableSchema, shard: str) -> Path:
    """Where a table of a shard lies."""
    return folder / table / f"{shard}.{layout.ending}"


def write_shard(
    folder: Path, number: int, first: int, records: int, tables: Tables, layout: Mapping[str, TableSchema]
) -> Shard:
    """Put a shard's tables into their places, and say last that it is there.

    Args:
        first, records: see `Shard`.

    Raises:
        StoreError: they cannot be written.
    """
    name = f"{number:05}"
    with written(folder):
        files = {
            table: _write_table(place(folder, table, layout[table], name), tables[table]) for table in layout
        }
        shard = Shard(
            number,
            first,
            records,
            tables["rows"].num_rows,
            tables["tokens"].num_rows,
            tables["refusals"].num_rows,
            files,
        )
        write_json(folder / SHARDS / f"{name}.json", vars(shard))
    return shard


def _write_table(file: Path, table: pa.Table) -> dict[str, Any]:
    with beside(file) as part:
        if file.suffix == ".arrow":
            with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        else:
            pq.write_table(table, part, compression="zstd", compression_level=1)
        with part.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())
        size = part.stat().st_size
    return {"bytes": size, "sha256": digest}


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """A file of JSON, whole or not at all."""
    with beside(file) as part, part.open("w", encoding="utf-8") as stream:
        json.dump(content, stream, ensure_ascii=False, indent=1)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def beside(file: Path) -> Iterator[Path]:
    """Where a file is written first; it takes its place when the block ends well."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}{_PART}")
    try:
        yield part
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Take away what a run that was ended left half-written; nobody else may be writing."""
    for part in folder.rglob(f".*{_PART}"):
        with suppress(OSError):
            part.unlink()


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Says in a sentence why a store cannot be written.

    Raises:
        StoreError: in the place of what the system said.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Make room, or choose another place" if full else "Choose another place"
        reason = os.strerror(error.errno) if error.errno else error
        raise StoreError(f"{folder} cannot be written: {reason}. {remedy}; what is whole is kept.") from None
