"""Test that pictures drawn by Python equal those saved by a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Page, expect

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.notebook import Frame

pytestmark = pytest.mark.browser

TEXT = "Almost before we knew it, we had left the ground."
MARGINS = 40
"""Total horizontal padding of the page around the view, in CSS pixels."""
NEAR = 2.0
"""Tolerance in CSS pixels, because programs measure text in the same font slightly differently."""

Shape = tuple[str, str, tuple[str, ...], tuple[float, ...]]


def shapes(svg: str) -> list[Shape]:
    """Return the type, text, non-numeric attributes and numbers of each shape of an SVG."""
    result = []
    for element in list(ElementTree.fromstring(svg).iter())[1:]:
        attributes = " ".join(f"{name}={value}" for name, value in sorted(element.attrib.items()))
        numbers = tuple(float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", attributes))
        words = tuple(re.split(r"-?\d+(?:\.\d+)?", attributes))
        result.append((element.tag, "".join(element.itertext()), words, numbers))
    return result


def save_from_page(page: Page, tmp_path: Path) -> list[Shape]:
    """Return the shapes in the file that the page's "Save as SVG" button downloads."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as SVG").click()
    download.value.save_as(tmp_path / "saved.svg")
    return shapes((tmp_path / "saved.svg").read_text(encoding="utf-8"))


def assert_same(ours: list[Shape], saved: list[Shape]) -> None:
    assert [our[:3] for our in ours] == [shape[:3] for shape in saved]
    for shape, other in zip(ours, saved, strict=True):
        assert shape[3] == pytest.approx(other[3], abs=NEAR), shape[1]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("show", "width"),
    [
        (lambda trace: trace.head_view(3, 8, pins=[5]), 880),
        (lambda trace: trace.head_view(3, [1, 8], layout="reading", specials=False), 880),
        (lambda trace: bert_probe.Attention(2, 3).of(trace).show(), 1000),
    ],
    ids=["pinned", "reading", "heatmap"],
)
def test_browser_and_python_draw_same_shapes(
    minilm: Checkpoint,
    show: Callable[[bert_probe.Trace], Frame],
    width: int,
    new_page: Callable[..., Page],
    tmp_path: Path,
) -> None:
    page_of_view = show(minilm.trace(TEXT)).page
    page = new_page(viewport={"width": width + MARGINS, "height": 904})
    page.set_content(page_of_view.html().replace("system-ui, sans-serif", "DejaVu Sans, sans-serif"))
    assert_same(shapes(page_of_view.svg()), save_from_page(page, tmp_path))


@pytest.mark.prove
def test_whole_words_button_shows_python_numbers(
    minilm: Checkpoint, new_page: Callable[..., Page], tmp_path: Path
) -> None:
    trace = minilm.trace("Electroencephalographers left the ground.")
    pieces, words = (trace.head_view(3, 8, words=words).page for words in (False, True))
    page = new_page(viewport={"width": 880 + MARGINS, "height": 904})
    page.set_content(pieces.html().replace("system-ui, sans-serif", "DejaVu Sans, sans-serif"))
    switch = page.get_by_role("button", name="Whole words")
    for view, pressed in ((words, "true"), (pieces, "false")):
        switch.click()
        expect(switch).to_have_attribute("aria-pressed", pressed)
        assert_same(shapes(view.svg()), save_from_page(page, tmp_path))
    switch.click()
    page.get_by_role("button", name="Next layer").click()
    expect(page.get_by_role("application")).to_have_attribute("aria-label", "Attention in layer 5, head 9")
    assert_same(shapes(trace.head_view(4, 8, words=True).page.svg()), save_from_page(page, tmp_path))
