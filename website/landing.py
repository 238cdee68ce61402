"""The landing page, with a live head view."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from bert_probe.model.checkpoint import Checkpoint
from website.gallery import KEY
from website.highlighting import highlight
from website.layout import SitePage, fill

_SENTENCE: Final = "Alice was beginning to get very tired of sitting by her sister on the bank."

_SCENES: Final = ((1, (2, 8)), (3, (1, 6, 9)), (2, (8,)), (5, (0, 4, 7)))
"""Layers, from 1, and heads, from 0, that the moving picture shows in turn."""


class _Feature(NamedTuple):
    title: str
    text: str
    address: str


_FEATURES: Final = (
    _Feature(
        "Attention",
        "All heads at once, one weight step by step, and what each head does on average.",
        "gallery/all-heads.html",
    ),
    _Feature(
        "Vectors",
        "Tokens, words in context and sentences, compared with the similarity of unrelated ones.",
        "gallery/word-in-context.html",
    ),
    _Feature(
        "Explanations",
        "Six attribution methods with a faithfulness test, activation patching, logit and tuned lens.",
        "docs/guides/engineer.html",
    ),
    _Feature(
        "Search",
        "Documents ranked by vectors, late interaction, a cross-encoder or BM25, and where each score comes from.",
        "docs/guides/search.html",
    ),
    _Feature(
        "Training and probes",
        "Fine-tune in the app and compare with the original; find the layers that encode your labels.",
        "docs/train.html",
    ),
    _Feature(
        "Corpora",
        "Search thousands of sentences for what heads and vectors do, also with SQL.",
        "docs/store.html",
    ),
)

_GUIDES: Final = (
    _Feature("Student or teacher", "Look inside BERT for a class", "docs/guides/student.html"),
    _Feature("Engineer", "Debug a classifier or a tagger", "docs/guides/engineer.html"),
    _Feature(
        "Search engineer",
        "Why a query returns a document, and whether the score is high",
        "docs/guides/search.html",
    ),
    _Feature(
        "Researcher",
        "Heads on a treebank, probes, patching, numbers with provenance",
        "docs/guides/researcher.html",
    ),
    _Feature("Biologist", "Proteins and DNA: contacts, residues, FASTA", "docs/guides/proteins.html"),
    _Feature("User of BertViz", "The same views, with the same arguments", "docs/bertviz.html"),
)


def write_hero(path: Path, checkpoint: Checkpoint) -> int:
    """Write the head view of the landing page, and return the number of its tokens."""
    trace = checkpoint.trace(_SENTENCE)
    layer, heads = _SCENES[0]
    view = trace.head_view(layer=layer - 1, heads=list(heads))
    path.write_text(replace(view.page, key=KEY).html(framed=True), encoding="utf-8")
    return len(trace.tokens)


def landing_page(tokens: int, views: int) -> SitePage:
    """Return the page.

    Args:
        tokens: number of tokens of the sentence in the moving picture.
        views: number of views in the gallery.
    """
    scenes = [{"layer": layer, "heads": heads} for layer, heads in _SCENES]
    fields = {
        "count": str(views),
        "scenes": html.escape(json.dumps(scenes)),
        "tokens": str(tokens),
        "install": highlight('pip install ".[app]"', "sh"),
        "start": highlight("bert-probe app", "sh"),
        "features": _list(_FEATURES),
        "guides": _list(_GUIDES),
    }
    return SitePage(
        "index.html",
        "BERT Probe: see what a transformer encoder does with your text",
        "Attention, vectors, predictions and training of transformer encoders and embedding models, on your own text.",
        fill("landing.html", fields),
        ("frames", "landing"),
        kind="landing",
    )


def _list(features: tuple[_Feature, ...]) -> str:
    return "".join(
        f'<li><a href="{address}"><strong>{html.escape(title)}</strong><span>{html.escape(text)}</span></a></li>'
        for title, text, address in features
    )
