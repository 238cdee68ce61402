"""Vectors of texts from a Parquet or NPZ file, which any model may have computed, or from a corpus store."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_probe.core.inputs import Inputs
from bert_probe.core.provenance import InputRecord, end_of_options
from bert_probe.corpus.inputs import VECTORS
from bert_probe.corpus.schema import ROWS, store_errors
from bert_probe.corpus.store import Store, open_corpus
from bert_probe.corpus.vector_index import LayerVectors
from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.trace import Array, read_only
from bert_probe.text.parquet import check_upload

VECTOR_NAMES, ID_NAMES, TEXT_NAMES = ("vectors", "vector", "embedding"), ("ids", "id"), ("texts", "text")
"""Accepted names of the columns or arrays, in order of precedence."""
DROPPED = "tokens_dropped"
"""Name of the optional column with the number of truncated tokens of each text."""
_FORMAT_HELP = (
    "Give a .parquet file with the column vector (lists of numbers of the same length) and possibly id, text "
    "and tokens_dropped; or an .npz file with the array vectors of shape [text, size] and possibly ids, "
    "texts and tokens_dropped"
)
MAX_EXPANSION = 20
"""Maximum ratio of the decompressed to the compressed size of an uploaded NPZ file."""


@dataclass(frozen=True, eq=False)
class VectorSet:
    """Vectors of texts.

    Attributes:
        name: name of the file.
        vectors: float32 or float64, [text, size]; read-only.
        ids: identifier of each text; its number from 1 if the file has none.
        texts: the texts; None if the file has none.
        dropped: number of truncated tokens of each text; None if the file does not say.
        digest: SHA-256 of vectors, ids and texts. Sets with the same name and digest are equal.
        note: how the vectors were computed; "" if unknown.
    """

    name: str
    vectors: Array
    ids: tuple[str, ...]
    texts: tuple[str, ...] | None
    dropped: Array | None
    digest: str
    note: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VectorSet) and (self.name, self.digest) == (other.name, other.digest)

    def __hash__(self) -> int:
        return hash((self.name, self.digest))

    def to_parquet(self) -> bytes:
        """Return the set as a file that `read_vectors` reads."""
        size = self.vectors.shape[1]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(self.vectors.ravel()), size)
        columns: dict[str, Any] = {ID_NAMES[1]: list(self.ids), VECTOR_NAMES[1]: lists}
        columns |= {} if self.texts is None else {TEXT_NAMES[1]: list(self.texts)}
        columns |= {} if self.dropped is None else {DROPPED: self.dropped}
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer)
        return buffer.getvalue()

    def record(self) -> InputRecord:
        """Return the provenance of the vectors."""
        return InputRecord.of_store({"origin": "vectors"}, self.name, len(self.vectors), self.digest)


@dataclass(frozen=True)
class VectorFile(Inputs):
    """A file of vectors, or a corpus store, without a model."""

    can_truncate = False

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the statement that reads the file, and the name of the vectors."""
        return [f"vectors = bert_probe.read_vectors({record.store['store']!r})"], "vectors"

    def words(self, leading: list[str], record: InputRecord) -> list[str]:  # type: ignore[override]
        """Return the name of the file."""
        return end_of_options([record.store["store"], *leading])


def read_vectors(file: str | os.PathLike[str]) -> VectorSet:
    """Read vectors of texts from a .parquet or .npz file, or from a corpus store.

    Args:
        file: a Parquet file with a column of lists, or an NPZ file with a matrix; see `VECTOR_NAMES`,
            `ID_NAMES` and `TEXT_NAMES` for the names. Or the folder of a store, of whose last stored layer
            `mean_vectors` are computed.

    Raises:
        TextError: the file cannot be opened, or does not have these columns or arrays.
        StoreError, UnavailableError: the store is broken, or has no vectors.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        return mean_vectors(open_corpus(path))
    reader = _reader(path.name)
    try:
        with (
            reserved_memory(3 * path.stat().st_size, path.name, "Use fewer vectors."),
            path.open("rb") as stream,
        ):
            columns = reader(stream, path.name)
    except OSError as error:
        raise TextError(f"{path} cannot be opened: {error.strerror or error}. Check the path.") from None
    return make_vector_set(path.name, **columns)


def parse_vectors(content: bytes, name: str) -> VectorSet:
    """Read the content of an untrusted file; see `read_vectors`.

    Raises:
        TextError: the file is broken, or is much larger when it is decompressed.
    """
    reader = _reader(name)
    if reader is _read_parquet:
        check_upload(content, name)
    else:
        _check_archive(content, name)
    return make_vector_set(name, **reader(io.BytesIO(content), name))


def mean_vectors(store: Store) -> VectorSet:
    """Return the mean of the stored token vectors of each sentence, in the last layer with stored vectors.

    With whole words, it is the mean of the vectors of the words.

    Raises:
        UnavailableError: the store has no vectors.
        StoreError: the store is broken.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    if not store.layers:
        raise UnavailableError(
            f"{store.folder.name} has no token vectors. Build it with --keep profiles,vectors, or give a "
            "file of sentence vectors."
        )
    layer = max(store.layers)
    with store_errors(store.folder.name):
        tokens = LayerVectors(store.files(VECTORS), layer)
        rows = store.table(ROWS).to_table(columns=["row", "text", "tokens_dropped"])
        numbers = rows["row"].to_numpy()
        size = 12 * len(numbers) * tokens.hidden
        with reserved_memory(size, store.folder.name, "Use a smaller store."):
            means = np.zeros((len(numbers), tokens.hidden))
            counts = np.zeros((len(numbers), 1))
            for batch in tokens.batches:
                starts = np.flatnonzero(np.r_[True, batch.rows[1:] != batch.rows[:-1]])
                indices = np.searchsorted(numbers, batch.rows[starts])
                means[indices] += np.add.reduceat(batch.vectors, starts, axis=0, dtype=np.float64)
                counts[indices, 0] += np.diff(np.r_[starts, len(batch.rows)])
            means = (means / np.maximum(counts, 1)).astype(np.float32)
        columns = numbers, rows["text"].to_pylist(), rows["tokens_dropped"].to_numpy()
    unit = "word" if store.question.words else "token"
    note = f"Mean of the stored {unit} vectors of layer {layer}."
    return make_vector_set(store.folder.name, means, *columns, note)


def make_vector_set(
    name: str, vectors: Array, ids: Any = None, texts: Any = None, dropped: Any = None, note: str = ""
) -> VectorSet:
    """Return vectors in memory as a set, after checking them; see `VectorSet` for the arguments.

    Raises:
        TextError: the vectors are not a matrix of numbers, or the other columns have another length.
    """
    matrix = np.asarray(vectors)
    if matrix.ndim != 2 or not all(matrix.shape) or matrix.dtype.kind not in "fiu":
        raise TextError(
            f"The vectors of {name} have the shape {matrix.shape} and the type {matrix.dtype}, but must be "
            f"numbers of shape [text, size]. {_FORMAT_HELP}."
        )
    matrix = np.ascontiguousarray(matrix, np.float64 if matrix.dtype == np.float64 else np.float32)
    count = len(matrix)
    for column, values in (("ids", ids), ("texts", texts), (DROPPED, dropped)):
        if values is not None and len(values) != count:
            raise TextError(f"{name} has {count:,} vectors, but {len(values):,} {column}.")
    identifiers = tuple(map(str, range(1, count + 1) if ids is None else ids))
    lines = None if texts is None else tuple("" if text is None else str(text) for text in texts)
    digest = hashlib.sha256(matrix.tobytes())
    digest.update("\n".join([*identifiers, *(lines or ())]).encode("utf-8", "surrogatepass"))
    counts = None if dropped is None else read_only(np.asarray(dropped, np.int64))
    return VectorSet(name, read_only(matrix), identifiers, lines, counts, digest.hexdigest(), note)


def _find(names: tuple[str, ...], available: Mapping[str, Any] | list[str]) -> str | None:
    return next((name for name in names if name in available), None)


def _reader(name: str) -> Any:
    """Return the function that reads a file with this extension."""
    reader = {".parquet": _read_parquet, ".npz": _read_npz}.get(Path(name).suffix.lower())
    if reader is None:
        raise TextError(f"{name} is not a file of vectors. {_FORMAT_HELP}.")
    return reader


def _check_archive(content: bytes, name: str) -> None:
    """Raise TextError if an NPZ file becomes much larger when it is decompressed."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise TextError(f"{name} is not a valid NPZ file: {error}. {_FORMAT_HELP}.") from None
    if size > MAX_EXPANSION * len(content):
        raise TextError(
            f"{name} has {size / 1e6:,.0f} MB when it is decompressed, more than {MAX_EXPANSION} times its "
            "size. Save it with numpy.savez."
        )


_BROKEN_NPZ = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, MemoryError, RuntimeError)
"""What NumPy and zipfile raise for a broken, an encrypted or an oversized array."""


def _read_npz(stream: BinaryIO, name: str) -> dict[str, Any]:
    try:
        with np.load(stream, allow_pickle=False) as arrays:
            columns = {
                key: _find(names, arrays.files)
                for key, names in (
                    ("vectors", VECTOR_NAMES),
                    ("ids", ID_NAMES),
                    ("texts", TEXT_NAMES),
                    ("dropped", (DROPPED,)),
                )
            }
            if columns["vectors"] is None:
                raise TextError(f"{name} has the arrays {', '.join(arrays.files[:8])}. {_FORMAT_HELP}.")
            return {key: arrays[column] for key, column in columns.items() if column is not None}
    except _BROKEN_NPZ as error:
        raise TextError(f"{name} is not a valid NPZ file: {error}. {_FORMAT_HELP}.") from None


def _read_parquet(stream: BinaryIO, name: str) -> dict[str, Any]:
    try:
        names = pq.read_schema(stream).names
        vector = _find(VECTOR_NAMES, names)
        if vector is None:
            raise TextError(f"{name} has the columns {', '.join(names[:8])}. {_FORMAT_HELP}.")
        columns = {
            key: column
            for key, options in (("ids", ID_NAMES), ("texts", TEXT_NAMES), ("dropped", (DROPPED,)))
            if (column := _find(options, names)) is not None
        }
        stream.seek(0)
        table = pq.read_table(stream, columns=[vector, *columns.values()])
    except pa.ArrowException as error:
        raise TextError(f"{name} is not a valid Parquet file: {error}. {_FORMAT_HELP}.") from None
    lists = table[vector].combine_chunks()
    if not isinstance(lists, pa.ListArray | pa.FixedSizeListArray | pa.LargeListArray) or not len(lists):
        raise TextError(f"The column {vector} of {name} has no lists of numbers. {_FORMAT_HELP}.")
    numbers = lists.flatten().to_numpy(zero_copy_only=False)
    sizes = np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), float)
    if lists.null_count or len(set(sizes.tolist())) != 1:
        raise TextError(f"The vectors of {name} have different lengths. {_FORMAT_HELP}.")
    return {"vectors": numbers.reshape(len(lists), -1)} | {
        key: table[column].to_pylist() for key, column in columns.items()
    }
