"""Test loading: every failure is an error with a remedy, and missing weights are never initialized."""

import importlib.metadata
import json
import os
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import bert_probe
from bert_probe.analyses.attribution.methods import baseline_id
from bert_probe.errors import (
    ArchitectureError,
    CheckpointError,
    OutOfMemoryError,
    ProbeError,
    TokenizerError,
    UnavailableError,
    WeightsError,
)
from bert_probe.model import loading, weights
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import assert_exact, own_error
from tests.helpers.families import LONG, PAIR, TEXT, build, config, representative, save_tokenizer
from tests.helpers.folders import Weights, assert_refused, change_config, change_weights, copy, shard
from tests.helpers.raw import Raw


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 0},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "3"},
        {"num_attention_heads": 0},
        {"vocab_size": 0},
    ],
)
def test_impossible_sizes_are_refused_before_anything_is_built(folder: Path, changes: dict[str, Any]) -> None:
    change_config(folder, **changes)
    assert_refused(CheckpointError, folder, "config.json is not valid for bert")


@pytest.mark.parametrize("changes", [{"num_attention_heads": 3}, {"hidden_act": "no such function"}])
def test_unbuildable_config_raises_error_with_reason(folder: Path, changes: dict[str, Any]) -> None:
    change_config(folder, **changes)
    message = assert_refused(CheckpointError, folder)
    assert "multiple of the number of attention heads" in message or "no such function" in message


def test_shard_without_an_indexed_tensor_is_refused(folder: Path) -> None:
    where = shard(folder)
    lost = "encoder.layer.1.attention.self.query.weight"
    path = folder / where[lost]
    weights = load_file(path)
    del weights[lost]
    save_file(weights, path, metadata={"format": "pt"})
    assert_refused(WeightsError, folder, f"lack {lost}")


def test_config_with_other_width_is_refused_with_both_sizes(folder: Path) -> None:
    change_config(folder, hidden_size=40)
    assert_refused(
        WeightsError, folder, "The shapes of the weights do not match", "32 in the weights, 40 in the config"
    )


def test_config_with_fewer_positions_is_refused(folder: Path) -> None:
    change_config(folder, max_position_embeddings=80)
    assert_refused(
        WeightsError, folder, "position_embeddings.weight (160×32 in the weights, 80×32 in the config)"
    )


def test_config_with_extra_layer_is_refused(folder: Path) -> None:
    change_config(folder, num_hidden_layers=4)
    assert_refused(WeightsError, folder, "lack encoder.layer.3.")


def test_config_with_missing_layer_is_refused(folder: Path) -> None:
    change_config(folder, num_hidden_layers=2)
    assert_refused(
        WeightsError, folder, "The weights contain encoder.layer.2.", "which the config does not describe"
    )


def test_unsupported_relative_positions_are_refused(folder: Path) -> None:
    def with_distances(weights: Weights) -> Weights:
        added = {
            f"encoder.layer.{n}.attention.self.distance_embedding.weight": torch.ones(319, 8)
            for n in range(3)
        }
        return weights | added

    change_config(folder, position_embedding_type="relative_key")
    change_weights(folder, with_distances)
    assert_refused(WeightsError, folder, "distance_embedding", "which the config does not describe")


def test_large_weights_with_infinite_sum_are_accepted() -> None:
    large = torch.nn.Linear(2, 2)
    large.weight.data[:] = torch.finfo(torch.float32).max
    weights.check_finite(large)
    large.weight.data[0] = torch.tensor([torch.inf, -torch.inf])
    with pytest.raises(WeightsError, match="not finite"):
        weights.check_finite(large)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_or_infinite_weights_are_refused(folder: Path, value: float) -> None:
    def spoil(weights: Weights) -> Weights:
        weights["encoder.layer.1.output.dense.bias"][3] = value
        return weights

    change_weights(folder, spoil)
    assert_refused(WeightsError, folder, "encoder.layer.1.output.dense.bias", "not finite")


def test_weights_too_large_for_float16_are_refused_only_in_float16(folder: Path) -> None:
    def enlarge(weights: Weights) -> Weights:
        weights["encoder.layer.1.output.dense.bias"][3] = 1e6
        return weights

    change_weights(folder, enlarge)
    assert bert_probe.load(folder).description.dtype == "float32"
    assert_refused(WeightsError, folder, "not finite", "use float32", dtype="float16")


def test_half_precision_weights_are_converted_to_float32(folder: Path) -> None:
    change_weights(folder, lambda weights: {name: part.half() for name, part in weights.items()})
    checkpoint = bert_probe.load(folder)
    assert checkpoint.description.dtype == "float32"
    assert {part.dtype for part in checkpoint.model.parameters()} == {torch.float32}
    stored = load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"]
    weight = checkpoint.model.get_parameter("embeddings.word_embeddings.weight")
    assert torch.equal(weight, stored.float())
    trace = checkpoint.trace(TEXT)
    Raw(folder).numbers(trace.encoding).check(trace)


def test_quantized_weights_are_refused(folder: Path) -> None:
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert_refused(WeightsError, folder, "quantized")


@pytest.mark.parametrize(
    ("family", "task", "name", "head"),
    [
        (
            "roberta",
            "RobertaForMaskedLM",
            "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.weight",
        ),
        ("gpt2", "GPT2LMHeadModel", "transformer.wte.weight", "lm_head.weight"),
        ("t5", "T5ForConditionalGeneration", "shared.weight", "decoder.embed_tokens.weight"),
    ],
)
def test_word_vectors_under_the_name_of_the_head_are_explained(
    family: str, task: str, name: str, head: str, tmp_path: Path
) -> None:
    getattr(transformers, task)(config(family)).save_pretrained(tmp_path)
    save_tokenizer(family, tmp_path)
    change_weights(
        tmp_path,
        lambda tensors: {head if key == name else key: value for key, value in tensors.items()},
    )
    words = "only under the name of an output head", "save_pretrained", "Otherwise, use the config.json that"
    assert_refused(WeightsError, tmp_path, *words)


def test_language_model_opens_without_pooler_with_note(tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config("bert")).save_pretrained(tmp_path)
    save_tokenizer("bert", tmp_path)
    checkpoint = bert_probe.load(tmp_path)
    assert not checkpoint.description.has_pooler
    assert checkpoint.trace(TEXT).pooler is None
    assert not [name for name, _ in checkpoint.model.named_parameters() if "pooler" in name]
    assert checkpoint.description.notes == (
        "The weights contain no pooler, so pooler output is unavailable.",
    )
    assert checkpoint.tasks == ("fill-mask",)


def test_model_that_mixes_dtypes_names_the_dtype_to_use(tmp_path: Path) -> None:
    sizes = transformers.XLNetConfig(vocab_size=120, d_model=32, n_layer=1, n_head=4, d_inner=64)
    transformers.XLNetModel(sizes).save_pretrained(tmp_path)
    save_tokenizer("bert", tmp_path)
    bert_probe.load(tmp_path, dtype="float32")
    message = r"\(XLNetModel\) cannot be run in float64, because .* another dtype: .* Use float32\."
    with pytest.raises(ArchitectureError, match=message):
        bert_probe.load(tmp_path, dtype="float64")


def test_negative_number_of_positions_means_no_limit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = transformers.XLNetConfig(vocab_size=120, d_model=32, n_layer=2, n_head=4, d_inner=64)
    model = transformers.XLNetModel(sizes).eval()
    model.save_pretrained(tmp_path)
    save_tokenizer("bert", tmp_path)
    trace = bert_probe.load(tmp_path).trace(TEXT)
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXT, return_tensors="pt")
    with torch.no_grad():
        raw = model(**inputs, output_attentions=True, output_hidden_states=True)
    for layer, attention in enumerate(raw.attentions):
        np.testing.assert_allclose(trace.attention(layer), attention[0].numpy(), rtol=0, atol=1e-6)
        np.testing.assert_allclose(trace.vectors(layer), raw.hidden_states[layer][0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(trace.vectors(-1), raw.last_hidden_state[0], rtol=0, atol=1e-6)


def test_classifier_keeps_pooler_and_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config("bert"))
    model.save_pretrained(tmp_path)
    save_tokenizer("bert", tmp_path)
    checkpoint = bert_probe.load(tmp_path, dtype="float64")
    assert checkpoint.description.has_pooler
    assert checkpoint.description.notes == ()
    assert checkpoint.tasks == ("text-classification",)
    trace = checkpoint.trace(TEXT)
    inputs = {name: torch.tensor(ids)[None] for name, ids in trace.encoding.inputs.items()}
    with torch.inference_mode():
        pooled = model.double().eval().bert(**inputs).pooler_output[0].numpy()
    assert_exact(trace.pooler, pooled)


# LayoutLM is not listed, because its code in transformers requires a pooler.
POOLED = [
    "bert",
    "roberta",
    "albert",
    "camembert",
    "xlm-roberta",
    "mobilebert",
    "mpnet",
    "ernie",
    "xlm-roberta-xl",
    "roberta-prelayernorm",
    "jina_embeddings_v3",
]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", representative(POOLED))
def test_untrained_pooler_is_removed_in_all_families(
    name: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(family_folder(name), tmp_path / name)
    change_weights(folder, lambda weights: {k: v for k, v in weights.items() if not k.startswith("pooler.")})
    with_pooler = bert_probe.load(family_folder(name))
    without = bert_probe.load(folder)
    assert with_pooler.description.has_pooler
    assert with_pooler.trace(TEXT).pooler is not None
    assert not without.description.has_pooler
    assert without.trace(TEXT).pooler is None
    assert without.description.parameter_count < with_pooler.description.parameter_count
    np.testing.assert_array_equal(without.trace(TEXT).hidden_states, with_pooler.trace(TEXT).hidden_states)


def test_partial_pooler_is_refused(folder: Path) -> None:
    change_weights(folder, lambda weights: {k: v for k, v in weights.items() if k != "pooler.dense.bias"})
    assert_refused(WeightsError, folder, "lack pooler.dense.bias")


def test_folder_without_tokenizer_is_refused(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert_refused(TokenizerError, folder, "has no tokenizer files")


@pytest.mark.parametrize("text", ["{", "[]", '{"version": "1.0"}'])
def test_broken_tokenizer_is_refused(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    assert_refused(TokenizerError, folder, "tokenizer")


def test_tokenizer_that_panics_when_it_is_opened_is_refused(folder: Path) -> None:
    change_config(
        folder, "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}
    )
    assert_refused(TokenizerError, folder, "The tokenizer failed: ", "Use another tokenizer")


@pytest.mark.parametrize("charsmap", ["AAAA", "//////8AAAA=", "a"])
@pytest.mark.parametrize("key", ["precompiled_charsmap", "precompiled\\u005fcharsmap"])
def test_normalizer_with_a_forged_size_is_refused(folder: Path, charsmap: str, key: str) -> None:
    """The library would allocate up to 8 GB for a trie of the stated size."""
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Precompiled", "KEY": charsmap}]}
    change_config(folder, "tokenizer.json", normalizer=normalizer)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("KEY", key))
    assert_refused(TokenizerError, folder, "broken precompiled_charsmap")


def test_charsmap_of_a_versioned_tokenizer_is_checked(folder: Path) -> None:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "//////8AAAA="}
    copyfile(folder / "tokenizer.json", folder / "tokenizer.4.0.0.json")
    change_config(folder, "tokenizer.4.0.0.json", normalizer=normalizer)
    change_config(folder, "tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.0.0.json"])
    assert_refused(TokenizerError, folder, "tokenizer.4.0.0.json has", "broken precompiled_charsmap")


def test_repeated_normalizer_with_a_forged_size_is_refused(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    forged = '{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "//////8AAAA="},'
    (folder / "tokenizer.json").write_text(text.replace("{", forged, 1))
    assert_refused(TokenizerError, folder, "broken precompiled_charsmap")


@pytest.mark.parametrize(
    "files", [["../other/tokenizer.4.0.0.json"], ["/tmp/tokenizer.4.0.0.json"], "tokenizer.json", [1]]
)
def test_tokenizer_file_outside_the_folder_is_refused(folder: Path, files: object) -> None:
    (folder.parent / "other").mkdir()
    copyfile(folder / "tokenizer.json", folder.parent / "other" / "tokenizer.4.0.0.json")
    change_config(folder, "tokenizer_config.json", fast_tokenizer_files=files)
    assert_refused(TokenizerError, folder, "fast_tokenizer_files", "names of files in the same folder")


def sentencepiece_folder(folder: Path, name: str, tokenizer_class: str, *messages: bytes) -> None:
    """Replace the tokenizer of a folder with a SentencePiece model made of Protocol Buffers messages."""
    for file in ("tokenizer.json", "vocab.txt", "special_tokens_map.json"):
        (folder / file).unlink(missing_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    (folder / name).write_bytes(b"".join(messages))


def message(number: int, content: bytes) -> bytes:
    """Return a field of a Protocol Buffers message, with fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


FORGED = message(2, b"\xff\xff\xff\xff" + bytes(4))


@pytest.mark.gate(cases=10)
@pytest.mark.parametrize(
    ("name", "tokenizer_class"),
    [
        ("spiece.model", "T5Tokenizer"),
        ("sentencepiece.bpe.model", "XLMRobertaTokenizer"),
        ("sentencepiece.bpe.model", "CamembertTokenizer"),
        ("spiece.model", "XLNetTokenizer"),
        ("spiece.model", "AlbertTokenizer"),
        ("tokenizer.model", "LlamaTokenizer"),
    ],
)
@pytest.mark.parametrize(
    "normalizer",
    [
        message(3, FORGED),
        message(3, FORGED) + message(3, message(1, b"nmt")),  # Protocol Buffers merges repeated messages
        bytes([15 << 3 | 3]) + message(14, b"ab") + bytes([15 << 3 | 4]) + message(3, FORGED),  # group
        bytes([15 << 3, 0x80, 1, 14 << 3 | 1]) + bytes(8) + message(3, FORGED),  # after numbers
        bytes([0x9A, 0x80, 0x00, len(FORGED)]) + FORGED,  # a field number with redundant bytes
    ],
    ids=["single", "repeated", "group", "numbers", "redundant"],
)
def test_sentencepiece_model_with_a_forged_size_is_refused(
    folder: Path, name: str, tokenizer_class: str, normalizer: bytes
) -> None:
    pieces = [message(1, message(1, piece)) for piece in (b"<unk>", b"a", b"b")]
    sentencepiece_folder(folder, name, tokenizer_class, *pieces, normalizer)
    assert_refused(TokenizerError, folder, f"{name} has a normalizer with a broken precompiled_charsmap")


@pytest.mark.parametrize(
    "rest",
    [
        message(2, b"0.1")
        + bytes([1 << 3, 0]),  # the text again, as a number, which Protocol Buffers ignores
        bytes([1 << 3, 0]),
        bytes([9 << 3 | 3]) + message(1, b"") + bytes([9 << 3 | 4]),  # a text in a group
        bytes([3 << 3, 4]) + message(3, b""),  # a user-defined piece
        bytes([3 << 3, 4, 3 << 3, 9]),  # the type again, with an unknown value
        bytes([3 << 3, 0x84, 0x80, 0x80, 0x80, 0x10]),  # the type with redundant bits
        message(1, b"b"),
    ],
)
def test_pieces_with_hidden_fields_are_refused(folder: Path, rest: bytes) -> None:
    pieces = [message(1, message(1, b"<unk>")), message(1, message(1, b"a" * 60) + rest)]
    sentencepiece_folder(folder, "spiece.model", "T5Tokenizer", *pieces)
    assert_refused(TokenizerError, folder, "A piece of spiece.model has fields that SentencePiece does not")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_tokenizer_of_speech_models_is_refused(folder: Path, name: str) -> None:
    change_config(folder, name, tokenizer_class="Wav2Vec2CTCTokenizer")
    assert_refused(TokenizerError, folder, f"{name} names the tokenizer class Wav2Vec2CTCTokenizer")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("key", ["extra_ids", "offset", "max_depth"])
def test_setting_that_generates_many_tokens_is_refused(folder: Path, name: str, key: str) -> None:
    (folder / name).write_text(json.dumps({"tokenizer_class": "BertTokenizer", key: 2_000}))
    bert_probe.load(folder)
    change_config(folder, name, **{key: 2_001})
    assert_refused(TokenizerError, folder, f"{key} in {name} is 2,001, but at most 2,000 are allowed")


@pytest.mark.gate(cases=5)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("_spm_precompiled_charsmap", [240, 255, 255, 255, *[0] * 64]),
        ("_spm_precompiled_charsmap", "8P///wAA"),
        ("vocab", "/dev/zero"),
        ("vocab", {"a": 0}),
        ("merges", "/dev/zero"),
        ("tokenizer_object", {"a": 0}),
        ("gguf_file", "model.gguf"),
        ("init_inputs", ["/dev/zero"]),
        ("sp_model_kwargs", {"model_file": "/dev/zero"}),
    ],
)
def test_setting_that_contains_a_vocabulary_is_refused(
    folder: Path, name: str, key: str, value: object
) -> None:
    settings = {"tokenizer_class": "BertTokenizer", "sp_model_kwargs": {"alpha": 0.1}}
    (folder / name).write_text(json.dumps(settings | {key: [] if key == "init_inputs" else None}))
    bert_probe.load(folder)
    change_config(folder, name, **{key: value})
    assert_refused(TokenizerError, folder, f"{name} must not contain {key}")


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("key", ["vocab_file", "merges_file"])
def test_setting_that_names_a_file_outside_the_folder_is_refused(folder: Path, key: str) -> None:
    """Old versions of transformers saved such paths, which are not read if tokenizer.json exists."""
    outside = folder.parent / "vocab.txt"
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    outside.write_text("\n".join(sorted(vocabulary, key=vocabulary.get)))
    copyfile(outside, folder / "vocab.txt")
    change_config(folder, "tokenizer_config.json", **{key: str(outside)})
    bert_probe.load(folder)
    (folder / "tokenizer.json").unlink()
    assert_refused(TokenizerError, folder, f"tokenizer_config.json must not contain {key}")
    for path in (str(folder / "vocab.txt"), str(folder.parent / "none.txt"), "a" * 5_000):
        change_config(folder, "tokenizer_config.json", tokenizer_class="BertTokenizer", **{key: path})
        bert_probe.load(folder)


def test_word_without_an_unknown_token_is_an_error(folder: Path) -> None:
    change_config(
        folder,
        "tokenizer.json",
        model=json.loads((folder / "tokenizer.json").read_text())["model"] | {"unk_token": "nope"},
    )
    with pytest.raises(TokenizerError, match=r"The tokenizer failed: WordPiece error: Missing"):
        bert_probe.load(folder).trace("漢")


def test_adapter_in_the_folder_is_refused(folder: Path) -> None:
    """transformers would add the adapter to the weights if peft is installed."""
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2000000}')
    assert_refused(WeightsError, folder, "contains an adapter", "merge_and_unload")


def test_tokenizer_that_panics_on_a_text_is_an_error(folder: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a|a)*$"}, "behavior": "Isolated", "invert": False}
    change_config(folder, "tokenizer.json", pre_tokenizer=split)
    with pytest.raises(TokenizerError, match=r"The tokenizer failed: Onig: .*retry-limit-in-match over"):
        bert_probe.load(folder).trace("a" * 40 + "c")


def test_tokenizer_larger_than_vocabulary_is_refused(
    folder: Path,
) -> None:
    build("bert", folder, vocab_size=60)
    with pytest.raises(
        TokenizerError, match=r"largest id in the model's vocabulary is 59\. Use the tokenizer"
    ):
        bert_probe.load(folder).trace(TEXT)


def test_padding_token_without_a_row_in_the_embedding_does_not_prevent_opening(folder: Path) -> None:
    expected = bert_probe.load(folder).trace(TEXT).hidden_states
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "<|newpad|>"})
    tokenizer.save_pretrained(folder)
    checkpoint = bert_probe.load(folder)
    assert tokenizer.pad_token_id >= checkpoint.description.vocabulary_size
    assert checkpoint.pads
    np.testing.assert_array_equal(checkpoint.trace(TEXT).hidden_states, expected)
    with pytest.raises(UnavailableError, match=r"has no .pad. token"):
        baseline_id(checkpoint, "pad")


@pytest.mark.parametrize("device", ["nonsense", "", "cuda:99", "meta", "cpu:x", None])
def test_unavailable_device_is_refused(folder: Path, device: Any) -> None:
    assert_refused(
        CheckpointError, folder, "is unavailable on this machine", "Use auto or cpu", device=device
    )


@pytest.mark.parametrize("dtype", ["int8", "", "float", None])
def test_unknown_dtype_is_refused(folder: Path, dtype: Any) -> None:
    assert_refused(CheckpointError, folder, "Unknown dtype", "Use auto, float32", dtype=dtype)


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_model_computes_in_the_given_dtype(
    name: str, dtype: str, family_folder: Callable[[str], Path], double_family: Callable[[str], Checkpoint]
) -> None:
    checkpoint = bert_probe.load(family_folder(name), dtype=dtype)
    assert {str(part.dtype) for part in checkpoint.model.parameters()} == {f"torch.{dtype}"}
    assert checkpoint.provenance()["dtype"] == checkpoint.description.dtype == dtype
    trace, double = checkpoint.trace(TEXT), double_family(name).trace(TEXT)
    expected = np.float64 if dtype == "float64" else np.float32
    assert trace.vectors(-1).dtype == trace.attention(0).dtype == expected
    off = own_error(trace.vectors(-1), double.vectors(-1)) / torch.finfo(getattr(torch, dtype)).eps
    # The error must be a few units in the last place of the dtype.
    assert off == 0 if dtype == "float64" else 1 < off < 64


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no bytes left"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes."),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_every_out_of_memory_error_is_converted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    checkpoint = bert_probe.load(folder)

    def fail(*_args: object, **_options: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.model, "forward", fail)
        with pytest.raises(OutOfMemoryError, match=r"14 tokens need more memory .* Shorten the text"):
            checkpoint.trace(TEXT)
    monkeypatch.setattr(loading, "read", fail)
    with pytest.raises(OutOfMemoryError, match=r"needs more memory .* Use a smaller model"):
        bert_probe.load(folder)


def test_other_runtime_errors_are_not_converted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = bert_probe.load(folder)

    def fail(**_options: object) -> None:
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

    monkeypatch.setattr(checkpoint.model, "forward", fail)
    with pytest.raises(RuntimeError, match="size of tensor a") as caught:
        checkpoint.trace(TEXT)
    assert not isinstance(caught.value, ProbeError)


def test_opening_does_not_change_folder_or_other_configs(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    first = bert_probe.load(folder)
    shared = transformers.AutoConfig.from_pretrained(folder)
    expected = shared.to_dict()
    second = bert_probe.load(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert shared.to_dict() == expected
    assert first.model.config is not second.model.config
    raw = AutoModel.from_pretrained(folder)
    assert raw.config._attn_implementation == "sdpa", "our attention function is only set on request"


def test_trace_does_not_change_model(folder: Path) -> None:
    checkpoint = bert_probe.load(folder)
    before = {name: part.clone() for name, part in checkpoint.model.state_dict().items()}
    checkpoint.traces([TEXT, LONG[:100], (TEXT, PAIR)])
    assert not checkpoint.model.training
    for name, part in checkpoint.model.state_dict().items():
        assert torch.equal(part, before[name])


@pytest.mark.parametrize("change", ["overwritten", "removed"])
def test_loaded_model_does_not_depend_on_its_files(folder: Path, change: str) -> None:
    # If the weights were memory-mapped, truncating the file would kill this process.
    checkpoint = bert_probe.load(folder)
    before = checkpoint.trace(TEXT).hidden_states
    file = folder / "model.safetensors"
    if change == "removed":
        file.unlink()
    else:
        with file.open("r+b") as stream:
            stream.seek(-1_000, os.SEEK_END)
            stream.write(b"\1" * 1_000)
            stream.seek(file.stat().st_size // 2)
            stream.write(b"\1" * 1_000)
    np.testing.assert_array_equal(checkpoint.trace(TEXT).hidden_states, before)


def test_model_opens_without_package_metadata(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    loading.library_versions.cache_clear()
    checkpoint = bert_probe.load(folder)
    assert checkpoint.libraries["bert-probe"] == bert_probe.__version__
    assert [*checkpoint.libraries] == ["bert-probe", "torch", "transformers", "tokenizers", "numpy", "python"]


@pytest.mark.parametrize("step", ["uses_interface", "self_check", "read"])
def test_missing_package_is_not_blamed_on_the_model(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> Any:
        raise importlib.metadata.PackageNotFoundError("some-package")

    monkeypatch.setattr(loading, step, missing)
    with pytest.raises(CheckpointError, match=r"installed Python packages: .*some-package") as caught:
        bert_probe.load(folder)
    assert type(caught.value) is CheckpointError
    assert "Supported" not in str(caught.value)
