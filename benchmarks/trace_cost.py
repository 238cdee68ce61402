"""Measure the time of a trace, with its hidden states, queries, keys and values, relative to a plain pass."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    MPNetConfig,
    MPNetModel,
    Qwen3Config,
    Qwen3Model,
)

import bert_probe
from benchmarks.pairs import Line, paired
from bert_probe.model.sources import locate

LENGTHS = (20, 128, 512)
TARGET = 1.10


def text_of(tokens: int) -> str:
    """Return a text of `tokens` tokens, including [CLS] and [SEP]; every word is one token."""
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


def decoder_lines() -> Iterator[Line]:
    """Measure opening three models, and traces of a decoder like Qwen3-0.6B with a smaller vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(locate(None).folder)
    with tempfile.TemporaryDirectory() as temporary:
        yield _opening("all-MiniLM-L6-v2", locate(None).folder)
        for name, model_class, config in (
            ("MPNet-base's size", MPNetModel, MPNetConfig(vocab_size=len(tokenizer))),
            ("Qwen3-0.6B's layers", Qwen3Model, _qwen_config(len(tokenizer))),
        ):
            folder = Path(temporary) / model_class.__name__
            torch.manual_seed(0)
            model_class(config).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            yield _opening(f"{name}, random weights", folder)
            if model_class is Qwen3Model:
                yield from _model(f"{name}, random weights", folder, (20, 128), min_rounds=7)


def _qwen_config(vocabulary_size: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        max_position_embeddings=2048,
    )


def _opening(name: str, folder: Path) -> Line:
    """Compare the time of `bert_probe.load`, including all checks, with `AutoModel.from_pretrained`."""
    ours: list[float] = []
    rival: list[float] = []
    for _ in range(5):
        for load, took in ((bert_probe.load, ours), (AutoModel.from_pretrained, rival)):
            start = time.perf_counter()
            load(folder)
            took.append(time.perf_counter() - start)
    seconds = statistics.median(ours)
    return Line(
        f"Opening {name}, with all checks",
        f"AutoModel.from_pretrained without tokenizer and digest: {statistics.median(rival):.2f} s",
        f"{seconds:.2f} s",
        "–",
        None,
    )


def _model(name: str, folder: Path, lengths: Sequence[int] = LENGTHS, min_rounds: int = 15) -> Iterator[Line]:
    checkpoint = bert_probe.load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    if model.config._attn_implementation != "sdpa":
        raise RuntimeError(f"transformers uses {model.config._attn_implementation} attention, not SDPA.")

    def forward() -> object:
        with torch.inference_mode():
            return model(**tokenizer(text, return_tensors="pt"))

    for length in lengths:
        text = text_of(length)
        count = len(checkpoint.encode(text))
        if count != length:
            raise RuntimeError(f"The text has {count} tokens, not {length}.")
        timed = paired(partial(checkpoint.trace, text), forward, min_rounds=min_rounds)
        low, high = timed.spread
        yield Line(
            f"Trace of {length} tokens, {name}",
            "AutoModel with its default attention (SDPA), with tokenization",
            f"{timed.ratio:.3f} × (quartiles of {len(timed.ours)} pairs {low:.3f} to {high:.3f})",
            f"at most {TARGET:.2f} ×",
            timed.ratio <= TARGET,
        )
