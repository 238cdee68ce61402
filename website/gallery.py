"""The gallery: views of the built-in model that BERT Probe exports, each with the code that creates it."""

from __future__ import annotations

import html
import io
import shlex
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

from PIL import Image

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.views.page import Page
from website.highlighting import highlight
from website.layout import SitePage, fill

KEY: Final = "site"
"""Key of the messages with which a page of the site sets the theme and the selection of a view in a frame."""


@dataclass(frozen=True)
class GalleryEntry:
    """A view of the gallery, and the code that creates it.

    Attributes:
        slug: name of its files.
        title: title of the view.
        summary: one sentence about what the view shows.
        source: author, work and year of the text.
        command: arguments of `bert-probe`, without `--out`.
        setup: Python statements that define the variables of `view`.
        view: Python expression that creates the view.
        files: contents of the files that the code reads, by file name.
    """

    slug: str
    title: str
    summary: str
    source: str
    command: tuple[str, ...]
    setup: str
    view: str
    files: dict[str, str] = field(default_factory=dict)

    @property
    def shell(self) -> str:
        """The shell command that saves the view as an HTML page."""
        return shlex.join(["bert-probe", *self.command, "--out", f"{self.slug}.html"])

    @property
    def python(self) -> str:
        """The Python code that saves the view as the same HTML page."""
        return f'import bert_probe\n\n{self.setup}\n{self.view}.save("{self.slug}.html")'

    def page(self, checkpoint: Checkpoint) -> Page:
        """Run the Python code without saving, and return the page.

        Args:
            checkpoint: the built-in model, which the code gets from `bert_probe.load()`.
        """
        with self.folder(), patch.object(bert_probe, "load", lambda: checkpoint):
            namespace: dict[str, Any] = {}
            exec(f"import bert_probe\n{self.setup}\nframe = {self.view}", namespace)
            page: Page = namespace["frame"].page
            return page

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Change to a temporary folder that contains the files of the entry."""
        with TemporaryDirectory() as name, chdir(name):
            for file, content in self.files.items():
                Path(file).write_text(content, encoding="utf-8")
            yield Path(name)


THUMBNAIL_WIDTH: Final = 720
"""Width of a thumbnail in pixels, twice its size on the page."""


def write_gallery(
    folder: Path, entries: Sequence[GalleryEntry], checkpoint: Checkpoint, progress: Progress = no_progress
) -> list[SitePage]:
    """Write the view, input files and thumbnails of each entry, and return the pages of the gallery.

    Args:
        folder: existing folder of the gallery.
        entries: the entries in the order of the gallery.
        checkpoint: the built-in model.
        progress: called after each entry.
    """
    for number, entry in enumerate(entries):
        page = entry.page(checkpoint)
        (folder / f"{entry.slug}.view.html").write_text(page.html(), encoding="utf-8")
        # The page of the entry shows this copy in a frame, and sets its theme with messages.
        framed = replace(page, key=KEY).html(framed=True)
        (folder / f"{entry.slug}.frame.html").write_text(framed, encoding="utf-8")
        for theme in ("light", "dark"):
            _write_thumbnail(folder / f"{entry.slug}-{theme}.webp", replace(page, theme=theme).png())
        for name, content in entry.files.items():
            (folder / name).write_text(content, encoding="utf-8")
        progress(number + 1, len(entries))
    return [_index(entries), *(_entry_page(entry, entries) for entry in entries)]


def _write_thumbnail(path: Path, png: bytes) -> None:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    height = round(image.height * THUMBNAIL_WIDTH / image.width)
    # A small figure is not enlarged, because it would be blurred.
    if image.width > THUMBNAIL_WIDTH:
        image = image.resize((THUMBNAIL_WIDTH, height), Image.Resampling.LANCZOS)
    image.crop((0, 0, image.width, min(image.height, round(image.width * 0.72)))).save(
        path, quality=82, method=6
    )


def _index(entries: Sequence[GalleryEntry]) -> SitePage:
    cards = "".join(_card(entry) for entry in entries)
    return SitePage(
        "gallery/index.html",
        "Gallery",
        "Live views of a sentence embedding model: attention, vectors and similarity, each with its code.",
        fill("gallery.html", {"cards": cards, "count": str(len(entries))}),
        kind="wide",
    )


def _card(entry: GalleryEntry) -> str:
    images = "".join(
        f'<img class="{theme}-only" src="{entry.slug}-{theme}.webp" alt="" loading="lazy">'
        for theme in ("light", "dark")
    )
    return (
        f'<li><a class="tile" href="{entry.slug}.html"><span class="thumbnail">{images}</span>'
        f"<strong>{html.escape(entry.title)}</strong><span>{html.escape(entry.summary)}</span></a></li>"
    )


def _entry_page(entry: GalleryEntry, entries: Sequence[GalleryEntry]) -> SitePage:
    place = entries.index(entry)
    before, after = entries[place - 1], entries[(place + 1) % len(entries)]
    files = "".join(f'<p>The code reads <a href="{name}" download>{name}</a>.</p>' for name in entry.files)
    fields = {
        "title": html.escape(entry.title),
        "summary": html.escape(entry.summary),
        "source": html.escape(entry.source),
        "slug": entry.slug,
        "shell": highlight(entry.shell, "sh"),
        "python": highlight(entry.python, "python"),
        "files": files,
        "before": f'<a rel="prev" href="{before.slug}.html">← {html.escape(before.title)}</a>',
        "after": f'<a rel="next" href="{after.slug}.html">{html.escape(after.title)} →</a>',
    }
    return SitePage(
        f"gallery/{entry.slug}.html",
        entry.title,
        entry.summary,
        fill("entry.html", fields),
        ("frames",),
        kind="wide",
    )
