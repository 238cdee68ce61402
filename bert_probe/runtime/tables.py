"""Build the tables of results within the limits of a server."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from bert_probe.core.frames import text_length
from bert_probe.core.result import Result
from bert_probe.errors import TooLargeError
from bert_probe.runtime.permissions import MAX_CELLS, MAX_TABLE_CHARACTERS


def limited_table(result: Result) -> pd.DataFrame:
    """Return the table of a result.

    Raises:
        TooLargeError: see `limited_parts`.
    """
    return result.joined(list(limited_parts(result)))


def limited_parts(result: Result) -> Iterator[pd.DataFrame]:
    """Yield the table of a result in blocks of rows. Blocks are computed only until they exceed a limit.

    Raises:
        TooLargeError: the table has more than `MAX_CELLS` cells, or its texts have more than
            `MAX_TABLE_CHARACTERS` characters.
    """
    cells = characters = 0
    for part in result.parts():
        cells += part.size
        if cells > MAX_CELLS:
            raise TooLargeError(
                f"The table has more than {MAX_CELLS:,} cells. Request a smaller table, for example fewer "
                "layers or a shorter text, or use the command line."
            )
        characters += text_length(part)
        if characters > MAX_TABLE_CHARACTERS:
            raise TooLargeError(
                f"The texts in the table have more than {MAX_TABLE_CHARACTERS:,} characters. Request fewer "
                "rows or shorter texts, or use the command line."
            )
        yield part
