"""Measure the response time of the Attention page when the layer or the head changes, in Chromium.

The benchmark measures three durations of each change, all with the browser's clock:

- seen: from the key press or click until the page shows that Streamlit's script has finished;
- asked: from the browser's request on the WebSocket to the message that the script has finished;
- script: from the message that the script has started to the message that it has finished.
"""

from __future__ import annotations

import base64
import statistics
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.trace_cost import text_of

TARGET = 0.200
TOKENS = 128
ROUNDS = 40  # number of layer changes, and number of head changes

# This script records the times of key presses and clicks, and when the page shows that Streamlit's script has
# finished. If the script is so fast that React never renders the state "running", the time of the last change
# of the page is used.
_WATCH = """
() => {
  const app = document.querySelector('[data-testid="stApp"]');
  window.acted = 0;
  window.seen = 0;
  window.changed = 0;
  new MutationObserver(() => { window.changed = performance.now(); })
    .observe(app, {subtree: true, childList: true, characterData: true});
  let ran = false;
  const act = () => { window.acted = performance.now(); window.seen = 0; ran = false; };
  document.addEventListener('keydown', act, true);
  document.addEventListener('click', act, true);
  new MutationObserver((records) => {
    // A fast script changes the state to running and back before this function is called.
    if (records.some((record) => record.oldValue !== 'notRunning')) ran = true;
    const state = app.dataset.testScriptState;
    if (state !== 'notRunning') ran = true;
    else if (ran && !window.seen) window.seen = performance.now();
  }).observe(app, {attributeFilter: ['data-test-script-state'], attributeOldValue: true});
}
"""


@dataclass
class Socket:
    """Times of WebSocket messages, in seconds on the browser's clock; None until they occur."""

    asked: float | None = None  # the browser's request
    started: float | None = None  # the message that the script on the server has started
    finished: float | None = None  # the message that the script on the server has finished

    def sent(self, event: dict[str, Any]) -> None:
        if self.asked is None:
            self.asked = event["timestamp"]

    def received(self, event: dict[str, Any]) -> None:
        from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

        frame = event["response"]
        if frame["opcode"] != 2 or self.asked is None:
            return
        kind = ForwardMsg.FromString(base64.b64decode(frame["payloadData"])).WhichOneof("type")
        if kind == "new_session":
            self.started = event["timestamp"]
        elif kind == "script_finished" and self.started is not None:
            self.finished = event["timestamp"]


@dataclass
class Spans:
    """Durations of changes in seconds; the docstring of the module defines `seen`, `asked` and `script`."""

    seen: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    script: list[float] = field(default_factory=list)


def lines() -> Iterator[Line]:
    browser = running_app.browser()
    if browser is None:
        yield Line("Another layer or head", "in Chromium", "not measured: no Chromium here", "", None)
        return
    with running_app.served() as origin:
        query = urllib.parse.urlencode({"a": text_of(TOKENS), "show": "heatmap", "layer": "6"})
        layers, heads = _measure(browser, f"{origin}/attention?{query}")
    both = Spans(*(getattr(layers, name) + getattr(heads, name) for name in ("seen", "asked", "script")))
    for name, spans in (("another head", heads), ("another layer", layers), ("either", both)):
        for span, meaning in (
            ("seen", "from key or click to the end of the script in the page"),
            ("asked", "from the browser's request to the message that the script has finished"),
            ("script", "the script on the server"),
        ):
            took = getattr(spans, span)
            middle = statistics.median(took)
            worst = statistics.quantiles(took, n=20)[-1]
            yield Line(
                f"Attention page at {TOKENS} tokens, {name}: {meaning}",
                "running server, headless Chromium",
                f"{middle * 1e3:.0f} ms (median of {len(took)}; 95 % within {worst * 1e3:.0f} ms)",
                f"at most {TARGET * 1e3:.0f} ms" if name == "either" else "",
                middle <= TARGET if name == "either" else None,
            )


def _measure(browser: str, address: str) -> tuple[Spans, Spans]:
    """Change the layer (key press) and the head (click) alternately, and return the durations of each."""
    from playwright.sync_api import sync_playwright

    layers, heads = Spans(), Spans()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=running_app.FLAGS)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.wait_for_selector("text=Attention in layer", timeout=120_000)
        page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]', timeout=60_000)
        page.evaluate(_WATCH)
        events = page.context.new_cdp_session(page)
        events.send("Network.enable")
        sockets: list[Socket] = []
        events.on("Network.webSocketFrameSent", lambda event: sockets[-1].sent(event) if sockets else None)
        events.on(
            "Network.webSocketFrameReceived", lambda event: sockets[-1].received(event) if sockets else None
        )
        layer = page.get_by_role("spinbutton", name="Layer")
        chips = page.locator(".chip")
        count = chips.count()

        def change(spans: Spans | None, act: Any) -> None:
            sockets.append(Socket())
            act()
            noted = sockets[-1]
            end = time.monotonic() + 30
            while noted.finished is None and time.monotonic() < end:
                page.wait_for_timeout(10)
            page.wait_for_timeout(150)  # wait until the picture is painted
            if spans is None:
                return
            if noted.asked is None or noted.started is None or noted.finished is None:
                raise RuntimeError(
                    "A WebSocket message of the interaction is missing. Run the benchmark again."
                )
            spans.seen.append(page.evaluate("((window.seen || window.changed) - window.acted) / 1000"))
            spans.asked.append(noted.finished - noted.asked)
            spans.script.append(noted.finished - noted.started)

        for turn in range(ROUNDS + 10):
            counts = turn >= 10  # discard the earlier turns, which are a warm-up
            # Step through the six layers from last to first and back, and through the heads in order.
            key = "ArrowLeft" if turn % 10 < 5 else "ArrowRight"
            change(layers if counts else None, lambda key=key: layer.press(key))
            chip = chips.nth((turn + 1) % count)
            change(heads if counts else None, lambda chip=chip: chip.click())
        chromium.close()
    return layers, heads
