"""Schemas of the tables of a store, and checks of its table files and JSON files.

A store may be untrusted, so all values in the JSON files and the metadata of all table files are checked.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bert_probe.analyses.attention.heads import MEASURES
from bert_probe.corpus.inputs import (
    ANSWERS,
    NEIGHBORS,
    PROFILES,
    SENTENCE_VECTORS,
    VECTORS,
    IngestConfig,
)
from bert_probe.corpus.vector_formats import text_bytes
from bert_probe.errors import ProbeError, StoreError
from bert_probe.model.lengths import MAX_TOKENS
from bert_probe.model.trace import Array
from bert_probe.text import strict_json
from bert_probe.text.parquet import page_bytes
from bert_probe.text.parquet_child import open_parquet

BINS = 64
"""Number of bins in each histogram of a head measure."""


def bin_edges(measure: str, max_tokens: int | None) -> Array:
    """Return the edges of the bins in a measure's histogram (float64); there is one more edge than bins.

    The bins of shares and relative measures range from 0 to 1. The bins of entropy range from 0 to the
    maximum entropy of the longest text, and those of distance from 0 to its number of tokens. Distance bins
    have equal widths in log(1 + distance), because most attention goes to near tokens.

    Args:
        measure: one of `MEASURES`.
        max_tokens: maximum input length of the model in tokens, see `Description`.
    """
    longest = MAX_TOKENS if max_tokens is None else min(max_tokens, MAX_TOKENS)  # the same on every server
    if measure == "entropy_bits":
        return np.linspace(0, np.log2(longest), BINS + 1)
    if measure == "mean_distance":
        return np.expm1(np.linspace(0, np.log1p(longest), BINS + 1))
    return np.linspace(0, 1, BINS + 1)


def bin_indices(values: Array, edges: Array) -> Array:
    """Return the index of the bin that contains each value, from 0.

    A bin includes its lower edge. Values that rounding moves outside the edges are in the first or last bin.
    """
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, BINS - 1)


ROWS, TOKENS, STATISTICS, REFUSALS = "rows", "tokens", "statistics", "refusals"

Tables = Mapping[str, pa.Table]
"""The tables of a shard, by table name."""

_ROW, _INDEX, _POSITION = pa.int64(), pa.int16(), pa.int32()


@dataclass(frozen=True)
class TableSchema:
    """The columns and the file format of a table.

    Rows, lines, positions, words, layers and heads count from 1, except for the layers of vectors. Layers
    of vectors count from 0, and layer 0 is the output of the embeddings.

    Attributes:
        schema: Arrow schema.
        ending: file name extension: "parquet", or "arrow" for an uncompressed Arrow IPC file, which can be
            memory-mapped.
    """

    schema: pa.Schema
    ending: str = "parquet"


def layouts(
    question: IngestConfig, hidden_size: int, sentence_vector_size: int | None = None
) -> dict[str, TableSchema]:
    """Return the schemas of the tables that a store has, by table name.

    Args:
        question: the configuration of the store, which determines its optional tables.
        hidden_size: number of components of a token's vector.
        sentence_vector_size: number of components of a sentence's vector; by default `hidden_size`.
    """
    schemas = {
        ROWS: TableSchema(_ROWS),
        TOKENS: TableSchema(_TOKENS),
        PROFILES: TableSchema(_PROFILES),
        STATISTICS: TableSchema(_STATISTICS),
        VECTORS: TableSchema(_vectors(question.dtype, hidden_size), "arrow"),
        SENTENCE_VECTORS: TableSchema(
            _sentence_vectors(question.dtype, sentence_vector_size or hidden_size), "arrow"
        ),
        NEIGHBORS: TableSchema(_NEIGHBORS),
        ANSWERS: TableSchema(_ANSWERS),
        REFUSALS: TableSchema(_REFUSALS),
    }
    names = {ROWS, TOKENS, REFUSALS, *question.keep, *({STATISTICS} if PROFILES in question.keep else ())}
    return {name: schema for name, schema in schemas.items() if name in names}


_ROWS = pa.schema(
    {
        "row": _ROW,
        "file": pa.string(),
        "line": pa.int64(),
        "text": pa.string(),
        "tokens": pa.int32(),
        "tokens_dropped": pa.int32(),
        "about": pa.string(),
    }
)
_TOKENS = pa.schema(
    {
        "row": _ROW,
        "position": _POSITION,
        "id": pa.int32(),
        "token": pa.string(),
        "text": pa.string(),
        "word": pa.int32(),
        "start": pa.int32(),
        "end": pa.int32(),
        "special": pa.bool_(),
        "tag": pa.string(),
        "head": pa.int32(),
        "relation": pa.string(),
    }
)
_PROFILES = pa.schema({"row": _ROW, "layer": _INDEX, "head": _INDEX, **dict.fromkeys(MEASURES, pa.float32())})
_NEIGHBORS = pa.schema(
    {
        "row": _ROW,
        "layer": _INDEX,
        "head": _INDEX,
        "query": _POSITION,
        "key": _POSITION,
        "weight": pa.float32(),
    }
)
_ANSWERS = pa.schema(
    {
        "row": _ROW,
        "position": _POSITION,
        "label": pa.string(),
        "logit": pa.float32(),
        "probability": pa.float32(),
    }
)
_STATISTICS = pa.schema(
    {
        "layer": _INDEX,
        "head": _INDEX,
        "measure": pa.string(),
        "count": pa.int64(),
        "sum": pa.float64(),
        "squares": pa.float64(),
        "min": pa.float64(),
        "max": pa.float64(),
        "bins": pa.list_(pa.int64(), BINS),
    }
)
_REFUSALS = pa.schema(
    {"row": _ROW, "file": pa.string(), "line": pa.int64(), "text": pa.string(), "reason": pa.string()}
)


def _vectors(dtype: str, hidden_size: int) -> pa.Schema:
    vector = _vector(dtype, hidden_size)
    return pa.schema({"row": _ROW, "position": _POSITION, "layer": _INDEX, "vector": vector})


def _sentence_vectors(dtype: str, size: int) -> pa.Schema:
    return pa.schema({"row": _ROW, "tokens_dropped": pa.int32(), "vector": _vector(dtype, size)})


def _vector(dtype: str, size: int) -> pa.DataType:
    return pa.list_({"float32": pa.float32(), "float16": pa.float16()}[dtype], size)


FORMAT, VERSION = "bert-probe corpus", 3
MANIFEST, SHARDS = "manifest.json", "shards"

_MAX_BYTES: Final = 100_000_000
"""Maximum size of a JSON file in bytes. A manifest takes about 150 bytes per input file."""

Check = tuple[str, Callable[[Any], bool]]
"""A check of a value: (description of the allowed values for error messages, function that tests it)."""


def _integer(low: int, high: int) -> Check:
    def is_valid(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return f"an integer from {low:,} to {high:,}", is_valid


def _optional(check: Check) -> Check:
    return f"{check[0]}, or null", lambda value: value is None or check[1](value)


_TEXT: Final[Check] = ("a string", lambda value: isinstance(value, str))
_OBJECT: Final[Check] = ("an object", lambda value: isinstance(value, dict))
_LIST: Final[Check] = ("a list", lambda value: isinstance(value, list))
_COUNT: Final = _integer(0, 2**53)

_MANIFEST: Final[Mapping[str, Check]] = {
    "model": _OBJECT,
    "model.model": _TEXT,
    "model.origin": _TEXT,
    "model.revision": _optional(_TEXT),
    "model.weights_sha256": _TEXT,
    "model.dtype": _TEXT,
    "sizes": _OBJECT,
    "sizes.layers": _integer(1, 1_000),
    "sizes.heads": _integer(1, 1_000),
    "sizes.hidden_size": _integer(1, 1_000_000),
    "sizes.max_tokens": _optional(_integer(1, 2**31)),
    "question": _OBJECT,
    "column": _optional(_TEXT),
    "inputs": _LIST,
    "records": _COUNT,
    "shard_rows": _COUNT,
    "shard_bytes": _COUNT,
    "sentence_vectors": _optional(_OBJECT),
}
_SENTENCE_VECTORS: Final[Mapping[str, Check]] = {
    "sentence_vectors.size": _integer(1, 1_000_000),
    "sentence_vectors.recipe": _OBJECT,
}
_SHARD: Final[Mapping[str, Check]] = {
    "number": _integer(0, 10**9),
    "first": _integer(1, 2**53),
    **dict.fromkeys(("records", "rows", "tokens", "refusals"), _COUNT),
    "files": _OBJECT,
}
_FILE: Final[Mapping[str, Check]] = {"bytes": _COUNT, "sha256": _TEXT}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the checked manifest of a store.

    Raises:
        StoreError: the manifest does not exist or has another format or version, or a value is missing or
            invalid.
    """
    file = folder / MANIFEST
    manifest = _read(file)
    if manifest.get("format") != FORMAT:
        raise StoreError(
            f"{folder} is not a corpus store. Use a folder that was written by bert-probe corpus run."
        )
    if manifest.get("version") != VERSION:
        raise StoreError(
            f"{folder} has store version {str(manifest.get('version'))[:20]}, but this version of BERT "
            f"Probe reads store version {VERSION}. Use the version of BERT Probe that wrote the store, "
            "or build the store again in a new folder."
        )
    manifest.setdefault("sentence_vectors", None)  # stores of earlier versions lack this entry
    _check(file, manifest, _MANIFEST)
    if manifest["sentence_vectors"] is not None:
        _check(file, manifest, _SENTENCE_VECTORS)
    return manifest


def read_shard(file: Path, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked description of a shard, with the fields of `Shard`.

    Args:
        file: the shard's JSON file.
        tables: schemas of the tables that the store must have, by table name.

    Raises:
        StoreError: the file is missing or broken, or does not match its name or the tables of the store.
    """
    shard = _read(file)
    files = {f"files.{table}": _OBJECT for table in tables}
    sizes = {f"files.{table}.{name}": check for table in tables for name, check in _FILE.items()}
    _check(file, shard, {**_SHARD, **files, **sizes})
    if unknown := shard.keys() - _SHARD.keys():
        raise StoreError(f"{file} has an unknown key {min(unknown)[:60]!r}. {_REMEDY}")
    if file.stem != f"{shard['number']:05}" or shard["rows"] + shard["refusals"] != shard["records"]:
        raise StoreError(
            f"{file} is inconsistent: the shard number does not match the file name, or the counts do "
            f"not add up. {_REMEDY}"
        )
    return shard


_REMEDY: Final = "Copy the store again from its original location, or build it again."


def read_bytes(file: Path) -> bytes:
    """Return the content of a JSON file of a store.

    Raises:
        OSError: the file cannot be read, or is not a regular file. Pipes and devices are rejected, as they
            may never end.
        StoreError: the file is too large.
    """
    if not file.is_file():
        raise FileNotFoundError(file)
    with file.open("rb") as stream:
        content = stream.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise StoreError(f"{file} is larger than {_MAX_BYTES:,} bytes. {_REMEDY}")
    return content


def _read(file: Path) -> dict[str, Any]:
    try:
        content = strict_json.loads(read_bytes(file))
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise StoreError(
            f"{file} is missing or broken. Use a folder that was written by bert-probe corpus run."
        )
    return content


def _check(file: Path, content: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    for path, (expected, is_valid) in checks.items():
        value: Any = content
        *parents, name = path.split(".")
        for parent in parents:
            value = value[parent]  # an earlier check ensures that the parent is an object
        if name not in value:
            raise StoreError(f"{file} has no {path}, which must be {expected}. {_REMEDY}")
        if not is_valid(value[name]):
            raise StoreError(
                f"{file} has {path} = {str(value[name])[:60]!r}, which must be {expected}. {_REMEDY}"
            )


UNCHECKED_BYTES = 2**23
"""Decoded size of the files of a table, in bytes, above which `MAX_RATIO` limits the compression ratio."""
MAX_RATIO = 100
"""Maximum ratio of decoded to stored bytes, as protection against decompression bombs."""


@dataclass(frozen=True)
class TableFile:
    """The expected properties of one table's file in one shard.

    Attributes:
        path: path of the file.
        schema: schema of the table.
        rows: expected number of rows; None if unknown.
        size: expected size in bytes.
        sha256: expected SHA-256 of the file.
        completed_ns: time at which the shard was completed, in nanoseconds. If the file was modified later,
            its content may have changed.
        shards: number of shards of the store, see `content_problem`.
    """

    path: Path
    schema: TableSchema
    rows: int | None
    size: int
    sha256: str
    completed_ns: int
    shards: int = 1

    def problem(self) -> str:
        """Return a phrase that describes why the content cannot be used as the table; "" if it can."""
        return content_problem(self.path, self.schema, self.rows, self.shards)

    def change(self, every_byte: bool = False, on_bytes: Callable[[int], None] = lambda _: None) -> str:
        """Return a phrase that describes how the file has changed, such as "has grown"; "" if it has not.

        A file that cannot be read is also described by a phrase.

        Args:
            every_byte: whether to always compare the digest. By default, it is compared only if the file was
                modified after the shard was completed, for example because the store was copied.
            on_bytes: called after each block that is hashed, with the number of bytes in the block.
        """
        try:
            stat = self.path.stat()
            if not self.path.is_file() or stat.st_size != self.size:
                return "is missing or truncated" if stat.st_size < self.size else "has grown"
            compares_digest = every_byte or stat.st_mtime_ns > self.completed_ns
            if compares_digest and self._digest(on_bytes) != self.sha256:
                return "was changed: its SHA-256 differs"
        except FileNotFoundError:
            return "is missing or truncated"
        except OSError as error:
            return f"cannot be read: {error}"
        return ""

    def _digest(self, on_bytes: Callable[[int], None]) -> str:
        digest = hashlib.sha256()
        with self.path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
                on_bytes(len(block))
        return digest.hexdigest()


def content_problem(path: Path, table: TableSchema, rows: int | None, shards: int = 1) -> str:
    """Return a phrase that describes why the content of a file cannot be used as a table; "" if it can.

    Args:
        path: path of the file.
        table: expected schema and format.
        rows: expected number of rows; None if unknown.
        shards: number of files that share `UNCHECKED_BYTES`.
    """
    try:
        size = path.stat().st_size
        schema, actual_rows, decoded = _metadata(path, table.ending)
        if not schema.equals(table.schema):
            return f"has unexpected columns: {_difference(schema, table.schema)}"
        limit = max(UNCHECKED_BYTES // shards, MAX_RATIO * size)
        if decoded <= limit < actual_rows * decoded and table.ending == "parquet":
            decoded = max(decoded, _string_bytes(path, schema))
    except FileNotFoundError:
        return "is missing or truncated"
    except (OSError, ValueError, struct.error, pa.ArrowException) as error:
        return f"cannot be read: {str(error).partition(chr(10))[0][:200]}"
    if decoded > limit:
        return f"would need {decoded:,} bytes of memory, although the file has only {size:,} bytes"
    if rows is not None and actual_rows != rows:
        return f"has {actual_rows:,} rows instead of {rows:,}"
    return ""


def exceeds_ratio(path: Path, schema: pa.Schema) -> bool:
    """Return whether a Parquet file is so compressed that `content_problem` may refuse it.

    Tables of sentences that repeat the same words can be compressed more than `MAX_RATIO` allows.
    """
    return bool(content_problem(path, TableSchema(schema), None, shards=UNCHECKED_BYTES))


def _metadata(path: Path, ending: str) -> tuple[pa.Schema, int, int]:
    """Return the schema, the number of rows and the decoded size of a file without reading its columns.

    The decoded size is a lower bound on the memory that the rows take; repeated strings count once.

    Raises:
        ValueError: the file is an Arrow file with compressed record batches, whose size would be unknown.
    """
    if ending == "parquet":
        with path.open("rb") as stream:
            metadata = open_parquet(stream).metadata
        schema, rows = metadata.schema.to_arrow_schema(), metadata.num_rows
        with pa.memory_map(str(path)) as source:
            pages = page_bytes(_content(source), [*map(_values_per_row, schema.types)])
        return schema, rows, max(pages, rows * sum(map(_width, schema.types)))
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        if any(map(_is_compressed, _batch_headers(_content(source)))):
            raise ValueError("its record batches are compressed")
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate()  # compares the sizes of the buffers with the number of rows
        return reader.schema, sum(batch.num_rows for batch in batches), path.stat().st_size


def _content(source: pa.NativeFile) -> memoryview:
    """Return the content of a memory-mapped file without reading it."""
    source.seek(0)
    return memoryview(source.read_buffer(source.size())).cast("B")


def _values_per_row(data_type: pa.DataType) -> int:
    return data_type.list_size if pa.types.is_fixed_size_list(data_type) else 1


def _string_bytes(path: Path, schema: pa.Schema) -> int:
    """Return the total size of the strings in a Parquet file, including repetitions."""
    names = [field.name for field in schema if pa.types.is_string(field.type)]
    with path.open("rb") as stream:
        table = open_parquet(stream, read_dictionary=names).read(names)
    return sum(text_bytes(column) for column in table.columns)


# The footer and the headers of the record batches of an Arrow file are FlatBuffers. At the position of a
# table is the distance back to its vtable, which contains the offset of each field, or 0 for a missing field.


def _batch_headers(content: memoryview) -> Iterator[tuple[memoryview, int]]:
    """Yield the FlatBuffer of each record batch that the footer of an Arrow file lists, and its position.

    Raises:
        ValueError, struct.error: the footer is broken.
    """
    (size,) = struct.unpack_from("<i", content, len(content) - 10)  # before the magic number ARROW1
    footer = content[len(content) - 10 - size : len(content) - 10]
    root = struct.unpack_from("<I", footer)[0]
    dictionaries, blocks = (_field(footer, root, index) for index in (2, 3))
    if dictionaries is not None and _length(footer, dictionaries):
        raise ValueError("it has dictionaries, which stores never have")
    if blocks is None:
        return
    vector = blocks + struct.unpack_from("<I", footer, blocks)[0]
    total = 0
    for index in range(_length(footer, blocks)):
        offset, metadata_size, body_size = struct.unpack_from("<qi4xq", footer, vector + 4 + 24 * index)
        total += metadata_size + body_size
        if min(metadata_size, body_size) < 0 or total > len(content):
            raise ValueError("its record batches overlap")
        marker, size = struct.unpack_from("<Ii", content, offset)
        message = content[offset + 8 : offset + 8 + size]
        header, metadata = (_field(message, struct.unpack_from("<I", message)[0], index) for index in (2, 4))
        if marker != 0xFFFFFFFF or header is None or metadata is not None:
            # In the metadata, Arrow 0.17 stated the compression.
            raise ValueError("its record batches have metadata, or cannot be read")
        yield message, header + struct.unpack_from("<I", message, header)[0]


def _length(content: memoryview, vector: int) -> int:
    length: int = struct.unpack_from("<I", content, vector + struct.unpack_from("<I", content, vector)[0])[0]
    return length


def _is_compressed(batch: tuple[memoryview, int]) -> bool:
    return _field(*batch, 3) is not None


def _field(content: memoryview, table: int, index: int) -> int | None:
    """Return the position of a field of a FlatBuffer table, or None if the field is missing."""
    vtable = table - struct.unpack_from("<i", content, table)[0]
    offset = 4 + 2 * index
    if offset >= struct.unpack_from("<H", content, vtable)[0]:
        return None
    distance: int = struct.unpack_from("<H", content, vtable + offset)[0]
    return table + distance if distance else None


def _width(data_type: pa.DataType) -> int:
    """Return the minimum size of a value of an Arrow type in bytes; for strings, the size of an offset."""
    try:
        return max(1, int(data_type.bit_width) // 8)
    except ValueError:  # raised for types of variable width, such as strings
        return 4


def _difference(actual: pa.Schema, expected: pa.Schema) -> str:
    """Describe the first difference between the columns of a file and the expected columns."""
    for field in expected:
        if field.name not in actual.names:
            return f"the column {field.name} is missing"
        types = [column.type for column in actual if column.name == field.name]
        if types != [field.type]:
            return f"{field.name} is {str(types[0])[:60]} instead of {field.type}"
    return f"{', '.join(actual.names)[:200]} instead of {', '.join(expected.names)}"


@contextmanager
def store_errors(name: str) -> Iterator[None]:
    """Convert errors that invalid tables cause to a `StoreError`.

    `open_corpus` checks which columns the tables have, but not the untrusted values in these columns.

    Args:
        name: name of the store, for the error message.
    """
    try:
        yield
    except ProbeError:
        raise
    except (OSError, pa.ArrowException, LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"The tables of {name} contradict each other, or have a null where a value is needed "
            f"({type(error).__name__}: {str(error)[:100]}). Run bert-probe corpus verify, then copy the "
            "store again from its original location, or build it again."
        ) from None
