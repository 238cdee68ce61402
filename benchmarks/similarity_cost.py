"""Measure the time of a token similarity matrix, relative to two forward passes per cell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

import bert_probe
from benchmarks.pairs import Line, paired
from bert_probe.model.sources import locate

TEXT_A = "President greets the press in Chicago"
TEXT_B = "Obama speaks to media in Illinois"
TARGET = 20.0


def lines() -> Iterator[Line]:
    folder = locate(None).folder
    checkpoint = bert_probe.load()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    def vector(text: str, position: int) -> torch.Tensor:
        with torch.inference_mode():
            states: torch.Tensor = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        return states[0, position]

    def notebook() -> np.ndarray:
        rows, columns = (len(tokenizer(text)["input_ids"]) - 2 for text in (TEXT_A, TEXT_B))
        return np.array(
            [
                [
                    torch.cosine_similarity(vector(TEXT_A, row), vector(TEXT_B, column), dim=0).item()
                    for column in range(1, columns + 1)
                ]
                for row in range(1, rows + 1)
            ]
        )

    def ours() -> np.ndarray:
        a, b = checkpoint.traces([TEXT_A, TEXT_B])
        return bert_probe.Similarity().of(a, b).cosines

    table = ours()
    off = float(np.abs(table - notebook()).max())
    if off > 1e-5:
        raise RuntimeError(f"The cosines differ by {off:.2g}, so the run times cannot be compared.")
    timed = paired(ours, notebook)
    yield Line(
        f"Token similarity, {table.shape[0]} × {table.shape[1]} tokens, all-MiniLM-L6-v2",
        "two forward passes per cell, as in a notebook; same numbers",
        f"{1 / timed.ratio:.0f} × as fast ({len(timed.ours)} pairs)",
        f"at least {TARGET:.0f} × as fast",
        1 / timed.ratio >= TARGET,
    )
