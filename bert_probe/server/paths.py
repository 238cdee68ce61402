"""Locations of pages, settings, corpus stores that the pages can open, and the playground."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bert_probe.errors import AddressError
from bert_probe.runtime import permissions
from bert_probe.text.sentence_files import is_dir, is_file

_INSTALLED = Path(__file__).with_name("top")


def root_folder() -> Path:
    """Return the absolute path of the folder with `app.py`, `pages/` and `.streamlit/`."""
    return _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2]


def page_script(name: str) -> Path:
    """Return the path of a page's script; `name` is one of `asgi.PAGES`."""
    return root_folder() / "pages" / f"{name}.py"


def settings_file() -> Path:
    """Return the path of Streamlit's settings file: address, allowed hosts, theme."""
    return root_folder() / ".streamlit" / "config.toml"


def settings() -> dict[str, Any]:
    """Return a dict that maps option names, such as `theme.light.textColor`, to their values."""
    return _flatten(tomllib.loads(settings_file().read_text(encoding="utf-8")))


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in table.items():
        options |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return options


STORES_VARIABLE: Final = "BERT_PROBE_CORPORA"
"""Name of the environment variable with the folders of corpus stores, separated as in PATH."""

DEFAULT_STORES_FOLDER: Final = "corpora"
"""Default folder of corpus stores, relative to the current folder."""

MANIFEST: Final = "manifest.json"
"""Name of the file that identifies a folder as a corpus store.

It is not imported from `corpus.store`, because importing pyarrow would slow down the start of the app.
"""

_store_folders: list[Path] = []  # set by `set_store_folders`


def set_store_folders(folders: Sequence[Path]) -> None:
    """Allow the pages to open the stores in `folders` instead of those in the environment variable.

    Raises:
        AddressError: One of the folders does not exist.
    """
    for folder in folders:
        if not is_dir(folder):
            raise AddressError(
                f"There is no folder {folder}. Pass a store or a folder of stores with --corpus."
            )
    _store_folders[:] = [folder.resolve() for folder in folders]


def stores() -> dict[str, Path]:
    """Return a dict that maps the name of each available store to its folder.

    Each configured folder is either a store or contains stores.
    """
    by_name: dict[str, Path] = {}
    for parent in _configured_folders():
        for folder in _stores_in(parent):
            name = _displayed(folder.resolve().name)
            while name in by_name:  # prefix duplicate names with the parent folder
                name = f"{_displayed(folder.resolve().parent.name)} · {name}"
            by_name[name] = folder
    return by_name


VECTOR_SUFFIXES: Final = (".npy", ".npz", ".parquet")
"""Extensions of files that may contain document vectors."""


def vector_files() -> dict[str, Path]:
    """Return the paths of all stores, and of files next to them that may contain vectors, by name."""
    by_name = stores()
    for parent in _configured_folders():
        if not is_file(parent / MANIFEST):
            with suppress(OSError):
                for path in sorted(parent.iterdir()):
                    if path.suffix.lower() in VECTOR_SUFFIXES and is_file(path):
                        by_name.setdefault(_displayed(path.name), path)
    return by_name


def _displayed(name: str) -> str:
    """Return a file name with U+FFFD in place of bytes that are not UTF-8, which pages cannot display."""
    return os.fsencode(name).decode("utf-8", "replace")


def _configured_folders() -> list[Path]:
    folders = _store_folders or [
        Path(path) for path in os.environ.get(STORES_VARIABLE, "").split(os.pathsep) if path
    ]
    default = [Path(DEFAULT_STORES_FOLDER)] if permissions.current().can_build_stores else []
    return [folder for folder in folders or default if is_dir(folder)]


def _stores_in(parent: Path) -> Iterator[Path]:
    if is_file(parent / MANIFEST):
        yield parent
        return
    try:
        children = sorted(parent.iterdir())
    except OSError:
        return
    yield from (folder for folder in children if is_file(folder / MANIFEST))


PLAYGROUND_VARIABLE: Final = "BERT_PROBE_PLAYGROUND"
"""Name of the environment variable with the URL of the playground, a page of the static site."""

_playground: list[str] = []  # set by `set_playground`


def set_playground(url: str) -> None:
    """Let the pages link to the playground at `url` instead of the URL in the environment variable.

    Raises:
        AddressError: The URL is invalid.
    """
    _playground[:] = [_check_url(url)] if url else []
    playground()


def playground() -> str:
    """Return the URL of the playground, or "" if none is configured.

    Raises:
        AddressError: The URL in the environment variable is invalid.
    """
    return _playground[0] if _playground else _check_url(os.environ.get(PLAYGROUND_VARIABLE, "").strip())


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable()
    except ValueError:
        is_valid = False
    if url and (not is_valid or " " in url or "#" in url):
        raise AddressError(
            f"{url[:200]!r} is not the URL of a playground. Pass a URL with http:// or https:// and "
            "without #, such as https://example.org/playground/, in --playground or "
            f"{PLAYGROUND_VARIABLE}."
        )
    return url
