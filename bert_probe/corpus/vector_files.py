"""Vectors of texts from Parquet, NPZ, NPY and JSON lines files, or from a corpus store."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, overload

import numpy as np

from bert_probe.core.inputs import Documents, Inputs
from bert_probe.core.provenance import InputRecord, end_of_options, load_expression
from bert_probe.corpus.origin import VectorOrigin, VectorSample, longest_text
from bert_probe.corpus.vector_formats import (
    DROPPED,
    FORMAT_HELP,
    FORMATS,
    ID_NAMES,
    MAX_EXPANSION,
    SMALL_BYTES,
    TEXT_NAMES,
    VECTOR_NAMES,
    ArrayFile,
    check_dimensions,
    check_expansion,
    format_of,
    number_type,
    open_array,
)
from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import expand_home
from bert_probe.model.trace import Array, read_only
from bert_probe.text.documents import Document
from bert_probe.text.sentence_files import is_dir, is_utf_8

if TYPE_CHECKING:
    from bert_probe.corpus.store import Store

NO_MODEL = "vectors"
"""Origin of the model in the provenance of vectors without a model."""
VECTORS_FILE = "vectors.jsonl"
"""File name of vectors in requests."""
_DIGEST_BLOCK, _TEXT_BLOCK = 1 << 24, 10_000
"""Number of bytes, and number of texts, that are added to a digest between two progress reports."""
_STRING_BYTES = 64
"""Size of a short string and of the reference to it in memory, in bytes."""


class RowNumbers(Sequence[str]):
    """The numbers of the rows from 1, as strings. They take no memory, however many rows there are.

    Args:
        count: number of rows.
    """

    def __init__(self, count: int) -> None:
        self._numbers = range(1, count + 1)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """Return the number at an index, or a tuple of those in a slice."""
        selected = self._numbers[index]
        return str(selected) if isinstance(selected, int) else tuple(map(str, selected))

    def __iter__(self) -> Iterator[str]:
        return map(str, self._numbers)


@dataclass(frozen=True, eq=False)
class VectorSet:
    """Vectors of texts.

    Attributes:
        name: name of the file or the store.
        vectors: float32 or float64, shape [text, size]; read-only. The vectors of an .npy file are read from
            disk when they are indexed.
        ids: identifier of each text; by default, the number of the text, from 1.
        texts: the texts; None if the file has none.
        dropped: number of tokens by which each text was truncated; None if the file does not contain it.
        digest: SHA-256 of all columns, including the vectors. Sets with equal names and digests are equal.
        note: how the vectors were computed; "" if unknown.
        pooling: the pooling of `Sentences` that computes equal vectors; None if unknown.
        origin: the model and the pooling of a store's sentence vectors; None if they are unknown.
    """

    name: str
    vectors: Array | ArrayFile
    ids: Sequence[str]
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
        """Return the content of a Parquet file from which `read_vectors` reads an equal set of vectors."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        size = self.vectors.shape[1]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(self.vectors).ravel()), size)
        columns: dict[str, Any] = {ID_NAMES[1]: [*self.ids], VECTOR_NAMES[1]: lists}
        columns |= {} if self.texts is None else {TEXT_NAMES[1]: list(self.texts)}
        columns |= {} if self.dropped is None else {DROPPED: self.dropped}
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer)
        return buffer.getvalue()

    def __len__(self) -> int:
        return len(self.vectors)

    def document(self, row: int) -> Document:
        """Return the ID and the text of a row; the text is "" if the file has no texts."""
        return Document("" if self.texts is None else self.texts[row], self.ids[row])

    @property
    def cache_key(self) -> tuple[type, str, str]:
        """Cache key: identifies the vectors, IDs and texts, and the file name, which snippets contain."""
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
        """Return Python statements that read the file and load the model, and arguments for `of` as code."""
        lines = [f"vectors = bert_probe.read_vectors({record.store['store']!r})"]
        if record.model["origin"] == NO_MODEL:
            return lines, "vectors"
        return [*lines, f"checkpoint = {load_expression(record.model)}"], "vectors, checkpoint"

    def words(self, leading: list[str], record: InputRecord) -> list[str]:  # type: ignore[override]
        """Return the shell arguments: the options for the model, the file, and `leading`."""
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
        """Return the vectors of a file or of a corpus store."""
        return read_vectors(file, progress)

    def parse_list(self, content: bytes, name: str, skip_broken: bool = False) -> Any:  # noqa: ARG002
        """Return the vectors in `content`, the contents of a file with the name `name`."""
        return parse_vectors(content, name)

    def restore_list(self, lines: Sequence[str]) -> Sequence[Document]:
        """Raise an UnavailableError, because a view file does not contain vectors."""
        raise UnavailableError(
            f"The view has {len(lines):,} documents, but its question needs vectors, which a view file "
            "cannot contain. Choose another view file."
        )

    def file(self, record: InputRecord) -> str:
        """Return the name of the file that was read."""
        return str(record.sentences["file"])


def read_vectors(file: str | os.PathLike[str], progress: Progress = no_progress) -> VectorSet:
    """Read vectors of texts from a .parquet, .npz, .npy or .jsonl file, or from a corpus store.

    The vectors of an .npy file are read in blocks when they are used, so they may be larger than the memory.

    Args:
        file: a Parquet or JSON lines file with a column of lists; an NPZ file with a matrix (`VECTOR_NAMES`,
            `ID_NAMES` and `TEXT_NAMES` in `vector_formats` list the names of the columns and arrays); an NPY
            file with a matrix; or the folder of a store, of which the sentence vectors are read or, if it has
            none, the means of its token vectors.
        progress: called with the number of bytes read and the total; for JSON lines, these are bytes of the
            file, otherwise bytes of the vectors.

    Raises:
        TextError: the file cannot be opened, does not have these columns or arrays, has vectors with more
            than `MAX_DIMENSIONS`, or needs more than `SMALL_BYTES` of memory and more than `MAX_EXPANSION`
            times its size; or the path is not UTF-8.
        StoreError, UnavailableError: the store is broken or has no vectors, or the file changed while it was
            read.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    path = expand_home(file)
    if is_dir(path):
        from bert_probe.corpus.store import open_corpus

        return store_vectors(open_corpus(path), progress)
    if not is_utf_8(path):
        raise TextError(f"The path {str(path.resolve())!a} is not UTF-8. Rename the file.")
    try:
        file_format = format_of(path.name)
        if file_format is FORMATS[".npy"] and (array := open_array(path)).is_by_row:
            return make_vector_set(path.name, array, progress=progress)
        from bert_probe.corpus.formats import open_file  # imports pyarrow

        with open_file(path) as stream:
            size = file_format.decoded_size(stream, path.name)
            file_size = stream.seek(0, os.SEEK_END)
            if size > SMALL_BYTES:
                check_expansion(size, file_size, path.name)
            stream.seek(0)
            # Reserve memory for the decoded columns, and for a copy of the matrix in its final type.
            with reserved_memory(2 * size, path.name, "Use fewer vectors."):
                max_text_bytes = max(SMALL_BYTES, MAX_EXPANSION * file_size)
                columns = file_format.read(stream, path.name, progress, max_text_bytes)
                return make_vector_set(path.name, **columns, progress=progress, max_bytes=max_text_bytes)
    except OSError as error:
        raise TextError(f"{path} cannot be opened: {error.strerror or error}. Check the path.") from None


def parse_vectors(
    content: bytes, name: str, max_bytes: int | None = None, progress: Progress = no_progress
) -> VectorSet:
    """Read vectors from the contents of an untrusted file, as `read_vectors` does.

    Args:
        content: the contents of the file.
        name: the file name, whose extension determines the format.
        max_bytes: maximum size of the decompressed arrays of an NPZ file in bytes; by default `MAX_EXPANSION`
            times the size of the file.
        progress: see `read_vectors`.

    Raises:
        TextError: see `read_vectors`; also if a file is much larger after decompression.
    """
    file_format = format_of(name)
    file_format.check_upload(content, name, max_bytes)
    columns = file_format.read(io.BytesIO(content), name, progress, file_format.max_text_bytes)
    strings = max(SMALL_BYTES // 10, MAX_EXPANSION * len(content))
    return make_vector_set(name, **columns, progress=progress, max_bytes=strings)


def has_vectors(name: str, stream: BinaryIO) -> bool:
    """Return whether a file with this name contains vectors, and not only texts.

    Args:
        stream: the file, opened for reading at its start.
    """
    file_format = FORMATS.get(Path(name).suffix.lower())
    return file_format is not None and file_format.has_vectors(stream)


def store_vectors(store: Store, progress: Progress = no_progress) -> VectorSet:
    """Return the sentence vectors of a store, or the means of its token vectors if it has none.

    Args:
        progress: called with the number of bytes read and the total; for token vectors, with the number of
            record batches read and the total.

    Raises:
        UnavailableError: the store has no vectors.
        StoreError: the store is broken.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    from bert_probe.corpus.inputs import SENTENCE_VECTORS  # imports pyarrow

    read = _sentence_vectors if store.has(SENTENCE_VECTORS) else _mean_vectors
    return make_vector_set(store.folder.name, **read(store, progress))


def _sentence_vectors(store: Store, progress: Progress) -> dict[str, Any]:
    """Return the sentence vectors of a store as arguments for `make_vector_set`."""
    from bert_probe.corpus.inputs import SENTENCE_VECTORS
    from bert_probe.corpus.schema import ROWS, store_errors

    name, description, count = store.folder.name, store.manifest["sentence_vectors"], store.rows
    size = 4 * count * description["size"]
    with store_errors(name), reserved_memory(size, name, "Use a smaller store."):
        vectors = np.empty((count, description["size"]), np.float32)
        numbers, dropped, done = np.empty(count, np.int64), np.empty(count, np.int64), 0
        for batch in store.table(SENTENCE_VECTORS).to_batches():
            if any(column.null_count for column in (*batch.columns, batch["vector"].flatten())):
                raise ValueError("a sentence has no vector")
            block = slice(done, done + len(batch))
            vectors[block] = batch["vector"].flatten().to_numpy().reshape(len(batch), description["size"])
            numbers[block], dropped[block] = batch["row"].to_numpy(), batch["tokens_dropped"].to_numpy()
            done += len(batch)
            progress(done * size // count, size)
        rows = store.table(ROWS).to_table(columns=["row", "text"])
        if done != count or not np.array_equal(rows["row"].to_numpy(), numbers):
            raise ValueError("the tables have different sentences")
        model, texts = store.manifest["model"], rows["text"].to_pylist()
        sample = None
        if count:
            row = longest_text(texts)
            sample = VectorSample(name, int(numbers[row]), texts[row], model["dtype"], vectors[row : row + 1])
        origin = VectorOrigin(
            model["model"],
            model["weights_sha256"],
            description["recipe"],
            model.get("sentence_model_sha256", ""),
            store.token_sample,
            sample,
        )
        digest = hashlib.sha256(f"{store.digest} {SENTENCE_VECTORS}".encode()).hexdigest()
    return {
        "vectors": vectors,
        "ids": numbers,
        "texts": texts,
        "dropped": dropped,
        "digest": digest,
        "pooling": "model" if origin.modules_sha256 and not description["recipe"].get("prefix") else None,
        "origin": origin,
    }


def _mean_vectors(store: Store, progress: Progress) -> dict[str, Any]:
    """Return the mean token vector of each sentence as arguments for `make_vector_set`.

    The vectors are those of the last layer with stored vectors. If the store contains vectors of words
    instead of tokens, the mean word vector is computed.
    """
    from bert_probe.corpus.inputs import VECTORS
    from bert_probe.corpus.schema import ROWS, store_errors
    from bert_probe.corpus.vector_index import LayerVectors

    if not store.layers:
        raise UnavailableError(
            f"{store.folder.name} has no vectors. Build the store with --keep profiles,sentence_vectors, or "
            "use a file of vectors."
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
            for done, batch in enumerate(tokens.batches):
                progress(done, len(tokens.batches))
                batch.file.check()
                starts = np.flatnonzero(np.r_[True, batch.rows[1:] != batch.rows[:-1]])
                indices = np.searchsorted(numbers, batch.rows[starts])
                means[indices] += np.add.reduceat(batch.vectors, starts, axis=0, dtype=np.float64)
                counts[indices, 0] += np.diff(np.r_[starts, len(batch.rows)])
            means = (means / np.maximum(counts, 1)).astype(np.float32)
        texts, dropped = rows["text"].to_pylist(), rows["tokens_dropped"].to_numpy()
    unit = "word" if store.question.words else "token"
    note = (
        f"{store.folder.name} has no sentence vectors (--keep sentence_vectors). The means of its {unit} "
        f"vectors in layer {layer} are used, which may differ from the model's own pooling."
    )
    is_mean_pooling = layer == store.manifest["sizes"]["layers"] and not store.question.words
    pooling = "mean" if is_mean_pooling else None
    return {
        "vectors": means,
        "ids": numbers,
        "texts": texts,
        "dropped": dropped,
        "note": note,
        "pooling": pooling,
    }


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
    max_bytes: int | None = None,
) -> VectorSet:
    """Check vectors and their columns, and return them as a set; see `VectorSet` for the arguments.

    Args:
        digest: digest of the contents; by default, it is computed.
        max_bytes: maximum memory of the IDs and texts as strings without their characters; by default it is
            not limited.

    Raises:
        TextError: the vectors are not a matrix of numbers, a column has another length, or a text
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
    check_dimensions(matrix.shape, name)
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
    identifiers: Sequence[str] = RowNumbers(count)
    string_columns = (ids is not None) + (texts is not None)
    if max_bytes is not None and _STRING_BYTES * count * string_columns > max_bytes:
        raise TextError(f"{name} has {count:,} IDs or texts for its size. Use fewer vectors.")
    with reserved_memory(_STRING_BYTES * count * string_columns, name, "Use fewer vectors."):
        if ids is not None:
            identifiers = _identifiers(ids, name)
        lines = None if texts is None else tuple("" if text is None else str(text) for text in texts)
    counts = None if dropped is None else read_only(_token_counts(dropped, name))
    digest = digest or _digest(name, matrix, (identifiers, lines, counts), progress)
    return VectorSet(name, matrix, identifiers, lines, counts, digest, note, pooling, origin)


def _identifiers(ids: Any, name: str) -> tuple[str, ...]:
    """Return IDs as strings.

    Raises:
        TextError: an ID is missing.
    """
    for number, value in enumerate(ids, 1):
        if value is None or value != value:  # NaN
            raise TextError(
                f"Vector {number:,} of {name} has no ID. Add the ID, or remove the column of IDs."
            )
    return tuple(map(str, ids))


def _digest(name: str, matrix: Array | ArrayFile, columns: tuple[Any, ...], progress: Progress) -> str:
    """Return the SHA-256 of a matrix of vectors and of the other columns of the set, such as IDs and texts.

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
                    f"Row {row + 1:,} of {name} has a lone surrogate, which is not valid Unicode. Remove "
                    "this character."
                ) from None
            digest.update(b"%d:%b" % (len(content), content))
    return digest.hexdigest()


def _token_counts(values: Any, name: str) -> Array:
    """Return the number of tokens removed from each text by truncation, as an int64 array.

    Raises:
        TextError: a value is not a nonnegative integer.
    """
    # Do not convert strings: every entry of the array would take as much memory as the longest string.
    is_numeric = isinstance(values, np.ndarray) or {*map(type, values)} <= {int, float}
    counts = np.asarray(values) if is_numeric else np.empty(0, object)
    if counts.dtype.kind not in "iuf" or not ((counts >= 0) & (counts < 2**53) & (counts % 1 == 0)).all():
        raise TextError(f"{DROPPED} of {name} must be whole numbers from 0, one for each text.")
    return counts.astype(np.int64)
