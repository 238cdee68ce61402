"""Write docs/images/tour.webp, the animation in README.md: half a minute of the app in headless Chromium.

    .venv/bin/python scripts/animation.py

Every frame is a screenshot of the running app with the built-in model. Only the mouse pointer is added.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from PIL import Image, ImageDraw
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import running_app  # noqa: E402 (packages of the clone)
from tests.helpers.browser import wait_until_ready  # noqa: E402

OUTPUT = ROOT / "docs" / "images" / "tour.webp"
TEXT = "Almost before we knew it, we had left the ground."
SIZE = (1200, 750)
SCALE = 0.9
"""Size of a frame divided by the size of the window."""
MAX_BYTES = 2_000_000
_ARROW = ((0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (12, 12))


class Recorder:
    """Records frames of a page, each with its duration in milliseconds."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.durations: list[int] = []
        self._pointer = (600.0, 400.0)

    def frame(self, milliseconds: int) -> None:
        """Add a screenshot with the pointer."""
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        x, y = self._pointer
        arrow = [(x + dx, y + dy) for dx, dy in _ARROW]
        ImageDraw.Draw(picture).polygon(arrow, fill="black", outline="white")
        size = (round(SIZE[0] * SCALE), round(SIZE[1] * SCALE))
        self.frames.append(picture.resize(size, Image.Resampling.LANCZOS))
        self.durations.append(milliseconds)

    def move(self, target: Locator, milliseconds: int = 300) -> None:
        """Move the pointer to the center of an element, and add a frame."""
        box = target.bounding_box()
        assert box is not None
        self._pointer = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self.page.mouse.move(*self._pointer)
        self.frame(milliseconds)

    def click(self, target: Locator, milliseconds: int = 300) -> None:
        """Move the pointer to an element, add a frame, and click."""
        self.move(target, milliseconds)
        target.click()

    def save(self) -> None:
        """Write the frames to docs/images/tour.webp as an endless animation."""
        first, *following = self.frames
        first.save(
            OUTPUT,
            save_all=True,
            append_images=following,
            duration=self.durations,
            loop=0,
            quality=80,
            method=6,
        )


def record(page: Page, origin: str) -> Recorder:
    """Operate the app like a user, and return a recorder with the frames."""
    recorder = Recorder(page)
    page.goto(origin)
    wait_until_ready(page)
    recorder.frame(1_000)
    field = page.get_by_role("textbox", name="Sentence A")
    recorder.click(field)
    field.fill("")
    for end in (13, 27, 36, len(TEXT)):
        field.fill(TEXT[:end])
        recorder.frame(250)
    page.get_by_role("textbox", name="Sentence B").fill("")
    recorder.click(page.get_by_role("button", name=re.compile("^Run")))
    wait_until_ready(page)
    recorder.frame(2_200)
    recorder.click(page.get_by_test_id("stTopNav").get_by_role("button", name="Attention", exact=True))
    recorder.click(page.get_by_role("menuitem", name="Attention", exact=True))
    page.locator(".head-view .share", has_text="carrying").wait_for()
    wait_until_ready(page)
    recorder.frame(1_500)
    recorder.click(page.get_by_role("button", name=re.compile("^Head 9")))
    wait_until_ready(page)
    recorder.frame(1_200)
    canvas = page.locator(".head-view canvas.marks")
    box = canvas.bounding_box()
    assert box is not None
    for share in (0.3, 0.42, 0.54, 0.66):
        recorder._pointer = (box["x"] + box["width"] * 0.25, box["y"] + box["height"] * share)
        page.mouse.move(*recorder._pointer)
        page.wait_for_timeout(250)
        recorder.frame(900)
    for _ in range(2):
        recorder.click(page.get_by_role("button", name="Next layer"), 250)
        wait_until_ready(page)
        recorder.frame(900)
    return recorder


def main() -> int:
    """Record and save the animation, and return the exit status."""
    with running_app.started() as app, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=running_app.browser(), args=running_app.FLAGS)
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
        recorder = record(page, app.origin)
        browser.close()
    recorder.save()
    size, seconds = OUTPUT.stat().st_size, sum(recorder.durations) / 1000
    print(f"{OUTPUT.relative_to(ROOT)}: {len(recorder.frames)} frames, {seconds:.0f} s, {size / 1e6:.2f} MB")
    return int(size > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main())
