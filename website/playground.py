"""The playground page, which runs the built-in model in the browser."""

from __future__ import annotations

import base64
import html
import json
from typing import Final, NamedTuple

from bert_probe.views import built
from bert_probe.views.page import CAVEAT
from bert_probe.views.palette import Scale
from website.layout import SitePage, fill
from website.precision import Precision

_COMPONENTS: Final = ("head_view", "model_view", "matrix", "strip")


class PlaygroundExample(NamedTuple):
    """An example: two texts for the form, and the view that opens."""

    name: str
    a: str
    b: str
    view: str


EXAMPLES: Final = (
    PlaygroundExample(
        "Full or empty",
        "I poured water from the bottle into the cup until it was full.",
        "I poured water from the bottle into the cup until it was empty.",
        "heads",
    ),
    PlaygroundExample(
        "Two pythons",
        "The coolest programming language is Python",
        "Python can be aggressive sometimes during hunting",
        "similarity",
    ),
    PlaygroundExample(
        "Paraphrase",
        "President greets the press in Chicago",
        "Obama speaks to media in Illinois",
        "sentences",
    ),
    PlaygroundExample(
        "Subword tokens", "Mehdi Wolpertinger moved to Tallahassee unexpectedly.", "", "tokens"
    ),
)


def playground_page(download_bytes: int, precision: Precision) -> SitePage:
    """Return the playground page.

    Args:
        download_bytes: size of the compressed files of the model.
        precision: the largest differences between the exported model and the library.
    """
    first = EXAMPLES[0]
    fields = {
        "a": html.escape(first.a),
        "b": html.escape(first.b),
        "examples": "".join(
            f'<button type="button" data-a="{html.escape(example.a)}" data-b="{html.escape(example.b)}" '
            f'data-view="{example.view}">{html.escape(example.name)}</button>'
            for example in EXAMPLES
        ),
        "size": f"{download_bytes / 1e6:.1f} MB",
        "caveat": html.escape(CAVEAT),
        "attention_error": f"{precision.attention:.1g}",
        "hidden_error": f"{precision.hidden:.1g}",
        "hidden_largest": f"{precision.hidden_largest:.1f}",
        "cosine_error": f"{precision.cosine:.1g}",
        "templates": "".join(
            f'<template id="style-{name}"><style>{built.style(name)}</style></template>'
            for name in _COMPONENTS
        ),
        "palette": json.dumps(palette()),
    }
    return SitePage(
        "playground/index.html",
        "Playground",
        "Attention, tokens and sentence similarity of your own text, computed in your browser.",
        fill("playground.html", fields),
        ("playground",),
        runs_wasm=True,
        kind="wide",
    )


def palette() -> dict[str, dict[str, str]]:
    """Return the lookup tables of the sequential and the diverging color scale, base64-encoded, by theme."""
    scales = {"sequential": Scale("sequential", 0, 1), "diverging": Scale("diverging", -1, 1)}
    return {
        kind: {name: base64.b64encode(table.tobytes()).decode() for name, table in scale.tables().items()}
        for kind, scale in scales.items()
    }
