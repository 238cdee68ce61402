"""Test preflight: a checkpoint cannot cause large memory allocations before its weights are checked."""

from __future__ import annotations

import base64
import inspect
import json
import threading
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModel, BertConfig, BertModel, PreTrainedConfig
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

import bert_probe
from bert_probe.errors import (
    ArchitectureError,
    CheckpointError,
    OutOfMemoryError,
    TokenizerError,
    WeightsError,
)
from bert_probe.model import config, lengths, preflight, sources, tokenizer_files
from bert_probe.model.progress import Cancelled
from tests.helpers import families
from tests.helpers.families import FAMILIES, TEXT, representative
from tests.helpers.folders import assert_refused, change_config, change_weights


@pytest.fixture
def nothing_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a model is allocated in memory."""

    def made(*_: object, **__: object) -> None:
        raise AssertionError("a model was made")

    monkeypatch.setattr(AutoModel, "from_pretrained", made)


@pytest.mark.usefixtures("nothing_allocated")
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_hidden_layers": 1_000}, "more than"),
        ({"num_hidden_layers": 1_001}, "describes 1,001 layers, but at most 1,000"),
        ({"num_hidden_layers": 10**9}, "describes 1,000,000,000 layers, but at most 1,000"),
        (
            {"model_type": "gpt_neo", "attention_types": [[["global", "local"], 10**9]]},
            "describes 2,000,000,000 layers, but at most 1,000",
        ),
        (
            {"model_type": "gpt_neo", "attention_types": [[["global"], 10**9], [["local"], -(10**9)]]},
            "describes 1,000,000,000 layers, but at most 1,000",
        ),
        (
            {"model_type": "gpt_neo", "attention_types": [[["local"] * 5_000, 1]]},
            "describes 5,000 layers, but at most 1,000",
        ),
        ({"num_nextn_predict_layers": 10**9}, "describes 1,000,000,000 layers, but at most 1,000"),
        ({"text_config": {"num_mtp_layers": 1e12}}, "layers, but at most 1,000"),
        ({"vocab_size": 5_000_000}, "5,000,000×32 elements"),
        ({"vocab_size": 10**15}, "vocab_size in config.json is 1000000000000000, but at most 20,000,000 is"),
        ({"intermediate_size": 2_000_000}, "2,000,000×32 elements"),
        ({"max_position_embeddings": 10**7}, "10,000,000×32 elements"),
        ({"type_vocab_size": 10**7}, "10,000,000×32 elements"),
        ({"type_vocab_size": 10**9}, "at most 20,000,000 is supported"),
        ({"hidden_size": 10**6, "num_attention_heads": 10}, "a tensor of"),
    ],
)
def test_oversized_config_sizes_are_refused_before_allocation(
    folder: Path, changes: dict[str, Any], word: str
) -> None:
    change_config(folder, **changes)
    message = assert_refused(CheckpointError if "at most" in word else WeightsError, folder, word)
    assert "belongs to these weights" in message


_TEXT_SIZES = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "convnext", "depths": [1, 1, 1, 1]},
        {"model_type": "hiera", "depths": [10**6, 1, 1, 1]},
        {"model_type": "videomae", "image_size": 224},
        {"model_type": "wav2vec2"},
        {"model_type": "tvp", "backbone_config": {"model_type": "resnet"}},
        {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "swin"}},
        {"model_type": "llava", "vision_config": {"model_type": "hiera"}},
    ],
    ids=lambda settings: settings["model_type"],
)
def test_config_of_other_models_is_not_built(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_dict(*_: object, **__: object) -> None:
        raise AssertionError("a config was built")

    monkeypatch.setattr(PreTrainedConfig, "from_dict", from_dict)
    with pytest.raises(ArchitectureError, match=r"is not a text model\. Supported: encoders"):
        config.build_config(_TEXT_SIZES | settings, "it")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model_type": "funnel", "block_sizes": [500, 500, 1]},
            "config.json describes 1,001 layers, but at most 1,000 are supported",
        ),
        (
            {"model_type": "funnel", "block_repeats": [10**9]},
            "config.json describes 1,000,000,000 layers, but at most 1,000 are supported",
        ),
        (
            {"model_type": "clip", "vision_config": {"depths": [[1_001]]}},
            "config.json describes 1,001 layers, but at most 1,000 are supported",
        ),
        (
            {"model_type": "cohere2_moe", "first_k_dense_replace": 10**9},
            "config.json describes 1,000,000,000 layers, but at most 1,000 are supported",
        ),
        (
            {"model_type": "mpt", "max_seq_len": 20_000_001},
            "max_seq_len in config.json is 20000001, but at most 20,000,000 is supported",
        ),
        (
            {"model_type": "llama", "rope_parameters": {"max_extent": 10**8}},
            "max_extent in config.json is 100000000, but at most 20,000,000 is supported",
        ),
    ],
)
def test_counts_and_integers_are_limited(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config.build_config(_TEXT_SIZES | settings, "it")
    assert str(caught.value) == f"{message}. Use the config.json that belongs to these weights."


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("distilbert", {"sinusoidal_pos_embds": True}),
        ("xlm", {"sinusoidal_embeddings": True}),
        ("roformer", {"sinusoidal_embeddings": False}),
    ],
)
def test_table_of_sinusoidal_positions_is_limited(name: str, settings: dict[str, Any]) -> None:
    result = json.loads(families.config(name).to_json_string()) | settings
    largest = config.MAX_SINUSOIDS // 32
    config.build_config(result | {"max_position_embeddings": largest}, "it")
    with pytest.raises(
        CheckpointError, match=r"describes 62,501 sinusoidal positions of 32 elements, but at"
    ):
        config.build_config(result | {"max_position_embeddings": largest + 1}, "it")


def test_learned_positions_are_not_sinusoidal() -> None:
    settings = json.loads(families.config("distilbert").to_json_string()) | {"max_position_embeddings": 10**5}
    assert config.build_config(settings, "it").max_position_embeddings == 10**5


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("name", "settings", "size"),
    [
        ("longformer", {"attention_window": [6_000] * 3}, "a tensor of 1×1×6,000×6,000 elements"),
        ("longformer", {"attention_window": [1_000] * 3}, "elements in total"),
        ("mpt", {"max_seq_len": 6_000_000}, "a tensor of 1×4×1×6,000,000 elements"),
    ],
    ids=["one tensor", "total", "positions"],
)
def test_settings_that_size_tensors_of_a_short_text_are_refused(
    name: str, settings: dict[str, Any], size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.build(name, tmp_path / name)
    bert_probe.load(tmp_path / name)
    change_config(tmp_path / name, **settings)
    if size == "elements in total":
        monkeypatch.setattr(preflight, "_MAX_RESULTS", 3)
    assert_refused(WeightsError, tmp_path / name, "a text of 8 tokens needs", size)


def test_number_of_operations_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_MAX_OPERATIONS", 100)
    assert_refused(
        WeightsError, folder, "a text of 8 tokens needs more than 100 operations, but the model has"
    )


def test_large_settings_of_real_models_are_accepted() -> None:
    settings = json.loads(families.config("qwen3").to_json_string()) | {
        "max_position_embeddings": 10_485_760,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10**10},
        "training_tokens": 2 * 10**12,
    }
    assert config.build_config(settings, "it").max_position_embeddings == 10_485_760


@pytest.mark.usefixtures("nothing_allocated")
def test_uncountable_size_raises_error(folder: Path) -> None:
    change_config(folder, vocab_size=10**30)
    with pytest.raises(CheckpointError):
        bert_probe.load(folder)


@pytest.mark.usefixtures("nothing_allocated")
def test_number_of_labels_is_limited(folder: Path) -> None:
    change_config(folder, num_labels=10**12)
    with pytest.raises(CheckpointError, match="a model was made"):
        bert_probe.load(folder)


def test_counting_does_not_change_the_hooks_of_other_threads() -> None:
    hooks = torch.nn.modules.module._global_parameter_registration_hooks
    before = [*hooks]
    with preflight._counting(preflight._ModuleCounter(max_tensors=2, max_numbers=100)):
        assert [*hooks] == before, "a thread that iterates over the hooks would fail"


def test_counting_ignores_other_threads() -> None:
    count = preflight._ModuleCounter(max_tensors=2, max_numbers=100)
    with preflight._counting(count):
        other = threading.Thread(target=lambda: BertModel(BertConfig(num_hidden_layers=1)))
        other.start()
        other.join()
        assert count.tensors == 0
        torch.nn.Linear(3, 4)
        assert (count.tensors, count.numbers) == (2, 16)
        with pytest.raises(preflight._SizeLimitError, match="more than 2 tensors"):
            torch.nn.Linear(3, 4)
    torch.nn.Linear(300, 400)
    assert count.tensors == 3, "modules are counted within the context only"


def test_headers_give_tensor_and_parameter_counts(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    headers = preflight.read_headers([folder / "model.safetensors"])
    numbers = sum(tensor.numel() for tensor in weights.values())
    assert (headers.tensors, headers.numbers, headers.kinds) == (len(weights), numbers, frozenset({"F32"}))
    assert headers.estimate_memory(torch.float32) == 4 * numbers
    assert headers.estimate_memory(torch.float16) == 2 * numbers + headers.bytes, (
        "both are there while one becomes the other"
    )


# ---------------------------------------------------------------- memory


@pytest.mark.usefixtures("nothing_allocated")
def test_model_larger_than_free_memory_is_refused_with_both_sizes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "free_memory", lambda: 50_000)
    message = assert_refused(
        OutOfMemoryError, folder, "of memory, but only 50 KB are available", "smaller model"
    )
    assert "needs about" in message


def test_reserved_memory_is_not_available_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_memory", lambda: 10_000_000_000)
    with preflight.reserved_memory(6_000_000_000, "A", "Wait."):
        with (
            pytest.raises(OutOfMemoryError, match=r"B needs about 5\.0 GB .* 4\.0 GB are available\. Wait\."),
            preflight.reserved_memory(5_000_000_000, "B", "Wait."),
        ):
            pass
        with preflight.reserved_memory(4_000_000_000, "C", "Wait."):
            pass
    with preflight.reserved_memory(10_000_000_000, "D", "Wait."):
        pass


def test_reservation_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_memory", lambda: 10)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), preflight.reserved_memory(10, "A", "Wait."):
            raise ZeroDivisionError


def test_container_limit_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_CGROUP", tmp_path)
    machine_free = preflight.free_memory()
    assert machine_free > 1_000_000
    for name, text in {"max": "1000", "current": "700", "stat": "anon 500\ninactive_file 200\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert preflight.free_memory() == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert preflight.free_memory() > 1_000_000


def test_notice_is_shown_before_weights_are_read(folder: Path) -> None:
    notices: list[str] = []
    heard: list[tuple[int, int, int]] = []
    bert_probe.load(folder, notice=notices.append, progress=lambda *now: heard.append((len(notices), *now)))
    size = (folder / "model.safetensors").stat().st_size
    memory = preflight.read_headers([folder / "model.safetensors"]).estimate_memory(torch.float32)
    assert notices == [
        f"The model has {size / 1e3:,.0f} KB of weights; about {memory / 1e3:,.0f} KB of memory are needed "
        "to load it."
    ]
    assert heard[-1] == (1, size, size)


@pytest.mark.usefixtures("nothing_allocated")
def test_loading_can_be_cancelled(folder: Path) -> None:
    def cancelled(*_: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        bert_probe.load(folder, progress=cancelled)


def test_weights_changed_while_opening_are_refused(folder: Path) -> None:
    """If the change went unnoticed, the digest would not match the loaded weights."""
    file = folder / "model.safetensors"

    def changed(*_: int) -> None:
        weights = {name: tensor + 1 for name, tensor in load_file(file).items()}
        save_file(weights, file, metadata={"format": "pt"})

    message = assert_refused(WeightsError, folder, "was changed while it was being loaded", progress=changed)
    assert message.endswith("Load the model again.")


def test_weights_deleted_while_loading_raise_error(folder: Path) -> None:
    def removed(*_: int) -> None:
        (folder / "model.safetensors").unlink(missing_ok=True)

    with pytest.raises(CheckpointError):
        bert_probe.load(folder, progress=removed)


# ---------------------------------------------------------------- configs


@pytest.mark.parametrize("family", representative(FAMILIES))
def test_config_equals_that_of_transformers(family: str, family_folder: Callable[[str], Path]) -> None:
    folder = family_folder(family)
    theirs = AutoConfig.from_pretrained(folder).to_dict()
    ours = config.load_config(folder, family).to_dict()
    about_files = {"transformers_version", "architectures", "dtype", "_name_or_path", "_attn_implementation"}
    for name in theirs.keys() - about_files - {"id2label", "label2id"}:
        assert ours[name] == theirs[name], name


@pytest.mark.parametrize(
    "settings",
    [
        {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "conv_kernel_size": 3},
        {"rope_theta": 500_000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
)
def test_undeclared_layer_settings_are_selected(settings: dict[str, Any]) -> None:
    selected = config.select_settings(settings, BertConfig)
    assert selected == settings


CHOICES = {
    "_attn_implementation": "kernels-community/flash-attn",
    "attn_implementation": "kernels-community/flash-attn",
    "_attn_implementation_internal": "kernels-community/flash-attn",
    "_experts_implementation": "x",
    "experts_implementation": "x",
    "auto_map": {"AutoModel": "code.Model", "AutoConfig": "code.Config"},
    "quantization_config": {},
    "kernel_config": {"kernel_mapping": {}},
    "use_kernels": True,
    "fusion_config": {"x": 1},
    "distributed_config": {"x": 1},
    "reference_compile": True,
    "device_map": "auto",
    "base_model_tp_plan": {"x": "colwise"},
    "attribute_map": {"hidden_size": "evil"},
    "to_dict": "evil",
    "sub_configs": {"x": 1},
    "output_attentions": True,
    "output_hidden_states": True,
    "return_dict": False,
    "torch_dtype": "float16",
    "dtype": "float16",
    "num_labels": 3,
    "name_or_path": "/etc",
    "_name_or_path": "/etc",
    "per_layer_config": {"0": {"hidden_size": 4}},
}


def test_code_settings_are_removed_at_any_depth() -> None:
    selected = config.select_settings(
        {"hidden_size": 4, "parts": [{"x": 1, **CHOICES}], **CHOICES}, BertConfig
    )
    assert selected.keys() == {"hidden_size", "parts"}
    assert selected["hidden_size"] == 4
    assert not selected["parts"][0].keys() & {
        name for name in CHOICES if name in config._CODE_SETTINGS or name[0] == "_"
    }


def test_checkpoint_cannot_choose_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    import transformers.integrations.hub_kernels as kernels

    for name in ("load_and_register_attn_kernel", "get_kernel"):
        monkeypatch.setattr(kernels, name, lambda *args, **_: calls.append(args), raising=True)
    before = bert_probe.load(folder)
    change_config(folder, **{name: value for name, value in CHOICES.items() if name != "quantization_config"})
    after = bert_probe.load(folder)
    assert calls == []
    assert "which is not run" in after.description.notes[0]
    assert replace(after.description, notes=()) == before.description
    expected, actual = before.trace(TEXT), after.trace(TEXT)
    for layer in range(expected.layers):
        assert np.array_equal(expected.attention(layer), actual.attention(layer))
    assert np.array_equal(expected.hidden_states, actual.hidden_states)


# ---------------------------------------------------------------- files


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.float32])
@pytest.mark.parametrize(("family", "module"), [("gpt2", "h.0.attn"), ("gpt_neo", "h.0.attn.attention")])
def test_saved_causal_masks_are_ignored(family: str, module: str, dtype: torch.dtype, tmp_path: Path) -> None:
    families.build(family, tmp_path)
    before = bert_probe.load(tmp_path).trace(TEXT)
    name, mask = f"{module}.bias", torch.ones(1, 1, 160, 160).tril().to(dtype)
    fill = {f"{module}.masked_bias": torch.tensor(-1e9)}
    change_weights(tmp_path, lambda tensors: tensors | fill | {name: mask})
    after = bert_probe.load(tmp_path)
    assert np.array_equal(after.trace(TEXT).hidden_states, before.hidden_states)
    assert after.description.notes == ()
    change_weights(tmp_path, lambda tensors: tensors | {name: mask.to(torch.int8)})
    assert_refused(WeightsError, tmp_path, name, "contains numbers of type I8")
    if family == "gpt_neo":  # The class of GPT-2 accepts every weight of this name.
        for shape in ((160,), (1, 1, 160, 80), (2, 1, 160, 160)):
            other = torch.ones(shape)
            change_weights(tmp_path, lambda tensors, other=other: tensors | {name: other})  # type: ignore[misc]
            assert_refused(WeightsError, tmp_path, f"contain {name}, which the config does not describe")
    weight = "h.0.ln_1.bias"
    change_weights(tmp_path, lambda tensors: {**tensors, name: mask, weight: tensors[weight].to(torch.bool)})
    assert_refused(WeightsError, tmp_path, weight, "contains numbers of type BOOL")


def test_integer_weights_are_refused(folder: Path) -> None:
    """transformers would load quantized weights without the scales, which are stored separately."""
    name = "encoder.layer.0.attention.self.query.weight"
    change_weights(folder, lambda tensors: tensors | {name: (tensors[name] * 100).to(torch.int8)})
    assert_refused(WeightsError, folder, name, "contains numbers of type I8", "before quantization")


def test_integer_position_ids_are_accepted(folder: Path) -> None:
    change_weights(folder, lambda tensors: tensors | {"embeddings.position_ids": torch.arange(160)[None]})
    bert_probe.load(folder)


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer.json", "added_tokens.json", "vocab.txt", "bpe.codes"),
        *("source.spm", "target.spm", "tokenizer.model.v3"),
        *("chat_template.jinja", "additional_chat_templates/rag.jinja"),
    ],
)
def test_oversized_tokenizer_is_refused_unread(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_files, "MAX_TOKENIZER_BYTES", 100_000)
    (folder / name).parent.mkdir(exist_ok=True)
    with (folder / name).open("ab") as file:
        file.truncate(200_001)
    assert_refused(TokenizerError, folder, Path(name).name, "200,001 bytes, but at most 100,000 are allowed")


def test_size_limit_applies_to_all_vocabulary_files_of_transformers() -> None:
    classes = {getattr(transformers, name, None) for name in TOKENIZER_MAPPING_NAMES.values() if name}
    names = {
        name
        for tokenizer_class in classes
        for name in getattr(tokenizer_class, "vocab_files_names", {}).values()
    }
    assert {"source.spm", "spiece.model", "vocab.txt", "bpe.codes"} <= names
    for patterns in (tokenizer_files._PATTERNS, tokenizer_files.TOKENIZER_FILES):
        assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
def test_tokenizer_that_cannot_be_read_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("/proc/self/mem")
    assert_refused(TokenizerError, folder, "tokenizer.json cannot be read")


def test_tokenizer_with_too_many_added_tokens_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = len(json.loads((folder / "tokenizer.json").read_text())["added_tokens"])
    monkeypatch.setattr(tokenizer_files, "MAX_ADDED_TOKENS", added)
    bert_probe.load(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_ADDED_TOKENS", added - 1)
    assert_refused(TokenizerError, folder, f"adds more than {added - 1} tokens to the vocabulary")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": [f"t{index}" for index in range(101)]}),
        ("tokenizer_config.json", {"extra_special_tokens": {f"a{i}": f"t{i}" for i in range(101)}}),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {f"{i}": {"content": f"t{i}"} for i in range(101)}},
        ),
        ("special_tokens_map.json", {"additional_special_tokens": [f"t{index}" for index in range(101)]}),
        ("added_tokens.json", {f"t{index}": 200 + index for index in range(101)}),
    ],
)
def test_tokenizer_with_too_many_special_tokens_is_refused(
    folder: Path, name: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_files, "MAX_ADDED_TOKENS", 100)
    bert_probe.load(folder)
    file = folder / name
    given = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(given | settings))
    assert_refused(TokenizerError, folder, f"{name} adds more than 100 tokens to the vocabulary")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": ["a" * 501, "b" * 500]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"a": "a" * 501, "b": "b" * 500}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"8": {"content": "a" * 1_001}}}),
        ("special_tokens_map.json", {"mask_token": "a" * 1_001}),
        ("added_tokens.json", {"a" * 501: 200, "b" * 500: 201}),
    ],
)
def test_tokenizer_with_long_added_tokens_is_refused(
    folder: Path, name: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python tokenizers store a dictionary for each character of an added token."""
    monkeypatch.setattr(tokenizer_files, "MAX_ADDED_CHARACTERS", 1_000)
    bert_probe.load(folder)
    (folder / name).write_text(json.dumps(settings))
    assert_refused(TokenizerError, folder, f"{name} adds to the vocabulary have 1,001 characters, but at")


def test_added_tokens_with_escaped_names_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = len(json.loads((folder / "tokenizer.json").read_text())["added_tokens"])
    monkeypatch.setattr(tokenizer_files, "MAX_ADDED_TOKENS", added - 1)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"single_word"', r'"single\u005fword"'))
    assert_refused(TokenizerError, folder, f"adds more than {added - 1} tokens to the vocabulary")


def test_added_tokens_of_a_versioned_tokenizer_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = len(json.loads((folder / "tokenizer.json").read_text())["added_tokens"])
    monkeypatch.setattr(tokenizer_files, "MAX_ADDED_TOKENS", added)
    change_config(folder, "tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.0.0.json"])
    copyfile(folder / "tokenizer.json", folder / "tokenizer.4.0.0.json")
    bert_probe.load(folder)
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    change_config(folder, "tokenizer.4.0.0.json", added_tokens=[*tokens, tokens[0] | {"id": 119}])
    assert_refused(TokenizerError, folder, "tokenizer.4.0.0.json adds more than", "tokens to the vocabulary")


def save_unigram(folder: Path, pieces: list[str], is_json: bool) -> None:
    """Replace the tokenizer of a folder with a Unigram tokenizer, in JSON or as a SentencePiece model."""
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in ["<unk>", *pieces]], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    if not is_json:
        (folder / "tokenizer.json").unlink()
        texts = [piece.encode() for piece in ["<unk>", *pieces]]
        messages = [bytes([10, len(text) + 2, 10, len(text)]) + text for text in texts]
        (folder / "spiece.model").write_bytes(b"".join(messages))
        settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("is_json", [True, False])
def test_pieces_with_too_many_prefixes_are_refused(
    folder: Path, is_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [*(f"{first}{'é' * 49}" for first in "abcdefgh"), "a" + "é" * 48]  # 8 x 99 prefixes in UTF-8
    save_unigram(folder, pieces, is_json)
    monkeypatch.setattr(tokenizer_files, "MAX_PREFIXES", 8 * 99 + len("<unk>"))
    tokenizer_files.check_tokenizer_files(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_PREFIXES", 8 * 99 + len("<unk>") - 1)
    assert_refused(TokenizerError, folder, "are too many or too long", "pieces with 796 different")
    monkeypatch.setattr(tokenizer_files, "_PREFIXES_PER_PIECE", 80)  # 10 pieces, thus 800 prefixes
    tokenizer_files.check_tokenizer_files(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_PIECES", 9)
    assert_refused(TokenizerError, folder, "are too many or too long", "at most 9 pieces")


def save_bpe(folder: Path, pieces: list[str]) -> None:
    """Replace the tokenizer of a folder with a SentencePiece model whose merges transformers generates."""
    save_unigram(folder, pieces, is_json=False)
    (folder / "spiece.model").rename(folder / "tokenizer.model")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))


def test_long_piece_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_bpe(folder, ["a", "b" + "é" * 30])
    monkeypatch.setattr(tokenizer_files, "MAX_PIECE_BYTES", 61)
    tokenizer_files.check_tokenizer_files(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_PIECE_BYTES", 60)
    assert_refused(TokenizerError, folder, "tokenizer.model has a piece of 61 bytes, but at most 60")


def test_pieces_with_too_many_merges_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = ["".join(letters) for length in range(1, 5) for letters in product("aé", repeat=length)]
    save_bpe(folder, pieces)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    monkeypatch.setattr(tokenizer_files, "MAX_MERGES", len(merges))
    tokenizer_files.check_tokenizer_files(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_MERGES", len(merges) - 1)
    assert_refused(TokenizerError, folder, f"at most {len(merges) - 1} merges and 16 characters per piece")
    monkeypatch.setattr(tokenizer_files, "MAX_MERGES", len(merges))
    monkeypatch.setattr(tokenizer_files, "_CHARACTERS_PER_PIECE", 3)
    assert_refused(TokenizerError, folder, "merges and 3 characters per piece are allowed")


def test_vocabulary_with_too_many_prefixes_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EsmTokenizer stores a dictionary for each prefix of a line."""
    (folder / "vocab.txt").write_text("\n".join(f"{letter}{'a' * 99}" for letter in "abcdefghij"))
    monkeypatch.setattr(tokenizer_files, "MAX_PREFIXES", 1_000)
    bert_probe.load(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_PREFIXES", 999)
    assert_refused(TokenizerError, folder, "The pieces of vocab.txt are too many or too long")


@pytest.mark.parametrize("space", [" ", r"\u0020"])
def test_byte_map_with_too_many_bytes_is_refused(
    folder: Path, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MyT5Tokenizer stores a dictionary for each byte."""
    (folder / "byte_maps.json").write_text('{"61KEY":"62"}'.replace("KEY", f"{space}61" * 1_000))
    monkeypatch.setattr(tokenizer_files, "MAX_PREFIXES", 1_000)
    bert_probe.load(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_PREFIXES", 999)
    assert_refused(TokenizerError, folder, "byte_maps.json maps more than 999 bytes")


def test_numbers_from_which_tokenizers_generate_tokens_are_limited() -> None:
    """Each number that a tokenizer class of transformers takes is limited, or known not to take memory."""
    classes = {getattr(transformers, name, None) for name in TOKENIZER_MAPPING_NAMES.values() if name}
    harmless = {"unk_id", "max_entity_length", "max_mention_length", "model_max_length", "pad_token_label"}
    harmless |= {"max_width", "pad_width", "cell_trim_length", "max_length"}
    numbers = {
        name
        for tokenizer_class in classes
        if tokenizer_class is not None
        for name, parameter in inspect.signature(tokenizer_class.__init__).parameters.items()
        if isinstance(parameter.default, int) and not isinstance(parameter.default, bool)
    }
    assert {"extra_ids", "offset", "max_depth"} <= numbers
    assert numbers <= harmless | {*tokenizer_files._GENERATING_SETTINGS}


def test_oversized_config_is_refused_unread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_CONFIG_BYTES", 10)
    size = (folder / "config.json").stat().st_size
    assert_refused(CheckpointError, folder, f"config.json has {size:,} bytes, but at most 10 are allowed")


@pytest.mark.parametrize(
    ("component", "state"),
    [
        (
            "normalizer",
            {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40,
            },
        ),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}),
        (
            "pre_tokenizer",
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
                ]
                * 40,
            },
        ),
        (
            "pre_tokenizer",
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
                ]
                * 7,
            },
        ),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 1_000}),
        ("normalizer", {"type": "Prepend", "prepend": "a" * 1_000}),
        (
            "post_processor",
            {
                "type": "Sequence",
                "processors": [
                    {
                        "type": "TemplateProcessing",
                        "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 1_000,
                        "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
                        "special_tokens": {},
                    }
                ],
            },
        ),
    ],
)
def test_tokenizer_that_lengthens_texts_is_refused(
    folder: Path, component: str, state: dict[str, Any]
) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {component: state}))
    assert_refused(TokenizerError, folder, f"The {component} in tokenizer.json", "more than 100 times longer")


def test_longest_word_depends_on_the_expansion_of_the_text(folder: Path) -> None:
    state = json.loads((folder / "tokenizer.json").read_text())
    state["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 50}
    for longest in (200, 201):
        state["model"]["max_input_chars_per_word"] = longest
        (folder / "tokenizer.json").write_text(json.dumps(state))
        if longest == 200:
            bert_probe.load(folder)
    assert_refused(TokenizerError, folder, "max_input_chars_per_word is 201, but at most 200 are supported")


@pytest.mark.parametrize(
    ("component", "state", "problem"),
    [
        ("model", {"max_input_chars_per_word": 1_001}, "max_input_chars_per_word is 1,001"),
        (
            "model",
            {"continuing_subword_prefix": "#" * 257},
            "continuing_subword_prefix has 257 characters, but at most 256",
        ),
        (
            "model",
            {"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "w" * 257},
            "end_of_word_suffix has 257 characters",
        ),
        (
            "model",
            {"type": "Unigram", "unk_id": 0, "vocab": [["a" * size, -1.0] for size in range(1, 400)]},
            "a piece has 399 characters, but at most 256",
        ),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "NFC"}] * 50},
            "the normalizer has 101 steps, but at most 100",
        ),
        (
            "pre_tokenizer",
            {
                "type": "Sequence",
                "pretokenizers": [
                    {
                        "type": "Split",
                        "pattern": {"Regex": "(?=a.*N)"},
                        "behavior": "Isolated",
                        "invert": False,
                    }
                ]
                * 21,
            },
            "the pre_tokenizer has 21 regular expressions, but at most 20",
        ),
        (
            "pre_tokenizer",
            {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * 100},
            "the pre_tokenizer has 101 steps",
        ),
    ],
)
def test_tokenizer_that_takes_long_is_refused(
    folder: Path, component: str, state: dict[str, Any], problem: str
) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    is_changed = component == "model" and "type" not in state
    path.write_text(json.dumps(content | {component: content[component] | state if is_changed else state}))
    assert_refused(TokenizerError, folder, f"In tokenizer.json, {problem}", "could take minutes")


def test_expansion_of_common_tokenizers() -> None:
    longest = unicodedata.normalize("NFKC", "\ufdfa")
    tree = b"\1\2\3\4"
    characters = len(tree).to_bytes(4, "little") + tree + longest.encode() + b"\0"
    charsmap = base64.b64encode(characters).decode()
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    normalizers = [{"type": "Precompiled", "precompiled_charsmap": charsmap}, spaces]
    unigram = lengths._normalizer_expansion({"type": "Sequence", "normalizers": normalizers})
    metaspace = lengths._pre_tokenizer_expansion(
        {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace"}]}
    )
    assert (unigram, metaspace) == (2 * 18, 2)
    assert unigram * metaspace < lengths.MAX_EXPANSION
    assert lengths._normalizer_expansion({"type": "BertNormalizer", "handle_chinese_chars": True}) == 3
    assert lengths._pre_tokenizer_expansion({"type": "ByteLevel", "add_prefix_space": False}) == 4


@pytest.mark.parametrize("text", ["é", "😀", "a", "中", "ﷺ"])
def test_expansion_is_not_exceeded_by_the_tokenizers_library(text: str) -> None:
    for prefix in (False, True):
        step = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
        bound = lengths._pre_tokenizer_expansion(json.loads(step.__getstate__()))
        for count in (1, 2, 3):
            chained = pre_tokenizers.Sequence([step] * count)
            parts = chained.pre_tokenize_str(text)
            assert sum(len(part) for part, _ in parts) <= bound**count
            assert lengths._pre_tokenizer_expansion(json.loads(chained.__getstate__())) == bound**count


def test_expansion_of_a_character_map() -> None:
    tree = b"\1\2\3\4"
    replacements = "a\0ffi\0صلى\0".encode()
    characters = len(tree).to_bytes(4, "little") + tree + replacements
    state = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(characters).decode()}
    twice = {"type": "Replace", "pattern": {"String": " "}, "content": "▁▁"}
    assert lengths._normalizer_expansion(state) == 3
    assert lengths._normalizer_expansion({"type": "Sequence", "normalizers": [state, twice]}) == 6


@pytest.mark.parametrize("length", ["abc", None, [], -1, 0, float("nan")])
def test_invalid_model_max_length_raises_tokenizer_error(folder: Path, length: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": length}))
    if length is None:
        bert_probe.load(folder)
    else:
        assert_refused(TokenizerError, folder, "tokenizer_config.json", "model_max_length")


@pytest.mark.prove
def test_weights_with_more_tensors_than_any_encoder_are_refused(
    tmp_path: Path,
) -> None:
    """Opening a file with hundreds of thousands of empty tensors would take minutes."""
    config = BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    BertModel(config).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    count = 5 * preflight.MOST_TENSORS + 1 - len(tensors)
    save_file(tensors | {f"empty.{number}": torch.empty(0) for number in range(count)}, file)
    with pytest.raises(CheckpointError, match="50,001 tensors, more than any encoder has"):
        bert_probe.load(tmp_path)
