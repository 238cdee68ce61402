"""What happens during long work, in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_probe.errors import ExportError


@contextmanager
def lines_of_json(file: Path | None, mode: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Writes what it is called with into a file as it comes, a line each; without a file nothing.

    Args:
        mode: "w" to begin the file anew, "a" to go on with it.

    Raises:
        ExportError: it cannot be written.
    """
    if file is None:
        yield lambda _: None
        return
    try:
        with file.open(mode, encoding="utf-8") as stream:

            def write(event: Mapping[str, Any]) -> None:
                stream.write(json.dumps(event) + "\n")
                stream.flush()

            yield write
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}. Choose another place.") from None
