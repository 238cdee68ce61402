"""A view as a web page of its own, which needs nothing else: no network, no server, no package."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bert_probe.model.trace import Trace
from bert_probe.views import built, palette
from bert_probe.views.payload import as_text

CAVEAT: Final = (
    "Attention says where a head reads from, not what the model's output depends on: it is not an "
    "explanation by itself (Jain and Wallace 2019)."
)
"""What stands beside every picture of attention."""


def caption_of(trace: Trace) -> str:
    """Text and model, as a saved picture names them."""
    texts = [trace.encoding.text, trace.encoding.pair]
    said = " + ".join(f"“{text}”" for text in texts if text)
    return f"{trace.provenance['model']} · {said if len(said) <= 300 else said[:299] + '…'}"


@dataclass(frozen=True)
class Page:
    """A view as a web page.

    Attributes:
        component: one of the `built.COMPONENTS`.
        payloads: what it draws; for a view of one layer at a time one for each layer.
        title: text and model.
        caveat: what has to stand beside the picture.
        start: which payload is shown first, from 1.
        theme: what the reader's system has, or one of the two.
    """

    component: str
    payloads: Sequence[bytes] = field(repr=False)
    title: str
    caveat: str = ""
    start: int = 1
    theme: Literal["system", "light", "dark"] = "system"

    def html(self, framed: bool = False) -> str:
        """The page; in a frame of another page without its title and margins."""
        held = [as_text(one) for one in self.payloads]
        fields = {
            "title": html.escape(self.title),
            "place": "framed" if framed else "alone",
            "class": _CLASSES.get(self.component, self.component),
            "caveat": html.escape(self.caveat),
            "style": _theme(self.theme) + built.style(self.component),
            "script": built.script(f"{self.component}_page"),
            # Numbers, and an alphabet without any sign that HTML or JSON knows.
            "payload": json.dumps({"start": self.start, "payloads": held}),
        }
        made = _TEMPLATE.read_text(encoding="utf-8")
        for name, text in fields.items():
            made = made.replace(f"<!--{name}-->", text)
        return made


_TEMPLATE = Path(__file__).with_name("page.html")

_CLASSES = {"head_view": "head-view", "model_view": "matrix model-view"}
"""Of the element that a component is mounted in, where it is not the component's name."""


def _theme(name: str) -> str:
    """What Streamlit would bring."""
    light = _variables(palette.PAPER_LIGHT, palette.INK_LIGHT, palette.ACCENT_LIGHT)
    dark = _variables(palette.PAPER_DARK, palette.INK_DARK, palette.ACCENT_DARK)
    if name == "system":
        return f":root {{{light}}} @media (prefers-color-scheme: dark) {{:root {{{dark}}}}} "
    return f":root {{{dark if name == 'dark' else light}}} "


def _variables(paper: str, ink: str, accent: str) -> str:
    return (
        f"--st-background-color: {paper}; --st-text-color: {ink}; --st-primary-color: {accent};"
        f"--st-secondary-background-color: color-mix(in srgb, {ink} 8%, {paper});"
        "--st-font: system-ui, sans-serif;"
    )
