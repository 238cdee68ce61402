"""Open, read and write a store: a folder of tables that are split into shards (see docs/store.md)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bert_probe.analyses.attention.heads import MEASURES
from bert_probe.core.provenance import InputRecord
from bert_probe.core.snippets import url_parameters
from bert_probe.corpus.inputs import NEIGHBORS, PROFILES, SENTENCE_VECTORS, VECTORS, IngestConfig
from bert_probe.corpus.origin import TokenSample, check_model
from bert_probe.corpus.schema import (
    REFUSALS,
    ROWS,
    SHARDS,
    STATISTICS,
    TOKENS,
    TableFile,
    Tables,
    TableSchema,
    exceeds_ratio,
    layouts,
    read_manifest,
    read_shard,
    store_errors,
)
from bert_probe.errors import CheckpointError, ProbeError, StoreError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import built_in_digest
from bert_probe.model.trace import Array
from bert_probe.text.documents import Document, DocumentList
from bert_probe.text.sentence_files import MAX_SENTENCES, is_utf_8

_PARTIAL = ".part"
"""Suffix of the temporary name of a file while it is written."""


@dataclass(frozen=True)
class StoreDimensions:
    """Number of layers of a store's model, and number of heads in each layer."""

    layers: int
    heads: int


@dataclass(frozen=True)
class Shard:
    """The description of a complete shard. It is stored in a JSON file, which is written last.

    Attributes:
        number: index of the shard, from 0.
        first: number of the first record, from 1; the other records follow without gaps.
        records: number of input records.
        rows: number of accepted records, which are the sentences of the shard.
        tokens: number of tokens, or of words if the store merges tokens into words.
        refusals: number of rejected records.
        files: size ("bytes") and digest ("sha256") of each table's file, by table name.
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
        """File name of the shard without its extension, such as "00003"."""
        return f"{self.number:05}"


@dataclass(frozen=True, eq=False)
class Store:
    """A read-only view of a corpus store, which is a folder of tables.

    Attributes:
        folder: path of the store.
        manifest: the configuration of the run, its model and its input files.
        shards: the complete shards, in order.
    """

    folder: Path
    manifest: Mapping[str, Any]
    shards: tuple[Shard, ...]
    _checked: set[str] = field(default_factory=set, init=False, repr=False)  # tables whose files were checked

    @cached_property
    def question(self) -> IngestConfig:
        """The configuration of the run, which states what was extracted from each sentence."""
        return IngestConfig.from_json(self.manifest["question"], self.sizes)

    @property
    def sizes(self) -> StoreDimensions:
        """Number of layers of the model, and number of attention heads in each layer."""
        return StoreDimensions(self.manifest["sizes"]["layers"], self.manifest["sizes"]["heads"])

    @property
    def max_tokens(self) -> int | None:
        """Maximum input length of the model in tokens."""
        max_tokens: int | None = self.manifest["sizes"]["max_tokens"]
        return max_tokens

    @cached_property
    def layouts(self) -> dict[str, TableSchema]:
        """Schemas of all tables of the store, by table name."""
        size = (self.manifest["sentence_vectors"] or {}).get("size")
        return layouts(self.question, self.manifest["sizes"]["hidden_size"], size)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose vectors are stored; 0 is the output of the embeddings."""
        return (self.question.layers or ()) if self.has("vectors") else ()

    @property
    def finished(self) -> bool:
        """Whether the run has processed all records of its inputs."""
        return self.records == int(self.manifest["records"])

    @property
    def records(self) -> int:
        """Number of processed records, including rejected ones."""
        return sum(shard.records for shard in self.shards)

    @property
    def rows(self) -> int:
        """Number of sentences in the store."""
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Number of tokens in the store, or of words if tokens are merged into words."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def refusals(self) -> int:
        """Number of rejected records."""
        return sum(shard.refusals for shard in self.shards)

    @cached_property
    def shard_of(self) -> Callable[[int], int]:
        """A function that maps a row number to the index of the row's shard in `shards` and `files`.

        The function does not refer to the store, so caching the function does not keep the store in memory.
        """
        first_records = [shard.first for shard in self.shards]
        return lambda row: bisect_right(first_records, row) - 1

    def has(self, table: str) -> bool:
        """Return whether the store has a table of this name."""
        return table in self.layouts

    def files(self, table: str) -> list[Path]:
        """Return the files of a table, one per shard, in order. Their content is checked the first time.

        Raises:
            UnavailableError: the store does not have this table.
            StoreError: the columns, the number of rows or the decoded size of a file are not as expected.
        """
        if not self.has(table):
            raise UnavailableError(
                f"{self.folder.name} has no table {table}. Its tables are {', '.join(self.layouts)}. "
                f"Build the store again with --keep {','.join([*self.question.keep, table])}."
            )
        if table not in self._checked:
            for file in table_files(self, [table]):
                if problem := file.problem():
                    raise _broken(self, file, problem)
            self._checked.add(table)
        return [table_path(self.folder, table, self.layouts[table], shard.name) for shard in self.shards]

    def table(self, name: str) -> ds.Dataset:
        """Return a table over all shards as a lazily read Arrow dataset.

        Raises:
            UnavailableError, StoreError: see `files`.
        """
        files = [str(file) for file in self.files(name)]
        schema = self.layouts[name]
        return ds.dataset(files, schema.schema, format="ipc" if schema.ending == "arrow" else "parquet")

    @property
    def documents(self) -> DocumentList:
        """The sentences of the store as documents for `Search`; their IDs are the numbers of their rows.

        Raises:
            StoreError: the store has more than `MAX_SENTENCES` sentences, or a broken table.
        """
        if self.rows > MAX_SENTENCES:
            raise StoreError(
                f"{self.folder.name} has {self.rows:,} sentences, but a search without stored vectors "
                f"supports at most {MAX_SENTENCES:,}. Build the store with --keep {SENTENCE_VECTORS} to "
                "search all sentences."
            )
        with store_errors(self.folder.name):
            batches = self.table(ROWS).to_batches(columns=["row", "text"])
            rows = [(row["row"], row["text"]) for batch in batches for row in batch.to_pylist()]
            return DocumentList(Document(text, str(number)) for number, text in rows)

    @property
    def named_model(self) -> str | None:
        """Name and revision of the store's model, or None if the store was built with the built-in model.

        The manifest is untrusted, so `checkpoint` opens this model only with the user's consent.
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
        """Open the model that the store was built with.

        Args:
            model: the model to open instead of the model in the manifest. It must have the same weights.
            revision: branch, tag or commit of ``model``.
            trust: whether to open the model that the manifest names. The built-in model needs no consent.
            device: "auto", "cpu" or a CUDA device.

        Raises:
            CheckpointError: opening the model requires ``trust``, the model cannot be opened, or its weights
                differ from the weights that the store was built with.
        """
        model_record = self.manifest["model"]
        if model is None and self.named_model is not None:
            if not trust:
                raise CheckpointError(
                    f"{self.folder.name} names the model {self.named_model}, which is opened only with "
                    "your consent, because the store may be untrusted. Pass another model, or trust=True."
                )
            model, revision = model_record["model"], model_record["revision"]
        from bert_probe.model.loading import load

        checkpoint = load(model, revision, device=device, dtype=model_record["dtype"])
        self.check(checkpoint)
        return checkpoint

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint has the weights, the tokenizer and the settings of the store.

        Raises:
            CheckpointError, StoreError: weights, or tokens or vectors of a row, differ; a table is broken.
        """
        check_model(self, checkpoint)

    @cached_property
    def token_sample(self) -> TokenSample:
        """The tokens of the first rows. They show whether a tokenizer differs from that of the store."""
        return TokenSample.of(self)

    @property
    def inputs(self) -> InputRecord:
        """The provenance of results that are computed from this store."""
        return InputRecord.of_store(self.manifest["model"], self.folder.name, self.rows, self.digest)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the digests of all shards; changes when any value in the store changes."""
        shard_files = [dict(shard.files) for shard in self.shards]
        return hashlib.sha256(json.dumps(shard_files, sort_keys=True).encode()).hexdigest()


def open_corpus(folder: str | os.PathLike[str]) -> Store:
    """Open an existing store, even if it is not complete.

    Sizes of its files are compared with the description of the store. SHA-256 digests are compared only for
    files that were modified after their shard was complete; `verify_corpus` compares all digests. The content
    of a table is checked when the table is used, see `Store.files`.

    Raises:
        StoreError: the folder is not a store, has another format version, or has missing or changed files.
    """
    store = read_store(folder)
    for file in table_files(store, store.layouts):
        if change := file.change():
            raise _broken(store, file, change)
    return store


def _broken(store: Store, file: TableFile, problem: str) -> StoreError:
    return StoreError(
        f"{file.path} {problem}. Copy the file again from the original store, or delete "
        f"{store.folder / SHARDS / file.path.stem}.json and start the run again to rebuild this shard."
    )


def read_store(folder: str | os.PathLike[str]) -> Store:
    """Open a store by reading only its JSON files, without checking its tables.

    Raises:
        StoreError: a JSON file is missing, broken, or contradicts another JSON file; or
            the path is not UTF-8.
    """
    path = Path(folder)
    if not is_utf_8(path):
        raise StoreError(f"The path {str(path.resolve())!a} is not UTF-8. Rename the folder.")
    store = Store(path, read_manifest(path), ())
    try:
        schemas = store.layouts
    except (ProbeError, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        reason = (
            str(error)[:200]
            if isinstance(error, ProbeError)
            else "it was not created by `bert-probe corpus run`"
        )
        raise StoreError(f"The configuration in the manifest of {path} cannot be read: {reason}") from None
    if store.has(VECTORS) and not store.question.layers:
        raise StoreError(
            f"The configuration in the manifest of {path} does not select any layer whose vectors are stored."
        )
    if store.has(SENTENCE_VECTORS) and store.manifest["sentence_vectors"] is None:
        raise StoreError(f"The manifest of {path} does not describe its sentence vectors.")
    shards = [Shard(**read_shard(file, schemas)) for file in (path / SHARDS).glob("[0-9]*.json")]
    store = replace(store, shards=tuple(sorted(shards, key=lambda shard: shard.number)))
    for previous, following in pairwise(store.shards):
        if following.first < previous.first + previous.records:
            raise StoreError(
                f"Shards {previous.name} and {following.name} of {path} contain the same rows. Build "
                "the store again."
            )
    return store


def table_files(store: Store, tables: Collection[str]) -> Iterator[TableFile]:
    """Yield the files of tables, shard by shard, with their expected properties."""
    heads = store.sizes.layers * store.sizes.heads
    for shard in store.shards:
        try:
            completed_ns = (store.folder / SHARDS / f"{shard.name}.json").stat().st_mtime_ns
        except OSError as error:
            raise StoreError(
                f"{store.folder} cannot be read: {error.strerror}. It may have been deleted or moved."
            ) from None
        row_counts = {
            ROWS: shard.rows,
            TOKENS: shard.tokens,
            REFUSALS: shard.refusals,
            PROFILES: shard.rows * heads,
            STATISTICS: heads * len(MEASURES),
            VECTORS: shard.tokens * len(store.layers),
            SENTENCE_VECTORS: shard.rows,
            NEIGHBORS: shard.tokens * heads,
        }
        for table in tables:
            schema, entry = store.layouts[table], shard.files[table]
            path = table_path(store.folder, table, schema, shard.name)
            size, sha256 = entry["bytes"], entry["sha256"]
            yield TableFile(
                path, schema, row_counts.get(table), size, sha256, completed_ns, len(store.shards)
            )


def table_path(folder: Path, table: str, schema: TableSchema, shard: str) -> Path:
    """Return the path of a table's file in one shard."""
    return folder / table / f"{shard}.{schema.ending}"


def write_shard(
    folder: Path, number: int, first: int, records: int, tables: Tables, schemas: Mapping[str, TableSchema]
) -> Shard:
    """Write the tables of a shard, then the JSON file that marks the shard as complete.

    Args:
        folder: path of the store.
        number: index of the shard, from 0.
        first: number of the first record, from 1.
        records: number of input records.
        tables: the tables of the shard, by name.
        schemas: schemas of the tables to write, by name.

    Raises:
        StoreError: a file cannot be written.
    """
    name = f"{number:05}"
    with write_errors(folder):
        files = {
            table: _write_table(table_path(folder, table, schema, name), tables[table])
            for table, schema in schemas.items()
        }
        shard = Shard(
            number,
            first,
            records,
            tables[ROWS].num_rows,
            tables[TOKENS].num_rows,
            tables[REFUSALS].num_rows,
            files,
        )
        write_json(folder / SHARDS / f"{name}.json", vars(shard))
    return shard


def _write_table(file: Path, table: pa.Table) -> dict[str, Any]:
    with atomic_path(file) as path:
        if file.suffix == ".arrow":
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        else:
            pq.write_table(table, path, compression="zstd", compression_level=1)
            if exceeds_ratio(path, table.schema):
                pq.write_table(table, path, compression="none", use_dictionary=False)
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())
        size = path.stat().st_size
    return {"bytes": size, "sha256": digest}


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, so that it is never incomplete."""
    with atomic_path(file) as path, path.open("w", encoding="utf-8") as stream:
        json.dump(content, stream, ensure_ascii=False, indent=1)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def atomic_path(file: Path) -> Iterator[Path]:
    """Yield a temporary path, and rename it to the path of the file if the ``with`` block succeeds."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}{_PARTIAL}")
    try:
        yield partial
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def check_no_link(folder: Path) -> None:
    """Check that a folder of a store is not a symbolic link, through which files elsewhere could be replaced.

    Raises:
        StoreError: the folder is a symbolic link.
    """
    if folder.is_symlink():
        raise StoreError(
            f"{folder} is a symbolic link, and nothing is written to folders outside of a store. Replace the "
            "link by a folder."
        )


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files of an interrupted run from a store, which must be locked."""
    for partial in folder.rglob(f".*.{'[0-9a-f]' * 8}{_PARTIAL}"):
        with suppress(OSError):
            partial.unlink()


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Convert operating system errors to a `StoreError` with the folder, the reason and a remedy."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Free some space, or choose another path" if is_full else "Choose another path"
        reason = os.strerror(error.errno) if error.errno else error
        raise StoreError(
            f"{folder} cannot be written: {reason}. {remedy}; complete shards are kept."
        ) from None


@dataclass(frozen=True)
class SentenceRow:
    """A sentence of a store and its source.

    Attributes:
        row: number of the record, from 1.
        file: name of the input file.
        line: line number in the file, from 1.
        text: the sentence.
        dropped: number of tokens removed by truncation.
    """

    row: int
    file: str
    line: int
    text: str
    dropped: int


def read_measure(store: Store, measure: str, heads: Sequence[int], progress: Progress = no_progress) -> Array:
    """Return one measure of some heads for every row of a store, as float32 of shape [head, row].

    Args:
        store: a store with head measures (table "profiles").
        measure: one of the measures of `Heads`.
        heads: flat head indices: layer × heads per layer + head, with layer and head from 0.
        progress: called with the number of shards read and their total.
    """
    values = np.full((len(heads), store.rows), np.nan, np.float32)
    done, files = 0, store.files(PROFILES)
    for number, file in enumerate(files):
        with store_errors(store.folder.name):
            column = pq.read_table(file, columns=[measure])[measure].to_numpy()
            shard = column.reshape(-1, store.sizes.layers * store.sizes.heads)
            values[:, done : done + len(shard)] = shard.T[list(heads)]
        done += len(shard)
        progress(number + 1, len(files))
    with store_errors(store.folder.name):
        _check_rows(store, done)
    return values


def _check_rows(store: Store, count: int) -> None:
    """Raise ValueError for a column with missing rows; pyarrow does not report all broken pages."""
    if count != store.rows:
        raise ValueError(f"a column has {count:,} rows instead of {store.rows:,}")


def row_numbers(store: Store) -> Array:
    """Return the record numbers of all sentences of a store, from 1, in the order of the store (int64)."""
    with store_errors(store.folder.name):
        shards = [pq.read_table(file, columns=["row"])["row"].to_numpy() for file in store.files(ROWS)]
        numbers = np.concatenate([np.empty(0, np.int64), *shards]).astype(np.int64, casting="safe")
        _check_rows(store, len(numbers))
        return numbers


def sentences(store: Store, rows: Sequence[int]) -> tuple[SentenceRow, ...]:
    """Return the sentences whose record numbers are in `rows`; StoreError if one does not exist."""
    files = store.files(ROWS)
    rows_by_shard: dict[int, set[int]] = {}
    with store_errors(store.folder.name):
        for row in rows:
            rows_by_shard.setdefault(store.shard_of(row), set()).add(row)
        by_row = {
            sentence.row: sentence
            for shard, shard_rows in rows_by_shard.items()
            for sentence in _read_sentences(str(files[shard]), shard_rows)
        }
        return tuple(by_row[row] for row in rows)


def _read_sentences(file: str, rows: set[int]) -> Iterator[SentenceRow]:
    table = pq.read_table(
        file,
        columns=["row", "file", "line", "text", "tokens_dropped"],
        filters=[("row", "in", rows)],
        partitioning=None,  # prevents pyarrow from interpreting a folder named a=b as a column
    )
    for values in table.to_pylist():
        if None in values.values():
            raise ValueError("a row has no text, file or line number")
        yield SentenceRow(*values.values())


def rank_columns(ranking: Sequence[SentenceRow]) -> dict[str, Sequence[Any]]:
    """Return a dict with the columns that identify ranked sentences: rank, row, file, line."""
    return {
        "rank": range(1, len(ranking) + 1),
        "row": [sentence.row for sentence in ranking],
        "file": [sentence.file for sentence in ranking],
        "line": [sentence.line for sentence in ranking],
    }


def links(store: Store, ranking: Sequence[SentenceRow], parameters: Sequence[dict[str, str]]) -> list[str]:
    """Return the URL of each sentence's head view within the app; "" if the model is only in memory.

    Args:
        store: the store that contains the sentences; the head views use its model.
        ranking: the sentences.
        parameters: URL parameters of each head view, such as layer and head.
    """
    words = {"words": "1"} if store.question.words else {}
    urls = []
    for sentence, selection in zip(ranking, parameters, strict=True):
        text = {"text": sentence.text, "pair": None, "tokens_dropped": sentence.dropped}
        inputs = url_parameters(InputRecord(store.manifest["model"], (text,)))
        urls.append("" if inputs is None else f"/attention?{urlencode({**inputs, **selection, **words})}")
    return urls
