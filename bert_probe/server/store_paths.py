"""The corpus stores that the pages can open: only those in folders that were configured at the start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bert_probe.errors import AddressError

VARIABLE: Final = "BERT_PROBE_CORPORA"
"""Name of the environment variable with the folders, which are separated as in PATH."""

DEFAULT_FOLDER: Final = "corpora"
"""Default folder of stores, relative to the current folder."""

MANIFEST: Final = "manifest.json"
"""Name of the file that identifies a folder as a store.

`corpus.store` defines it too, but imports pyarrow, which would slow down the start of the app.
"""

_folders: list[Path] = []  # set by `set_folders`


def set_folders(folders: Sequence[Path]) -> None:
    """Allow the pages to open the stores in `folders`, instead of those in the environment variable.

    Raises:
        AddressError: One of the folders does not exist.
    """
    for folder in folders:
        if not folder.is_dir():
            raise AddressError(f"There is no folder {folder}. Give --corpus a store or a folder of stores.")
    _folders[:] = [folder.resolve() for folder in folders]


def stores() -> dict[str, Path]:
    """Return the folder of each available store, by name.

    A configured folder is a store or contains stores.
    """
    by_name: dict[str, Path] = {}
    for parent in _configured_folders():
        for folder in _stores_in(parent):
            name = folder.resolve().name
            while name in by_name:  # a duplicate name is prefixed with the name of the parent folder
                name = f"{folder.resolve().parent.name} · {name}"
            by_name[name] = folder
    return by_name


def _configured_folders() -> list[Path]:
    folders = _folders or [Path(path) for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
    return [folder for folder in folders or [Path(DEFAULT_FOLDER)] if folder.is_dir()]


def _stores_in(parent: Path) -> Iterator[Path]:
    if (parent / MANIFEST).is_file():
        yield parent
        return
    try:
        children = sorted(parent.iterdir())
    except OSError:
        return
    yield from (folder for folder in children if (folder / MANIFEST).is_file())
