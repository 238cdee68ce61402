"""An answer as bytes, in the form that is asked for."""

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
"""Media type → form. All but CSV hold the provenance beside the numbers."""


def choose_media_type(accept: str) -> str:
    """The media type that suits a header Accept best; JSON where it says nothing.

    Raises:
        NotAcceptableError: none does.
    """
    wanted = dict(_parse_media_range(part) for part in accept.split(",") if part.strip())
    if not wanted:
        return JSON
    # Of equal wishes the first of ours.
    best = max(FORMATS, key=lambda media: _quality(wanted, media))
    if not _quality(wanted, best):
        raise NotAcceptableError(
            f"There is no answer as {accept[:100]!r}. Accept one of {', '.join(FORMATS)}."
        )
    return best


def _parse_media_range(written: str) -> tuple[str, float]:
    """A media type, or a range of them, and how much it is wanted, 0 to 1."""
    media, *parameters = (part.strip().lower() for part in written.split(";"))
    given = [part.removeprefix("q=") for part in parameters if part.startswith("q=")]
    return media, float(given[0]) if given and re.fullmatch(r"[01](\.[0-9]{0,3})?", given[0]) else 1.0


def _quality(wanted: Mapping[str, float], media: str) -> float:
    """How much a media type is wanted, 0 to 1: what is named most exactly counts."""
    for name in (media, f"{media.partition('/')[0]}/*", "*/*"):
        if name in wanted:
            return wanted[name]
    return 0.0


def serialize(result: Result, media: str) -> bytes:
    """The table of an answer.

    Raises:
        TooLargeError: more than `MOST_CELLS`.
        ExportError: infinite values in JSON.
    """
    frame, form = build_table(result), FORMATS[media]
    return files.to_arrow(frame) if form == "arrow" else files.to_bytes(frame, form)


def build_table(result: Result) -> pd.DataFrame:
    """The table, if it is not too large to be sent; its parts are made once, and no more than can be sent.

    Raises:
        TooLargeError: more than `MOST_CELLS`.
    """
    parts: list[pd.DataFrame] = []
    for part in result.parts():
        parts.append(part)
        if sum(part.size for part in parts) > MAX_CELLS:
            raise TooLargeError(
                f"The table has more than {MAX_CELLS:,} cells. Ask for less of it, such as fewer layers, or "
                "use the command line."
            )
    return result.joined(parts)
