"""Test links, anchors and module names in the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT", "AGENTS")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PACKAGES = sorted(
    path.name for path in (ROOT / "bert_probe").iterdir() if path.is_dir() and path.name.isalpha()
)
_NAMES = "|".join(PACKAGES)
MODULE = re.compile(rf"`(?!text/csv)((?:bert_probe/)?(?:{_NAMES})(?:/\w+)+)/?(?:\.py)?(?:\.[A-Z]\w*)?`")


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_resolve_to_files_and_headings(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
    for link in links:
        name, _, anchor = link.partition("#")
        if name.startswith(("http://", "https://")):
            continue
        target = document.parent / name if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_named_in_documents_exist(document: Path) -> None:
    for name in MODULE.findall(document.read_text(encoding="utf-8")):
        path = ROOT / "bert_probe" / name.removeprefix("bert_probe/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name


def test_all_documents_are_linked_from_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS[1:]]
    assert [name for name in names if f"({name})" not in text] == []


def test_headings_named_in_messages_exist() -> None:
    required_headings = {"Vocabulary", "Two models", "Minimal pairs", "Nearest contexts", "Corpora"}
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), re.M)
    assert required_headings <= set(headings)
