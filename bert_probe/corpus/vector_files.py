"""Vectors of texts from Parquet, NPZ, NPY and JSON lines files, or from a corpus store."""

from __future__ import annotations

import hashlib
import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from bert_probe.core.inputs import Inputs, SentenceList
from bert_probe.core.provenance import InputRecord, end_of_options, load_expression, truncate_argument
from bert_probe.corpus.vector_index import MappedFile
from bert_probe.errors import TextError
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text import strict_json
from bert_probe.text.documents import Document
from bert_probe.text.sentence_files import MAX_BYTES

if TYPE_CHECKING:
    from bert_probe.corpus.store import Store
    from bert_probe.corpus.store_vectors import VectorOrigin

VECTOR_NAMES, TEXT_NAMES = ("vectors", "vector", "embedding"), ("texts", "text")
ID_NAMES = ("ids", "id", "_id", "document")
"""Accepted names of the columns or arrays, in order of precedence."""
DROPPED = "tokens_dropped"
"""Name of the optional column with the number of truncated tokens of each text."""
VECTORS_FILE = "vectors.jsonl"
"""File name of vectors in requests."""
_DIGEST_BLOCK = 1 << 26
"""Number of bytes that are added to a digest between two reports of progress."""
ARRAY_SUFFIXES, JSON_SUFFIXES = (".npz", ".npy"), (".jsonl", ".ndjson")
_FORMAT_HELP = (
    "Give a .parquet or .jsonl file with the column vector (lists of numbers of the same length) and "
    "possibly id, text and tokens_dropped; an .npz file with the array vectors of shape [text, size] and "
    "possibly ids, texts and tokens_dropped; or an .npy file with the vectors alone"
)
MAX_EXPANSION = 20
"""Maximum ratio of the decompressed to the compressed size of an uploaded NPZ file without another limit."""


@dataclass(frozen=True, eq=False)
class VectorSet:
    """Vectors of texts.

    Attributes:
        name: name of the file.
        vectors: float32 or float64, [text, size]; read-only.
        ids: identifier of each text; its number from 1 if the file has none.
        texts: the texts; None if the file has none.
        dropped: number of truncated tokens of each text; None if the file does not contain it.
        digest: SHA-256 of vectors, ids and texts. Sets with the same name and digest are equal.
        note: how the vectors were computed; "" if unknown.
        file: the file, if its vectors are memory-mapped; it is checked before each access.
        origin: the model and the pooling of a store's sentence vectors; None if they are unknown.
    """

    name: str
    vectors: Array
    ids: tuple[str, ...]
    texts: tuple[str, ...] | None
    dropped: Array | None
    digest: str
    note: str = ""
    file: MappedFile | None = None
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
        lists = pa.FixedSizeListArray.from_arrays(pa.array(self.vectors.ravel()), size)
        columns: dict[str, Any] = {ID_NAMES[1]: list(self.ids), VECTOR_NAMES[1]: lists}
        columns |= {} if self.texts is None else {TEXT_NAMES[1]: list(self.texts)}
        columns |= {} if self.dropped is None else {DROPPED: self.dropped}
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer)
        return buffer.getvalue()

    def __len__(self) -> int:
        return len(self.vectors)

    def rows(self, selection: slice | Array) -> Array:
        """Return the vectors of some rows.

        Raises:
            StoreError: the memory-mapped file became smaller.
        """
        if self.file is not None:
            self.file.check()
        return self.vectors[selection]

    def document(self, row: int) -> Document:
        """Return the ID and the text of a row, which is "" if the file has no texts."""
        return Document("" if self.texts is None else self.texts[row], self.ids[row])

    @property
    def cache_key(self) -> tuple[type, str, str]:
        """Key that identifies the vectors, ids and texts, and the name of their file in code."""
        return type(self), self.name, self.digest

    def record(self) -> InputRecord:
        """Return the provenance of the vectors."""
        return InputRecord.of_store({"origin": "vectors"}, self.name, len(self.vectors), self.digest)


@dataclass(frozen=True)
class VectorFile(Inputs):
    """The input of questions about a file of vectors or a corpus store, which need no model."""

    can_truncate = False

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return the Python code that reads the file, and the name of its variable."""
        return [f"vectors = bert_probe.read_vectors({record.store['store']!r})"], "vectors"

    def words(self, leading: list[str], record: InputRecord) -> list[str]:  # type: ignore[override]
        """Return the command-line arguments, with the name of the file first."""
        return end_of_options([record.store["store"], *leading])


@dataclass(frozen=True)
class DocumentVectors(SentenceList):
    """Vectors of documents, and the model that encodes a query."""

    list_name = "documents"
    list_file = VECTORS_FILE
    list_option = "--documents"
    has_list = False

    def read_list(
        self,
        file: Path,
        column: str | None,  # noqa: ARG002
        as_named: bool,  # noqa: ARG002
        progress: Progress = no_progress,
    ) -> Any:
        """Return the vectors of a file or a store."""
        return read_vectors(file, progress)

    def parse_list(self, content: bytes, name: str, skip_broken: bool = False) -> Any:  # noqa: ARG002
        """Return the vectors in the contents of a file with this name."""
        return parse_vectors(content, name)

    def python(self, record: InputRecord) -> tuple[list[str], str]:
        """Return statements that load the model and read the vectors, and the arguments as code."""
        lines = [
            f"checkpoint = {load_expression(record.model)}",
            f"vectors = bert_probe.read_vectors({record.sentences['file']!r})",
        ]
        return lines, ", ".join(["checkpoint", "vectors", *truncate_argument(record)])

    def words(self, leading: Sequence[str], record: InputRecord) -> list[str]:
        """Return the option and the file of the vectors, and the question's own arguments."""
        return [self.list_option, record.sentences["file"], *end_of_options(leading)]


def read_vectors(file: str | os.PathLike[str], progress: Progress = no_progress) -> VectorSet:
    """Read vectors of texts from a .parquet, .npz, .npy or .jsonl file, or from a corpus store.

    The vectors of an .npy file are memory-mapped, so they may be larger than the memory.

    Args:
        file: a Parquet or JSON lines file with a column of lists, an NPZ file with a matrix (see
            `VECTOR_NAMES`, `ID_NAMES` and `TEXT_NAMES` for the names), or an NPY file that is a matrix; or
            the folder of a store, whose sentence vectors are used, or the means of its token vectors.
        progress: called with the number of vectors' bytes in the digest and their total.

    Raises:
        TextError: the file cannot be opened, or does not have these columns or arrays.
        StoreError, UnavailableError: the store is broken, or has no vectors.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        from bert_probe.corpus.store import open_corpus

        return store_vectors(open_corpus(path), progress)
    try:
        if path.suffix.lower() == ".npy":
            mapped = MappedFile.of(path)
            columns = _read_npy(path, path.name, "r")
            return make_vector_set(path.name, **columns, file=mapped, progress=progress)
        reader = _reader(path.name)
        with path.open("rb") as stream:
            size = _decoded_size(stream, path.name)
            stream.seek(0)
            # The decoded columns, and a copy of the matrix in its final type.
            with reserved_memory(2 * size, path.name, "Use fewer vectors."):
                columns = reader(stream, path.name)
                return make_vector_set(path.name, **columns, progress=progress)
    except OSError as error:
        raise TextError(f"{path} cannot be opened: {error.strerror or error}. Check the path.") from None


def parse_vectors(content: bytes, name: str, max_bytes: int | None = None) -> VectorSet:
    """Read vectors from the contents of an untrusted file, as `read_vectors` does.

    Args:
        name: the file name, whose extension determines the format.
        max_bytes: maximum size of the decompressed arrays of an NPZ file in bytes; by default `MAX_EXPANSION`
            times the size of the file.

    Raises:
        TextError: see `read_vectors`; also if a file becomes much larger when it is decompressed.
    """
    reader, suffix = _reader(name), Path(name).suffix.lower()
    if suffix == ".parquet":
        from bert_probe.text.parquet import check_upload

        check_upload(content, name, MAX_BYTES // 4)  # the numbers of a list have at least 4 bytes
        return make_vector_set(name, **_read_parquet(io.BytesIO(content), name, MAX_BYTES))
    if suffix == ".npz":
        _check_unpacked(content, name, max_bytes)
    return make_vector_set(name, **reader(io.BytesIO(content), name))


def has_vectors(name: str, stream: BinaryIO) -> bool:
    """Return whether a file with this name contains vectors, and not only texts.

    Args:
        stream: the open file, which is read from its beginning.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return _find(VECTOR_NAMES, pq.read_schema(stream).names) is not None
        except (pa.ArrowException, OSError, ValueError):
            return False  # The reader of documents explains the error.
    if suffix in JSON_SUFFIXES:
        try:
            row = strict_json.loads(next(filter(bytes.strip, stream), b""))
        except (ValueError, RecursionError):
            return False
        return isinstance(row, dict) and _find(VECTOR_NAMES, [*row]) is not None
    return suffix in ARRAY_SUFFIXES


def _reader(name: str) -> Callable[[BinaryIO, str], dict[str, Any]]:
    readers: dict[str, Callable[[BinaryIO, str], dict[str, Any]]] = {
        ".parquet": _read_parquet,
        ".npz": _read_npz,
        ".npy": _read_npy,
        **dict.fromkeys(JSON_SUFFIXES, _read_json_lines),
    }
    suffix = Path(name).suffix.lower()
    if suffix not in readers:
        raise TextError(f"{name} is not a file of vectors. {_FORMAT_HELP}.")
    return readers[suffix]


def _decoded_size(stream: BinaryIO, name: str) -> int:
    """Return the number of bytes of a file of vectors after decompression and decoding."""
    suffix = Path(name).suffix.lower()
    if suffix == ".npz":
        return _unpacked_size(stream, name)
    if suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.ParquetFile(stream).metadata
            chunks = [
                metadata.row_group(group).column(column)
                for group in range(metadata.num_row_groups)
                for column in range(metadata.num_columns)
            ]
            # Dictionary encoding stores repeated values once.
            return sum(max(8 * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise TextError(f"{name} is not a valid Parquet file: {error}. {_FORMAT_HELP}.") from None
    return stream.seek(0, os.SEEK_END)


def _unpacked_size(stream: BinaryIO, name: str) -> int:
    try:
        with zipfile.ZipFile(stream) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise TextError(f"{name} is not a valid NPZ file: {error}. {_FORMAT_HELP}.") from None


def _check_unpacked(content: bytes, name: str, max_bytes: int | None) -> None:
    """Raise TextError if an NPZ file becomes much larger when it is decompressed."""
    size = _unpacked_size(io.BytesIO(content), name)
    if max_bytes is not None and size > max_bytes:
        raise TextError(
            f"The arrays of {name} have {size / 1e6:,.0f} MB; at most {max_bytes / 1e6:.0f} MB are allowed. "
            "Use the command line."
        )
    if max_bytes is None and size > MAX_EXPANSION * len(content):
        raise TextError(
            f"{name} has {size / 1e6:,.0f} MB when it is decompressed, more than {MAX_EXPANSION} times its "
            "size. Save it with numpy.savez."
        )


def store_vectors(store: Store, progress: Progress = no_progress) -> VectorSet:
    """Return the sentence vectors of a store, or the means of its token vectors if it has none.

    Args:
        progress: called with the number of vectors' bytes read and their total.

    Raises:
        UnavailableError: the store has no vectors.
        StoreError: the store is broken.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    from bert_probe.corpus.store_vectors import read_columns

    return make_vector_set(store.folder.name, **read_columns(store, progress))


def make_vector_set(
    name: str,
    vectors: Array,
    ids: Any = None,
    texts: Any = None,
    dropped: Any = None,
    note: str = "",
    file: MappedFile | None = None,
    progress: Progress = no_progress,
    digest: str = "",
    origin: VectorOrigin | None = None,
) -> VectorSet:
    """Return vectors in memory as a set, after checking them; see `VectorSet` for the arguments.

    Args:
        digest: digest of the contents; by default, it is computed.

    Raises:
        TextError: the vectors are not a matrix of numbers, or the other columns have another length.
    """
    matrix = np.asarray(vectors)
    if matrix.ndim != 2 or not all(matrix.shape) or matrix.dtype.kind not in "fiu":
        raise TextError(
            f"The vectors of {name} have the shape {matrix.shape} and the type {matrix.dtype}, but must be "
            f"numbers of shape [text, size]. {_FORMAT_HELP}."
        )
    number = np.dtype(np.float64 if matrix.dtype == np.float64 else np.float32)
    is_copied = matrix.dtype != number or not matrix.flags.c_contiguous
    with reserved_memory(matrix.size * number.itemsize * is_copied, name, "Use fewer vectors."):
        matrix = np.ascontiguousarray(matrix, number)
    count = len(matrix)
    for column, values in (("ids", ids), ("texts", texts), (DROPPED, dropped)):
        if values is None:
            continue
        shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
        if len(shape) != 1:
            raise TextError(f"{column} of {name} must have shape ({count},), not {shape}.")
        if shape != (count,):
            raise TextError(f"{name} has {count:,} vectors, but {shape[0]:,} {column}.")
    identifiers = tuple(map(str, range(1, count + 1) if ids is None else ids))
    lines = None if texts is None else tuple("" if text is None else str(text) for text in texts)
    counts = None if dropped is None else read_only(_token_counts(dropped, name))
    vector_set = VectorSet(name, read_only(matrix), identifiers, lines, counts, digest, note, file, origin)
    return vector_set if digest else replace(vector_set, digest=_digest(vector_set, progress))


def _digest(vectors: VectorSet, progress: Progress) -> str:
    """Return the SHA-256 of the vectors, IDs and texts of a set."""
    digest, content = hashlib.sha256(), memoryview(vectors.vectors.data).cast("B")
    for start in range(0, len(content), _DIGEST_BLOCK):
        progress(start, len(content))
        if vectors.file is not None:
            vectors.file.check()
        digest.update(content[start : start + _DIGEST_BLOCK])
    digest.update("\n".join([*vectors.ids, *(vectors.texts or ())]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _token_counts(values: Any, name: str) -> Array:
    """Return the numbers of truncated tokens.

    Raises:
        TextError: a value is not a whole number from 0.
    """
    counts = np.asarray(values)
    if counts.dtype.kind not in "iuf" or not ((counts >= 0) & (counts < 2**53) & (counts % 1 == 0)).all():
        raise TextError(f"{DROPPED} of {name} must be whole numbers from 0, one for each text.")
    return counts.astype(np.int64)


def _find(names: tuple[str, ...], available: Iterable[str]) -> str | None:
    return next((name for name in names if name in available), None)


_BROKEN_ARRAY = (
    *(ValueError, EOFError, KeyError, MemoryError, RuntimeError, SyntaxError, TypeError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""Exceptions of NumPy and zipfile for a broken, encrypted or oversized array, or one with a broken header."""


def _read_npy(file: BinaryIO | Path, name: str, mode: Any = None) -> dict[str, Any]:
    try:
        vectors = np.load(file, mmap_mode=mode, allow_pickle=False)
        if not isinstance(vectors, np.ndarray):
            vectors.close()  # The contents are those of an NPZ file.
            raise ValueError("it has several arrays")
    except _BROKEN_ARRAY as error:
        raise TextError(f"{name} is not a valid NPY file: {error}. {_FORMAT_HELP}.") from None
    return {"vectors": vectors}


def _read_json_lines(stream: BinaryIO, name: str) -> dict[str, Any]:
    rows: dict[str, list[Any]] = {}
    size = 0
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = strict_json.loads(line)
            columns = _row_columns(row) if isinstance(row, dict) else {}
        except (ValueError, RecursionError, OverflowError):
            columns = {}
        if "vectors" not in columns or not len(columns["vectors"]):
            raise TextError(
                f"Line {number:,} of {name} is not a JSON object with a list of finite numbers under "
                f"{VECTOR_NAMES[1]}. {_FORMAT_HELP}."
            )
        if rows and rows.keys() != columns.keys():
            raise TextError(
                f"Line {number:,} of {name} has {', '.join(columns)}, but the lines before have "
                f"{', '.join(rows)}. Give every line the same keys."
            )
        size = size or len(columns["vectors"])
        if len(columns["vectors"]) != size:
            raise TextError(
                f"The vector in line {number:,} of {name} has {len(columns['vectors']):,} numbers, but those "
                f"before have {size:,}. Give vectors of the same length."
            )
        for key, value in columns.items():
            rows.setdefault(key, []).append(value)
    if not rows:
        raise TextError(f"{name} has no vectors. {_FORMAT_HELP}.")
    return {**rows, "vectors": np.stack(rows["vectors"])}


def _row_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a JSON object by column.

    Raises:
        ValueError, OverflowError: a value has a wrong type, or a number is not finite.
    """
    options = {"vectors": VECTOR_NAMES, "ids": ID_NAMES, "texts": TEXT_NAMES, "dropped": (DROPPED,)}
    columns = {key: row[name] for key, names in options.items() if (name := _find(names, [*row])) is not None}
    vector = columns.get("vectors")
    if not isinstance(vector, list) or not all(type(value) in (int, float) for value in vector):
        raise ValueError("not a list of numbers")
    columns["vectors"] = np.array([float(value) for value in vector])
    is_count = type(columns.get("dropped", 0)) is int
    is_text = isinstance(columns.get("texts", ""), str) and isinstance(columns.get("ids", ""), str | int)
    if not np.isfinite(columns["vectors"]).all() or not is_count or not is_text:
        raise ValueError("a value has another type")
    for key in columns.keys() & {"ids", "texts"}:
        str(columns[key]).encode()  # raises for a lone surrogate
    return columns


def _read_npz(stream: BinaryIO, name: str) -> dict[str, Any]:
    try:
        arrays = np.load(stream, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise ValueError("it has a single array")
        with arrays:
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
    except _BROKEN_ARRAY as error:
        raise TextError(f"{name} is not a valid NPZ file: {error}. {_FORMAT_HELP}.") from None


def _read_parquet(stream: BinaryIO, name: str, max_text_bytes: int | None = None) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(stream)
        names = file.schema_arrow.names
        vector = _find(VECTOR_NAMES, names)
        if vector is None:
            raise TextError(f"{name} has the columns {', '.join(names[:8])}. {_FORMAT_HELP}.")
        columns = {
            key: column
            for key, options in (("ids", ID_NAMES), ("texts", TEXT_NAMES), ("dropped", (DROPPED,)))
            if (column := _find(options, names)) is not None
        }
        for column in (vector, *columns.values()):
            if names.count(column) > 1:
                raise TextError(f"{name} has several columns {column}. Keep one of them.")
        # Repeated texts stay dictionary-encoded until their total size is known.
        stream.seek(0)
        file = pq.ParquetFile(stream, read_dictionary=[*columns.values()])
        table = file.read([vector, *columns.values()])
        size = sum(_text_bytes(table[column]) for column in columns.values())
        if max_text_bytes is not None and size > max_text_bytes:
            raise TextError(f"{name} has more than {max_text_bytes / 1e6:.0f} MB of texts. Split the file.")
        with reserved_memory(2 * size, name, "Use fewer texts."):
            other_columns = {key: table[column].to_pylist() for key, column in columns.items()}
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise TextError(f"{name} is not a valid Parquet file: {error}. {_FORMAT_HELP}.") from None
    lists = table[vector].combine_chunks()
    if not isinstance(lists, pa.ListArray | pa.FixedSizeListArray | pa.LargeListArray) or not len(lists):
        raise TextError(f"The column {vector} of {name} has no lists of numbers. {_FORMAT_HELP}.")
    numbers = lists.flatten().to_numpy(zero_copy_only=False)
    sizes = np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), float)
    if lists.null_count or len(set(sizes.tolist())) != 1:
        raise TextError(f"The vectors of {name} have different lengths. {_FORMAT_HELP}.")
    return {"vectors": numbers.reshape(len(lists), -1), **other_columns}


def _text_bytes(column: Any) -> int:
    """Return the size of the strings of a column, each repetition of a dictionary entry included."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0
    for chunk in column.chunks:
        is_dictionary = pa.types.is_dictionary(chunk.type)
        value_type = chunk.type.value_type if is_dictionary else chunk.type
        checks = ("is_string", "is_large_string", "is_binary", "is_large_binary")
        if not any(getattr(pa.types, check)(value_type) for check in checks):
            total += chunk.nbytes
            continue
        lengths = pc.binary_length(chunk.dictionary if is_dictionary else chunk)
        total += pc.sum(lengths.take(chunk.indices) if is_dictionary else lengths).as_py() or 0
    return total
