"""Where the files are that stand at the top level of the repository: the pages and Streamlit's settings.

An installed package has them in a folder of its own, with the same places to each other; `setup.py` puts them
there. A clone, installed as editable or not at all, has no such folder.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_INSTALLED = Path(__file__).with_name("top")


def top() -> Path:
    """The folder with `app.py`, `pages/` and `.streamlit/`, absolute."""
    return _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2]


def page(name: str) -> Path:
    """The script of a page, by the name that it has in `serve.PAGES`."""
    return top() / "pages" / f"{name}.py"


def settings_file() -> Path:
    """The one file with the app's settings: where it listens, who may call it, its theme."""
    return top() / ".streamlit" / "config.toml"


def settings() -> dict[str, Any]:
    """What is in that file, by the names of the options: `server.address`, `theme.light.textColor`."""
    return _flat(tomllib.loads(settings_file().read_text(encoding="utf-8")))


def _flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return found
