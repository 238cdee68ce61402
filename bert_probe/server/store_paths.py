"""The folders whose stores the pages may open: those that whoever starts the app names, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bert_probe.errors import AddressError

VARIABLE: Final = "BERT_PROBE_CORPORA"
"""Environment variable with such folders, parted as in PATH."""

USUAL: Final = "corpora"
"""The folder within the current one that is looked into where none is named."""

MANIFEST: Final = "manifest.json"
"""The file by which a folder is a store, as `corpus.store` has it; that module would bring pyarrow, for which
the start of the app does not wait."""

_given: list[Path] = []


def serve_from(folders: Sequence[Path]) -> None:
    """Let the pages open the stores in some folders, in place of those that `VARIABLE` names.

    Raises:
        AddressError: one of them is no folder.
    """
    for folder in folders:
        if not folder.is_dir():
            raise AddressError(f"There is no folder {folder}. Give --corpus a store, or a folder of stores.")
    _given[:] = [folder.resolve() for folder in folders]


def stores() -> dict[str, Path]:
    """Name → folder: a shelf that is a store itself, and the stores that lie in one that is none."""
    found: dict[str, Path] = {}
    for shelf in _shelves():
        for folder in _stores_in(shelf):
            name = folder.resolve().name
            while name in found:  # of two with one name, the second says where it lies
                name = f"{folder.resolve().parent.name} · {name}"
            found[name] = folder
    return found


def _shelves() -> list[Path]:
    named = _given or [Path(one) for one in os.environ.get(VARIABLE, "").split(os.pathsep) if one]
    return [folder for folder in named or [Path(USUAL)] if folder.is_dir()]


def _stores_in(shelf: Path) -> Iterator[Path]:
    if (shelf / MANIFEST).is_file():
        yield shelf
        return
    try:
        inside = sorted(shelf.iterdir())
    except OSError:
        return
    yield from (folder for folder in inside if (folder / MANIFEST).is_file())
