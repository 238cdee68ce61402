"""Measure the time of a prediction with a trace, and of activation patching, relative to forward passes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedModel,
)

import bert_probe
from benchmarks.heads_cost import against_passes
from benchmarks.pairs import Line, paired
from benchmarks.trace_cost import text_of
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import locate

ANSWERED = 128
PATCHED = 20
TARGET_ANSWER = 1.1
TARGET_PATCHES = 1.5


def lines() -> Iterator[Line]:
    for model_class, question, text in (
        (BertForSequenceClassification, bert_probe.ClassifyText(), text_of(ANSWERED)),
        (BertForMaskedLM, bert_probe.FillMask(), text_of(ANSWERED - 1) + " [MASK]"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            yield _answer(Path(folder), model_class, question, text)
    yield _patches(bert_probe.load())


def _answer(folder: Path, model_class: type[PreTrainedModel], question: Any, text: str) -> Line:
    torch.manual_seed(0)
    model_class(BertConfig()).save_pretrained(folder)
    AutoTokenizer.from_pretrained(locate(None).folder).save_pretrained(folder)
    checkpoint, tokenizer = bert_probe.load(folder), AutoTokenizer.from_pretrained(folder)
    plain: Any = model_class.from_pretrained(folder).eval()

    def forward() -> object:
        with torch.inference_mode():
            return plain(**tokenizer(text, return_tensors="pt"))

    timed = paired(lambda: question.of(checkpoint.trace(text)), forward)
    low, high = timed.spread
    return Line(
        f"A prediction with its trace, {question.task}, {ANSWERED} tokens, BERT-base's size",
        f"{model_class.__name__}'s forward pass, with tokenization",
        f"{timed.ratio:.3f} × (quartiles of {len(timed.ours)} pairs {low:.3f} to {high:.3f})",
        f"at most {TARGET_ANSWER:.1f} ×",
        timed.ratio <= TARGET_ANSWER,
    )


def _patches(checkpoint: Checkpoint) -> Line:
    text = text_of(PATCHED)
    a, b = checkpoint.trace(text), checkpoint.trace(text.replace("ground", "garden"))
    layers, tokens = a.layers + 1, len(a.tokens)
    name = f"Patching of {layers} layers × {tokens} tokens, all-MiniLM-L6-v2"
    work = partial(bert_probe.ActivationPatching().of, a, b)
    return against_passes(name, work, checkpoint, text, layers * tokens, tokens, TARGET_PATCHES)
