"""Compare head view and model view with BertViz: first paint, change of layer, bytes, and longer texts.

Both libraries run in the same Chromium, with the attention weights of the same trace. The BertViz page
contains its notebook output, with local scripts instead of a CDN; its times start when the page is opened.
The views of BERT Probe run in the app; their times start with the click that opens the view, and include the
work of the server and the browser. All times end when a frame with the drawing is visible.
"""

from __future__ import annotations

import base64
import functools
import http.server
import json
import statistics
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import bert_probe
from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.trace_cost import text_of
from bert_probe.server import bertviz_frames

ROUNDS = 3  # rounds of BertViz, each of which takes half a minute
OURS = 5  # measurements of BERT Probe in each round

_SHIM = Path(bertviz_frames.__file__).with_name("static") / "frame_before.js"
# A frame is visible once the browser requests the next frame.
_FRAME = "for (let i = 0; i < 2; i++) await new Promise((resolve) => requestAnimationFrame(resolve));"
# This script returns the time from opening the page to the first line. BertViz draws all lines at once.
_BERTVIZ_PAINTED = f"""
async () => {{
  while (!document.querySelector('line')) await new Promise((resolve) => setTimeout(resolve, 2));
  {_FRAME}
  return performance.now();
}}
"""
_BERTVIZ_LAYER = f"""
async (layer) => {{
  const start = performance.now();
  const select = document.querySelector('select#layer');
  select.value = layer;
  select.dispatchEvent(new Event('change'));
  {_FRAME}
  return performance.now() - start;
}}
"""
# The script searches shadow roots, because Streamlit's components are inside them. A view is ready when its
# picture has the expected label.
_OURS = f"""
async ([action, label]) => {{
  const find = (name) => {{
    for (const node of document.querySelectorAll('*')) {{
      const found = node.shadowRoot?.querySelector(name);
      if (found) return found;
    }}
    return null;
  }};
  const buttons = [...document.querySelectorAll('[data-testid=stButtonGroup] button')];
  const start = performance.now();
  if (action === 'next layer') find('.head-view').querySelector('.stepper button:last-child').click();
  else buttons.find((button) => button.textContent === action).click();
  const drawn = () => find('canvas.marks, canvas.grid')?.getAttribute('aria-label')?.startsWith(label);
  while (!drawn()) await new Promise((resolve) => setTimeout(resolve, 2));
  {_FRAME}
  return performance.now() - start;
}}
"""
# This script returns the size in bytes of the latest response with a layer's attention.
_FETCHED = """
() => {
  const every = performance.getEntriesByType('resource').map((one) => [one.name, one.encodedBodySize]);
  return every.filter(([name]) => /[/]layers[/].*[/][0-9]+$/.test(name)).at(-1)[1];
}
"""
_HOVER = """
async () => {
  const nodes = [...document.querySelectorAll('*')];
  const host = nodes.find((node) => node.shadowRoot?.querySelector('.head-view'));
  const canvas = host.shadowRoot.querySelector('canvas.marks');
  const box = canvas.getBoundingClientRect();
  const took = [];
  for (let i = 0; i < 24; i++) {
    const place = { clientX: box.left + box.width * (i % 2 ? 0.85 : 0.1), clientY: box.top + 40 + 17 * i };
    const start = performance.now();
    canvas.dispatchEvent(new PointerEvent('pointermove', { ...place, bubbles: true, pointerType: 'mouse' }));
    for (let i = 0; i < 2; i++) await new Promise((resolve) => requestAnimationFrame(resolve));
    took.push(performance.now() - start);
  }
  return took;
}
"""


@dataclass
class Ours:
    """Measurements of BERT Probe's views: ms to open a view or switch the layer, and bytes to open it."""

    opened: list[float] = field(default_factory=list)
    switched: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


@dataclass
class Theirs:
    """Measurements of BertViz's views: ms to open a view, and ms to switch the layer."""

    opened: list[float] = field(default_factory=list)
    switched: list[float] = field(default_factory=list)


def lines() -> Iterator[Line]:
    path = running_app.browser()
    if path is None:
        yield Line("Head view and model view", "BertViz", "not measured: no Chromium here", "", None)
        return
    from playwright.sync_api import sync_playwright

    checkpoint = bert_probe.load()
    with (
        running_app.served() as origin,
        tempfile.TemporaryDirectory() as folder,
        _files(Path(folder)) as files,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=running_app.FLAGS)
        for view, tokens in (("head", 128), ("model", 64)):
            Path(folder, f"{view}.html").write_text(_bertviz(checkpoint.trace(text_of(tokens)), view))
        size = Path(folder, "head.html").stat().st_size
        theirs, ours = _paired(
            browser, f"{files}/head.html", origin, 128, "Head view", "Attention in layer", True
        )
        yield from _head_view_lines(theirs, ours, size)
        cell = (
            checkpoint.trace(text_of(128)).head_view(0, range(12))._repr_html_()
        )  # draw all lines, as in BertViz
        Path(folder, "cell.html").write_text(f"<!doctype html><meta charset=utf-8>{cell}", encoding="utf-8")
        yield from _notebook_lines(theirs, _cells(browser, f"{files}/cell.html"), len(cell), size)
        theirs, ours = _paired(browser, f"{files}/model.html", origin, 64, "Model view", "", False)
        yield _ratio("Model view of 64 tokens, first paint", theirs.opened, ours.opened, 10)
        yield from _long(browser, origin)
        browser.close()


def _head_view_lines(theirs: Theirs, ours: Ours, size: int) -> Iterator[Line]:
    yield _ratio("Head view of 128 tokens, first paint", theirs.opened, ours.opened, 15)
    yield _ratio("Head view of 128 tokens, another layer", theirs.switched, ours.switched, 50)
    sent = max(ours.sent)
    yield Line(
        "Head view of 128 tokens, bytes sent",
        f"BertViz's page, {size / 1e6:.1f} MB",
        f"{sent / 1e6:.2f} MB: {size / sent:.0f} × fewer",
        "at least 50 × fewer",
        size >= 50 * sent,
    )


def _notebook_lines(theirs: Theirs, opened: list[float], bytes_of_ours: int, size: int) -> Iterator[Line]:
    yield _ratio("Head view of 128 tokens in a notebook cell, first paint", theirs.opened, opened, 5)
    yield Line(
        "Head view of 128 tokens in a notebook cell, bytes in the file",
        f"BertViz's, {size / 1e6:.1f} MB",
        f"{bytes_of_ours / 1e6:.2f} MB: {size / bytes_of_ours:.0f} × fewer",
        "at most 2 MB",
        bytes_of_ours <= 2e6,
    )


def _cells(browser: Any, address: str) -> list[float]:
    """Return the times in ms from opening a page with a cell's output until the picture is visible."""
    took = []
    for _ in range(ROUNDS * OURS):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address, wait_until="commit")
        page.frame_locator("iframe").locator("canvas.marks[aria-label^='Attention in layer']").wait_for()
        page.frames[1].evaluate(f"async () => {{ {_FRAME} }}")
        took.append(page.evaluate("performance.now()"))
        page.close()
    return took


def _ratio(name: str, theirs: list[float], ours: list[float], target: int) -> Line:
    rival, own = statistics.median(theirs), statistics.median(ours)
    return Line(
        name,
        f"BertViz, {rival:,.0f} ms (median of {len(theirs)})",
        f"{own:.0f} ms (median of {len(ours)}): {rival / own:.0f} × as fast",
        f"at least {target} × as fast",
        rival >= target * own,
    )


def _paired(
    browser: Any, theirs_at: str, origin: str, tokens: int, view: str, label: str, layers: bool
) -> tuple[Theirs, Ours]:
    theirs, ours = Theirs(), Ours()
    for turn in range(ROUNDS):
        _measure_theirs(browser, theirs_at, turn, layers, theirs)
        _measure_ours(browser, origin, tokens, view, label, layers, ours)
    return theirs, ours


def _measure_theirs(browser: Any, address: str, turn: int, layers: bool, into: Theirs) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(180_000)
    page.goto(address, wait_until="commit")
    into.opened.append(page.evaluate(_BERTVIZ_PAINTED))
    if layers:
        into.switched.append(page.evaluate(_BERTVIZ_LAYER, str(1 + turn)))
    page.close()


def _measure_ours(
    browser: Any, origin: str, tokens: int, view: str, label: str, layers: bool, into: Ours
) -> None:
    page, sent = _at_table(browser, origin, tokens)
    for _ in range(OURS):
        sent.clear()
        into.opened.append(page.evaluate(_OURS, [view, label]))
        page.wait_for_timeout(400)
        into.sent.append(sum(sent))
        if layers:
            for layer in (2, 3):
                into.switched.append(page.evaluate(_OURS, ["next layer", f"Attention in layer {layer}"]))
                page.wait_for_timeout(300)
        _to_table(page)
    page.close()


def _at_table(browser: Any, origin: str, tokens: int) -> tuple[Any, list[int]]:
    """Open the app with an attention table; return the page, and a list of the bytes of its responses."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    sent: list[int] = []
    events = page.context.new_cdp_session(page)
    events.send("Network.enable")
    events.on("Network.webSocketFrameReceived", lambda event: sent.append(_size(event["response"])))
    events.on("Network.loadingFinished", lambda event: sent.append(int(event["encodedDataLength"])))
    heads = ".".join(str(head) for head in range(1, 13))  # draw all lines, as in BertViz
    query = {"a": text_of(tokens), "show": "table", "layer": "1", "heads": heads}
    page.goto(f"{origin}/attention?{urllib.parse.urlencode(query)}")
    page.get_by_text("Row sum", exact=False).or_(page.get_by_test_id("stDataFrame")).first.wait_for()
    _to_table(page)
    return page, sent


def _to_table(page: Any) -> None:
    """Show the table of layer 1, from which each measurement opens a view."""
    page.get_by_test_id("stButtonGroup").get_by_text("Table", exact=True).click()
    page.get_by_test_id("stDataFrame").wait_for()
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')
    page.get_by_role("spinbutton", name="Layer").press("Home")
    page.wait_for_timeout(500)


def _size(frame: dict[str, Any]) -> int:
    return len(base64.b64decode(frame["payloadData"])) if frame["opcode"] == 2 else len(frame["payloadData"])


def _long(browser: Any, origin: str) -> Iterator[Line]:
    """Measure the head view of a text with 512 tokens, compared with a text of 64 tokens."""
    short, long = Ours(), Ours()
    took: list[float] = []
    for _ in range(ROUNDS):
        for tokens, into in ((64, short), (512, long)):
            _measure_ours(browser, origin, tokens, "Head view", "Attention in layer", True, into)
    page, _ = _at_table(browser, origin, 512)
    page.evaluate(_OURS, ["Head view", "Attention in layer"])
    page.evaluate(_OURS, ["next layer", "Attention in layer 2"])
    fetched = page.evaluate(_FETCHED)
    page.wait_for_timeout(2000)
    for _ in range(3):
        took += page.evaluate(_HOVER)
    page.close()
    own, limit = statistics.median(long.opened), 2 * statistics.median(short.opened) + 300
    yield Line(
        "Head view of 512 tokens, first paint",
        f"ours at 64 tokens, {statistics.median(short.opened):.0f} ms",
        f"{own:.0f} ms (median of {len(long.opened)})",
        f"at most twice that + 300 ms: {limit:.0f} ms",
        own <= limit,
    )
    # A measurement may include late messages of the previous view, so use the median of the bytes.
    worst, sent = statistics.quantiles(took, n=20)[-1], statistics.median(long.sent)
    yield Line(
        "Head view of 512 tokens, 12 heads: from the pointer's move to the frame with the numbers of the row",
        "without a request to the server",
        f"{statistics.median(took):.0f} ms (median of {len(took)}; 95 % within {worst:.0f} ms)",
        "at most 50 ms",
        worst <= 50,
    )
    yield Line(
        "Head view of 512 tokens, 12 heads: bytes sent per layer",
        f"opening the view sends {sent / 1e6:.2f} MB, including all messages and files of the page",
        f"{fetched / 1e6:.2f} MB",
        "at most 1.6 MB",
        fetched <= 1.6e6,
    )


def _bertviz(trace: bert_probe.Trace, view: str) -> str:
    """Return an HTML page with BertViz's view of a trace, with local scripts instead of a CDN."""
    from bertviz import head_view, model_view

    draw: Callable[..., Any] = head_view if view == "head" else model_view
    attention = [torch.from_numpy(trace.attention(layer))[None] for layer in range(trace.layers)]
    drawing = draw(attention=attention, tokens=list(map(str, trace.tokens)), html_action="return").data
    _cdn, _, body = drawing.partition("</script>")
    scripts = [bertviz_frames.library("jquery").decode(), bertviz_frames.library("d3").decode()]
    scripts.append(_SHIM.read_text(encoding="utf-8"))
    head = "".join(f"<script>{script}</script>" for script in scripts)
    colours = json.dumps([])
    return f"<!doctype html><meta charset=utf-8><body data-colours='{colours}'>{head}{body}</body>"


@contextmanager
def _files(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Disable logging of requests."""

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
