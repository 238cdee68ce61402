"""Finds broken links in a folder of HTML pages."""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit


def find_broken_links(folder: Path, absent: tuple[str, ...] = ()) -> list[str]:
    """Return all links in a folder's pages whose target file or anchor does not exist.

    Args:
        absent: paths, relative to the folder, that are not checked, including everything below them.
    """
    pages = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.html")}
    anchors = {
        name: set(re.findall(r'\bid="([^"]+)"', path.read_text(encoding="utf-8")))
        for name, path in pages.items()
    }
    broken = []
    for name, path in pages.items():
        # Remove scripts and templates, because addresses in their code are strings, not links.
        page = re.sub(r"<script.*?</script>|<template.*?</template>", "", path.read_text("utf-8"), flags=re.S)
        for address in re.findall(r'\b(?:href|src)="([^"]*)"', page):
            parts = urlsplit(html.unescape(address))
            if parts.scheme:
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path) or "."))
            if not parts.path:
                target = name
            elif parts.path.endswith("/"):
                target = posixpath.normpath(f"{target}/index.html")
            if target.startswith(absent):
                continue
            is_anchor = not parts.fragment or parts.fragment in anchors.get(target, ())
            if not (folder / target).is_file() or not is_anchor:
                broken.append(f"{name}: {address}")
    return broken
