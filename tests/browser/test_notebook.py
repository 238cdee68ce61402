"""Test a notebook in a real JupyterLab, offline: views are interactive in a cell and in the saved file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect

from tests.helpers.browser import App, Elsewhere
from tests.helpers.installed import free_port
from tests.helpers.waiting import wait_for_server

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
TEXT = "Almost before we knew it, we had left the ground."
CELLS = (
    f"import bert_probe\ntrace = bert_probe.load().trace({TEXT!r})",
    "view = trace.head_view()\nview",
    "trace.model_view()",
    "view.layer, view.heads = 3, 8",
    "print(view.layer, view.heads, view.pins)",
)
NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}},
    "cells": [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "metadata": {},
            "source": source,
            "execution_count": None,
            "outputs": [],
        }
        for number, source in enumerate(CELLS)
    ],
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Start JupyterLab in a new folder with a notebook that has not been run."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "files").mkdir()
    (folder / "files" / "views.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    port = free_port()
    log = folder / "lab.log"
    # Do not read the user's settings or write to the home folder.
    own = {name: str(folder / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        *(f"--port={port}", "--IdentityProvider.token=", "--ServerApp.password=", "--LabApp.news_url=None"),
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder / "files",
            env=os.environ | own | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
            stdout=output,
            stderr=output,
        )
    origin = f"http://127.0.0.1:{port}"
    try:
        wait_for_server(process, f"{origin}/api", log)
        yield App(origin, log)
    finally:
        process.terminate()
        process.wait(timeout=20)


def opened(page: Page, lab: App) -> Page:
    page.goto(f"{lab.origin}/lab/tree/views.ipynb?reset")
    page.locator(".jp-Notebook .jp-CodeCell").nth(2).wait_for()
    return page


def frame(page: Page, number: int) -> FrameLocator:
    return page.frame_locator(f".jp-OutputArea iframe >> nth={number}")


@pytest.mark.prove
def test_views_work_in_cell_and_saved_notebook(
    lab: App, new_page: Callable[..., Page], expect_in_app: Elsewhere
) -> None:
    page = opened(new_page(), lab)
    page.get_by_text("| Idle").wait_for(timeout=60_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    frame(page, 1).get_by_role("application").wait_for(timeout=120_000)
    # The first view shows the state that a cell has set, and another cell reads the current selection.
    expect(frame(page, 0).get_by_role("application")).to_have_attribute(
        "aria-label", "Attention in layer 4, head 9"
    )
    expect(printed(page)).to_have_text(re.compile(r"^3 \(8,\) \(\)"))
    # The view has the theme of the notebook.
    expect(frame(page, 1).locator(":root")).to_have_attribute("data-theme", "light")
    answers(frame(page, 0), expect_in_app)
    page.locator(".jp-Notebook .jp-CodeCell").nth(4).locator(".jp-InputArea-editor").click()
    page.keyboard.press("Control+Enter")
    expect(printed(page)).to_have_text(re.compile(r"^4 \(2,\) \(0,\)"))
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Save Notebook(?! As)")).click()
    file = lab.log.parent / "files" / "views.ipynb"
    expect(page.locator(".jp-mod-dirty")).to_have_count(0)
    assert len(json.loads(file.read_text(encoding="utf-8"))["cells"][1]["outputs"]) == 1

    # Shut down the kernel, so that its state is lost.
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()
    page.get_by_text("| No Kernel").or_(page.get_by_text("| Unknown")).first.wait_for()

    # The notebook is not run again; its output comes from the file.
    saved = frame(opened(new_page(), lab), 0)
    for key in ("[", "[", *"." * 9):  # The initial selection is the mean of the last layer.
        saved.get_by_role("application").press(key)
    answers(saved, expect_in_app)


def printed(page: Page) -> Locator:
    """Return the printed output of the last cell."""
    return page.locator(".jp-OutputArea-output pre").last


def answers(view: FrameLocator, expect_in_app: Elsewhere) -> None:
    """Check that the view shows the library's numbers when the pointer, clicks and keys select tokens."""
    stage = view.get_by_role("application")
    expect(stage).to_have_attribute("aria-label", "Attention in layer 4, head 9")
    stage.press("Home")
    stage.press("Enter")
    view.get_by_text("These weights as a table").click()
    expect(view.locator("table td")).to_have_count(14)
    numbers = [float(cell) for cell in view.locator("table td").all_text_contents()]
    expect_in_app(lambda checkpoint: checkpoint.trace(TEXT).attention(3, 8)[0]).printed(numbers, 4)
    stage.press("]")
    expect(stage).to_have_attribute("aria-label", "Attention in layer 5, head 9")
    view.get_by_role("button", name="Head 3").click()
    expect(stage).to_have_attribute("aria-label", "Attention in layer 5, head 3")
