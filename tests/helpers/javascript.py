"""Runs the JavaScript of `js/` with the Node of the development environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JS = Path(__file__).parents[2] / "js"


def find_node() -> str:
    """Return the path of Node; skip the test if it is not installed, or fail in CI."""
    executable = shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")
    is_installed = executable is not None and (JS / "node_modules").is_dir()
    if not is_installed and os.environ.get("CI"):
        pytest.fail("Node or js/node_modules is not there: make .venv/.ready-dev installs both.")
    if not is_installed:
        pytest.skip("Node or js/node_modules is not there")
    return str(executable)


def run(*command: str) -> str:
    """Run a command in `js/` and return its output."""
    done = subprocess.run(command, cwd=JS, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_module(source: str, *arguments: str) -> Any:
    """Run the source code of a JavaScript module, and return the JSON that it prints."""
    return json.loads(run(find_node(), "--input-type=module", "--eval", source, *arguments))
