"""Test the features that work with each model type, as listed in docs/models.md."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

import bert_probe
from bert_probe.analyses.attribution.methods import methods
from bert_probe.errors import ProbeError, UnavailableError
from tests.helpers import multi_vector_models
from tests.helpers.exactness import EXACT
from tests.helpers.families import PAIR, TEXT, build, config, randomize, save_tokenizer
from tests.helpers.gate import prove_unless
from tests.helpers.model_types import all_types, outcome
from tests.helpers.sentence_models import LAYOUTS

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
QUESTIONS: tuple[Any, ...] = (
    *(bert_probe.Attribution(method=method) for method in methods()),
    bert_probe.Attention(measure="value-zeroing"),
    bert_probe.HeadAblationSweep(),
    bert_probe.HeadAttribution(),
    bert_probe.Highlights(),
    bert_probe.Lens(),
    bert_probe.Embedding(),
)
"""Questions about one text, most of which run parts of the model again."""
QUESTIONS_ABOUT_PAIRS: tuple[Any, ...] = (
    bert_probe.ActivationPatching(),
    bert_probe.ActivationPatching(component="heads"),
    bert_probe.MinimalPair(),
    bert_probe.SimilarityAttribution(steps=3),
)
SEED = {"big_bird", "bloom", "falcon", "gpt_oss", "marian", "mixtral", "openai-gpt"}


def rows() -> dict[str, list[str]]:
    """Return the other cells of each row in the table of model types, by name of the tiny checkpoint."""
    table = DOCUMENT.read_text(encoding="utf-8").split("## Model types")[1].split("## ")[0]
    lines = [line.strip("|") for line in table.splitlines() if "|" in line]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return {re.sub(r".* \((.*)\)", r"\1", name): values for name, *values in cells[2:]}


def test_document_lists_all_model_types() -> None:
    assert [*rows()] == all_types()
    works = [row[0] for row in rows().values()]
    assert sum(word != "refused" for word in works) >= 50
    assert works.count("fully") >= 40
    layouts = DOCUMENT.read_text(encoding="utf-8").split("## Layouts")[1].split("## Models")[0]
    assert all(f"\n| {name} | " in layouts for name in LAYOUTS)
    assert len(LAYOUTS) >= 25
    late = DOCUMENT.read_text(encoding="utf-8").split("## Late-interaction models")[1].split("## Models")[0]
    assert all(f"\n| {name} | " in late for name in multi_vector_models.LAYOUTS)


@pytest.mark.parametrize("name", prove_unless({"bloom", "doge", "gpt_neo", "openai-gpt"}, all_types()))
def test_every_question_is_answered_or_refused(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    try:
        model = AutoModelForSequenceClassification.from_config(config(name))
    except ValueError:  # transformers has no classifier of this type
        build(name, tmp_path)
    else:
        randomize(model, 1)
        model.save_pretrained(tmp_path)
        save_tokenizer(name, tmp_path)
    for dtype in ("float32", "float64"):
        try:
            checkpoint = bert_probe.load(tmp_path, dtype=dtype)
            a, b = checkpoint.trace(TEXT), checkpoint.trace(PAIR)
        except ProbeError:
            continue
        for questions, traces in ((QUESTIONS, (a,)), (QUESTIONS_ABOUT_PAIRS, (a, b))):
            for question in questions:
                with suppress(ProbeError):
                    assert len(question.of(*traces).table())
        for truncate in (False, True):  # texts that are too long are refused or truncated
            with suppress(ProbeError):
                checkpoint.trace("we " * 400, truncate=truncate)


def test_hidden_size_may_differ_between_layers(tmp_path: Path) -> None:
    AutoModel.from_config(config("opt", word_embed_proj_dim=20)).save_pretrained(tmp_path)
    save_tokenizer("opt", tmp_path)
    trace = bert_probe.load(tmp_path).trace(TEXT)
    assert (trace.vectors(0).shape[1], trace.vectors(-1).shape[1]) == (32, 20)
    with pytest.raises(UnavailableError, match="hidden size of this model differs between layers"):
        _ = trace.hidden_states
    assert len(bert_probe.Highlights().of(trace).table())


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("name", prove_unless(SEED, all_types()))
def test_outcome_is_as_documented(name: str) -> None:
    result, row = outcome(name), rows()[name]
    assert (result.works, result.reason) == (row[0], row[3].strip())
    if result.dtype == "float64":
        assert result.attention is not None
        assert result.states is not None
        assert max(result.attention, result.states) <= EXACT
