"""Write the pictures for README.md to docs/images: pages of the app in headless Chromium.

    .venv/bin/python scripts/pictures.py [NAME …]

Every picture is a screenshot of the running app with the built-in model, in the light theme.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import running_app  # noqa: E402 (packages of the clone)
from tests.helpers.browser import wait_until_ready  # noqa: E402

FOLDER = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1280, 900

GROUND = {"a": "Almost before we knew it, we had left the ground."}
BANK = {"a": "The bank of the river was steep, but the bank lends money.", "b": "The river bank was muddy."}
CUP = {
    "a": "I poured water from the bottle into the cup until it was full.",
    "b": "I poured water from the bottle into the cup until it was empty.",
}
CAT = {"a": "The cat sat on the mat because it was tired.", "b": "A tired kitten lay down on the rug."}


def nothing(_page: Page) -> None:
    """Take the picture of the page as it opens."""


def build_store(page: Page) -> None:
    """Build the sample store on the page Corpus, and point at a head to enlarge its histogram."""
    page.get_by_role("button", name="Build a sample store").click()
    page.get_by_role("button", name="Export heads").wait_for(timeout=120_000)
    wait_until_ready(page)
    page.get_by_role("application").first.hover(position={"x": 480, "y": 250})


def train(page: Page) -> None:
    """Train a classifier on the page Train, with its default settings."""
    page.get_by_role("button", name="Start training").click()
    page.get_by_role("heading", name="Confusion matrix").wait_for(timeout=240_000)
    page.mouse.move(0, 0)


def show_words(page: Page) -> None:
    """Switch the page Map from tokens to words."""
    page.get_by_text("Words", exact=True).click()


@dataclass(frozen=True)
class ReadmePicture:
    """A picture of a page, and how to prepare the page for it.

    Attributes:
        page: name of the page.
        parameters: URL parameters of the page.
        prepare: function that prepares the page for the picture.
        top: heading at the top of the picture; "" for the heading of the page.
        height: height in pixels.
    """

    page: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Page], None] = nothing
    top: str = ""
    height: int = HEIGHT


PICTURES = {
    "overview": ReadmePicture("overview", BANK),
    "heads": ReadmePicture("attention", {**GROUND, "layer": "2", "heads": "3.9.10", "pins": "query.9"}),
    "model": ReadmePicture("attention", {**GROUND, "show": "model", "layer": "3"}),
    "steps": ReadmePicture("steps", {**GROUND, "layer": "2", "head": "3"}),
    "compare": ReadmePicture("compare", CUP),
    "patching": ReadmePicture("compare", CUP, top="Activation patching"),
    "why": ReadmePicture("answer", CAT, top="Attribution: what does the prediction depend on?"),
    "similarity": ReadmePicture("similarity", CUP),
    "context": ReadmePicture("context", height=1160),
    "map": ReadmePicture("map", BANK, show_words),
    "embeddings": ReadmePicture("embeddings", GROUND),
    "train": ReadmePicture("train", prepare=train, top="Result"),
    "positions": ReadmePicture("positions"),
    "corpus": ReadmePicture("corpus", prepare=build_store),
    "search": ReadmePicture("search", top="Why this document?"),
}
"""File name without ending → picture."""


_SCROLL = """heading => {
  heading.scrollIntoView();
  heading.closest('[data-testid="stMain"]').scrollBy(0, -70);
}"""
"""JavaScript that scrolls a heading to the top of the page, below the menu."""


def take(page: Page, origin: str, name: str) -> None:
    """Take a picture and write its file."""
    picture = PICTURES[name]
    page.set_viewport_size({"width": WIDTH, "height": picture.height})
    page.goto(f"{origin}/{picture.page}?{urlencode(picture.parameters)}")
    wait_until_ready(page)
    picture.prepare(page)
    wait_until_ready(page)
    if picture.top:
        heading = page.get_by_role("heading", name=picture.top, exact=True)
        heading.evaluate(_SCROLL)
        wait_until_ready(page)  # wait for the charts that scrolling makes visible
        heading.evaluate(_SCROLL)
    path = FOLDER / f"{name}.png"
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


def main() -> int:
    """Take the pictures named on the command line, or all pictures, and return the exit status."""
    names = sys.argv[1:] or list(PICTURES)
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        sys.exit(f"Unknown picture: {', '.join(unknown)}. Choose from {', '.join(PICTURES)}.")
    with running_app.started() as app, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=running_app.browser(), args=running_app.FLAGS)
        for name in names:
            page = browser.new_page(color_scheme="light")
            take(page, app.origin, name)
            page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
