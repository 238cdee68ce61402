"""The landing page, with a live head view."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from bert_probe.analyses.attention.heads import Heads
from bert_probe.model.checkpoint import Checkpoint
from website.gallery import KEY
from website.highlighting import highlight
from website.layout import SitePage, fill

_SENTENCE: Final = "Rose is a rose is a rose is a rose."

_SCENES: Final = ((3, 10), (1, 3), (2, 9))
"""Layers and heads (from 1) that the animation shows in turn."""


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
        "Tokens, words in context and sentences, with the similarity of unrelated texts as a baseline.",
        "gallery/word-in-context.html",
    ),
    _Feature(
        "Explanations",
        "Six attribution methods with a faithfulness test, activation patching, logit and tuned lens.",
        "docs/guides/engineer.html",
    ),
    _Feature(
        "Search",
        "Documents ranked by vectors, late interaction, a cross-encoder or BM25, and where each "
        "score comes from.",
        "docs/guides/search.html",
    ),
    _Feature(
        "Training and probes",
        "Fine-tune in the app and compare with the original; find the layers that encode your labels.",
        "docs/train.html",
    ),
    _Feature(
        "Corpora",
        "Search thousands of sentences by attention, by vectors or with SQL.",
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


class Hero(NamedTuple):
    """The animation of the landing page: number of tokens, and layer, head and caption of each scene."""

    tokens: int
    scenes: tuple[dict[str, object], ...]


def write_hero(path: Path, checkpoint: Checkpoint) -> Hero:
    """Write the head view of the landing page to a file, and return its animation."""
    trace = checkpoint.trace(_SENTENCE)
    labels = Heads().of(trace).labels
    layer, head = _SCENES[0]
    view = trace.head_view(layer=layer - 1, heads=head - 1)
    path.write_text(replace(view.page, key=KEY).html(framed=True), encoding="utf-8")
    scenes = tuple(
        {
            "layer": layer,
            "heads": [head - 1],
            "caption": f"Layer {layer}, head {head}: {labels[layer - 1][head - 1]}",
        }
        for layer, head in _SCENES
    )
    return Hero(len(trace.tokens), scenes)


def landing_page(hero: Hero, views: int) -> SitePage:
    """Return the landing page.

    Args:
        hero: the animation of its head view.
        views: number of views in the gallery.
    """
    fields = {
        "count": str(views),
        "scenes": html.escape(json.dumps(hero.scenes)),
        "tokens": str(hero.tokens),
        "caption": html.escape(str(hero.scenes[0]["caption"])),
        "install": highlight('pip install ".[app]"', "sh"),
        "start": highlight("bert-probe app", "sh"),
        "features": _list(_FEATURES),
        "guides": _list(_GUIDES),
    }
    return SitePage(
        "index.html",
        "BERT Probe: see what a transformer encoder does with your text",
        "Attention, vectors, predictions and training of transformer encoders and embedding models, "
        "on your own text.",
        fill("landing.html", fields),
        ("frames", "landing"),
        kind="landing",
    )


def _list(features: tuple[_Feature, ...]) -> str:
    return "".join(
        f'<li><a href="{address}"><strong>{html.escape(title)}</strong>'
        f"<span>{html.escape(text)}</span></a></li>"
        for title, text, address in features
    )
