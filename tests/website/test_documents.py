"""Test the pages of the site that need no model: every link leads to a page or an anchor that exists."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

import pytest

from tests.helpers.links import find_broken_links
from website.documents import SiteDocument, all_sources, page_path, write_documents
from website.gallery_entries import ENTRIES
from website.layout import ROOT, style_sheet, write_pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_pages(folder, write_documents(folder))
    return folder


def test_links_of_documentation_lead_somewhere(site: Path) -> None:
    # The other pages, which are built with a model, are not checked here.
    elsewhere = ("index.html", "assets/", "playground/", "gallery/")
    assert find_broken_links(site, elsewhere) == []


def test_every_document_has_page_and_title(site: Path) -> None:
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert documents | {"README.md", "CHANGELOG.md", "benchmarks/RESULTS.md"} == set(all_sources())
    for source in all_sources():
        page = (site / page_path(source)).read_text(encoding="utf-8")
        assert re.search(r"<title>[^<]+ · BERT Probe</title>", page), source
        assert page.count("<h1") == 1, source
        assert page.count('aria-current="page"') == 2, "its part of the site and its entry in the navigation"


def test_text_of_documents_is_escaped() -> None:
    document = SiteDocument("docs/report.md")
    assert "<code>.html</code>" in document.body()
    assert (
        document._markdown.render("<script>alert(1)</script>")
        == "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>\n"
    )


def test_search_covers_every_section(site: Path) -> None:
    sections = json.loads((site / "docs/sections.json").read_text(encoding="utf-8"))
    headings = [heading for source in all_sources() for heading in SiteDocument(source).headings]
    assert len(sections) == len(headings) > 250
    assert len({section["id"] for section in sections}) == len(sections)
    matches = {section["url"] for section in sections if "Abnar and Zuidema" in section["text"]}
    assert "docs/methods.html#words-and-other-measures" in matches


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        assert "default-src 'none'" in page
        assert not re.search(r'\bsrc="(?:https?:)?//', page), path.name
        root = re.search(r'data-root="([./]*)"', page)
        assert root
        depth = posixpath.dirname(path.relative_to(site).as_posix()).count("/") + 1
        assert root[1] == "../" * depth
    assert "url(" not in re.sub(r'url\("Source\w+-\w+\.woff2"\)', "", style_sheet())


def test_entries_of_gallery_are_complete() -> None:
    assert len(ENTRIES) >= 12
    assert len({entry.slug for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        assert entry.title[0].isupper(), entry.slug
        assert entry.summary.endswith("."), entry.slug
        assert entry.shell.startswith("bert-probe "), entry.slug
        assert entry.shell.endswith(f"--out {entry.slug}.html"), entry.slug
        compile(entry.python, entry.slug, "exec")
