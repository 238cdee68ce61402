"""Test the static site in a real browser, served by a plain file server, with all other hosts blocked."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, ViewportSize, expect

from benchmarks import running_app
from bert_probe.analyses.attention.find_heads import FindHeads, HeadScore
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.analyses.retrieval.calibration import SimilarityCalibration
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.text.datasets import everyday_topics
from tests.helpers.browser import App, Watch, find_violations, visit
from tests.helpers.links import find_broken_links
from website.gallery_entries import ENTRIES
from website.layout import ROOT
from website.precision import attention, compared_sentences

# Building the site takes two minutes, and several times as long on a busy machine.
pytestmark = [pytest.mark.browser, pytest.mark.prove, pytest.mark.timeout(1200)]

PHONE = ViewportSize(width=390, height=844)
MAX_DOWNLOAD = 50_000_000

IN_WORKER = """async ([texts, hasArrays]) => {
  const worker = new Worker(new URL("../assets/worker.js", location.href), { type: "module" });
  const ask = (request) => new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => {
      if (data.kind === "error") reject(new Error(data.message));
      if (data.kind === "encoded" || data.kind === "loaded") resolve(data);
    };
    worker.postMessage(request);
  });
  await ask({ kind: "load" });
  const results = [];
  for (const [id, text] of texts.entries()) {
    const { encoded } = await ask({ kind: "encode", id, text });
    results.push({
      ids: encoded.tokens.map((token) => token.id),
      ...(hasArrays && Object.fromEntries(
        ["hidden", "queries", "keys"].map((name) => [name, [...encoded.arrays[name]]]),
      )),
      milliseconds: encoded.milliseconds,
    });
  }
  worker.terminate();
  return results;
}"""
"""JavaScript that encodes texts as the playground does; returns ids, durations and optionally arrays."""


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Do not log requests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site in a subfolder, because it may be hosted below a path, and return the folder."""
    root = tmp_path_factory.mktemp("host")
    command = [sys.executable, "-m", "website", str(root / "some/path")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return root / "some/path"


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    """Serve the site, and return its address."""
    handler = functools.partial(_QuietHandler, directory=folder.parents[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/some/path/"
    server.shutdown()
    thread.join()
    server.server_close()


def open_playground(page: Page, site: str, fragment: str = "") -> None:
    """Open the playground and wait for the results of its texts."""
    page.goto(f"{site}playground/{fragment}")
    button = page.locator("#run")
    expect(button).to_be_enabled()
    if "Download" in button.inner_text():
        button.click()
    expect(page.locator("#results")).to_be_visible(timeout=120_000)


def wait_for_text(page: Page, text: str) -> None:
    page.wait_for_function(
        "text => JSON.parse(document.getElementById('results').dataset.texts).a === text", arg=text
    )


def find_best(trace: Trace, first: str, second: str) -> tuple[HeadScore, str]:
    """Return the largest attention weight of a head between two words in any direction, and the direction."""
    scores = [
        (FindHeads([pair]).of(trace).ranked[0], " → ".join(pair))
        for pair in ((first, second), (second, first))
    ]
    return max(scores, key=lambda choice: choice[0].weight)


def test_links_lead_somewhere(folder: Path) -> None:
    assert find_broken_links(folder) == []


def test_size(folder: Path) -> None:
    model = sum(path.stat().st_size for path in (folder / "playground/model").iterdir())
    scripts = sum((folder / "assets" / name).stat().st_size for name in ("playground.js", "worker.js"))
    assert model + scripts < MAX_DOWNLOAD
    largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert largest < 20_000_000, "some hosts accept at most 25 MB per file"


def test_numbers_in_browser_are_near_those_of_library(page: Page, site: str, minilm: Checkpoint) -> None:
    page.goto(f"{site}playground/")
    texts = list(compared_sentences())
    results: list[dict[str, Any]] = page.evaluate(IN_WORKER, [texts, True])
    largest = dict.fromkeys(("attention", "hidden", "cosine"), 0.0)
    pooled = []
    for text, result in zip(texts, results, strict=True):
        trace = minilm.trace(text)
        count = len(trace.tokens)
        assert result["ids"] == trace.encoding.ids
        hidden = np.reshape(result["hidden"], (7, count, 384))
        queries, keys = (np.reshape(result[name], (6, 12, count, 32)) for name in ("queries", "keys"))
        exact = np.stack([trace.attention(layer) for layer in range(trace.layers)])
        pooled.append((hidden[-1].mean(axis=0), trace))
        for name, actual, expected in (
            ("attention", attention(queries, keys), exact),
            ("hidden", hidden, trace.hidden_states),
        ):
            largest[name] = max(largest[name], float(np.abs(actual - expected).max()))
    for (a, first), (b, second) in pairwise(pooled):
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        score = SentenceSimilarity().of(first, second).score
        largest["cosine"] = max(largest["cosine"], abs(cosine - score))
    print(largest)
    assert largest["attention"] < 2e-3
    assert largest["hidden"] < 6e-3
    assert largest["cosine"] < 4e-4


def test_duration_of_forward_pass(page: Page, site: str) -> None:
    page.goto(f"{site}playground/")
    texts = [" ".join(["ferry"] * (count - 2)) for count in (20, 128) for _ in range(5)]
    times = [result["milliseconds"] for result in page.evaluate(IN_WORKER, [texts, False])]
    assert min(times[:5]) < 300
    assert min(times[5:]) < 1500


def test_playground_shows_all_views(page: Page, site: str, minilm: Checkpoint) -> None:
    open_playground(page, site)
    expect(page.locator(".head-view canvas.marks")).to_be_visible()
    expect(page.locator("#view .readout, #view").first).to_contain_text("previous token")
    page.get_by_role("tab", name="All heads").click()
    canvas = page.locator(".model-view canvas.grid")
    box = canvas.bounding_box()
    assert box
    canvas.click(position={"x": box["width"] * 0.5, "y": box["height"] * 0.5})
    expect(page.get_by_role("tab", name="Attention")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".head-view")).to_contain_text("Attention in layer 3, head 6")
    page.get_by_role("tab", name="Tokens").click()
    expect(page.locator(".piece")).to_have_count(16)
    page.get_by_role("tab", name="Token similarity").click()
    page.locator("#layer").fill("0")
    expect(page.locator("#view")).to_contain_text("after the output of the embeddings")
    page.get_by_role("tab", name="Sentence similarity").click()
    a, b = page.locator("#text-a").input_value(), page.locator("#text-b").input_value()
    score = SentenceSimilarity().of(minilm.trace(a), minilm.trace(b)).score
    cosine = page.locator("#cosine")
    assert float(cosine.get_attribute("data-cosine") or "nan") == pytest.approx(score, abs=4e-4)
    sentences = [row.text for row in everyday_topics().rows]
    percentile = SimilarityCalibration("model").of(minilm, sentences).percentile(score)
    assert float(cosine.get_attribute("data-percentile") or "nan") == pytest.approx(percentile, abs=0.05)


def test_find_a_head_between_two_words(page: Page, site: str, minilm: Checkpoint) -> None:
    text = "Mehdi Wolpertinger moved to Tallahassee unexpectedly."
    open_playground(page, site, f"#a={text}&view=find&words=1-3")
    words = page.get_by_role("group", name="Words").get_by_role("button")
    expect(words).to_have_text(["[CLS]", *text[:-1].split(), ".", "[SEP]"])
    expect(page.locator(".words [aria-pressed=true]")).to_have_text(["Mehdi", "Wolpertinger"])
    words.filter(has_text="moved").focus()
    page.keyboard.press("Enter")
    words.filter(has_text="Tallahassee").focus()
    page.keyboard.press("Space")
    expect(page.locator(".words [aria-pressed=true]")).to_have_text(["moved", "Tallahassee"])
    score, direction = find_best(minilm.trace(text), "moved", "Tallahassee")
    row = page.locator(".find tbody tr").first
    name = f"Layer {score.layer + 1}, head {score.head + 1}"
    expect(row.locator("td").nth(0)).to_have_text(name)
    expect(row.locator("td").nth(1)).to_have_text(direction)
    assert float(row.get_attribute("data-weight") or "nan") == pytest.approx(score.weight, abs=2e-3)
    assert "heads?" in (address := page.locator("#open-app").get_attribute("href") or "")
    assert "find_pairs=7-9" in address
    assert "words=7-9" in page.url
    row.get_by_role("button").click()
    expect(page.get_by_role("tab", name="Attention")).to_have_attribute("aria-selected", "true")
    view = page.locator(".head-view")
    query, _, key = direction.partition(" → ")
    expect(view).to_contain_text(f"Layer {score.layer + 1} of 6")
    expect(view).to_contain_text(re.compile(rf"{query}[ ()\d]* attends to .*{key}"))
    expect(view).to_contain_text(re.compile(rf"Pinned\s*{query}"))


def test_two_sentences_as_one_input(page: Page, site: str, minilm: Checkpoint) -> None:
    a, b = "Obama speaks to the media.", "The President greets the press."
    open_playground(page, site, f"#a={a}&b={b}&of=joined&view=tokens")
    trace = minilm.trace(a, b)
    expect(page.locator(".piece")).to_have_text([str(token) for token in trace.tokens])
    expect(page.locator("#summary")).to_contain_text("3 special tokens")
    page.get_by_role("tab", name="Find a head").click()
    words = page.get_by_role("group", name="Words").get_by_role("button")
    words.filter(has_text="Obama").click()
    words.filter(has_text="President").click()
    score, direction = find_best(trace, "Obama", "President")
    row = page.locator(".find tbody tr").first
    expect(row.locator("td").nth(1)).to_have_text(direction)
    assert float(row.get_attribute("data-weight") or "nan") == pytest.approx(score.weight, abs=2e-3)
    assert "relation=pair" in (page.locator("#open-app").get_attribute("href") or "")
    page.get_by_role("button", name="Sentence B").click()
    expect(words).to_have_text(["[CLS]", "The", "President", "greets", "the", "press", ".", "[SEP]"])


def test_text_stays_on_this_machine(page: Page, site: str, watch: Watch) -> None:
    open_playground(page, site)
    secret = "A secret for this machine only"
    requests: list[str] = []
    page.on("request", lambda request: requests.append(f"{request.url} {request.post_data}"))
    page.locator("#text-a").fill(secret)
    wait_for_text(page, secret)
    # The browser may load the icon of the tab at any time; a request with anything else in it would differ.
    icon = page.locator("link[rel=icon]").evaluate("link => link.href")
    assert {*requests} <= {f"{icon} None"}, "running the model sends nothing"
    assert "secret" in page.url.partition("#")[2], "a link contains the text after #"
    assert page.evaluate("fetch('http://example.org/').then(() => 'sent', () => 'refused')") == "refused"
    watch.errors.clear()
    watch.foreign.clear()


def test_second_visit_reads_the_cache(page: Page, site: str) -> None:
    open_playground(page, site)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.reload()
    expect(page.locator("#results")).to_be_visible(timeout=120_000)
    assert not [url for url in requests if url.endswith(".bin")]


def test_damaged_file_is_reported(page: Page, site: str, folder: Path) -> None:
    manifest = json.loads((folder / "playground/model/manifest.json").read_text(encoding="utf-8"))
    graph = manifest["files"]["graph"]
    page.route(f"**/{graph['path']}", lambda route: route.fulfill(body=b"x" * graph["bytes"]))
    page.goto(f"{site}playground/")
    page.evaluate("caches.delete('bert-probe-playground')")
    page.reload()
    page.locator("#run").click()
    expect(page.locator("#status")).to_contain_text("arrived damaged")
    expect(page.locator("#run")).to_have_text("Try again")


def test_invalid_texts_get_a_sentence(page: Page, site: str) -> None:
    open_playground(page, site)
    status = page.locator("#status")
    page.locator("#text-a").fill("\u00ad")
    expect(status).to_have_text("This text has no tokens. Write at least one word.")
    page.locator("#text-a").fill("word " * 300)
    expect(status).to_contain_text("302 tokens, but this page reads at most 256.")
    page.locator("#text-a").fill("<img src=x onerror=window.__pwned=1>")
    wait_for_text(page, "<img src=x onerror=window.__pwned=1>")
    assert page.evaluate("window.__pwned") is None


def test_link_opens_same_text_in_app(page: Page, site: str, app: App) -> None:
    open_playground(page, site, "#a=The+ferry+%26+the+boat&b=Another+text")
    address = page.locator("#open-app").get_attribute("href") or ""
    head = page.locator(".head-view").inner_text()
    assert "Layer 1, head 3" in head
    visit(page, address.replace("http://127.0.0.1:8501", app.origin))
    expect(page.locator("textarea").first).to_have_value("The ferry & the boat")
    assert "layer=1" in page.url
    assert "head=3" in page.url


def test_second_sentence_opens_in_app(page: Page, site: str) -> None:
    open_playground(page, site, "#a=One+text&b=Another+text")
    page.get_by_role("button", name="Sentence B").click()
    assert "&of=b" in (page.locator("#open-app").get_attribute("href") or "")


def test_link_of_app_opens_same_texts(page: Page, site: str) -> None:
    with running_app.started(options=("--playground", f"{site}playground/")) as app:
        visit(page, f"{app.origin}/similarity?a=The+ferry+%26+the+boat&b=Another+%23+text")
        link = page.get_by_role("link", name="Open in the playground")
        expect(link).to_have_attribute("target", "_blank")
        address = link.get_attribute("href") or ""
        page.goto("about:blank")  # A page of the app would report that its server has stopped.
    open_playground(page, site, address.removeprefix(f"{site}playground/"))
    expect(page.locator("#text-a")).to_have_value("The ferry & the boat")
    expect(page.locator("#text-b")).to_have_value("Another # text")
    expect(page.get_by_role("tab", name="Token similarity")).to_have_attribute("aria-selected", "true")


def test_landing_page_moves_until_paused(page: Page, site: str) -> None:
    page.goto(site)
    frame = page.frame_locator("#moving iframe")
    pinned = frame.locator(".head-view")
    expect(pinned).to_contain_text("Pinned")
    before = pinned.inner_text()
    expect(pinned).not_to_have_text(before)
    assert page.locator("#moving iframe").evaluate("frame => frame.inert")
    page.get_by_role("button", name="Pause and explore").click()
    frame.get_by_role("button", name="Next layer").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_reader_who_prefers_it_sees_no_motion(new_page: Callable[..., Page], site: str) -> None:
    page = new_page(reduced_motion="reduce")
    page.goto(site)
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_every_view_of_gallery_is_live(page: Page, site: str) -> None:
    page.goto(f"{site}gallery/")
    expect(page.locator(".tile")).to_have_count(len(ENTRIES))
    for entry in ENTRIES:
        page.goto(f"{site}gallery/{entry.slug}.html")
        canvas = page.frame_locator("iframe").locator("canvas").first
        expect(canvas).to_be_visible()
        frame_height = page.locator("iframe").evaluate("frame => frame.clientHeight")
        content = page.locator("iframe").evaluate("frame => frame.contentDocument.body.clientHeight")
        assert frame_height >= content, entry.slug


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.slug)
def test_command_writes_the_same_page(entry: Any, folder: Path) -> None:
    with entry.folder() as files:
        command = [sys.executable, "-m", "bert_probe", *entry.command, "--out", f"{entry.slug}.html"]
        done = subprocess.run(command, cwd=files, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        page_of_command = (files / f"{entry.slug}.html").read_text(encoding="utf-8")
    assert page_of_command == (folder / f"gallery/{entry.slug}.view.html").read_text(encoding="utf-8")


def test_search_finds_section(page: Page, site: str) -> None:
    page.goto(f"{site}docs/guides/student.html")
    page.keyboard.press("/")
    page.keyboard.type("tuned lens")
    results = page.locator("#results a")
    expect(results.first).to_contain_text("ens")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/some/path/docs/.*#"))
    assert page.evaluate("document.getElementById(decodeURIComponent(location.hash.slice(1))) !== null")


def test_theme_is_remembered_and_reaches_views(page: Page, site: str) -> None:
    page.goto(f"{site}gallery/{ENTRIES[0].slug}.html")
    expect(page.frame_locator("iframe").locator("canvas").first).to_be_visible()
    page.get_by_role("button", name="Switch between light and dark").click()
    paper = "getComputedStyle(document.body).backgroundColor"
    expect(page.frame_locator("iframe").locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate(paper)
    page.goto(f"{site}docs/")
    assert page.evaluate(paper) == dark == "rgb(20, 20, 26)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [ViewportSize(width=1440, height=900), PHONE], ids=["desk", "phone"])
def test_accessibility_and_width(
    new_page: Callable[..., Page], site: str, scheme: str, viewport: ViewportSize
) -> None:
    page = new_page(viewport=viewport, color_scheme=scheme)
    open_playground(page, site)
    for path in (
        "playground/",
        "playground/#view=find",
        "",
        "gallery/",
        "gallery/steps.html",
        "docs/",
        "docs/methods.html",
    ):
        if path == "playground/#view=find":
            page.get_by_role("tab", name="Find a head").click()
        elif path != "playground/":
            page.goto(f"{site}{path}")
        violations = [
            (path, violation["id"], [node["html"][:150] for node in violation["nodes"]])
            for violation in find_violations(page)
        ]
        assert violations == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
