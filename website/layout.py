"""The frame of every page of the site: HTML head, navigation, footer, and the app's theme."""

from __future__ import annotations

import html
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from bert_probe.views.page import theme_style

ROOT: Final = Path(__file__).resolve().parents[1]
TEMPLATES: Final = Path(__file__).with_name("templates")

NAVIGATION: Final = {"playground/": "Playground", "gallery/": "Gallery", "docs/": "Documentation"}
"""Address of each section of the site, relative to its root → name in the navigation."""

_POLICY: Final = (
    "default-src 'none'; script-src 'self'{script}; style-src 'self' 'unsafe-inline'; img-src 'self' "
    "data: blob:; "
    "font-src 'self'; connect-src 'self'; worker-src 'self'; frame-src 'self'; base-uri 'none'; "
    "form-action 'none'"
)
"""Content-Security-Policy of the pages. Browsers block requests to other hosts, so no text can leave them."""


@dataclass(frozen=True)
class SitePage:
    """A page of the site.

    Attributes:
        path: path of the file, relative to the root of the site.
        title: title of the page.
        description: one sentence for search engines and link previews.
        body: HTML of the element `main`.
        scripts: names of the scripts in `assets` that the page loads.
        styles: additional HTML for the element `head`.
        runs_wasm: whether the page may compile WebAssembly.
        kind: CSS class of the element `body`.
    """

    path: str
    title: str
    description: str
    body: str
    scripts: tuple[str, ...] = ()
    styles: str = ""
    runs_wasm: bool = False
    kind: str = ""

    @property
    def root(self) -> str:
        """Relative address of the root of the site. It is relative so that the site works under any path."""
        return "../" * self.path.count("/")

    def html(self) -> str:
        """Return the page as HTML."""
        return fill(
            "page.html",
            {
                "root": self.root,
                "policy": _POLICY.format(script=" 'wasm-unsafe-eval'" if self.runs_wasm else ""),
                "title": html.escape(
                    self.title if self.path == "index.html" else f"{self.title} · BERT Probe"
                ),
                "description": html.escape(self.description),
                "styles": self.styles,
                "kind": self.kind,
                "logo": (ROOT / "bert_probe/ui/static/logo.svg").read_text(encoding="utf-8"),
                "navigation": "".join(
                    f'<a href="{self.root}{address}"{self._current(address)}>{name}</a>'
                    for address, name in NAVIGATION.items()
                ),
                "body": self.body,
                "scripts": "".join(
                    f'<script type="module" src="{self.root}assets/{name}.js"></script>'
                    for name in self.scripts
                ),
            },
        )

    def _current(self, address: str) -> str:
        return ' aria-current="page"' if self.path.startswith(address) else ""


def write_pages(folder: Path, pages: Sequence[SitePage]) -> None:
    """Write pages into the folder of the site."""
    for page in pages:
        path = folder / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.html(), encoding="utf-8")


def fill(template: str, fields: Mapping[str, str]) -> str:
    """Return a template with each comment `<!--name-->` replaced by the field of that name.

    Comments inside of field values are not replaced.

    Raises:
        KeyError: the template has a comment without a field.
    """
    start, *parts = (TEMPLATES / template).read_text(encoding="utf-8").split("<!--")
    fragments = [start]
    for part in parts:
        name, _, following = part.partition("-->")
        fragments += [fields[name], following]
    return "".join(fragments)


def style_sheet() -> str:
    """Return the style sheet of the site, with the colors of the app as CSS variables."""
    themes = "".join(
        f"{selector} {{{_variables(name)}}} "
        if "@" not in selector
        else f"{selector} {{:root {{{_variables(name)}}}}} "
        for selector, name in (
            (":root", "light"),
            ("@media (prefers-color-scheme: dark)", "dark"),
            (":root[data-theme=light]", "light"),
            (":root[data-theme=dark]", "dark"),
        )
    )
    return theme_style("system") + themes + (TEMPLATES / "site.css").read_text(encoding="utf-8")


_COLORS: Final = {
    "accent": "primaryColor",
    "paper": "backgroundColor",
    "raised": "secondaryBackgroundColor",
    "ink": "textColor",
    "line": "borderColor",
    "code": "codeTextColor",
    "quiet": "grayTextColor",
}


@cache
def _theme() -> Mapping[str, Any]:
    settings = tomllib.loads((ROOT / ".streamlit/config.toml").read_text(encoding="utf-8"))
    theme: Mapping[str, Any] = settings["theme"]
    return theme


def _variables(name: str) -> str:
    colors = "".join(f"--{variable}: {_theme()[name][field]};" for variable, field in _COLORS.items())
    return f"{colors}color-scheme: {name};"
