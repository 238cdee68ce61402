"""Paths of the files at the top level of the repository: the pages and Streamlit's settings.

In an installed package, `setup.py` has copied them to the folder ``top``, with the same relative paths. A
clone, with or without an editable installation, does not have that folder.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

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
