"""Measure response times of a token map with 150,000 points in Chromium: typing a search, and a lasso.

The response time of a key press is the longest time for which it blocks the page. The map is redrawn in
slices, and the browser can handle the next key press between two slices. The picture is complete after the
last slice.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import running_app
from benchmarks.pairs import Line
from bert_probe.analyses.vectors.token_map import MapPoint, Planes, TokenMap, TokenMapResult
from bert_probe.core.provenance import InputRecord
from bert_probe.text.datasets import everyday_topics
from bert_probe.views import layer_map

TOKENS, LAYERS = 21_429, 7  # 21,429 × 7 = 150,003 points
QUERIES = ("weather", "e", "the", "sunday", "zzz")
TARGET = 16

# The browser delivers messages between tasks, so the gap between two messages is the time that a task takes.
_KEYS = """
async (queries) => {
  const root = document.querySelector('.layer-map');
  const field = root.querySelector('input[type=search]');
  const stage = root.querySelector('canvas.marks');
  const channel = new MessageChannel();
  let last = 0, longest = 0, running = true;
  channel.port1.onmessage = () => {
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
    if (running) channel.port2.postMessage(0);
  };
  const idle = async () => {
    await new Promise((resolve) => setTimeout(resolve, 20));
    while (stage.getAttribute('aria-busy') === 'true') await new Promise((resolve) => setTimeout(resolve, 5));
  };
  const keys = [];
  field.focus();
  await idle();
  for (const query of queries) {
    const steps = Array.from(query, (_, i) => query.slice(0, i + 1));
    for (const text of [...steps, ...steps.slice(0, -1).reverse(), '']) {
      const start = performance.now();
      [last, longest] = [start, 0];
      field.value = text;
      field.dispatchEvent(new InputEvent('input'));
      const handler = performance.now() - start;
      channel.port2.postMessage(0);
      while (stage.getAttribute('aria-busy') === 'true') await new Promise((resolve) => setTimeout(resolve));
      const complete = performance.now() - start;
      await new Promise((resolve) => setTimeout(resolve));
      keys.push([text, Math.max(handler, longest), complete]);
      await idle();
    }
  }
  running = false;
  return keys;
}
"""
_LASSO = """
async () => {
  const root = document.querySelector('.layer-map');
  const stage = root.querySelector('canvas.marks');
  stage.setPointerCapture = () => {};
  const { width, height } = stage.getBoundingClientRect();
  const spots = Array.from({ length: 200 }, (_, i) => {
    const [turn, radius] = [(2 * Math.PI * i) / 200, 0.3 + 0.15 * Math.sin(i / 5)];
    return [width * (0.5 + radius * Math.cos(turn)), height * (0.5 + radius * Math.sin(turn))];
  });
  const box = stage.getBoundingClientRect();
  const send = (type, [x, y]) => {
    const at = { clientX: box.left + x, clientY: box.top + y };
    stage.dispatchEvent(new PointerEvent(type, { ...at, shiftKey: true, pointerId: 1, bubbles: true }));
  };
  const moves = [];
  send('pointerdown', spots[0]);
  for (const spot of spots.slice(1)) {
    const start = performance.now();
    send('pointermove', spot);
    moves.push(performance.now() - start);
  }
  const start = performance.now();
  send('pointerup', spots[0]);
  const end = performance.now() - start;
  while (stage.getAttribute('aria-busy') === 'true') await new Promise((resolve) => setTimeout(resolve));
  const complete = performance.now() - start;
  return { moves, end, complete, found: root.textContent.match(/[0-9,]+ selected/)?.[0] };
}
"""


def page(mode: str = "all") -> str:
    """Return an HTML page with a token map: words of the sample sentences at random positions."""
    draw = np.random.default_rng(0)
    sentences = [str(row.text).lower().rstrip(".?!").split() for row in everyday_topics().rows]
    words = [word for sentence in sentences for word in sentence]
    names = draw.choice(words, TOKENS)
    marks = [MapPoint(str(name), str(name), 0, number % 20, 0) for number, name in enumerate(names)]
    points = draw.normal(size=(LAYERS, TOKENS, 2)).astype(np.float32)
    planes = Planes(points, (0.4, 0.2), np.full((LAYERS, 2), 0.3))
    result = TokenMapResult(TokenMap(), InputRecord({}), (("sample", None),), tuple(marks), (), planes)
    start: Any = {"mode": mode, "layer": LAYERS - 1, "by": "word"}
    view = layer_map.page(result, "Map")
    return type(view)("layer_map", [layer_map.payload(result, key="page", start=start)], "Map").html()


def lines() -> Iterator[Line]:
    path = running_app.browser()
    if path is None:
        yield Line("Map of tokens", "Chromium", "not measured: no Chromium here", "", None)
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder, "map.html")
        file.write_text(page(), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=path, args=running_app.FLAGS)
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(120_000)
        opened.goto(file.as_uri())
        opened.locator("canvas.marks[aria-label]").wait_for()
        keys = opened.evaluate(_KEYS, list(QUERIES))
        lasso = opened.evaluate(_LASSO)
        browser.close()
    blocked = [blocking for _, blocking, _ in keys]
    complete = [duration for _, _, duration in keys]
    slowest = max(keys, key=lambda key: key[1])
    yield Line(
        f"Map of {TOKENS * LAYERS:,} points, a key in the search field: longest block of the page",
        f"{len(keys)} keys of the words {', '.join(QUERIES)}",
        f"{statistics.median(blocked):.1f} ms (median; maximum {slowest[1]:.1f} ms, for {slowest[0]!r}); "
        f"complete after {statistics.median(complete):.0f} ms (median; maximum {max(complete):.0f} ms)",
        f"at most {TARGET} ms (median)",
        statistics.median(blocked) <= TARGET,
    )
    yield Line(
        f"Map of {TOKENS * LAYERS:,} points, a lasso of {len(lasso['moves']) + 1} corners",
        lasso["found"],
        f"a move {statistics.median(lasso['moves']):.1f} ms (median; maximum {max(lasso['moves']):.1f} ms); "
        f"the end {lasso['end']:.0f} ms, complete after {lasso['complete']:.0f} ms",
        "",
        None,
    )
