"""Write tables to CSV, JSON, Parquet and NPZ files, with their provenance.

Numbers are written with the fewest digits that parse to the same float32.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pandas as pd
import pyarrow
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from bert_probe.core import writing
from bert_probe.errors import ExportError, FormatError

FORMATS = ("csv", "json", "parquet", "npz")
PROVENANCE_KEY = "bert_probe"
CSV_SAFE_HELP = (
    "In CSV files, add a ' before text that begins with = + - @ ' (in a cell, or after a semicolon, tab "
    "or line end), so that spreadsheets do not run the text as a formula."
)
"""Help text of the option ``csv_safe``."""
_FORMULA_STARTS = ("=", "+", "-", "@", "'", "\t", "\r", "\n")
# A spreadsheet configured for another separator splits cells at these characters, even within quotes, and
# removes quotation marks at the start of a cell.
_CELL_START = re.compile(r"([;\t\r\n]\"*)(?=[=+\-@'])")


def save(frame: pd.DataFrame, path: str | Path, csv_safe: bool = False, overwrite: bool = True) -> list[Path]:
    """Write a table in the format of the file's suffix; see `Result.save`.

    Returns:
        The files written. CSV has no metadata, so its provenance is written to ``NAME.csv.meta.json``.

    Raises:
        ExportError: the suffix is unknown, or a file cannot be written or must not be replaced.
    """
    path = Path(path)
    file_format = format_of(path)
    contents = [to_bytes(frame, file_format, csv_safe)]
    contents += [_metadata_json(frame, csv_safe)] if file_format == "csv" else []
    writing.write(dict(zip(output_paths(path), contents, strict=True)), overwrite)
    return output_paths(path)


def output_paths(path: Path) -> list[Path]:
    """Return the files that `save` writes for a path; the first file contains the table.

    Raises:
        ExportError: the suffix is unknown.
    """
    return with_metadata_file(path) if format_of(path) == "csv" else [path]


def with_metadata_file(path: Path) -> list[Path]:
    """Return two paths: a file, and the JSON file next to it that contains its provenance."""
    return [path, path.with_name(f"{path.name}.meta.json")]


def format_of(path: Path) -> str:
    """Return the format that a file's suffix indicates.

    Raises:
        ExportError: the suffix is unknown.
    """
    file_format = path.suffix.removeprefix(".").lower()
    if file_format not in FORMATS:
        suffixes = ", ".join(f".{name}" for name in FORMATS)
        raise ExportError(f"{path.name} does not end in {suffixes}. Choose one of these extensions.")
    return file_format


def to_bytes(frame: pd.DataFrame, file_format: str, csv_safe: bool = False) -> bytes:
    """Serialize a table to the bytes of a file.

    Args:
        file_format: one of `FORMATS`.
        csv_safe: whether formulas are escaped in CSV; see `escape_formulas`.

    Raises:
        ExportError: the format is unknown.
        FormatError: the format cannot represent the table: JSON no infinite values, and NPZ no long texts.
    """
    if file_format == "csv":
        return _csv(frame, csv_safe)
    writers = {"json": _json, "parquet": _parquet, "npz": _npz}
    if file_format not in writers:
        raise ExportError(f"The format must be one of {', '.join(FORMATS)}, not {file_format!r}.")
    return writers[file_format](frame)


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table as CSV text, with the index only if the index has a name."""
    indexed = frame.index.name is not None
    text: str = frame.to_csv(index=indexed, lineterminator="\n")
    # pandas quotes a cell that contains \r only if lineterminator also contains \r.
    return frame.to_csv(index=indexed, lineterminator="\r\n") if "\r" in text else text


def escape_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Escape text in a table, so that spreadsheets do not interpret it as formulas. Numbers do not change.

    In column names and text cells, the character ' is inserted in two cases: before one of = + - @ ' at the
    start of the cell or after a semicolon, tab or line end (and quotation marks that follow); and before a
    tab or line end at the start of the cell. Removing the inserted characters restores the original text.
    """
    safe = frame.copy(deep=False)
    for position, (_, column) in enumerate(frame.items()):
        if not isinstance(column.dtype, np.dtype) or column.dtype == object:
            cells = [_escape_cell(cell) for cell in column]
            safe.isetitem(position, pd.Series(cells, dtype=column.dtype).array)
    safe.columns = pd.Index([_escape_cell(name) for name in frame.columns], dtype=object)
    if frame.index.name is not None:
        names = [_escape_cell(name) for name in frame.index]
        safe.index = pd.Index(names, name=_escape_cell(frame.index.name), dtype=object)
    return safe


def _escape_cell(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = _CELL_START.sub(r"\1'", cell)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def csv_zip(frame: pd.DataFrame, name: str, csv_safe: bool = False) -> bytes:
    """Return a ZIP archive with a table (``name.csv``) and its provenance (``name.csv.meta.json``)."""
    return _zip(
        {f"{name}.csv": _csv(frame, csv_safe), f"{name}.csv.meta.json": _metadata_json(frame, csv_safe)}
    )


def parts_zip(chunks: Iterable[pd.DataFrame], name: str, csv_safe: bool = False) -> bytes:
    """Return the ZIP archive of `csv_zip` for a table in chunks of rows. One chunk is in memory at a time."""
    target = io.BytesIO()
    iterator = iter(chunks)
    first = next(iterator)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(f"{name}.csv", "w", force_zip64=True) as stream:
            frames = chain([first], iterator)
            for block in _csv_blocks(map(escape_formulas, frames) if csv_safe else frames):
                stream.write(block)
        archive.writestr(f"{name}.csv.meta.json", _metadata_json(first, csv_safe))
    return target.getvalue()


def _csv_blocks(chunks: Iterable[pd.DataFrame]) -> Iterator[bytes]:
    # The header is written separately, because pyarrow would quote every name.
    options = pyarrow.csv.WriteOptions(include_header=False)
    for number, chunk in enumerate(chunks):
        if number == 0:
            yield f"{','.join(chunk.columns)}\n".encode()
        sink = io.BytesIO()
        pyarrow.csv.write_csv(pyarrow.Table.from_pandas(chunk, preserve_index=False), sink, options)
        yield sink.getvalue()


def _csv(frame: pd.DataFrame, csv_safe: bool) -> bytes:
    return to_csv(escape_formulas(frame) if csv_safe else frame).encode("utf-8")


def _json(frame: pd.DataFrame) -> bytes:
    """Return a table as a JSON object with its provenance and its columns, one column per line."""
    provenance = _dumps(frame.attrs.get("provenance", {})).replace(b"\n", b"\n ")
    columns = (
        b"  %s: %s" % (_dumps(name, indent=None), _json_column(cells)) for name, cells in _columns(frame)
    )
    return b'{\n "provenance": %s,\n "columns": {\n%s\n }\n}' % (provenance, b",\n".join(columns))


def _columns(frame: pd.DataFrame) -> Iterator[tuple[str, Any]]:
    """Yield the name and cells of each column of `flatten_index`, without building the flattened table."""
    if frame.index.name is not None:
        yield str(frame.index.name), _cell_array(frame.index)
    yield from zip(_column_names(frame), _cells_by_column(pd.DataFrame(frame)), strict=True)


def _cells_by_column(frame: pd.DataFrame) -> Iterable[Any]:
    """Return the cells of each column, as an iterable over the columns.

    A table with a single dtype is converted to one array, because iterating over pandas columns is slow.
    """
    types = set(frame.dtypes)
    if len(types) == 1 and isinstance(types.pop(), np.dtype):
        return frame.to_numpy().T
    return (_cell_array(series) for _, series in frame.items())


def _json_column(cells: Any) -> bytes:
    """Return a column as a JSON array, in which missing values and NaN are null.

    Raises:
        FormatError: the column has infinite values.
    """
    if cells.dtype.kind not in "biuf" or cells.dtype == np.float16:
        return _dumps([_json_value(cell) for cell in cells], indent=None)
    if cells.dtype.kind == "f" and np.isinf(cells).any():
        raise FormatError(
            "The table contains infinite values, which JSON cannot represent. Choose another format."
        )
    # orjson writes the fewest digits that parse to the same number of this dtype.
    return orjson.dumps(np.ascontiguousarray(cells), option=orjson.OPT_SERIALIZE_NUMPY)


def _cell_array(series: pd.Series | pd.Index) -> Any:
    """Return a column as an array. Nullable columns get the dtype object, so that integers stay integers."""
    return series.to_numpy() if isinstance(series.dtype, np.dtype) else series.to_numpy(dtype=object)


def to_arrow(frame: pd.DataFrame) -> bytes:
    """Return a table as an Arrow IPC stream, with the same metadata as a Parquet file."""
    table, sink = _arrow_table(frame), io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def _parquet(frame: pd.DataFrame) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(_arrow_table(frame), sink)
    return sink.getvalue()


def _arrow_table(frame: pd.DataFrame) -> pyarrow.Table:
    """Return an Arrow table with the provenance in its schema metadata."""
    table = pyarrow.Table.from_pandas(flatten_index(frame), preserve_index=False)
    metadata = {PROVENANCE_KEY: json.dumps(frame.attrs.get("provenance", {}))}
    return table.replace_schema_metadata(metadata)


_MAX_TEXT_BYTES: Final = 200_000_000
"""Maximum size of a text column in an NPZ file, in bytes before compression."""


def _npz(frame: pd.DataFrame) -> bytes:
    """Return a table as an NPZ file with one array per column.

    A table whose index has a name is a matrix, with the arrays ``values``, ``rows`` and ``columns``. Missing
    values become NaN in numeric columns and "" in other columns, because NumPy integers and strings cannot
    represent missing values.

    Raises:
        FormatError: see `_text_array`.
    """
    if frame.index.name is not None:
        arrays = {
            "values": frame.to_numpy(),
            "rows": _text_array("rows", list(map(str, frame.index))),
            "columns": _text_array("columns", list(map(str, frame.columns))),
        }
    else:
        arrays = {str(name): _npz_column(str(name), frame[name]) for name in frame}
    arrays["provenance"] = np.array(json.dumps(frame.attrs.get("provenance", {})))
    sink = io.BytesIO()
    # `np.savez_compressed` would reject an array named "file".
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
    return sink.getvalue()


def _npz_column(name: str, series: pd.Series) -> Any:
    """Return a column as an array without Python objects, so that NumPy can load it without pickle."""
    if str(series.dtype) == "Int64":
        return series.astype("float64").to_numpy()
    if series.dtype.kind in "biuf":
        return series.to_numpy()
    return _text_array(name, ["" if _json_value(cell) is None else str(cell) for cell in _cell_array(series)])


def _text_array(name: str, texts: list[str]) -> Any:
    """Return texts as an array of strings, all of which take as much memory as the longest one.

    Raises:
        FormatError: the array would be larger than `_MAX_TEXT_BYTES`.
    """
    longest = max(map(len, texts), default=0)
    size = 4 * longest * len(texts)
    if size > _MAX_TEXT_BYTES:
        raise FormatError(
            f"The longest text in the column {name[:50]!r} has {longest:,} characters, and NPZ stores all "
            f"{len(texts):,} texts with this length ({size / 1e9:.1f} GB). Choose another format."
        )
    return np.array(texts, dtype=str)


def flatten_index(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert the named index of a table to a column, and make column names unique; see `_column_names`."""
    table = pd.DataFrame(frame)  # drop attrs, because pandas copies them for every column
    if frame.index.name is None:
        return table
    table.columns = pd.Index(_column_names(frame))
    return table.reset_index()


def _column_names(frame: pd.DataFrame) -> list[str]:
    """Return the column names. In a table with an index, repeated names get their position as a prefix."""
    names = [str(name) for name in frame.columns]
    label = frame.index.name
    repeated = label is not None and len({*names, str(label)}) <= len(names)
    return [f"{i} {name}" for i, name in enumerate(names)] if repeated else names


def _json_value(cell: Any) -> Any:
    """Return a cell as a value for JSON, or None for a missing value or NaN."""
    if cell is None or cell is pd.NA:
        return None
    if isinstance(cell, float | np.floating):
        if np.isnan(cell):
            return None
        if np.isinf(cell):
            raise FormatError(
                "The table contains infinite values, which JSON cannot represent. Choose another format."
            )
    if isinstance(cell, np.float32):
        return float(str(cell))
    return cell.item() if isinstance(cell, np.generic) else cell


def _metadata_json(frame: pd.DataFrame, csv_safe: bool) -> bytes:
    """Return the provenance of a CSV file as JSON, including whether formulas were escaped."""
    return _dumps(frame.attrs.get("provenance", {}) | ({"csv_safe": True} if csv_safe else {}))


def _dumps(record: Any, indent: int | None = 1) -> bytes:
    """Return JSON in UTF-8; lone surrogates, as in undecodable file names, are escaped."""
    text = json.dumps(record, ensure_ascii=False, indent=indent, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def _zip(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()
