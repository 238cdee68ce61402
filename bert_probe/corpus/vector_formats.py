"""Read files of vectors in the formats Parquet, NPZ, NPY and JSON lines."""

from __future__ import annotations

import io
import os
import stat
import tokenize
import weakref
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from bert_probe.errors import StoreError, TextError
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array
from bert_probe.text import strict_json
from bert_probe.text.formats import check_unique_columns
from bert_probe.text.parquet_child import MAX_FILE_BYTES, open_parquet
from bert_probe.text.sentence_files import MAX_BYTES

VECTOR_NAMES, TEXT_NAMES = ("vectors", "vector", "embedding"), ("texts", "text")
ID_NAMES = ("ids", "id", "_id", "document")
"""Accepted names of the columns or arrays with vectors, texts and IDs, in order of precedence."""
DROPPED = "tokens_dropped"
"""Name of the optional column with the number of truncated tokens of each text."""
_COLUMNS = {"vectors": VECTOR_NAMES, "ids": ID_NAMES, "texts": TEXT_NAMES, "dropped": (DROPPED,)}
"""Argument of `make_vector_set` → accepted names of its column or array."""
FORMAT_HELP = (
    "Use a .parquet or .jsonl file with the column vector (lists of numbers of the same length) and "
    "optionally id, text and tokens_dropped; an .npz file with the array vectors of shape [text, size] "
    "and optionally ids, texts and tokens_dropped; or an .npy file that contains only the vectors"
)
MAX_EXPANSION = 20
"""Maximum ratio of decoded to stored size of a file, if no limit in bytes applies."""
SMALL_BYTES = 200_000_000
"""Decoded size in bytes up to which local files may exceed `MAX_EXPANSION`."""
MAX_DIMENSIONS = 1 << 18
"""Maximum number of dimensions of a vector: that of a sparse encoder is the size of its vocabulary."""
_ROW_BYTES = 64
"""Minimum size of a row in memory, in bytes: several results are computed for each row, however short."""
_BLOCK_BYTES = 1 << 22
"""Maximum number of bytes that are read and converted at once; a larger row is read completely."""


def check_dimensions(shape: Sequence[int], name: str) -> None:
    """Raise TextError if the vectors of a matrix with this shape have more than `MAX_DIMENSIONS`."""
    if len(shape) == 2 and shape[1] > MAX_DIMENSIONS:
        raise TextError(
            f"The vectors of {name} have {shape[1]:,} dimensions, but at most {MAX_DIMENSIONS:,} are "
            "allowed. Use a matrix with one row for each text."
        )


def number_type(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype for computations with values of the dtype `stored`.

    The result is float32 if float32 represents all values of `stored` exactly, otherwise float64.
    """
    is_exact = np.result_type(stored.newbyteorder("="), np.float32) == np.float32
    return np.dtype(np.float32 if is_exact else np.float64)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, whether the order is column-major (Fortran), and the dtype of an NPY array."""
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:  # only structured arrays need version 3
        number = ".".join(map(str, version))
        raise ValueError(f"its format version is {number}, but only 1.0 and 2.0 are supported")
    shape, is_by_column, stored = readers[version](stream)
    if any(isinstance(size, bool) or size < 0 for size in shape):  # NumPy accepts True as a size
        raise ValueError(f"its header has the invalid shape {shape}")
    return shape, is_by_column, stored


class ArrayFile:
    """A matrix in an .npy file. Indexing reads the selected rows from the file.

    The file is not memory-mapped: if a mapped file is truncated, the operating system kills a process that
    reads beyond its end.

    Attributes:
        path: the file.
        shape: shape of the array. `vector_files` rejects arrays that do not have two dimensions.
        stored: dtype in the file.
        dtype: dtype of the rows that are returned, float32 or float64.
        is_by_row: whether the array is in row-major (C) order. Rows cannot be read in column-major order.
    """

    def __init__(self, path: Path) -> None:
        """Open a file and read its header.

        Raises:
            OSError: the file cannot be opened.
            ValueError: the file is not a complete NPY file.
        """
        self.path = path
        # Without O_NONBLOCK, opening a named pipe waits for a writer.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._descriptor)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise ValueError("it is not a regular file")
        with open(self._descriptor, "rb", closefd=False) as stream:
            self.shape, is_by_column, self.stored = _read_header(stream)
            self._offset = stream.tell()
        self.is_by_row = not is_by_column
        self.dtype = number_type(self.stored) if self.stored.kind in "fiu" else self.stored
        self._status = self._current_status()
        end = self._offset + int(np.prod(self.shape, dtype=object)) * self.stored.itemsize
        if end > self._status[0]:
            raise ValueError(f"it has {self._status[0]:,} bytes, but its header requires {end:,}")

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of all rows in bytes, if they are converted to `dtype`."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def __getitem__(self, selection: int | slice | Array) -> Array:
        """Return rows of the matrix as a new array.

        Args:
            selection: an index, a slice, an array of indices, or a Boolean mask. Indices count from 0.

        Raises:
            IndexError: an index is out of range.
            StoreError: the file changed after it was opened.
        """
        if isinstance(selection, int | np.integer):
            row: Array = self._read([range(len(self))[selection]])[0]
            return row
        if isinstance(selection, slice):
            return self._read(range(len(self))[selection])
        rows = np.asarray(selection)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        if len(rows) and not -len(self) <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"{self.path.name} has {len(self):,} rows.")
        return self._read(np.where(rows < 0, rows + len(self), rows))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Read all rows into an array.

        Raises:
            OutOfMemoryError: the rows do not fit into memory.
        """
        with reserved_memory(self.nbytes, self.path.name, "Use fewer vectors."):
            return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def check(self) -> None:
        """Check that the open file has not changed. Its path may have been deleted or point to another file.

        Raises:
            StoreError: the size or modification time of the open file has changed.
        """
        status = self._current_status()
        if status != self._status:
            raise StoreError(
                f"{self.path} changed while it was open ({status[0]:,} bytes now, {self._status[0]:,} "
                "before). Wait until it is complete, and then open it again."
            )

    def _current_status(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def blocks(self, max_values: int, selection: range) -> Iterator[tuple[slice, Array]]:
        """Yield (slice of rows, vectors) for each block of rows. Each block overwrites the previous vectors.

        Args:
            max_values: maximum number of values in a block; a longer row is a separate block.
            selection: the rows to read, consecutive and in ascending order.

        Raises:
            StoreError: the file has changed since it was opened.
        """
        size = min(len(selection), max(1, max_values // self.shape[1]))
        result = np.empty((size, self.shape[1]), self.dtype)
        for start in range(selection.start, selection.stop, max(1, size)):
            rows = range(start, min(start + size, selection.stop))
            yield slice(rows.start, rows.stop), self._read(rows, result[: len(rows)])

    def _read(self, rows: Sequence[int] | Array, result: Array | None = None) -> Array:
        result = np.empty((len(rows), self.shape[1]), self.dtype) if result is None else result
        size = max(1, _BLOCK_BYTES // (self.shape[1] * self.stored.itemsize))
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            target = result[start : start + len(block)]
            is_converted = self.stored != self.dtype
            content = np.empty(target.shape, self.stored) if is_converted else target
            self._fill(content, block)
            if is_converted:
                _convert(content, target)
        self.check()
        return result

    def _fill(self, content: Array, rows: Sequence[int] | Array) -> None:
        """Read rows of the file into an array; each run of consecutive rows is read at once."""
        is_range = isinstance(rows, range) and rows.step == 1
        starts = [0] if is_range else np.flatnonzero(np.r_[True, np.diff(rows) != 1]).tolist()
        row_bytes = self.shape[1] * self.stored.itemsize
        target = content.view(np.uint8).reshape(-1)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            position = self._offset + int(rows[start]) * row_bytes
            remaining = target[start * row_bytes : end * row_bytes]
            while len(remaining):
                count = os.preadv(self._descriptor, [remaining.data], position)
                if not count:
                    self.check()
                    raise StoreError(f"{self.path} ends before its last row. Save it again.")
                position, remaining = position + count, remaining[count:]


def _convert(content: Array, target: Array) -> None:
    """Copy the values of `content` to `target`, converting them to the dtype of `target`."""
    if content.dtype != np.float16 or not content.dtype.isnative:
        target[:] = content
        return
    import torch

    torch.from_numpy(target).copy_(torch.from_numpy(content))  # 20 times as fast as in NumPy 2.4


def _find(names: tuple[str, ...], available: Iterable[str]) -> str | None:
    return next((name for name in names if name in available), None)


_BROKEN_ARRAY = (
    *(AttributeError, EOFError, LookupError, MemoryError, OverflowError, RuntimeError, SyntaxError),
    *(TypeError, ValueError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""Exceptions that NumPy and zipfile raise for an array file that is broken, encrypted or too large."""


@contextmanager
def _array_errors(name: str, kind: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN_ARRAY as error:
        raise TextError(f"{name} is not a valid {kind} file: {str(error)[:300]}. {FORMAT_HELP}.") from None


def open_array(path: Path) -> ArrayFile:
    """Open an .npy file.

    Raises:
        TextError: the file is not a complete NPY file.
        OSError: the file cannot be opened.
    """
    with _array_errors(path.name, "NPY"):
        return ArrayFile(path)


def _read_npy(stream: BinaryIO, name: str, _progress: Progress, _limit: int | None) -> dict[str, Any]:
    with _array_errors(name, "NPY"):
        vectors = np.load(stream, allow_pickle=False)
        if not isinstance(vectors, np.ndarray):
            vectors.close()  # np.load has opened an NPZ file: release its contents
            raise ValueError("it contains several named arrays, like an NPZ file")
        return {"vectors": vectors}


def _read_json_lines(stream: BinaryIO, name: str, progress: Progress, _limit: int | None) -> dict[str, Any]:
    rows: dict[str, list[Any]] = {}
    numbers = array("d")
    size, done, total = 0, 0, _file_size(stream, name)
    stream.seek(0)
    for number, line in enumerate(stream, 1):
        progress(done, total)
        done += len(line)
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
                f"{VECTOR_NAMES[1]}. {FORMAT_HELP}."
            )
        if rows and rows.keys() != columns.keys():
            raise TextError(
                f"Line {number:,} of {name} has {', '.join(columns)}, but the lines before have "
                f"{', '.join(rows)}. Write the same keys in every line."
            )
        size = size or len(columns["vectors"])
        check_dimensions((1, size), name)
        if len(columns["vectors"]) != size:
            raise TextError(
                f"The vector in line {number:,} of {name} has {len(columns['vectors']):,} numbers, but "
                f"the vectors before have {size:,}. Use vectors of the same length."
            )
        numbers.frombytes(columns["vectors"].tobytes())
        for key, value in columns.items():
            rows.setdefault(key, []).append(None if key == "vectors" else value)
    if not size:
        raise TextError(f"{name} has no vectors. {FORMAT_HELP}.")
    return {**rows, "vectors": np.frombuffer(numbers).reshape(-1, size)}


def _row_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a JSON object as a dict with the keys of `_COLUMNS`.

    Raises:
        ValueError, OverflowError: a value has the wrong type, or a number is not finite.
    """
    names_by_key = {key: _find(names, row) for key, names in _COLUMNS.items()}
    columns = {key: row[name] for key, name in names_by_key.items() if name is not None}
    vector = columns.get("vectors")
    if not isinstance(vector, list) or not all(type(value) in (int, float) for value in vector):
        raise ValueError("the vector is not a list of numbers")
    columns["vectors"] = np.array([float(value) for value in vector])
    is_count = type(columns.get("dropped", 0)) is int
    is_text = isinstance(columns.get("texts", ""), str) and isinstance(columns.get("ids", ""), str | int)
    if not np.isfinite(columns["vectors"]).all() or not is_count or not is_text:
        raise ValueError("a value has another type")
    for key in columns.keys() & {"ids", "texts"}:
        str(columns[key]).encode()  # raises an error for lone surrogates
    return columns


def _read_npz(stream: BinaryIO, name: str, _progress: Progress, _limit: int | None) -> dict[str, Any]:
    with _array_errors(name, "NPZ"):
        arrays = np.load(stream, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise ValueError("it contains a single array without a name, like an NPY file")
        with arrays:
            columns = {key: _find(names, arrays.files) for key, names in _COLUMNS.items()}
            if columns["vectors"] is None:
                raise TextError(f"{name} has the arrays {', '.join(arrays.files[:8])}. {FORMAT_HELP}.")
            result = {key: arrays[column] for key, column in columns.items() if column is not None}
    for key in result.keys() & {"ids", "texts"}:
        if result[key].dtype.kind not in "Uiu":
            raise TextError(f"{columns[key]} of {name} must be strings or integers, not {result[key].dtype}.")
    return result


def _read_parquet(
    stream: BinaryIO, name: str, _progress: Progress, max_text_bytes: int | None
) -> dict[str, Any]:
    import pyarrow as pa

    try:
        file = open_parquet(stream)
        names = file.schema_arrow.names
        vector = _find(VECTOR_NAMES, names)
        if vector is None:
            raise TextError(f"{name} has the columns {', '.join(names[:8])}. {FORMAT_HELP}.")
        columns = {
            key: column
            for key, options in _COLUMNS.items()
            if key != "vectors" and (column := _find(options, names)) is not None
        }
        check_unique_columns((vector, *columns.values()), names, name)
        _check_vector_type(file.schema_arrow.field(vector), name)
        for column in columns.values():
            _check_column_type(file.schema_arrow.field(column), name)
        table = _decoded(stream, name, [vector, *columns.values()], max_text_bytes)
        size = sum(text_bytes(table[column]) for column in columns.values())
        if max_text_bytes is not None and size > max_text_bytes:
            raise TextError(f"{name} has more than {max_text_bytes / 1e6:.0f} MB of texts. Split the file.")
        with reserved_memory(2 * size, name, "Use fewer texts."):
            text_columns = {key: table[column].to_pylist() for key, column in columns.items()}
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise TextError(f"{name} is not a valid Parquet file: {error}. {FORMAT_HELP}.") from None
    lists = table[vector].combine_chunks()
    if not len(lists):
        raise TextError(f"{name} has no vectors. {FORMAT_HELP}.")
    numbers = lists.flatten().to_numpy(zero_copy_only=False)
    sizes = lists.value_lengths().to_numpy(zero_copy_only=False)
    if lists.null_count or sizes.min() != sizes.max():
        raise TextError(f"The vectors of {name} have different lengths. {FORMAT_HELP}.")
    return {"vectors": numbers.reshape(len(lists), -1), **text_columns}


def _decoded(stream: BinaryIO, name: str, columns: Sequence[str], max_text_bytes: int | None) -> Any:
    """Decode columns of a Parquet file; a small file is decoded in a process with limited memory."""
    if _file_size(stream, name) > MAX_FILE_BYTES:
        return open_parquet(stream, read_dictionary=[*columns[1:]]).read(columns)
    from bert_probe.text.parquet import decode

    stream.seek(0)
    content = stream.getvalue() if isinstance(stream, io.BytesIO) else stream
    return decode(content, name, columns, 2 * MAX_BYTES + (max_text_bytes or 0))


def _check_vector_type(field: Any, name: str) -> None:
    """Raise TextError unless a column contains lists of numbers."""
    import pyarrow as pa

    is_list = any(
        getattr(pa.types, check)(field.type) for check in ("is_list", "is_large_list", "is_fixed_size_list")
    )
    if not is_list or not any(
        getattr(pa.types, check)(field.type.value_type) for check in ("is_floating", "is_integer")
    ):
        raise TextError(
            f"The column {field.name} of {name} does not contain lists of numbers. {FORMAT_HELP}."
        )


def _check_column_type(field: Any, name: str) -> None:
    """Raise TextError unless a column contains strings or numbers.

    Arrow cannot read other columns, such as lists or binary values of fixed width, as dictionaries. Repeated
    values would take memory in each row.
    """
    import pyarrow as pa

    value = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    texts, numbers = ("is_string", "is_large_string", "is_string_view"), ("is_integer", "is_floating")
    checks = (*texts, *numbers, "is_boolean", "is_null")
    if not any(getattr(pa.types, check)(value) for check in checks):
        raise TextError(
            f"The column {field.name} of {name} contains values of the type {str(field.type)[:80]}. Replace "
            "them with strings or numbers, or remove the column."
        )


def text_bytes(column: Any) -> int:
    """Return the total size of the strings in a column, counting each repetition of a dictionary entry."""
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


def _file_size(stream: BinaryIO, _name: str) -> int:
    return stream.seek(0, os.SEEK_END)


def _json_size(stream: BinaryIO, name: str) -> int:
    # `read_vectors` doubles this size: a digit and a comma, 2 bytes, become a number of 8 bytes.
    return 2 * _file_size(stream, name)


def _unpacked_size(stream: BinaryIO, name: str) -> int:
    try:
        with zipfile.ZipFile(stream) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise TextError(f"{name} is not a valid NPZ file: {error}. {FORMAT_HELP}.") from None


def _npz_size(stream: BinaryIO, name: str) -> int:
    """Return the size of an NPZ file's arrays, after checking the shape and the memory of the vectors."""
    size = _unpacked_size(stream, name)
    with _array_errors(name, "NPZ"), zipfile.ZipFile(stream) as archive:
        members = {member.removesuffix(".npy"): member for member in archive.namelist()}
        column = _find(VECTOR_NAMES, members)
        if column is None:
            return size  # the reader reports the error
        with archive.open(members[column]) as member:
            shape, _, stored = _read_header(member)
    if len(shape) == 2 and stored.kind in "fiu":
        check_dimensions(shape, name)
        memory = shape[0] * max(_ROW_BYTES, shape[1] * number_type(stored).itemsize)
        if memory > SMALL_BYTES:
            check_expansion(memory, _file_size(stream, name), name)
    return size


def _parquet_size(stream: BinaryIO, name: str) -> int:
    import pyarrow as pa

    from bert_probe.text.parquet import check_readable

    check_readable(stream, name)  # reading the sizes of a damaged file can crash the process
    try:
        metadata = open_parquet(stream).metadata
        chunks = [
            metadata.row_group(group).column(column)
            for group in range(metadata.num_row_groups)
            for column in range(metadata.num_columns)
        ]
        # Dictionary encoding stores repeated values once, so also count 8 bytes for each value.
        size = sum(max(8 * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks)
        return int(max(size, _ROW_BYTES * metadata.num_rows))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TextError(f"{name} is not a valid Parquet file: {error}. {FORMAT_HELP}.") from None


def _check_unpacked(content: bytes, name: str, max_bytes: int | None) -> None:
    """Raise TextError if an NPZ file is too large after decompression."""
    size = _unpacked_size(io.BytesIO(content), name)
    if max_bytes is not None and size > max_bytes:
        raise TextError(
            f"The arrays of {name} have {size / 1e6:,.0f} MB, but at most {max_bytes / 1e6:.0f} MB are "
            "allowed. Use the command line."
        )
    if max_bytes is None:
        check_expansion(size, len(content), name)


def check_expansion(size: int, file_size: int, name: str) -> None:
    """Raise TextError if the decoded size of a file is more than `MAX_EXPANSION` times its size; in bytes."""
    if size > MAX_EXPANSION * file_size:
        raise TextError(
            f"{name} needs {size / 1e6:,.0f} MB of memory, more than {MAX_EXPANSION} times its size. Save "
            "the vectors without compression, for example with numpy.savez."
        )


def _check_parquet(content: bytes, name: str, max_bytes: int | None) -> None:
    from bert_probe.text.parquet import check_upload

    limit = MAX_EXPANSION * len(content) if max_bytes is None else max_bytes
    check_upload(content, name, limit // 2)  # number of values of at least 2 bytes


def _has_column(stream: BinaryIO) -> bool:
    """Return whether a Parquet file has a column of vectors."""
    import pyarrow as pa

    try:
        file = open_parquet(stream)
        return _find(VECTOR_NAMES, file.schema_arrow.names) is not None
    except (pa.ArrowException, OSError, ValueError):
        return False  # the reader of documents then reports the error


def _has_key(stream: BinaryIO) -> bool:
    """Return whether the first line of a JSON lines file has a vector."""
    try:
        row = strict_json.loads(next(filter(bytes.strip, stream), b""))
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and _find(VECTOR_NAMES, [*row]) is not None


@dataclass(frozen=True)
class Format:
    """The functions that read and check the files of one format.

    Attributes:
        read: takes a stream, the file name, a progress callback and the maximum size of all texts in bytes
            (`max_text_bytes` for uploads, otherwise None), and returns a dict with the keys of `_COLUMNS`.
        decoded_size: takes a stream and the file name, and estimates the size of the decoded file in bytes.
        has_vectors: takes a stream, and returns whether the file contains vectors, and not only texts.
        check_upload: takes the contents, the file name and the maximum size in bytes or None, and raises
            TextError if an uploaded file is too large after decoding.
        max_text_bytes: maximum size of all texts in an upload, in bytes; None if decoding cannot enlarge
            texts.
    """

    read: Callable[[BinaryIO, str, Progress, int | None], dict[str, Any]]
    decoded_size: Callable[[BinaryIO, str], int] = _file_size
    has_vectors: Callable[[BinaryIO], bool] = lambda _stream: True
    check_upload: Callable[[bytes, str, int | None], None] = lambda _content, _name, _max_bytes: None
    max_text_bytes: int | None = None


_JSON_LINES = Format(_read_json_lines, _json_size, _has_key)
FORMATS = {
    ".parquet": Format(_read_parquet, _parquet_size, _has_column, _check_parquet, MAX_BYTES),
    ".npz": Format(_read_npz, _npz_size, check_upload=_check_unpacked),
    ".npy": Format(_read_npy),
    ".jsonl": _JSON_LINES,
    ".ndjson": _JSON_LINES,
}
"""File name extension → format."""


def format_of(name: str) -> Format:
    """Return the format that the extension of a file name indicates.

    Raises:
        TextError: the extension is unknown.
    """
    suffix = Path(name).suffix.lower()
    if suffix not in FORMATS:
        raise TextError(f"{name} is not a file of vectors. {FORMAT_HELP}.")
    return FORMATS[suffix]
