"""Vectors of texts from Parquet, NPZ, NPY and JSON lines files, or from a corpus store."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from bert_probe.core.inputs import Documents, Inputs
from bert_probe.core.provenance import InputRecord, end_of_options, load_expression
from bert_probe.corpus.vector_formats import (
    DROPPED,
    FORMAT_HELP,
    FORMATS,
    ID_NAMES,
    TEXT_NAMES,
    VECTOR_NAMES,
    ArrayFile,
    format_of,
    number_type,
    open_array,
)
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.documents import Document

if TYPE_CHECKING:
    from bert_probe.corpus.store import Store
    from bert_probe.corpus.store_vectors import VectorOrigin

NO_MODEL = "vectors"
"""Origin of the model in the provenance of vectors without a model."""
VECTORS_FILE = "vectors.jsonl"
"""File name of vectors in requests."""
_DIGEST_BLOCK, _TEXT_BLOCK = 1 << 24, 10_000
"""Numbers of bytes and of texts that are added to a digest between two reports of progress."""
_STRING_BYTES = 64
"""Size of a short string and of the reference to it in memory, in bytes."""


@dataclass(frozen=True, eq=False)
class VectorSet:
    """Vectors of texts.

    Attributes:
        name: name of the file.
        vectors: float32 or float64, [text, size]; read-only. Those of an .npy file are read when they
            are indexed.
        ids: identifier of each text; its number from 1 if the file has none.
        texts: the texts; None if the file has none.
        dropped: number of truncated tokens of each text; None if the file does not contain it.
        digest: SHA-256 of the vectors and the other columns. Sets with the same name and digest are equal.
        note: how the vectors were computed; "" if unknown.
        pooling: the pooling of `Sentences` that computes equal vectors; None if unknown.
        origin: the model and the pooling of a store's sentence vectors; None if they are unknown.
    """

    name: str
    vectors: Array | ArrayFile
    ids: tuple[str, ...]
    texts: tuple[str, ...] | None
    dropped: Array | None
    digest: str
    note: str = ""
    pooling: str | None = None
    origin: VectorOrigin | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VectorSet) and (self.name, self.digest) == (other.name, other.digest)

    def __hash__(self) -> int:
        return hash((self.name, self.digest))

    def to_parquet(self) -> bytes:
        """Return the set as a file that `read_vectors` reads."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        size = self.vectors.shape[1]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(self.vectors).ravel()), size)
        columns: dict[str, Any] = {ID_NAMES[1]: list(self.ids), VECTOR_NAMES[1]: lists}
        columns |= {} if self.texts is None else {TEXT_NAMES[1]: list(self.texts)}
        columns |= {} if self.dropped is None else {DROPPED: self.dropped}
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer)
        return buffer.getvalue()

    def __len__(self) -> int:
        return len(self.vectors)

    def document(self, row: int) -> Document:
        """Return the ID and the text of a row, which is "" if the file has no texts."""
        return Document("" if self.texts is None else self.texts[row], self.ids[row])

    @property
    def cache_key(self) -> tuple[type, str, str]:
        """Key that identifies the vectors, ids and texts, and the name of their file in code."""
        return type(self), self.name, self.digest

    def record(self) -> InputRecord:
        """Return the provenance of the vectors."""
        return InputRecord.of_store({"origin": NO_MODEL}, self.name, len(self.vectors), self.digest)


@dataclass(frozen=True)
class VectorFile(Inputs):
    """A file of vectors or a corpus store, and optionally the model that computed the vectors."""

    types = (VectorSet, Checkpoint)
    can_truncate = False

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the Python code that reads the file and loads the model, and the names of both."""
        lines = [f"vectors = bert_probe.read_vectors({record.store['store']!r})"]
        if record.model["origin"] == NO_MODEL:
            return lines, "vectors"
        return [*lines, f"checkpoint = {load_expression(record.model)}"], "vectors, checkpoint"

    def words(self, leading: list[str], record: InputRecord) -> list[str]:  # type: ignore[override]
        """Return the options that name the model, the name of the file, and the question's arguments."""
        model = [] if record.model["origin"] == NO_MODEL else ["--model", str(record.model["model"])]
        revision = ["--revision", record.model["revision"]] if record.model.get("revision") else []
        return [*model, *revision, *end_of_options([record.store["store"], *leading])]


@dataclass(frozen=True)
class DocumentVectors(Documents):
    """Vectors of documents, and the model that encodes a query."""

    list_file = VECTORS_FILE
    has_list = False
    can_skip = False
    variable = "vectors"
    reader = "read_vectors"

    def read_list(
        self,
        file: Path,
        column: str | None,  # noqa: ARG002
        as_named: bool,  # noqa: ARG002
        progress: Progress,
    ) -> Any:
        """Return the vectors of a file or a store."""
        return read_vectors(file, progress)

    def parse_list(self, content: bytes, name: str, skip_broken: bool = False) -> Any:  # noqa: ARG002
        """Return the vectors in the contents of a file with this name."""
        return parse_vectors(content, name)

    def file(self, record: InputRecord) -> str:
        """Return the name of the file that was read."""
        return str(record.sentences["file"])


def read_vectors(file: str | os.PathLike[str], progress: Progress = no_progress) -> VectorSet:
    """Read vectors of texts from a .parquet, .npz, .npy or .jsonl file, or from a corpus store.

    The vectors of an .npy file are read in blocks when they are used, so they may be larger than the memory.

    Args:
        file: a Parquet or JSON lines file with a column of lists, an NPZ file with a matrix (see
            `VECTOR_NAMES`, `ID_NAMES` and `TEXT_NAMES` in `vector_formats` for the names), or an NPY file
            that is a matrix; or the folder of a store, whose sentence vectors are used, or the means of
            its token vectors.
        progress: called with the number of bytes of the file (JSON lines) or of the vectors that were read.

    Raises:
        TextError: the file cannot be opened, or does not have these columns or arrays.
        StoreError, UnavailableError: the store is broken or has no vectors, or the file changes meanwhile.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        from bert_probe.corpus.store import open_corpus

        return store_vectors(open_corpus(path), progress)
    try:
        file_format = format_of(path.name)
        if file_format is FORMATS[".npy"] and (array := open_array(path)).is_by_row:
            return make_vector_set(path.name, array, progress=progress)
        from bert_probe.corpus.formats import open_file  # imports pyarrow

        with open_file(path) as stream:
            size = file_format.decoded_size(stream, path.name)
            stream.seek(0)
            # Reserve memory for the decoded columns, and for a copy of the matrix in its final type.
            with reserved_memory(2 * size, path.name, "Use fewer vectors."):
                columns = file_format.read(stream, path.name, progress, None)
                return make_vector_set(path.name, **columns, progress=progress)
    except OSError as error:
        raise TextError(f"{path} cannot be opened: {error.strerror or error}. Check the path.") from None


def parse_vectors(
    content: bytes, name: str, max_bytes: int | None = None, progress: Progress = no_progress
) -> VectorSet:
    """Read vectors from the contents of an untrusted file, as `read_vectors` does.

    Args:
        name: the file name, whose extension determines the format.
        max_bytes: maximum size of the decompressed arrays of an NPZ file in bytes; by default `MAX_EXPANSION`
            times the size of the file.
        progress: see `read_vectors`.

    Raises:
        TextError: see `read_vectors`; also if a file becomes much larger when it is decompressed.
    """
    file_format = format_of(name)
    file_format.check_upload(content, name, max_bytes)
    columns = file_format.read(io.BytesIO(content), name, progress, file_format.max_text_bytes)
    return make_vector_set(name, **columns, progress=progress)


def has_vectors(name: str, stream: BinaryIO) -> bool:
    """Return whether a file with this name contains vectors, and not only texts.

    Args:
        stream: the open file, which is read from its beginning.
    """
    file_format = FORMATS.get(Path(name).suffix.lower())
    return file_format is not None and file_format.has_vectors(stream)


def store_vectors(store: Store, progress: Progress = no_progress) -> VectorSet:
    """Return the sentence vectors of a store, or the means of its token vectors if it has none.

    The arguments and errors are those of `store_vectors.read_columns`.
    """
    from bert_probe.corpus.store_vectors import read_columns

    return make_vector_set(store.folder.name, **read_columns(store, progress))


def make_vector_set(
    name: str,
    vectors: Array | ArrayFile,
    ids: Any = None,
    texts: Any = None,
    dropped: Any = None,
    note: str = "",
    progress: Progress = no_progress,
    digest: str = "",
    pooling: str | None = None,
    origin: VectorOrigin | None = None,
) -> VectorSet:
    """Return vectors as a set, after checking them; see `VectorSet` for the arguments.

    Args:
        digest: digest of the contents; by default, it is computed.

    Raises:
        TextError: the vectors are not a matrix of numbers, the other columns have another length, or a text
            has a lone surrogate.
        OutOfMemoryError: the vectors or their identifiers do not fit into memory.
    """
    matrix = vectors if isinstance(vectors, ArrayFile) else np.asarray(vectors)
    stored = matrix.stored if isinstance(matrix, ArrayFile) else matrix.dtype
    if matrix.ndim != 2 or not all(matrix.shape) or stored.kind not in "fiu":
        raise TextError(
            f"The vectors of {name} must be numbers of shape [text, size], not {stored} of shape "
            f"{matrix.shape}. {FORMAT_HELP}."
        )
    if not isinstance(matrix, ArrayFile):
        number = number_type(stored)
        is_copied = stored != number or not matrix.flags.c_contiguous
        with reserved_memory(matrix.size * number.itemsize * is_copied, name, "Use fewer vectors."):
            matrix = read_only(np.ascontiguousarray(matrix, number))
    count = len(matrix)
    for column, values in (("ids", ids), ("texts", texts), (DROPPED, dropped)):
        if values is None:
            continue
        shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
        if len(shape) != 1:
            raise TextError(f"{column} of {name} must have shape ({count},), not {shape}.")
        if shape != (count,):
            raise TextError(f"{name} has {count:,} vectors, but {shape[0]:,} entries in {column}.")
    with reserved_memory(_STRING_BYTES * count, name, "Use fewer vectors."):
        identifiers = tuple(map(str, range(1, count + 1) if ids is None else ids))
        lines = None if texts is None else tuple("" if text is None else str(text) for text in texts)
    counts = None if dropped is None else read_only(_token_counts(dropped, name))
    digest = digest or _digest(name, matrix, (identifiers, lines, counts), progress)
    return VectorSet(name, matrix, identifiers, lines, counts, digest, note, pooling, origin)


def _digest(name: str, matrix: Array | ArrayFile, columns: tuple[Any, ...], progress: Progress) -> str:
    """Return the SHA-256 of a matrix and the columns of its rows.

    Raises:
        TextError: a text has a lone surrogate.
    """
    digest = hashlib.sha256(f"{matrix.shape} {matrix.dtype}".encode())
    rows = max(1, _DIGEST_BLOCK // (matrix.nbytes // len(matrix)))
    for start in range(0, len(matrix), rows):
        progress(matrix.nbytes // len(matrix) * start, matrix.nbytes)
        digest.update(matrix[start : start + rows].data)
    for column in columns:
        digest.update(b"-" if column is None else b"+")
        for row, value in enumerate(() if column is None else column):
            if not row % _TEXT_BLOCK:
                progress(matrix.nbytes, matrix.nbytes)
            try:
                content = str(value).encode()
            except UnicodeEncodeError:
                raise TextError(
                    f"Row {row + 1:,} of {name} has a lone surrogate, which is not valid Unicode. Remove it."
                ) from None
            digest.update(b"%d:%b" % (len(content), content))
    return digest.hexdigest()


def _token_counts(values: Any, name: str) -> Array:
    """Return the numbers of truncated tokens.

    Raises:
        TextError: a value is not a whole number from 0.
    """
    # NumPy converts a list of strings to an array that is as wide as the longest.
    is_numeric = isinstance(values, np.ndarray) or {*map(type, values)} <= {int, float}
    counts = np.asarray(values) if is_numeric else np.empty(0, object)
    if counts.dtype.kind not in "iuf" or not ((counts >= 0) & (counts < 2**53) & (counts % 1 == 0)).all():
        raise TextError(f"{DROPPED} of {name} must be whole numbers from 0, one for each text.")
    return counts.astype(np.int64)
