"""Pages of the documentation, rendered from Markdown files, and their sections for the search."""

from __future__ import annotations

import html
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from website.highlighting import highlight
from website.layout import ROOT, SitePage, fill

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Guides": (
        "docs/usage.md",
        "docs/guides/student.md",
        "docs/guides/engineer.md",
        "docs/guides/search.md",
        "docs/guides/researcher.md",
        "docs/guides/proteins.md",
        "docs/notebooks.md",
        "docs/bertviz.md",
        "docs/train.md",
        "docs/store.md",
        "docs/scale.md",
        "docs/report.md",
    ),
    "Reference": ("docs/methods.md", "docs/reference.md", "docs/models.md", "docs/api.md", "CHANGELOG.md"),
    "Internals": (
        "docs/architecture.md",
        "docs/frontend.md",
        "docs/site.md",
        "docs/caching.md",
        "docs/security.md",
        "docs/testing.md",
        "benchmarks/RESULTS.md",
    ),
}
"""Group in the navigation → paths of its documents, relative to the repository."""

OVERVIEW: Final = "README.md"
_RENAMED: Final = {
    OVERVIEW: "docs/index",
    "CHANGELOG.md": "docs/changelog",
    "benchmarks/RESULTS.md": "docs/benchmarks",
}
_SHORT: Final = {
    "docs/usage.md": "Python and command line",
    "benchmarks/RESULTS.md": "Benchmarks",
    OVERVIEW: "Overview",
}
"""Titles in the navigation that differ from the heading of the document."""


def all_sources() -> tuple[str, ...]:
    """Return the paths of all documents, relative to the repository."""
    listed = [OVERVIEW, *(source for group in GROUPS.values() for source in group)]
    # Add all other documents at the end, so that no new document is missing.
    unlisted = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(dict.fromkeys([*listed, *unlisted]))


def page_path(source: str) -> str:
    """Return the path of a document's page on the site."""
    return f"{_RENAMED.get(source, source.removesuffix('.md'))}.html"


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub generates it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@dataclass(frozen=True)
class Heading:
    """A heading of a document, with its level (1 to 6) and its anchor."""

    level: int
    text: str
    anchor: str


class SiteDocument:
    """A Markdown file as a page of the site.

    Args:
        source: path of the file, relative to the repository.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.path = page_path(source)
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        self.images: set[str] = set()
        self.headings: list[Heading] = []
        self.sections: list[dict[str, str]] = []
        self._tokens = self._markdown.parse((ROOT / source).read_text(encoding="utf-8"))
        self._prepare()

    @cached_property
    def title(self) -> str:
        """The heading of the document."""
        return next(heading.text for heading in self.headings if heading.level == 1)

    @property
    def name(self) -> str:
        """The title in the navigation."""
        return _SHORT.get(self.source, self.title)

    def body(self) -> str:
        """Return the content as HTML."""
        renderer: Any = self._markdown.renderer
        renderer.rules["fence"] = lambda tokens, index, *_: highlight(
            tokens[index].content, tokens[index].info.split(" ")[0]
        )
        renderer.rules["code_block"] = lambda tokens, index, *_: highlight(tokens[index].content, "")
        rendered: str = renderer.render(self._tokens, self._markdown.options, {})
        return rendered.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace(
            "</table>", "</table></div>"
        )

    def _prepare(self) -> None:
        """Add anchors to headings, resolve links and images, and collect headings and sections."""
        counts: dict[str, int] = {}
        for index, token in enumerate(self._tokens):
            if token.type == "heading_open":
                text = _plain(self._tokens[index + 1])
                anchor = slug(text)
                counts[anchor] = counts.get(anchor, 0) + 1
                if counts[anchor] > 1:
                    anchor = f"{anchor}-{counts[anchor] - 1}"
                token.attrSet("id", anchor)
                self.headings.append(Heading(int(token.tag[1]), text, anchor))
                self.sections.append({"anchor": anchor, "title": text, "text": ""})
            elif token.type == "inline":
                self._prepare_inline(token)
                if self.sections and self._tokens[index - 1].type != "heading_open":
                    self.sections[-1]["text"] += f"{_plain(token)} "
            elif token.type in ("fence", "code_block") and self.sections:
                self.sections[-1]["text"] += f"{token.content} "

    def _prepare_inline(self, token: Token) -> None:
        for child in token.children or []:
            if child.type == "link_open":
                child.attrSet("href", self._link(str(child.attrGet("href"))))
            elif child.type == "image":
                target = self._resolve(str(child.attrGet("src")))
                self.images.add(target)
                child.attrSet(
                    "src", self._relative(target if target.startswith("docs/") else f"docs/{target}")
                )
                child.attrSet("loading", "lazy")

    def _link(self, address: str) -> str:
        name, _, anchor = address.partition("#")
        if re.match(r"[a-z]+:", address) or not name:
            return address
        target = self._resolve(name)
        if target in all_sources():
            return self._relative(page_path(target)) + (f"#{anchor}" if anchor else "")
        # The site contains documents only. An empty address marks a link to any other file of the repository,
        # which `_without_dead_links` removes.
        return ""

    def _resolve(self, address: str) -> str:
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.source), address))

    def _relative(self, target: str) -> str:
        return posixpath.relpath(target, posixpath.dirname(self.path))


def _plain(token: Token) -> str:
    return "".join(
        child.content if child.type in ("text", "code_inline", "image") else " "
        for child in token.children or []
        if child.type in ("text", "code_inline", "image", "softbreak", "hardbreak")
    )


def write_documents(folder: Path) -> list[SitePage]:
    """Write docs/sections.json (for the search) and the images of the documentation, and return its pages.

    Args:
        folder: root folder of the site.
    """
    documents = [SiteDocument(source) for source in all_sources()]
    sections = [
        {
            "id": f"{document.path}#{section['anchor']}",
            "url": f"{document.path}#{section['anchor']}",
            "page": document.name,
            "title": section["title"],
            "text": " ".join(section["text"].split()),
        }
        for document in documents
        for section in document.sections
    ]
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs/sections.json").write_text(
        json.dumps(sections, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )
    for image in sorted(set().union(*(document.images for document in documents))):
        target = folder / (image if image.startswith("docs/") else f"docs/{image}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / image).read_bytes())
    return [_page(document, documents) for document in documents]


def _page(document: SiteDocument, documents: Sequence[SiteDocument]) -> SitePage:
    fields = {
        "navigation": _navigation(document, documents),
        "contents": _contents(document),
        "body": _without_dead_links(document.body()),
    }
    first = next((section["text"] for section in document.sections if section["text"]), document.title)
    return SitePage(
        document.path,
        document.name if document.source in _SHORT else document.title,
        " ".join(first.split())[:150],
        fill("document.html", fields),
        ("search", "code"),
        kind="document",
    )


def _without_dead_links(body: str) -> str:
    return re.sub(r'<a href="">(.*?)</a>', r"\1", body, flags=re.DOTALL)


def _navigation(current: SiteDocument, documents: Sequence[SiteDocument]) -> str:
    by_source = {document.source: document for document in documents}
    listed = {source for sources in GROUPS.values() for source in sources} | {OVERVIEW}
    groups: dict[str, Sequence[str]] = {"": (OVERVIEW,), **GROUPS}
    if unlisted := [source for source in by_source if source not in listed]:
        groups["More"] = unlisted
    parts = []
    for name, sources in groups.items():
        items = "".join(_item(by_source[source], current) for source in sources)
        heading = f"<h2>{html.escape(name)}</h2>" if name else ""
        parts.append(f"{heading}<ul>{items}</ul>")
    return "".join(parts)


def _item(document: SiteDocument, current: SiteDocument) -> str:
    mark = ' aria-current="page"' if document is current else ""
    address = posixpath.relpath(document.path, posixpath.dirname(current.path))
    return f'<li><a href="{address}"{mark}>{html.escape(document.name)}</a></li>'


def _contents(document: SiteDocument) -> str:
    headings = [heading for heading in document.headings if heading.level == 2]
    if len(headings) < 3:
        return ""
    items = "".join(
        f'<li><a href="#{heading.anchor}">{html.escape(heading.text)}</a></li>' for heading in headings
    )
    return f'<nav class="contents" aria-label="On this page"><h2>On this page</h2><ul>{items}</ul></nav>'
