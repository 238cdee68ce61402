"""Test that exported files with hostile texts run no script and send no request in a browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.proof.hostile_texts import INJECTIONS, texts
from benchmarks.proof.theme import Run
from bert_probe import Attention, Tokens
from bert_probe.core import files
from bert_probe.errors import TextError
from bert_probe.model.loading import load
from bert_probe.model.trace import Trace
from bert_probe.views import head_view
from bert_probe.views.head_view import HeadViewData
from bert_probe.views.selection import Selection

TEXTS = 60
"""Number of texts in addition to the injections; six files are exported for each text."""
_SETTLES = 0.05
"""Seconds to wait after loading a page, in case a script runs or sends a request late."""
_DRAWN = ".head-view canvas.marks"


def lines(run: Run) -> Iterator[Line]:
    chromium = running_app.browser()
    if chromium is None:
        yield Line("Files opened in a browser", "", "not tested: no Chromium here", "", None)
        return
    from playwright.sync_api import sync_playwright

    hostile = [*run.lots("injections").sample(INJECTIONS, run.times(len(INJECTIONS)))]
    hostile += texts(run.lots("exports"), run.times(TEXTS))
    checkpoint = load()
    opened = done = 0
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=running_app.FLAGS)
        for number, text in enumerate(hostile):
            if run.left < 0:
                break
            done += 1
            try:
                trace = checkpoint.trace(text, truncate=True)
            except TextError:
                continue
            for file in _written(run.folder / str(number), trace):
                opened += 1
                _look(run, browser, file, text)
        browser.close()
    yield Line(
        "Files with hostile texts: page of the head view, notebook table, CSV, JSON",
        "opened from disk in Chromium; requests, dialogs and scripts are recorded",
        f"{opened:,} files of {done} of {len(hostile)} texts, {len(run.failures)} failures",
        "no script runs, no request is sent",
        done == len(hostile) and not run.failures,
    )


def _written(folder: Path, trace: Trace) -> list[Path]:
    """Export a trace in six formats, and return the paths; CSV as .txt, which a browser displays."""
    folder.mkdir()
    result = Attention().of(trace)
    picture = HeadViewData(trace, caption=trace.encoding.text[:300])
    contents = {
        "head-view.html": head_view.page(picture, Selection(trace.layers, (0,))).html().encode(),
        "notebook.html": f"<!doctype html><meta charset=utf-8>{result._repr_html_()}".encode(),
        "attention.csv.txt": files.to_bytes(result.table(), "csv"),
        "attention.json": files.to_bytes(result.table(), "json"),
        "tokens.csv.txt": files.to_bytes(Tokens().of(trace).table(), "csv"),
        "code.txt": f"{result.python}\n{result.shell}\n".encode("utf-8", "backslashreplace"),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def _look(run: Run, browser: Any, file: Path, text: str) -> None:
    page = browser.new_page()
    urls: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.on("dialog", lambda dialog: problems.append("a dialog") or dialog.dismiss())  # type: ignore[func-returns-value]
    page.on("pageerror", lambda error: problems.append(f"an error: {error}"))
    try:
        page.goto(file.as_uri())
        if file.name == "head-view.html":
            page.locator(_DRAWN).first.wait_for(timeout=20_000)
        time.sleep(_SETTLES)
        page.evaluate("new Promise(requestAnimationFrame)")
        if page.evaluate("window.__pwned") is not None:
            problems.append("a script of the text ran")
    except Exception as error:
        # Catch all exceptions, because Playwright's exception types are not in a public module.
        problems.append(f"{type(error).__name__}: {error}")
    finally:
        page.close()
    foreign = [url for url in urls if url != file.as_uri() and not url.startswith(("data:", "blob:"))]
    for problem in (*problems, *(f"requests {url}" for url in foreign)):
        run.failed(f"{file.name} of {text[:100]!r}: {problem}")
