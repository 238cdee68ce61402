"""Paths of the pages, of Streamlit's settings, and of the corpus stores that the pages can open."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bert_probe.errors import AddressError
from bert_probe.runtime import permissions

_INSTALLED = Path(__file__).with_name("top")


def root_folder() -> Path:
    """Return the absolute path of the folder with `app.py`, `pages/` and `.streamlit/`."""
    return _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2]


def page_script(name: str) -> Path:
    """Return the path of a page's script; its name is one of `asgi.PAGES`."""
    return root_folder() / "pages" / f"{name}.py"


def settings_file() -> Path:
    """Return the path of Streamlit's settings file: address, allowed hosts, theme."""
    return root_folder() / ".streamlit" / "config.toml"


def settings() -> dict[str, Any]:
    """Return the settings by option name, such as `server.address` or `theme.light.textColor`."""
    return _flatten(tomllib.loads(settings_file().read_text(encoding="utf-8")))


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in table.items():
        options |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return options


STORES_VARIABLE: Final = "BERT_PROBE_CORPORA"
"""Name of the environment variable with the folders, which are separated as in PATH."""

DEFAULT_STORES_FOLDER: Final = "corpora"
"""Default folder of stores, relative to the current folder."""

MANIFEST: Final = "manifest.json"
"""Name of the file that identifies a folder as a store.

`corpus.store` defines it too, but imports pyarrow, which would slow down the start of the app.
"""

_store_folders: list[Path] = []  # set by `set_store_folders`


def set_store_folders(folders: Sequence[Path]) -> None:
    """Allow the pages to open the stores in `folders`, instead of those in the environment variable.

    Raises:
        AddressError: One of the folders does not exist.
    """
    for folder in folders:
        if not folder.is_dir():
            raise AddressError(f"There is no folder {folder}. Pass --corpus a store or a folder of stores.")
    _store_folders[:] = [folder.resolve() for folder in folders]


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
    folders = _store_folders or [
        Path(path) for path in os.environ.get(STORES_VARIABLE, "").split(os.pathsep) if path
    ]
    default = [Path(DEFAULT_STORES_FOLDER)] if permissions.current().can_build_stores else []
    return [folder for folder in folders or default if folder.is_dir()]


def _stores_in(parent: Path) -> Iterator[Path]:
    if (parent / MANIFEST).is_file():
        yield parent
        return
    try:
        children = sorted(parent.iterdir())
    except OSError:
        return
    yield from (folder for folder in children if (folder / MANIFEST).is_file())
