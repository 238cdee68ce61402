"""Tables as files: CSV, JSON, Parquet and NPZ, each with its provenance.

Numbers are written in the fewest digits that give the same float32 when read back.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pyarrow
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from bert_probe.core import writing
from bert_probe.errors import ExportError

FORMATS = ("csv", "json", "parquet", "npz")
PROVENANCE_KEY = "bert_probe"
CSV_SAFE_HELP = (
    "In CSV, a ' precedes text that begins with = + - @ ', also after a ; tab or line end: no formula runs."
)
"""What ``csv_safe`` does, for those who choose it."""
_FORMULA_STARTS = ("=", "+", "-", "@", "'", "\t", "\r", "\n")
# A spreadsheet whose separator is not a comma splits cells at these, also within quotation marks.
_CELL_START = re.compile(r"([;\t\r\n])(?=[=+\-@'])")


def save(frame: pd.DataFrame, path: str | Path, csv_safe: bool = False, overwrite: bool = True) -> list[Path]:
    """Write a table in the format of the file's ending; see `Result.save`.

    Returns:
        The files written: CSV holds no metadata, so its provenance goes to ``NAME.csv.meta.json`` beside it.

    Raises:
        ExportError: an unknown ending, a place that cannot be written, or one that is taken.
    """
    path = Path(path)
    form = format_of(path)
    contents = [to_bytes(frame, form, csv_safe)]
    contents += [_metadata_json(frame, csv_safe)] if form == "csv" else []
    writing.write(dict(zip(output_paths(path), contents, strict=True)), overwrite)
    return output_paths(path)


def output_paths(path: Path) -> list[Path]:
    """The files that a table is written to; the first has its numbers.

    Raises:
        ExportError: an unknown ending.
    """
    return with_metadata_file(path) if format_of(path) == "csv" else [path]


def with_metadata_file(path: Path) -> list[Path]:
    """Return a file and the JSON file next to it that describes it."""
    return [path, path.with_name(f"{path.name}.meta.json")]


def format_of(path: Path) -> str:
    """The format that a file's ending names.

    Raises:
        ExportError: an unknown ending.
    """
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise ExportError(f"{path.name} does not end in {known}. Choose one of these endings.")
    return form


def to_bytes(frame: pd.DataFrame, form: str, csv_safe: bool = False) -> bytes:
    """A table as the bytes of a file; ``form`` is one of `FORMATS`, and ``csv_safe`` matters to CSV alone.

    Raises:
        ExportError: an unknown form, or infinite values in JSON, which has no number for them.
    """
    if form == "csv":
        return _csv(frame, csv_safe)
    writers = {"json": _json, "parquet": _parquet, "npz": _npz}
    if form not in writers:
        raise ExportError(f"There is no format {form}; use {', '.join(FORMATS)}.")
    return writers[form](frame)


def to_csv(frame: pd.DataFrame) -> str:
    """A table as CSV text; the index is written only where it has a name."""
    indexed = frame.index.name is not None
    text: str = frame.to_csv(index=indexed, lineterminator="\n")
    # The writer quotes only those line breaks that are in its own line end.
    return frame.to_csv(index=indexed, lineterminator="\r\n") if "\r" in text else text


def escape_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """A table in which no text is a formula to a spreadsheet; numbers stay as they are.

    A ' is added to names and cells of text where a formula, or a ' of their own, begins: at their start and
    after a semicolon, a tab or a line end. Removing a ' in these places gives back the original text.
    """
    safe = frame.copy(deep=False)
    for place, (_, column) in enumerate(frame.items()):
        if not isinstance(column.dtype, np.dtype) or column.dtype == object:
            cells = [_escape_cell(cell) for cell in column]
            safe.isetitem(place, pd.Series(cells, dtype=column.dtype).array)
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
    """A ZIP of ``name.csv`` and its ``name.csv.meta.json``."""
    return _zip(
        {f"{name}.csv": _csv(frame, csv_safe), f"{name}.csv.meta.json": _metadata_json(frame, csv_safe)}
    )


def parts_zip(parts: Iterable[pd.DataFrame], name: str, csv_safe: bool = False) -> bytes:
    """The same of a table that comes in parts of rows, so that memory holds one part and the ZIP."""
    target = io.BytesIO()
    rest = iter(parts)
    first = next(rest)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(f"{name}.csv", "w", force_zip64=True) as stream:
            whole = chain([first], rest)
            for block in _csv_blocks(map(escape_formulas, whole) if csv_safe else whole):
                stream.write(block)
        archive.writestr(f"{name}.csv.meta.json", _metadata_json(first, csv_safe))
    return target.getvalue()


def _csv_blocks(parts: Iterable[pd.DataFrame]) -> Iterator[bytes]:
    # The header by hand, because this writer puts every name into quotes.
    options = pyarrow.csv.WriteOptions(include_header=False)
    for number, part in enumerate(parts):
        if number == 0:
            yield f"{','.join(part.columns)}\n".encode()
        sink = io.BytesIO()
        pyarrow.csv.write_csv(pyarrow.Table.from_pandas(part, preserve_index=False), sink, options)
        yield sink.getvalue()


def _csv(frame: pd.DataFrame, csv_safe: bool) -> bytes:
    return to_csv(escape_formulas(frame) if csv_safe else frame).encode("utf-8")


def _json(frame: pd.DataFrame) -> bytes:
    """Provenance, then each column on a line of its own."""
    provenance = _dumps(frame.attrs.get("provenance", {})).replace(b"\n", b"\n ")
    columns = (
        b"  %s: %s" % (_dumps(name, indent=None), _json_column(cells)) for name, cells in _columns(frame)
    )
    return b'{\n "provenance": %s,\n "columns": {\n%s\n }\n}' % (provenance, b",\n".join(columns))


def _columns(frame: pd.DataFrame) -> Iterator[tuple[str, Any]]:
    """Those of `plain`, which would make a frame for it."""
    if frame.index.name is not None:
        yield str(frame.index.name), _cell_array(frame.index)
    yield from zip(_column_names(frame), _cells_by_column(pd.DataFrame(frame)), strict=True)


def _cells_by_column(frame: pd.DataFrame) -> Iterable[Any]:
    """The cells of each column; those of a matrix at once, for pandas takes longer to hand one out than to
    write it."""
    types = set(frame.dtypes)
    if len(types) == 1 and isinstance(types.pop(), np.dtype):
        return frame.to_numpy().T
    return (_cell_array(series) for _, series in frame.items())


def _json_column(cells: Any) -> bytes:
    """A column as JSON has it; null where it is missing or not a number.

    Raises:
        ExportError: infinite values.
    """
    if cells.dtype.kind not in "biuf" or cells.dtype == np.float16:
        return _dumps([_json_value(cell) for cell in cells], indent=None)
    if cells.dtype.kind == "f" and np.isinf(cells).any():
        raise ExportError("There are infinite values, which JSON cannot hold. Choose another format.")
    # Of each type the fewest digits that read back as the same number.
    return orjson.dumps(np.ascontiguousarray(cells), option=orjson.OPT_SERIALIZE_NUMPY)


def _cell_array(series: pd.Series | pd.Index) -> Any:
    """The values as they are; those that may be missing as objects, lest they become floats."""
    return series.to_numpy() if isinstance(series.dtype, np.dtype) else series.to_numpy(dtype=object)


def to_arrow(frame: pd.DataFrame) -> bytes:
    """A table as a stream of Arrow, with the metadata of a Parquet file: for programs, which keep no file."""
    table, sink = _arrow_table(frame), io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def _parquet(frame: pd.DataFrame) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(_arrow_table(frame), sink)
    return sink.getvalue()


def _arrow_table(frame: pd.DataFrame) -> pyarrow.Table:
    """A table with its provenance in the schema."""
    table = pyarrow.Table.from_pandas(flatten_index(frame), preserve_index=False)
    metadata = {PROVENANCE_KEY: json.dumps(frame.attrs.get("provenance", {}))}
    return table.replace_schema_metadata(metadata)


def _npz(frame: pd.DataFrame) -> bytes:
    """A matrix as ``values``, ``rows`` and ``columns``; a table as one array a column.

    NumPy's integers and strings have no missing value: there it is NaN, or an empty string.
    """
    if frame.index.name is not None:
        arrays = {
            "values": frame.to_numpy(),
            "rows": np.array(frame.index, dtype=str),
            "columns": np.array(frame.columns, dtype=str),
        }
    else:
        arrays = {str(name): _npz_column(frame[name]) for name in frame}
    arrays["provenance"] = np.array(json.dumps(frame.attrs.get("provenance", {})))
    sink = io.BytesIO()
    # As `np.savez_compressed` does it, which refuses an array that is called "file".
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
    return sink.getvalue()


def _npz_column(series: pd.Series) -> Any:
    """A column without Python objects, so that the file opens without unpickling."""
    if str(series.dtype) == "Int64":
        return series.astype("float64").to_numpy()
    if series.dtype.kind in "biuf":
        return series.to_numpy()
    return np.array(
        ["" if _json_value(cell) is None else str(cell) for cell in _cell_array(series)], dtype=str
    )


def flatten_index(frame: pd.DataFrame) -> pd.DataFrame:
    """The index as a column, and every column's name once: repeated tokens get their position."""
    whole = pd.DataFrame(frame)  # without its attributes, which pandas would copy again for every column
    if frame.index.name is None:
        return whole
    whole.columns = pd.Index(_column_names(frame))
    return whole.reset_index()


def _column_names(frame: pd.DataFrame) -> list[str]:
    """Of the columns; beside an index each is there once, and none is called as that is."""
    names = [str(name) for name in frame.columns]
    label = frame.index.name
    repeated = label is not None and len({*names, str(label)}) <= len(names)
    return [f"{i} {name}" for i, name in enumerate(names)] if repeated else names


def _json_value(cell: Any) -> Any:
    """A cell as JSON has it; None where it is missing or not a number."""
    if cell is None or cell is pd.NA:
        return None
    if isinstance(cell, float | np.floating):
        if np.isnan(cell):
            return None
        if np.isinf(cell):
            raise ExportError("There are infinite values, which JSON cannot hold. Choose another format.")
    if isinstance(cell, np.float32):
        return float(str(cell))
    return cell.item() if isinstance(cell, np.generic) else cell


def _metadata_json(frame: pd.DataFrame, csv_safe: bool) -> bytes:
    """Provenance of a CSV file, which also says where its text is not exactly that of the table."""
    return _dumps(frame.attrs.get("provenance", {}) | ({"csv_safe": True} if csv_safe else {}))


def _dumps(record: Any, indent: int | None = 1) -> bytes:
    """JSON in UTF-8. Half a surrogate pair, as in a folder's undecodable name, is escaped."""
    text = json.dumps(record, ensure_ascii=False, indent=indent, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def _zip(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()
