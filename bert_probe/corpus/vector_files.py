"""Vectors of texts from a Parquet or NPZ file, which any model may have computed."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_probe.core.input_code import end_of_options
from bert_probe.core.inputs import Inputs
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import TextError
from bert_probe.model.memory import reserved_memory
from bert_probe.model.trace import Array, read_only

VECTOR_NAMES, ID_NAMES, TEXT_NAMES = ("vectors", "vector", "embedding"), ("ids", "id"), ("texts", "text")
"""Accepted names of the columns or arrays, in order of precedence."""
DROPPED = "tokens_dropped"
"""Name of the optional column with the number of truncated tokens of each text."""
_FORMAT_HELP = (
    "Give a .parquet file with the column vector (lists of numbers of the same length) and possibly id, text "
    "and tokens_dropped; or an .npz file with the array vectors of shape [text, size] and possibly ids, "
    "texts and tokens_dropped"
)


@dataclass(frozen=True, eq=False)
class VectorSet:
    """Vectors of texts.

    Attributes:
        name: name of the file.
        vectors: float32 or float64, [text, size]; read-only.
        ids: identifier of each text; its number from 1 if the file has none.
        texts: the texts; None if the file has none.
        dropped: number of truncated tokens of each text; None if the file does not contain it.
        digest: SHA-256 of vectors, ids and texts.
    """

    name: str
    vectors: Array
    ids: tuple[str, ...]
    texts: tuple[str, ...] | None
    dropped: Array | None
    digest: str

    def record(self) -> InputRecord:
        """Return the provenance of the vectors."""
        return InputRecord.of_store({"origin": "vectors"}, self.name, len(self.vectors), self.digest)


@dataclass(frozen=True)
class VectorFile(Inputs):
    """The input of questions about a file of vectors, which need no model."""

    can_truncate = False

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the Python code that reads the file, and the name of its variable."""
        return [f"vectors = bert_probe.read_vectors({record.store['store']!r})"], "vectors"

    def words(self, leading: list[str], record: InputRecord) -> list[str]:  # type: ignore[override]
        """Return the command-line arguments, with the name of the file first."""
        return end_of_options([record.store["store"], *leading])


def read_vectors(file: str | os.PathLike[str]) -> VectorSet:
    """Read vectors of texts from a .parquet or .npz file.

    Args:
        file: a Parquet file with a column of lists, or an NPZ file with a matrix; see `VECTOR_NAMES`,
            `ID_NAMES` and `TEXT_NAMES` for the names.

    Raises:
        TextError: the file cannot be opened, or does not have these columns or arrays.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    path = Path(file).expanduser()
    readers = {".parquet": _read_parquet, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise TextError(f"{path.name} is not a file of vectors. {_FORMAT_HELP}.")
    try:
        size = path.stat().st_size
        with reserved_memory(3 * size, path.name, "Use fewer vectors."):
            columns = readers[path.suffix.lower()](path)
    except OSError as error:
        raise TextError(f"{path} cannot be opened: {error.strerror or error}. Check the path.") from None
    return make_vector_set(path.name, **columns)


def make_vector_set(
    name: str, vectors: Array, ids: Any = None, texts: Any = None, dropped: Any = None
) -> VectorSet:
    """Return vectors in memory as a set, after checking them.

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
    return VectorSet(name, read_only(matrix), identifiers, lines, counts, digest.hexdigest())


def _find(names: tuple[str, ...], available: Mapping[str, Any] | list[str]) -> str | None:
    return next((name for name in names if name in available), None)


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
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
                raise TextError(f"{path.name} has the arrays {', '.join(arrays.files[:8])}. {_FORMAT_HELP}.")
            return {key: arrays[name] for key, name in columns.items() if name is not None}
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise TextError(f"{path.name} is not a valid NPZ file: {error}. {_FORMAT_HELP}.") from None


def _read_parquet(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        vector = _find(VECTOR_NAMES, names)
        if vector is None:
            raise TextError(f"{path.name} has the columns {', '.join(names[:8])}. {_FORMAT_HELP}.")
        columns = {
            key: name
            for key, options in (("ids", ID_NAMES), ("texts", TEXT_NAMES), ("dropped", (DROPPED,)))
            if (name := _find(options, names)) is not None
        }
        table = pq.read_table(path, columns=[vector, *columns.values()])
    except pa.ArrowException as error:
        raise TextError(f"{path.name} is not a valid Parquet file: {error}. {_FORMAT_HELP}.") from None
    lists = table[vector].combine_chunks()
    if not isinstance(lists, pa.ListArray | pa.FixedSizeListArray | pa.LargeListArray) or not len(lists):
        raise TextError(f"The column {vector} of {path.name} has no lists of numbers. {_FORMAT_HELP}.")
    numbers = lists.flatten().to_numpy(zero_copy_only=False)
    sizes = np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), float)
    if lists.null_count or len(set(sizes.tolist())) != 1:
        raise TextError(f"The vectors of {path.name} have different lengths. {_FORMAT_HELP}.")
    return {"vectors": numbers.reshape(len(lists), -1)} | {
        key: table[name].to_pylist() for key, name in columns.items()
    }
