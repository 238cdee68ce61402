"""Measure the time of attribution methods, and the correlation of their scores with leave-one-out scores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from itertools import combinations
from typing import Any
from unittest.mock import patch

import torch
from captum.attr import LayerIntegratedGradients
from transformers import AutoModel

import bert_probe
from benchmarks.heads_cost import against_passes
from benchmarks.pairs import Line, paired
from benchmarks.trace_cost import text_of
from bert_probe.analyses.attribution.faithfulness import MEASURES, RANDOM
from bert_probe.analyses.attribution.methods import integrated_gradients, methods
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.model.sources import locate

EFFECTS, GRADIENTS = 20, 64
STEPS = 64
PAIRS = 100
TARGET_EFFECTS = 1.5
TARGET_GRADIENTS = 1.1


def lines() -> Iterator[Line]:
    checkpoint = bert_probe.load()
    yield _effects(checkpoint)
    yield _gradients(checkpoint)
    yield from _loo_correlation(checkpoint)


def _effects(checkpoint: Checkpoint) -> Line:
    text = text_of(EFFECTS)
    a, b = checkpoint.trace(text), checkpoint.trace("The other text of the pair.")
    # One pass for each attention head, for each layer, and for the unmodified model.
    passes = a.layers * a.heads + a.layers + 1
    name = f"Effect of each of {a.layers * a.heads} heads on a prediction, {EFFECTS} tokens, all-MiniLM-L6-v2"
    work = partial(bert_probe.HeadAttribution().of, a, b)
    return against_passes(name, work, checkpoint, text, passes, passes, TARGET_EFFECTS)


def _gradients(checkpoint: Checkpoint) -> Line:
    """Compare integrated gradients of BERT Probe and captum, with the same batch size and separate models."""
    text, other = text_of(GRADIENTS), checkpoint.trace("The other text of the pair.")
    trace = checkpoint.trace(text)
    model: Any = AutoModel.from_pretrained(locate(None).folder).eval()
    target = torch.tensor(other.vectors(-1)).mean(dim=0, keepdim=True)
    ids = torch.tensor([trace.encoding.ids])
    baseline = torch.full_like(ids, checkpoint.tokenizer.pad_token_id)
    baseline[0, [0, -1]] = ids[0, [0, -1]]

    def cosine(token_ids: torch.Tensor) -> torch.Tensor:
        vectors = model(
            input_ids=token_ids, attention_mask=torch.ones_like(token_ids)
        ).last_hidden_state.mean(dim=1)
        return torch.nn.functional.cosine_similarity(vectors, target, dim=-1)

    alone: Any = LayerIntegratedGradients(cosine, model.embeddings.word_embeddings)
    size = BATCH_TOKENS // ids.shape[1]
    question = bert_probe.Attribution(method="integrated-gradients")
    with patch.object(integrated_gradients, "INITIAL_STEPS", STEPS):
        timed = paired(
            lambda: question.of(trace, other),
            lambda: alone.attribute(ids, baselines=baseline, n_steps=STEPS, internal_batch_size=size),
        )
    low, high = timed.spread
    return Line(
        f"Integrated gradients, {GRADIENTS} tokens, {STEPS} steps, all-MiniLM-L6-v2",
        "captum on the transformers model, with the same batch size",
        f"{timed.ratio:.3f} × (quartiles of {len(timed.ours)} pairs {low:.3f} to {high:.3f})",
        f"at most {TARGET_GRADIENTS:.1f} ×",
        timed.ratio <= TARGET_GRADIENTS,
    )


def _loo_correlation(checkpoint: Checkpoint) -> Iterator[Line]:
    """Yield each method's rank correlation with leave-one-out attributions, and its faithfulness scores."""
    shipped = files("bert_probe") / "data" / "baseline_sentences.txt"
    sentences = shipped.read_text(encoding="utf-8").splitlines()
    every = list(combinations(sentences, 2))
    sampled = every[:: len(every) // PAIRS][:PAIRS]
    result = bert_probe.FaithfulnessSummary(words=True).of(checkpoint, ["\t".join(pair) for pair in sampled])
    names = (*methods(), RANDOM)
    means = dict(zip(names, result.means, strict=True))
    chance = means[RANDOM]
    for name, method in methods().items():
        fall, keep, rank = (means[name][MEASURES.index(measure)] for measure in MEASURES)
        yield Line(
            f"{method.label}: attribution of each word in {len(sampled)} sentence pairs, "
            "and its effect on the cosine, all-MiniLM-L6-v2",
            "leave-one-out (rank correlation); removal of 10 %, 20 % and 50 % of the words in random order",
            f"ρ = {rank:.2f}; the cosine falls by {fall:.3f} without the highest-ranked words "
            f"({chance[0]:.3f} at random), by {keep:.3f} with only these words ({chance[1]:.3f})",
            "",
            None,
        )
