"""Modifications of a checkpoint folder that break it or make it hostile."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tests.helpers.folders import change_config, change_weights, shard, write_index

Change = Callable[[Path], object]


@dataclass(frozen=True)
class Broken:
    """A modification of a checkpoint's folder.

    Attributes:
        name: Description of the modification.
        change: Function that modifies a copy of the folder.
        must: Expected result of opening the modified folder. "refused": an error message. "same": the same
            vectors as with the original folder. "either": an error message, or the vectors that transformers
            computes with the modified folder.
    """

    name: str
    change: Change
    must: Literal["refused", "same", "either"]


_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "hidden_act",
    "pad_token_id",
    "hidden_dropout_prob",
)
_VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 3, 1_000, 200_000, 5_000_000, 10**9, 10**30),
    *(1.5, float("nan"), 1e400, "12", "__import__('os').system('x')", "", None, True, [], [1], {}, {"a": 1}),
)
_CODE: dict[str, Any] = {
    "_attn_implementation": "kernels-community/flash-attn",
    "attn_implementation": "flash_attention_2",
    "auto_map": {"AutoModel": "evil--model.Evil", "AutoConfig": "evil.Evil"},
    "use_kernels": True,
    "kernel_config": {"kernel_mapping": {"LayerNorm": "evil/kernel:LayerNorm"}},
    "experts_implementation": "kernels-community/moe",
    "gradient_checkpointing": True,
    "torchscript": True,
    "_name_or_path": "../../../../etc/passwd",
    "_commit_hash": "\x1b[31m",
    "dtype": "float16",
    "torch_dtype": "no.such.type",
    "device_map": {"": "cuda:7"},
    "tp_plan": "auto",
    "reference_compile": True,
    "output_attentions": "yes",
    "id2label": {"0": "\x1b]0;title\x07"},
    "__class__": "os.system",
}
_KINDS: tuple[Any, ...] = (
    *("gpt2", "t5", "llama", "mra", "yoso", "vit", "whisper", "unheard-of", "BERT", "os.system"),
    *("", 5, None, [], "../bert", "bert\x1b[31m"),
)


def every(lots: random.Random, total: int) -> list[Broken]:
    """Return a random sample of at most `total` modifications.

    Changes of sizes in the config are a minority of the sample.
    """
    sizes = [
        Broken(f"config {name} = {_short(value)}", _config(name, value), "either")
        for name in _SIZES
        for value in _VALUES
    ]
    other_changes = [*_configs(), *_weights(), *_tokenizers(), *_shards()]
    candidates = [*other_changes, *lots.sample(sizes, max(0, 150 - len(other_changes)))]
    return lots.sample(candidates, min(total, len(candidates)))


def _short(value: Any) -> str:
    return repr(value)[:40]


def _config(name: str, value: Any) -> Change:
    return lambda folder: change_config(folder, **{name: value})


def _configs() -> Iterator[Broken]:
    for name, value in _CODE.items():
        yield Broken(f"config {name} = {_short(value)}", _config(name, value), "same")
    for value in ({"quant_method": "bitsandbytes"}, {"quant_method": "gptq", "bits": 4}):
        yield Broken(f"config quantization {value}", _config("quantization_config", value), "refused")
    yield Broken(
        "config transformers_weights", _config("transformers_weights", "../x.safetensors"), "refused"
    )
    for kind in _KINDS:
        yield Broken(f"config model_type = {_short(kind)}", _config("model_type", kind), "refused")
    for kind, content in {
        "empty": b"",
        "bytes": bytes(range(256)) * 10,
        "a list": b"[1, 2]",
        "a number": b"7",
        "null": b"null",
        "UTF-16": '{"model_type": "bert"}'.encode("utf-16"),
        "100,000 brackets": b"[" * 100_000,
        "33 MB": b'{"a": "' + b"x" * 33_000_000 + b'"}',
        "30 MB of names": json.dumps({f"name {i}": i for i in range(1_200_000)}).encode()[:31_000_000],
        "a number of 100,000 digits": b'{"model_type": "bert", "vocab_size": ' + b"9" * 100_000 + b"}",
    }.items():
        yield Broken(f"config is {kind}", _content("config.json", content), "refused")
    for device in (
        "/dev/zero",
        "/dev/random",
        "/dev/tty",
        "/proc/self/mem",
        "nowhere",
        "config.json",
        "pipe",
    ):
        yield Broken(f"config is a link to {device}", _device("config.json", device), "refused")


def _weights() -> Iterator[Broken]:
    name = "model.safetensors"
    for share in (0.0, 0.001, 0.3, 0.99):
        yield Broken(f"weights cut to {share:.1%}", _cut(name, share), "refused")
    for kind, content in {
        "bytes": bytes(range(256)) * 100,
        "a header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
        "a header of 90 MB": struct.pack("<Q", 90_000_000) + b"{" + b" " * 90_000_000,
        "a header in a header": struct.pack("<Q", 20_000) + b'{"a":' * 4_000,
        "a pickle": b"\x80\x04\x95cos\nsystem\n(S'x'\ntR.",
    }.items():
        yield Broken(f"weights are {kind}", _content(name, content), "refused")
    for device in ("/dev/zero", "/dev/random", "/proc/self/mem", "nowhere", "pipe"):
        yield Broken(f"weights are a link to {device}", _device(name, device), "refused")
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "int8": lambda tensor: (tensor * 10).to(torch.int8),
        "float8": lambda tensor: tensor.to(torch.float8_e4m3fn),
        "bool": lambda tensor: tensor > 0,
        "flat": lambda tensor: tensor.reshape(-1),
        "turned": lambda tensor: tensor.T.contiguous() if tensor.ndim == 2 else tensor,
        "cut": lambda tensor: tensor[: max(1, len(tensor) // 2)].contiguous(),
        "empty": lambda tensor: tensor[:0].contiguous(),
    }
    for kind, change in changes.items():
        yield Broken(f"weights are {kind}", _all_weights(change), "refused")
    for kind, value in (("NaN", float("nan")), ("infinite", float("inf")), ("huge", 3e38)):
        yield Broken(f"one tensor is {kind}", _one_weight(value), "either")
    for kind, wide in (("float16", torch.float16), ("bfloat16", torch.bfloat16), ("float64", torch.float64)):
        yield Broken(f"weights are {kind}", _all_weights(lambda tensor, wide=wide: tensor.to(wide)), "either")  # type: ignore[misc]
    yield Broken("half of the tensors", _some_weights(2), "refused")
    yield Broken("no tensors", lambda folder: change_weights(folder, lambda _: {}), "refused")
    yield Broken(
        "tensors of other names",
        lambda folder: change_weights(
            folder, lambda tensors: {f"x.{name}": tensor for name, tensor in tensors.items()}
        ),
        "refused",
    )
    yield Broken(
        "further tensors",
        lambda folder: change_weights(
            folder, lambda tensors: tensors | {f"x{i}\x1b[2J": torch.ones(2) for i in range(500)}
        ),
        "same",
    )


def _tokenizers() -> Iterator[Broken]:
    for kind, content in {
        "empty": b"",
        "bytes": bytes(range(256)),
        "an empty object": b"{}",
        "100,000 brackets": b"[" * 100_000,
        "101 MB": b" " * 101_000_000,
    }.items():
        yield Broken(f"tokenizer.json is {kind}", _content("tokenizer.json", content), "refused")
    for device in ("/dev/zero", "/proc/self/mem", "nowhere", "pipe"):
        yield Broken(f"tokenizer.json is a link to {device}", _device("tokenizer.json", device), "either")
    for file in ("vocab.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"):
        for device in ("/dev/zero", "pipe"):
            yield Broken(f"{file} is a link to {device}", _device(file, device), "either")
    settings: tuple[tuple[str, Any, Literal["refused", "same", "either"]], ...] = (
        ("model_max_length", "abc", "refused"),
        ("model_max_length", -1, "refused"),
        ("model_max_length", 1e400, "either"),
        ("model_max_length", float("nan"), "refused"),
        ("tokenizer_class", "os.system", "either"),
        ("tokenizer_class", "../evil", "either"),
        ("tokenizer_class", 5, "either"),
        ("auto_map", {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "either"),
        ("chat_template", "{% for a in range(10**9) %}{{ a }}{% endfor %}", "same"),
        ("pad_token", {"__type": "AddedToken", "content": "x" * 100_000}, "either"),
        ("unk_token", None, "either"),
        ("added_tokens_decoder", {"999999999": {"content": "x"}}, "either"),
        ("model_input_names", ["input_ids", "evil"], "either"),
        ("padding_side", "middle", "either"),
        ("truncation_side", 7, "either"),
        ("clean_up_tokenization_spaces", "rm", "either"),
    )
    for name, value, must in settings:
        yield Broken(f"tokenizer {name} = {_short(value)}", _tokenizer(name, value), must)
    yield Broken("no tokenizer", _without("tokenizer.json", "tokenizer_config.json", "vocab.txt"), "refused")


def _shards() -> Iterator[Broken]:
    maps: dict[str, Any] = {
        "empty": {},
        "a list": ["a"],
        "outside": {"a": "../../etc/passwd"},
        "absolute": {"a": "/etc/passwd"},
        "missing": {"a": "model-00009-of-00009.safetensors"},
        "the config": {"a": "config.json"},
        "numbers": {"a": 1, "b": None},
        "itself": {"a": "model.safetensors.index.json"},
        "a folder": {"a": "."},
        "a NUL": {"a": "a\x00b"},
        "200,000 files": {f"t{i}": f"model-{i}.safetensors" for i in range(200_000)},
    }
    for kind, where in maps.items():
        yield Broken(f"shards: {kind}", _index(where), "refused")
    yield Broken("shards, as they should be", shard, "same")
    yield Broken("shards, one gone", _shard_gone, "refused")
    yield Broken("shards, one a link to /dev/zero", _shard_device, "refused")


# Modifications


def _content(file: str, content: bytes) -> Change:
    return lambda folder: (folder / file).write_bytes(content)


def _cut(file: str, share: float) -> Change:
    def change(folder: Path) -> None:
        path = folder / file
        os.truncate(path, int(path.stat().st_size * share))

    return change


def _device(file: str, device: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / file
        path.unlink(missing_ok=True)
        if device == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(device)

    return change


def _without(*files: str) -> Change:
    def change(folder: Path) -> None:
        for file in files:
            (folder / file).unlink(missing_ok=True)

    return change


def _all_weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda folder: change_weights(
        folder, lambda tensors: {name: change(tensor) for name, tensor in tensors.items()}
    )


def _one_weight(value: float) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name = sorted(name for name, tensor in tensors.items() if tensor.ndim == 2)[0]
        return tensors | {name: torch.full_like(tensors[name], value)}

    return lambda folder: change_weights(folder, change)


def _some_weights(every: int) -> Change:
    return lambda folder: change_weights(folder, lambda tensors: dict(sorted(tensors.items())[::every]))


def _tokenizer(name: str, value: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


def _index(where: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        write_index(folder, where)

    return change


def _shard_gone(folder: Path) -> None:
    shard(folder)
    (folder / "model-00001-of-00002.safetensors").unlink()


def _shard_device(folder: Path) -> None:
    shard(folder)
    path = folder / "model-00001-of-00002.safetensors"
    path.unlink()
    path.symlink_to("/dev/zero")
