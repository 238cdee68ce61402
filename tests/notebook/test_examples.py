"""Test the notebooks in notebooks/: they run, are committed without outputs, and state their running time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.helpers.gate import prove_unless

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MIN_FIGURES = {"first-steps": 3, "from-bertviz": 5, "fine-tuning": 4}
"""Minimum number of HTML outputs: tables and figures."""


@pytest.fixture(scope="module")
def shared_kernel() -> Iterator[NotebookClient]:
    """Return a client for a kernel that runs all notebooks, so that packages are imported only once."""
    client = _client()
    with client.setup_kernel():
        yield client


def _client() -> NotebookClient:
    return NotebookClient(nbformat.v4.new_notebook(), timeout=200, kernel_name="python3")


def _read(path: Path) -> NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def _execute(client: NotebookClient, notebook: NotebookNode) -> None:
    client.nb = notebook
    for index, cell in enumerate(notebook.cells):
        client.execute_cell(cell, index)


def _text(notebook: NotebookNode, kind: str) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == kind)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "path",
    prove_unless(lambda path: path.stem not in {"explain-a-search", "fine-tuning"}, NOTEBOOKS),
    ids=lambda path: path.stem,
)
def test_notebook_runs(path: Path, shared_kernel: NotebookClient) -> None:
    reset = nbformat.v4.new_code_cell("%reset -f")
    _execute(shared_kernel, nbformat.v4.new_notebook(cells=[reset]))
    notebook = _read(path)
    _execute(shared_kernel, notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    figures = [output for output in outputs if "text/html" in output.get("data", {})]
    assert len(figures) >= MIN_FIGURES.get(path.stem, 2)


@pytest.mark.prove
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_takes_about_as_long_as_it_says(path: Path) -> None:
    notebook = _read(path)
    (stated,) = re.findall(r"\*\*Runs in about (\d+) seconds\*\*", _text(notebook, "markdown"))
    client = _client()
    with client.setup_kernel():
        _execute(client, notebook)
        # Measure processor time, because the machine may be busy with other tests.
        times = psutil.Process(client.km.provisioner.pid).cpu_times()
    assert times.user + times.system < 2 * int(stated)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs_and_installs_itself_in_colab(path: Path) -> None:
    notebook = _read(path)
    assert path.read_text(encoding="utf-8") == nbformat.writes(notebook, indent=1) + "\n"
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in codes)
    assert notebook.metadata.kernelspec.name == "python3"
    install, text = codes[0].source, _text(notebook, "markdown")
    extras = re.findall(r"bert-probe\[([\w,]+)\]", install)
    assert len(set(extras)) == 1
    assert {"model", "notebook"} <= {*extras[0].split(",")}
    assert '"google.colab" in sys.modules' in install
    assert 'run_line_magic("pip", "install' in install
    ast.parse(install)  # marimo cannot read a cell with a line that begins with %
    assert len(re.findall(r"\*\*Runs in about \d+ seconds\*\*", text)) == 1
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (path.parent / target).is_file(), target


def test_every_notebook_is_linked() -> None:
    assert len(NOTEBOOKS) == 6
    text = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert [path.name for path in NOTEBOOKS if f"(../notebooks/{path.name})" not in text] == []
