"""Imports the programs in scripts/, which are not a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parents[2] / "scripts"


def load_script(name: str) -> ModuleType:
    """Import a program from the folder scripts/ and return it as a module."""
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", _FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module by name
    spec.loader.exec_module(module)
    return module
