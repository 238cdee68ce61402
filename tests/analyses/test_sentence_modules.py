"""Test checkpoints with every layout of sentence-transformers modules: parity with sentence-transformers."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import bert_probe
from bert_probe import Sentences, SentenceSimilarity, SimilarityAttribution, Train
from bert_probe.analyses.retrieval.search import Search, SearchResult
from bert_probe.analyses.retrieval.search_explanation import SearchExplanation
from bert_probe.analyses.vectors.pooling import (
    PoolingConfig,
    available_poolings,
    pool_unpadded,
    resolve_pooling,
    text_vector,
    token_parts,
)
from bert_probe.errors import (
    ArchitectureError,
    CheckpointError,
    ProbeError,
    SelectionError,
    TextError,
    UnavailableError,
)
from bert_probe.model import lengths, sentence_networks
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from bert_probe.model.sentence_modules import read_sentence_model
from bert_probe.model.sentence_networks import SentenceModule
from bert_probe.model.sentence_router import MODEL_FILE
from bert_probe.views.contributions import sentence_similarity_heatmap
from tests.helpers import families, sentence_models
from tests.helpers.exactness import assert_exact, expect_raw
from tests.helpers.folders import change_config
from tests.helpers.gate import prove_unless
from tests.helpers.teaching import texts as labeled

TEXTS = [*families.SENTENCES, "a boat", "night " * 3]
QUICK = (
    *("joined", "two dense", "dense gelu", "residual", "layer norm", "normalize first", "token dense"),
    *("no prompt pooled, joined", "no prompt pooled, limit", "truncated", "decoder"),
)


@pytest.fixture(scope="module")
def layout_folder(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return a factory that maps a layout to the folder of its checkpoint, which is saved on first use.

    Tests must not change the folder.
    """
    root = tmp_path_factory.mktemp("layouts")

    def folder(name: str) -> Path:
        path = root / name.replace(" ", "-").replace(",", "")
        if not path.exists():
            sentence_models.save(name, family_folder(sentence_models.LAYOUTS[name].family), path)
        return path

    return folder


@cache
def _double(folder: Path) -> Any:
    checkpoint = bert_probe.load(folder, dtype="float64")
    keep_float64(checkpoint.model)
    return checkpoint


@pytest.mark.gate(cases=4)
@pytest.mark.parametrize("name", prove_unless(QUICK, sentence_models.LAYOUTS))
def test_vectors_equal_sentence_transformers(name: str, layout_folder: Callable[[str], Path]) -> None:
    folder = layout_folder(name)
    expected = sentence_models.reference(folder, "float64").encode(TEXTS)
    assert_exact(Sentences("model").of(_double(folder), TEXTS).vectors, expected)
    vectors = Sentences("model").of(bert_probe.load(folder), TEXTS).vectors
    assert vectors.dtype == np.float32
    expect_raw(sentence_models.reference(folder).encode(TEXTS), expected).check(vectors)


def test_vector_worked_by_hand() -> None:
    """Dense with W = [[1, 1], [0, 1]], b = (1, −1) and ReLU maps the mean (2, 4) of the tokens to (7, 3)."""
    dense = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with torch.no_grad():
        dense[0].weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
        dense[0].bias.copy_(torch.tensor([1.0, -1.0]))
    states = torch.tensor([[[1.0, 2.0], [3.0, 6.0]]], dtype=torch.float64)
    network = dense.requires_grad_(False)
    config = PoolingConfig(("mean",), vector_modules=(SentenceModule("Dense", network=network),))
    assert pool_unpadded(states, config).tolist() == [[7.0, 3.0]]
    # Without the first token, which is the prompt, the mean is (3, 6), which Dense maps to (10, 5).
    only_text = PoolingConfig(("mean",), vector_modules=config.vector_modules, excluded=1)
    assert pool_unpadded(states, only_text).tolist() == [[10.0, 5.0]]
    # Position weights count from the first token of the input, including the prompt.
    # The position weights are 1/3 and 2/3; without the prompt, the only weight is 2/2.
    weighted = PoolingConfig(("weightedmean", "lasttoken", "cls"), excluded=1, dimensions=5)
    assert pool_unpadded(states, weighted).tolist() == [[3.0, 6.0, 3.0, 6.0, 3.0]]


def test_prompt_that_fills_the_text_raises() -> None:
    states = torch.ones(1, 3, 2)
    with pytest.raises(TextError, match="The text has no token after the prompt"):
        pool_unpadded(states, PoolingConfig(("mean",), excluded=3))


def _changed(folder: Path, target: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """Copy a checkpoint, change the copy's JSON file `name`, and return the copy's folder."""
    shutil.copytree(folder, target)
    content = json.loads((target / name).read_text())
    (target / name).write_text(json.dumps(change(content)))
    return target


def _without(index: int) -> Callable[[list[Any]], list[Any]]:
    return lambda modules: modules[:index] + modules[index + 1 :]


HOSTILE: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "unknown module": (
        "modules.json",
        lambda modules: [*modules, {**modules[1], "name": "3", "type": "sentence_transformers.models.LSTM"}],
        "module LSTM is not supported",
    ),
    "custom module": (
        "modules.json",
        lambda modules: [*modules, {**modules[1], "name": "3", "type": "os.system"}],
        "module os.system is not supported",
    ),
    "word weights": (
        "modules.json",
        lambda modules: [
            *modules,
            {**modules[1], "name": "3", "type": "sentence_transformers.models.WordWeights"},
        ],
        "WordWeights is not supported: it weights the tokens by a list of words",
    ),
    "repeated pooling": (
        "modules.json",
        lambda modules: [*modules, {**modules[1], "name": "3"}],
        "lists 2 modules of type Pooling",
    ),
    "repeated transformer": (
        "modules.json",
        lambda modules: [{**modules[0], "name": "3"}, *modules],
        "lists 2 modules of type Transformer",
    ),
    "no pooling": ("modules.json", _without(1), "lists 0 modules of type Pooling"),
    "dense before pooling": (
        "modules.json",
        lambda modules: [modules[0], modules[2], modules[1]],
        "Dense reads sentence_embedding and writes sentence_embedding",
    ),
    "pooling first": (
        "modules.json",
        lambda modules: [modules[1], modules[0], modules[2]],
        "first module must be a Transformer",
    ),
    "outside": (
        "modules.json",
        lambda modules: [*modules[:2], {**modules[2], "path": "../.."}],
        "outside its folder",
    ),
    "input of Dense": (
        "2_Dense/config.json",
        lambda c: c | {"in_features": 33},
        "33 dimensions, but receives 32",
    ),
    "output of Dense": ("2_Dense/config.json", lambda c: c | {"out_features": 21}, "have the shapes"),
    "huge Dense": ("2_Dense/config.json", lambda c: c | {"out_features": 10**9}, "have the shapes"),
    "size of Dense": (
        "2_Dense/config.json",
        lambda c: c | {"out_features": "20"},
        "must be a positive integer",
    ),
    "bias of Dense": ("2_Dense/config.json", lambda c: c | {"bias": False}, "have the shapes"),
    "activation": (
        "2_Dense/config.json",
        lambda c: c | {"activation_function": "os.system"},
        "activation os.system, but only",
    ),
    "activation with arguments": (
        "2_Dense/config.json",
        lambda c: c | {"activation_function": "torch.nn.modules.activation.MultiheadAttention"},
        "only the activations of torch.nn",
    ),
    "activation that halves": (
        "2_Dense/config.json",
        lambda c: c | {"activation_function": "torch.nn.modules.activation.GLU"},
        "only the activations of torch.nn",
    ),
    "activation of images": (
        "2_Dense/config.json",
        lambda c: c | {"activation_function": "torch.nn.modules.activation.Softmax2d"},
        "only the activations of torch.nn",
    ),
    "pooling mode twice": (
        "1_Pooling/config.json",
        lambda c: c | {"pooling_mode": ["mean", "mean"]},
        "lists a pooling mode more than once",
    ),
    "many modules": (
        "modules.json",
        lambda c: (
            c[:2] + [{"path": str(i), "type": "sentence_transformers.models.Normalize"} for i in range(31)]
        ),
        "lists 33 modules or routes, but at most 32",
    ),
    "folder twice": (
        "modules.json",
        lambda c: [*c, {**c[-1], "name": "3"}],
        "lists a folder more than once",
    ),
    "name twice": (
        "modules.json",
        lambda c: [*c[:2], {**c[2], "name": c[1]["name"]}],
        "lists the module name '1' more than once",
    ),
    "module as activation": (
        "2_Dense/config.json",
        lambda c: c | {"activation_function": "torch.nn.Sequential"},
        "only the activations of torch.nn",
    ),
    "other output": (
        "2_Dense/config.json",
        lambda c: c | {"module_output_name": "scores"},
        "Dense reads sentence_embedding and writes scores",
    ),
    "truncate to 0": (MODEL_FILE, lambda c: c | {"truncate_dim": 0}, "truncate_dim .* is 0, but must be"),
    "truncate to more": (MODEL_FILE, lambda c: c | {"truncate_dim": 33}, "is 33, but the vectors have 20"),
    "truncate to True": (MODEL_FILE, lambda c: c | {"truncate_dim": True}, "is True, but must be"),
    "similarity": (
        MODEL_FILE,
        lambda c: c | {"similarity_fn_name": "jaccard"},
        "similarity function is jaccard",
    ),
    "default prompt": (
        MODEL_FILE,
        lambda c: c | {"default_prompt_name": "title"},
        "'title', but the prompts are",
    ),
    "prompts": (MODEL_FILE, lambda c: c | {"prompts": {"query": 1}}, "must map prompt names to strings"),
    "late interaction": (
        MODEL_FILE,
        lambda c: c | {"model_type": "MultiVectorEncoder"},
        "late-interaction model",
    ),
    "PyLate": (MODEL_FILE, lambda c: c | {"model_type": "ColBERT"}, "late-interaction model"),
    "model type": (MODEL_FILE, lambda c: c | {"model_type": "Other"}, "describes a Other, but only"),
    "no list": ("modules.json", lambda _: {}, "must contain a JSON list"),
    "transformer": (
        "sentence_bert_config.json",
        lambda c: c | {"modality_config": {"image": {}}},
        "only last_hidden_state is supported",
    ),
    "length": (
        "sentence_bert_config.json",
        lambda c: c | {"max_seq_length": -1},
        "must be a positive integer",
    ),
    "length of the tokenizer": (
        "sentence_bert_config.json",
        lambda c: c | {"processor_kwargs": {"model_max_length": 0}},
        "must be a positive integer",
    ),
    "options": ("sentence_bert_config.json", lambda c: c | {"model_kwargs": [1]}, "must be a JSON object"),
}


SPECIAL_TEXTS = ["A MASKED [MASK] word <mask> HERE", "[SEP]A [sep] [MASK][MASK]", "ΟΔΟΣ İstanbul <s>X"]
SETTINGS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "maximum length of the tokenizer": (
        "mean",
        {"sentence_bert_config.json": {"processor_kwargs": {"model_max_length": 5}}},
    ),
    "maximum length, old name": (
        "limit",
        {"sentence_bert_config.json": {"tokenizer_args": {"model_max_length": 5}}},
    ),
    "settings without effect": (
        "mean",
        {
            "sentence_bert_config.json": {
                "transformer_task": "feature-extraction",
                "model_args": {"add_pooling_layer": False, "trust_remote_code": True},
                "tokenizer_args": {},
                "config_kwargs": {"trust_remote_code": True},
            }
        },
    ),
    "lower case": ("mean", {"sentence_bert_config.json": {"do_lower_case": True}}),
    "lower case of a cased model": (
        "no prompt pooled, joined",
        {"sentence_bert_config.json": {"do_lower_case": True}},
    ),
    "file of another architecture": (
        "mean",
        {
            "sentence_albert_config.json": {"max_seq_length": 4},
            "sentence_aaa_config.json": {"max_seq_length": 4},
        },
    ),
    "file of the architecture": (
        "mean",
        {
            "sentence_roberta_config.json": {"max_seq_length": 4},
            "sentence_albert_config.json": {"max_seq_length": 6},
        },
    ),
}


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_equal_sentence_transformers(
    name: str, layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    layout, files = SETTINGS[name]
    folder = shutil.copytree(layout_folder(layout), tmp_path / "changed")
    if name == "file of the architecture":
        (folder / "sentence_bert_config.json").write_text("{}")
    for file, settings in files.items():
        if not (folder / file).exists():
            (folder / file).write_text("{}")
        change_config(folder, file, **settings)
    texts = [*TEXTS, *SPECIAL_TEXTS]
    expected = sentence_models.reference(folder, "float64").encode(texts)
    assert_exact(Sentences("model").of(_double(folder), texts).vectors, expected)


@pytest.mark.parametrize("name", ["no prompt pooled, limit", "dense gelu"])
def test_encoder_in_a_subfolder_equals_sentence_transformers(
    name: str, layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Older versions of sentence-transformers save the Transformer module in a folder of its own."""
    folder = shutil.copytree(layout_folder(name), tmp_path / "moved")
    encoder = folder / "0_Transformer"
    encoder.mkdir()
    for file in [file for file in folder.iterdir() if file.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(encoder / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[0] | {"path": encoder.name}, *modules[1:]]))
    expected = sentence_models.reference(folder, "float64").encode(TEXTS)
    assert_exact(Sentences("model").of(_double(folder), TEXTS).vectors, expected)


def test_model_without_encoder_is_refused(tmp_path: Path) -> None:
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    message = "has no encoder, because its first module is StaticEmbedding. Use a model whose first module is"
    with pytest.raises(ArchitectureError, match=message):
        bert_probe.load(tmp_path)


def test_text_that_is_a_special_token_in_lower_case_is_refused(
    layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(layout_folder("no prompt pooled, joined"), tmp_path / "changed")
    change_config(folder, "sentence_bert_config.json", do_lower_case=True)
    checkpoint = bert_probe.load(folder)
    message = r"^In lower case, a part of the text is the special token <mask>, but the model reads"
    for text in ("A <MASK> word", "A <MASK> <mask>"):
        with pytest.raises(TextError, match=message):
            Sentences("model").of(checkpoint, [text])
    assert Sentences("model").of(checkpoint, ["A <mask> WORD"]).vectors.shape == (1, 160)


def test_lowercase_in_the_normalizer_is_not_repeated(
    layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The normalizer replaces A before it lowercases, so the order counts."""
    folder = shutil.copytree(layout_folder("lowercase"), tmp_path / "changed")
    content = json.loads((folder / "tokenizer.json").read_text())
    replacement = {"type": "Replace", "pattern": {"String": "A"}, "content": "the"}
    content["normalizer"] = {"type": "Sequence", "normalizers": [replacement, {"type": "Lowercase"}]}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    change_config(folder, "sentence_bert_config.json", do_lower_case=True)
    expected = sentence_models.reference(folder, "float64").encode(SPECIAL_TEXTS)
    assert_exact(Sentences("model").of(_double(folder), SPECIAL_TEXTS).vectors, expected)


@pytest.mark.parametrize("name", HOSTILE)
def test_unsupported_files_raise_one_sentence(
    name: str, layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    file, change, sentence = HOSTILE[name]
    folder = _changed(layout_folder("dense"), tmp_path / "changed", file, change)
    with pytest.raises((UnavailableError, CheckpointError), match=sentence):
        read_sentence_model(folder, 32, 200, 160, None)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("processor_kwargs", {"truncation_side": "left"}, "truncation_side in processor_kwargs"),
        ("tokenizer_args", {"do_lower_case": True}, "do_lower_case in tokenizer_args"),
        ("config_args", {"num_hidden_layers": 1}, "num_hidden_layers in config_args"),
        ("config_kwargs", {"hidden_act": "relu"}, "hidden_act in config_kwargs"),
        ("model_args", {"num_hidden_layers": 1}, "num_hidden_layers in model_args"),
        ("tokenizer_name_or_path", "other", "tokenizer_name_or_path"),
        ("transformer_task", "fill-mask", "transformer_task fill-mask"),
    ],
)
def test_settings_that_change_vectors_are_refused(
    setting: str, value: Any, message: str, layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(layout_folder("dense"), tmp_path / "changed")
    change_config(folder, "sentence_bert_config.json", **{setting: value})
    with pytest.raises(UnavailableError) as caught:
        read_sentence_model(folder, 32, 200, 160, None)
    assert str(caught.value).startswith(f"The module Transformer sets {message}, which is not supported. Use")


def test_model_with_unsupported_module_opens_and_says_why(
    layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    file, change, sentence = HOSTILE["late interaction"]
    checkpoint = bert_probe.load(_changed(layout_folder("dense"), tmp_path / "changed", file, change))
    assert checkpoint.tasks == ()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=sentence):
            Sentences("model").of(checkpoint, ["a boat"])
    assert Sentences("mean").of(checkpoint, ["a boat"]).vectors.shape == (1, 32)


@pytest.mark.parametrize("path", ["2_Dense\0", "2_Dense\ud800", "d" * 5_000])
def test_model_with_a_broken_module_path_opens_and_says_why(
    path: str, layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = _changed(
        layout_folder("dense"),
        tmp_path / "changed",
        "modules.json",
        lambda modules: [*modules[:2], {**modules[2], "path": path}],
    )
    checkpoint = bert_probe.load(folder)
    with pytest.raises(
        CheckpointError,
        match=r"refers to a path outside its folder|checkpoint are broken|in_features of Dense is None",
    ):
        Sentences("model").of(checkpoint, ["a boat"])
    assert Sentences("mean").of(checkpoint, ["a boat"]).vectors.shape == (1, 32)
    (folder / "config.json").unlink()
    with pytest.raises(ProbeError):
        bert_probe.load(folder)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"linear.weight": torch.ones(20, 32)}, "have the shapes"),
        ({"linear.weight": torch.full((20, 32), torch.nan), "linear.bias": torch.ones(20)}, "not finite"),
        (None, "no model.safetensors"),
        (b"\xff" * 64, "are broken"),
    ],
    ids=["missing bias", "NaN", "pickle", "broken"],
)
def test_broken_weights_raise(
    weights: Any, sentence: str, layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(layout_folder("dense"), tmp_path / "broken")
    file = folder / "2_Dense" / "model.safetensors"
    file.unlink()
    if isinstance(weights, dict):
        save_file(weights, file)
    elif weights is not None:
        file.write_bytes(weights)
    with pytest.raises(ProbeError, match=sentence):
        read_sentence_model(folder, 32, 200, 160, None)


def test_dense_weights_are_part_of_the_identity(layout_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(layout_folder("dense"), tmp_path / "copy")
    before = bert_probe.load(folder)
    save_file(
        {"linear.weight": torch.ones(20, 32), "linear.bias": torch.ones(20)},
        folder / "2_Dense" / "model.safetensors",
    )
    after = bert_probe.load(folder)
    assert before.cache_key != after.cache_key
    assert before.provenance()["sentence_model_sha256"] != after.provenance()["sentence_model_sha256"]
    assert resolve_pooling(before, "model") != resolve_pooling(after, "model")


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "name",
    prove_unless(
        {"token dense", "truncated"},
        ["dense gelu", "token dense", "normalize first", "residual", "truncated"],
    ),
)
def test_trained_model_keeps_its_modules(
    name: str, layout_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    source = bert_probe.load(layout_folder(name), dtype="float64")
    trained = Train("all", epochs=1, rate=1e-2).of(source, labeled(12)).save_model(tmp_path / "trained")
    checkpoint = _double(trained)
    assert resolve_pooling(checkpoint, "model").about.keys() == resolve_pooling(source, "model").about.keys()
    expected = sentence_models.reference(trained, "float64").encode(TEXTS)
    assert_exact(Sentences("model").of(checkpoint, TEXTS).vectors, expected)


PAIR = (families.TEXT, families.PAIR)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", ["mean", "dot", "euclidean", "manhattan", "truncated", "no prompt pooled"])
def test_scores_equal_sentence_transformers(name: str, layout_folder: Callable[[str], Path]) -> None:
    folder = layout_folder(name)
    model, checkpoint = sentence_models.reference(folder, "float64"), _double(folder)
    vectors = model.encode(TEXTS)
    expected = model.similarity(vectors, vectors).numpy()
    result = Sentences("model").of(checkpoint, TEXTS)
    assert_exact(result.scores, expected)
    best = np.argsort(-expected[np.triu_indices(len(TEXTS), 1)], kind="stable")[0]
    first, second = (int(indices[best]) for indices in np.triu_indices(len(TEXTS), 1))
    table = result.showing(show="nearest").table()
    assert tuple(table.iloc[0][["a", "b"]]) == (first + 1, second + 1)
    assert table.columns[0] == model.similarity_fn_name
    pair = SentenceSimilarity().of(*(checkpoint.trace(text) for text in PAIR))
    scores = model.similarity(*(model.encode([text]) for text in PAIR)).numpy()
    assert pair.score == pytest.approx(float(scores[0, 0]), abs=1e-10)


LINEAR = ("cls", "weighted", "two dense", "residual", "layer norm", "normalize first", "token dense", "dot")


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("name", [*LINEAR, "no prompt pooled", "sqrt", "truncated", "last"])
def test_contributions_add_up_where_modules_are_linear(
    name: str, layout_folder: Callable[[str], Path]
) -> None:
    checkpoint = _double(layout_folder(name))
    result = SentenceSimilarity("contributions").of(*(checkpoint.trace(text) for text in PAIR))
    assert result.not_a_sum == ""
    assert result.off <= 1e-10 * max(1, abs(result.score))
    for trace in (result.a, result.b):
        parts = token_parts(trace.vectors(-1), result.recipe)
        assert_exact(parts.sum(axis=0), text_vector(trace, result.recipe))


def test_contributions_worked_by_hand() -> None:
    """The sentence vector (7, 3) is the sum of the contributions (2, ½) and (5, 2½) of two tokens.

    The token vectors are (1, 2) and (3, 6). Mean pooling and Dense with W = [[1, 1], [0, 1]] and b = (1, −1)
    follow.
    """
    dense = torch.nn.Linear(2, 2)
    with torch.no_grad():
        dense.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
        dense.bias.copy_(torch.tensor([1.0, -1.0]))
    network = dense.requires_grad_(False)
    config = PoolingConfig(("mean",), vector_modules=(SentenceModule("Dense", network=network),))
    parts = token_parts(np.array([[1.0, 2.0], [3.0, 6.0]]), config)
    assert parts.tolist() == [[2.0, 0.5], [5.0, 2.5]]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dense gelu", "because the module Dense to 24 (GELU) is not linear"),
        ("max", "because the maximum over all tokens is not linear"),
        ("euclidean", "negative Euclidean distance is not a sum over token pairs."),
    ],
)
def test_contributions_say_why_there_are_none(
    name: str, reason: str, layout_folder: Callable[[str], Path]
) -> None:
    checkpoint = bert_probe.load(layout_folder(name))
    result = SentenceSimilarity("contributions").of(*(checkpoint.trace(text) for text in PAIR))
    assert reason in result.not_a_sum
    with pytest.raises(UnavailableError, match="is not a sum over token pairs"):
        result.table()


@pytest.mark.prove
@pytest.mark.parametrize("name", prove_unless({"dot"}, ["dense gelu", "dot", "layer norm"]))
def test_integrated_contributions_leave_a_small_residual(
    name: str, layout_folder: Callable[[str], Path]
) -> None:
    checkpoint = _double(layout_folder(name))
    traces = [checkpoint.trace(text) for text in ("a boat", "the river")]
    result = SimilarityAttribution(steps=64).of(*traces)
    assert result.score == pytest.approx(SentenceSimilarity().of(*traces).score, abs=1e-10)
    assert result.off < 0.02 * max(1, abs(result.score))


def test_distance_has_no_integrated_contributions(layout_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(layout_folder("euclidean"))
    with pytest.raises(UnavailableError, match="not a product of two vectors"):
        SimilarityAttribution().of(*(checkpoint.trace(text) for text in PAIR))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", ["prompts", "prompts optional", "no prompt pooled, joined", "decoder"])
def test_every_prompt_equals_sentence_transformers(name: str, layout_folder: Callable[[str], Path]) -> None:
    folder = layout_folder(name)
    model, checkpoint = sentence_models.reference(folder, "float64"), _double(folder)
    for prompt in ("query", "document", "passage"):
        expected = model.encode(TEXTS, prompt_name=prompt)
        assert_exact(Sentences("model", prompt=prompt).of(checkpoint, TEXTS).vectors, expected)
    expected = model.encode(TEXTS, prompt="")
    assert_exact(Sentences("model", prompt="none").of(checkpoint, TEXTS).vectors, expected)
    a, b = (checkpoint.trace(text) for text in PAIR)
    pair = SentenceSimilarity("contributions", prompt="query", pair_prompt="passage").of(a, b)
    vectors = model.encode([PAIR[0]], prompt_name="query"), model.encode([PAIR[1]], prompt_name="passage")
    assert pair.score == pytest.approx(model.similarity(*vectors).item(), abs=1e-10)
    assert pair.metadata["pair_pooling"]["prefix"] == "boat: "


def test_prompt_tokens_are_marked(layout_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(layout_folder("no prompt pooled"))
    traces = [checkpoint.trace(text) for text in PAIR]
    result = SentenceSimilarity("contributions", prompt="query", pair_prompt="none").of(*traces)
    marked = [result.a.tokens[position].display for position in result.prompt_positions[0]]
    assert "".join(marked).replace("##", "") == "whereis[UNK]"
    assert result.prompt_positions[1] == ()
    # The tokens of the prompt and the preceding [CLS] are not pooled.
    assert not result.contributions[: len(marked) + 1].any()
    names = sentence_similarity_heatmap(result).rows
    assert [name for name in names if name.startswith("prompt: ")] == [f"prompt: {name}" for name in marked]


def test_other_pooling_with_a_prompt_equals_the_prompted_text(layout_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(layout_folder("no prompt pooled"))
    prompted = Sentences("mean", prompt="query").of(checkpoint, ["a boat"]).vectors
    assert np.array_equal(prompted, Sentences("mean").of(checkpoint, ["where is: a boat"]).vectors)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prompt": "title"}, "has no prompt 'title'. Its prompts: document, passage, query. Use none"),
        ({"dimensions": 33}, "dimensions is 33, but the vectors have 32 dimensions"),
    ],
)
def test_unknown_prompt_or_dimensions_raise(
    options: dict[str, Any], sentence: str, layout_folder: Callable[[str], Path]
) -> None:
    checkpoint = bert_probe.load(layout_folder("prompts"))
    for pooling in ("model", "mean"):
        with pytest.raises(SelectionError, match=re.escape(sentence)):
            Sentences(pooling, **options).of(checkpoint, TEXTS)
    with pytest.raises(SelectionError, match=re.escape(sentence)):
        SentenceSimilarity(**options).of(*(checkpoint.trace(text) for text in PAIR))
    for wrong in ({"dimensions": 0}, {"dimensions": 1.5}, {"prompt": ""}, {"prompt": 1}):
        with pytest.raises(SelectionError):
            Sentences("model", **wrong)


def test_dimensions_equal_sentence_transformers(layout_folder: Callable[[str], Path]) -> None:
    folder = layout_folder("truncated")  # the vectors are truncated to 12 of 32 dimensions
    model, checkpoint = sentence_models.reference(folder, "float64"), _double(folder)
    traces = [checkpoint.trace(text) for text in PAIR]
    table = SentenceSimilarity("dimensions").of(*traces).table()
    assert table["dimensions"].tolist() == [8, 12, 16, 32]
    for size, value in table.itertuples(index=False):
        vectors = [model.encode([text], truncate_dim=size) for text in PAIR]
        assert value == pytest.approx(model.similarity(*vectors).item(), abs=1e-10)
        assert SentenceSimilarity(dimensions=size).of(*traces).score == pytest.approx(value, abs=1e-12)
        result = Sentences("model", dimensions=size).of(checkpoint, TEXTS)
        assert_exact(result.vectors, model.encode(TEXTS, truncate_dim=size))


def assert_sum_of_terms(checkpoint: Checkpoint, ranking: SearchResult) -> None:
    """Assert that each term of two scores is a product of two weights, and that the terms add up."""
    explained = SearchExplanation(ranking.question.query, "2", "1", prompt="none").of(
        checkpoint, ranking.documents
    )
    np.testing.assert_allclose(explained.scores, ranking.scores["bi-encoder"][[1, 0]], rtol=1e-4)
    assert explained.off < 1e-9 * abs(explained.scores[0])
    table = explained.table()
    np.testing.assert_allclose(table["contribution"], table["query_weight"] * table["document_weight"])
    assert explained.by_query["difference"].sum() == pytest.approx(explained.difference)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("strategy", "activation"),
    prove_unless({("max", "log1p_relu"), ("sum", "relu")}, product(["max", "sum"], ["relu", "log1p_relu"])),
)
def test_sparse_vectors_equal_sparse_encoder(
    strategy: Any,
    activation: Any,
    trained_folder: Callable[[str, str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with sentence_models.without_warnings():
        from sentence_transformers import SparseEncoder
        from sentence_transformers.base.modules import Transformer
        from sentence_transformers.sparse_encoder.modules import SpladePooling

        masked = str(trained_folder("bert", "fill-mask"))
        modules = [Transformer(masked, transformer_task="fill-mask"), SpladePooling(strategy, activation)]
        SparseEncoder(modules=modules, device="cpu", prompts={"query": "where is: "}).save(
            str(tmp_path), create_model_card=False
        )

        def expected(dtype: str, **options: Any) -> np.ndarray:
            model = SparseEncoder(str(tmp_path), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
            if dtype == "float64":
                keep_float64(model[0].auto_model)
            dense: np.ndarray = model.encode(TEXTS, convert_to_sparse_tensor=False, **options).numpy()
            return dense

        exact = expected("float64")
        checkpoint = _double(tmp_path)
        result = Sentences("model").of(checkpoint, TEXTS)
        assert_exact(result.vectors, exact)
        assert_exact(result.scores, exact @ exact.T)
        assert result.recipe.similarity == "dot"
        prompted = Sentences("model", prompt="query").of(checkpoint, TEXTS).vectors
        assert_exact(prompted, expected("float64", prompt_name="query"))
        single = bert_probe.load(tmp_path)
        expect_raw(expected("float32"), exact).check(Sentences("model").of(single, TEXTS).vectors)
    with monkeypatch.context() as patch:
        patch.setattr(lengths, "_task_bytes", 4 * len(TEXTS) * exact.shape[1] - 1)
        with pytest.raises(UnavailableError, match=rf"vectors of {len(TEXTS)} texts .* this server allows"):
            Sentences("model").of(single, TEXTS)
    with pytest.raises(SelectionError, match="dimensions of this SparseEncoder are the tokens"):
        Sentences("model", dimensions=8).of(single, TEXTS)
    monkeypatch.setattr(sentence_networks, "_BLOCK_LOGITS", 2 * len(TEXTS) * exact.shape[1])
    assert_exact(Sentences("model").of(checkpoint, TEXTS).vectors, exact)
    pair = SentenceSimilarity().of(*(single.trace(text) for text in (TEXTS[0], TEXTS[1])))
    assert pair.score == pytest.approx(float(exact[0] @ exact[1]), rel=1e-4)
    assert "the logarithm of SpladePooling is not linear" in pair.not_a_sum
    ranking = Search(TEXTS[0], prompt="none").of(single, TEXTS)
    assert_sum_of_terms(single, ranking)
    assert single.tasks == ("fill-mask", "sentence-similarity")


def test_late_interaction_models_are_named(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    with sentence_models.without_warnings():
        from sentence_transformers import MultiVectorEncoder

        MultiVectorEncoder(str(family_folder("bert")), device="cpu", local_files_only=True).save(
            str(tmp_path), create_model_card=False
        )
    checkpoint, sentence = bert_probe.load(tmp_path), "is a late-interaction model"
    assert available_poolings(checkpoint)[0] == "mean"
    assert Sentences("mean").of(checkpoint, ["a boat"]).vectors.shape == (1, 32)
    with pytest.raises(UnavailableError, match=sentence):
        Sentences("model").of(checkpoint, ["a boat"])
    row = bert_probe.check(tmp_path).table().set_index("capability").loc["sentence-similarity"]
    assert row["works"] == "no"
    assert sentence in row["reason"]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("family", ["bart", "marian", "switch_transformers"])
def test_encoder_whose_decoder_is_pooled_has_no_sentence_vector(family: str, tmp_path: Path) -> None:
    """sentence-transformers pools the output of BART's decoder, and cannot load Marian's encoder alone."""
    families.build(family, tmp_path)
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "", "name": "0"}]
    modules.append({"type": "sentence_transformers.models.Pooling", "path": "1_Pooling", "name": "1"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    checkpoint, texts = bert_probe.load(tmp_path), ["We sailed", "The boat sank in the river"]
    expected = sentence_models.reference(tmp_path).encode(texts)
    mean = Sentences("mean").of(checkpoint, texts).vectors
    if family == "switch_transformers":
        np.testing.assert_allclose(Sentences("model").of(checkpoint, texts).vectors, expected, atol=1e-5)
        return
    assert np.abs(mean - expected).max() > 0.1
    with pytest.raises(UnavailableError, match=r"does not pool the encoder of .* Use the pooling mean"):
        Sentences("model").of(checkpoint, texts)
