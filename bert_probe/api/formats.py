"""Serialize results in the format that the client accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pandas as pd

from bert_probe.api.errors import NotAcceptableError, TooLargeError
from bert_probe.api.limits import MAX_CELLS
from bert_probe.core import files
from bert_probe.core.result import Result

JSON: Final = "application/json"
FORMATS: Final[Mapping[str, str]] = {
    JSON: "json",
    "text/csv": "csv",
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.apache.arrow.stream": "arrow",
}
"""Media type → file format. All except CSV include the provenance."""


def choose_media_type(accept: str) -> str:
    """Return the available media type that best matches an Accept header; JSON for an empty header.

    Raises:
        NotAcceptableError: no format is acceptable.
    """
    qualities = dict(_parse_media_range(part) for part in accept.split(",") if part.strip())
    if not qualities:
        return JSON
    # If several formats are equally acceptable, `max` returns the first of them.
    best = max(FORMATS, key=lambda media: _quality(qualities, media))
    if not _quality(qualities, best):
        raise NotAcceptableError(
            f"The format {accept[:100]!r} is not available. Accept one of {', '.join(FORMATS)}."
        )
    return best


def _parse_media_range(media_range: str) -> tuple[str, float]:
    """Parse one entry of an Accept header; return its media range and its quality value from 0 to 1."""
    media, *parameters = (part.strip().lower() for part in media_range.split(";"))
    qualities = [part.removeprefix("q=") for part in parameters if part.startswith("q=")]
    is_valid = qualities and re.fullmatch(r"[01](\.[0-9]{0,3})?", qualities[0])
    return media, float(qualities[0]) if is_valid else 1.0


def _quality(qualities: Mapping[str, float], media: str) -> float:
    """Return the quality value of a media type, from 0 to 1, according to the most specific media range."""
    for name in (media, f"{media.partition('/')[0]}/*", "*/*"):
        if name in qualities:
            return qualities[name]
    return 0.0


def serialize(result: Result, media: str) -> bytes:
    """Return the table of a result as bytes.

    Raises:
        TooLargeError: the table has more than `MAX_CELLS` cells.
        ExportError: the table has infinite values, which JSON cannot represent.
    """
    frame, file_format = build_table(result), FORMATS[media]
    return files.to_arrow(frame) if file_format == "arrow" else files.to_bytes(frame, file_format)


def build_table(result: Result) -> pd.DataFrame:
    """Return the table of a result, computing its parts only until they exceed `MAX_CELLS`.

    Raises:
        TooLargeError: the table has more than `MAX_CELLS` cells.
    """
    parts: list[pd.DataFrame] = []
    cells = 0
    for part in result.parts():
        parts.append(part)
        cells += part.size
        if cells > MAX_CELLS:
            raise TooLargeError(
                f"The table has more than {MAX_CELLS:,} cells. Request a smaller table, for example "
                "fewer layers, or use the command line."
            )
    return result.joined(parts)
