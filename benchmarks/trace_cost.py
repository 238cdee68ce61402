"""Time of a trace, which stores all activations, against a plain forward pass."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

import bert_probe
from benchmarks.pairs import Line, paired
from bert_probe.model.sources import locate

LENGTHS = (20, 128, 512)
TARGET = 1.10


def text_of(tokens: int) -> str:
    """Return a text with this many tokens including [CLS] and [SEP], one per word."""
    words = (
        "almost",
        "before",
        "we",
        "knew",
        "it",
        "we",
        "had",
        "left",
        "the",
        "ground",
        "and",
        "the",
        "river",
    )
    return " ".join(words[index % len(words)] for index in range(tokens - 2))


def lines() -> Iterator[Line]:
    folder = locate(None).folder
    yield from _model("all-MiniLM-L6-v2", folder)
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        torch.manual_seed(0)
        BertModel(BertConfig()).save_pretrained(base)
        AutoTokenizer.from_pretrained(folder).save_pretrained(base)
        yield from _model("BERT-base's size, random weights", base)


def _model(name: str, folder: Path) -> Iterator[Line]:
    checkpoint = bert_probe.load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    if model.config._attn_implementation != "sdpa":
        raise RuntimeError(f"The rival runs {model.config._attn_implementation}, not SDPA.")

    def forward() -> object:
        with torch.inference_mode():
            return model(**tokenizer(text, return_tensors="pt"))

    for length in LENGTHS:
        text = text_of(length)
        count = len(checkpoint.encode(text))
        if count != length:
            raise RuntimeError(f"The text has {count} tokens, not {length}.")
        timed = paired(partial(checkpoint.trace, text), forward)
        low, high = timed.spread
        yield Line(
            f"Trace of {length} tokens, {name}",
            "AutoModel with its default attention (SDPA), with tokenization",
            f"{timed.ratio:.3f} × (quartiles of {len(timed.ours)} pairs {low:.3f} to {high:.3f})",
            f"at most {TARGET:.2f} ×",
            timed.ratio <= TARGET,
        )
