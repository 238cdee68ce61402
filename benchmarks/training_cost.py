"""Measure the time of fine-tuning relative to a PyTorch loop, and of a linear head to scikit-learn."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoModelForSequenceClassification, get_linear_schedule_with_warmup

import bert_probe
from benchmarks.pairs import Line
from benchmarks.trace_cost import text_of
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import BATCH_TOKENS, group_by_length
from bert_probe.model.sources import locate
from bert_probe.text.labeled_texts import LabeledText, LabeledTexts
from bert_probe.training.schedule import LengthBuckets

LENGTHS = (6, 8, 10, 14, 18, 24, 32, 48, 64)
STEPS, BATCH = 30, 16
ALONE = 6_000
TARGET_STEPS = 1 / 0.9
TARGET_ALONE = 1.2


def lines() -> Iterator[Line]:
    checkpoint = bert_probe.load()
    yield _steps(checkpoint)
    yield _alone(checkpoint)


def _data(count: int) -> LabeledTexts:
    rng = random.Random(0)
    rows = [
        LabeledText(f"{number} {text_of(rng.choice(LENGTHS))}", None, "abcde"[number % 5], number)
        for number in range(count)
    ]
    return LabeledTexts.of("classes", rows)


def _steps(checkpoint: Checkpoint) -> Line:
    """Compare full fine-tuning by `Train` with a PyTorch loop over the same batches, without evaluation."""
    data = _data(STEPS * BATCH)
    question = bert_probe.Train("all", epochs=1, batch=BATCH, held_out=0)
    plan = question.plan(checkpoint, data)
    examples, objective = plan.material.training, plan.material.objective
    seconds: list[float] = []

    def ours() -> float:
        plan.run(on_evaluation=lambda evaluation: seconds.append(evaluation.seconds))
        return seconds[-1]

    def plain() -> float:
        torch.manual_seed(0)
        model: Any = AutoModelForSequenceClassification.from_pretrained(locate(None).folder, num_labels=5)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
        schedule = get_linear_schedule_with_warmup(optimizer, 3, STEPS)
        start = time.monotonic()
        model.train()
        for places in LengthBuckets([len(example) for example in examples], BATCH, 0):
            loss = model(**objective.batch([examples[place] for place in places])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return time.monotonic() - start

    took = [work() for work in (plain, ours, ours, plain, plain, ours)]
    ratio = (took[1] + took[2] + took[5]) / (took[0] + took[3] + took[4])
    return Line(
        f"{STEPS} steps of {BATCH} texts, full fine-tuning of all-MiniLM-L6-v2, with Train",
        "a PyTorch training loop over the same batches",
        f"{ratio:.3f} × ({_listed(took[1], took[2], took[5])} to {_listed(took[0], took[3], took[4])})",
        f"at most {TARGET_STEPS:.2f} ×",
        ratio <= TARGET_STEPS,
    )


def _alone(checkpoint: Checkpoint) -> Line:
    data = _data(ALONE)
    question = bert_probe.Train(batch=32, held_out=0.2)
    model: Any = AutoModel.from_pretrained(locate(None).folder).eval()

    def theirs() -> None:
        inputs = [checkpoint.encoder.inputs(row.text).inputs for row in data.rows]
        vectors = np.empty((len(inputs), checkpoint.description.hidden_size), np.float32)
        for group in group_by_length([len(row["input_ids"]) for row in inputs], BATCH_TOKENS):
            padded = checkpoint.tokenizer.pad(
                {name: [inputs[place][name].tolist() for place in group] for name in inputs[0]},
                return_tensors="pt",
            )
            with torch.inference_mode():
                vectors[group] = model(**padded).last_hidden_state[:, 0].numpy()
        LogisticRegression(max_iter=1000).fit(vectors, [str(row.label) for row in data.rows])

    took = [_seconds(work) for work in (theirs, lambda: question.of(checkpoint, data))]
    ratio = took[1] / took[0]
    return Line(
        f"A linear head for five classes of {ALONE:,} texts, all-MiniLM-L6-v2, with Train",
        "the forward passes and scikit-learn's logistic regression on their vectors",
        f"{ratio:.3f} × ({took[1]:.1f} to {took[0]:.1f} s)",
        f"at most {TARGET_ALONE:.1f} ×",
        ratio <= TARGET_ALONE,
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _listed(*seconds: float) -> str:
    return ", ".join(f"{duration:.1f}" for duration in seconds) + " s"
