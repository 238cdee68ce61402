"""Test tokenization without loading the model: the tokens are those of the model, or the result is None."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS as DOUBTED
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

import bert_probe
from bert_probe.cli.tokens import TOKENIZERS, encode_without_model
from bert_probe.errors import EmptyTextError, NotFoundError, TextError, TokenizerError, WeightsError
from bert_probe.model import tokenizer_files
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from tests.helpers import families, multi_vector_models
from tests.helpers.folders import copy
from tests.helpers.gate import prove_unless

TEXTS = (
    *families.SENTENCES,
    families.LONG,
    "  two  spaces\tand\na line ",
    "[CLS] written out <s>",
    "naïve ﬁancée 東京 👩‍🚀",
    "x" * 150,
)


def settings(folder: Path, file: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / file).read_text(encoding="utf-8"))
    return values


@pytest.fixture
def changed(family_folder: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a checkpoint and changes entries of a file; None removes an entry."""

    def copy(name: str, file: str = "config.json", **entries: Any) -> Path:
        folder = tmp_path / name
        shutil.copytree(family_folder(name), folder)
        values = {
            key: value for key, value in (settings(folder, file) | entries).items() if value is not None
        }
        (folder / file).write_text(json.dumps(values), encoding="utf-8")
        return folder

    return copy


def same(alone: Encoding | None, expected: Encoding) -> None:
    assert alone is not None
    assert [(str(token), vars(token)) for token in alone.tokens] == [
        (str(token), vars(token)) for token in expected.tokens
    ]
    assert (alone.text, alone.pair, alone.words, alone.dropped) == (
        expected.text,
        expected.pair,
        expected.words,
        0,
    )
    assert not alone.inputs


# ---------------------------------------------------------------- same tokens as with the model


@pytest.mark.gate(cases=4)
@pytest.mark.parametrize("text", TEXTS)
def test_built_in_tokens_equal_checkpoint(minilm: Checkpoint, text: str) -> None:
    same(encode_without_model(None, None, text), minilm.encode(text))
    same(encode_without_model(None, None, text, families.PAIR), minilm.encode(text, families.PAIR))


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(
    ("own", "name"),
    prove_unless(lambda case: case[0] or case[1] == "bert", product([False, True], TOKENIZERS)),
)
def test_tokens_of_all_families_equal_checkpoint(changed: Callable[..., Path], name: str, own: bool) -> None:
    class_name = TOKENIZERS[name] if own else "PreTrainedTokenizerFast"
    folder = changed(name, "tokenizer_config.json", tokenizer_class=class_name)
    checkpoint = bert_probe.load(folder)
    assert type(checkpoint.tokenizer) is getattr(transformers, class_name)
    for text in TEXTS:
        alone = encode_without_model(folder, None, text)
        cut = checkpoint.encode(text, truncate=True)
        if cut.dropped or len(cut) > 160 - 2:
            assert alone is None
        else:
            same(alone, cut)
        same(encode_without_model(folder, None, "a boat", text[:40]), checkpoint.encode("a boat", text[:40]))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_accepted_text_is_accepted_by_the_model(
    family: Callable[[str], Checkpoint], family_folder: Callable[[str], Path], name: str
) -> None:
    alone = encode_without_model(family_folder(name), None, "a boat")
    max_tokens = family(name).description.max_tokens
    assert alone is not None
    assert alone.max_tokens is not None
    assert max_tokens is not None
    assert max_tokens - 2 <= alone.max_tokens <= max_tokens


def test_tokenizer_classes_equal_transformers() -> None:
    for name, cls in TOKENIZERS.items():
        assert TOKENIZER_MAPPING_NAMES[name] == cls
        assert name in MODEL_FOR_MASKED_LM_MAPPING_NAMES
        assert name not in DOUBTED
        assert transformers.AutoConfig.for_model(name).pad_token_id in (0, 1)


# ---------------------------------------------------------------- cases that need the model


@pytest.mark.parametrize(
    ("file", "entries"),
    [
        ("config.json", {"model_type": "ernie"}),
        ("config.json", {"model_type": "no such"}),
        ("config.json", {"is_decoder": True}),
        ("config.json", {"is_encoder_decoder": True}),
        ("config.json", {"quantization_config": {"bits": 4}}),
        ("config.json", {"transformers_weights": "other.safetensors"}),
        ("config.json", {"tokenizer_class": "BertTokenizer"}),
        ("config.json", {"vocab_size": 100_000}),
        ("config.json", {"max_position_embeddings": 159}),
        ("config.json", {"pad_token_id": -1}),
        ("config.json", {"pad_token_id": "0"}),
        ("config.json", {"vocab_size": None}),
        ("tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"}),
        ("tokenizer_config.json", {"tokenizer_class": ["BertTokenizer"]}),
        ("tokenizer_config.json", {"tokenizer_class": None}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["tokens.Own", None]}}),
    ],
)
def test_unusual_files_return_none(changed: Callable[..., Path], file: str, entries: dict[str, Any]) -> None:
    assert encode_without_model(changed("bert", file, **entries), None, "a boat") is None


@pytest.mark.parametrize("content", [None, "", "[1]", "{", "[" * 100_000])
def test_unreadable_tokenizer_settings_return_none(changed: Callable[..., Path], content: str | None) -> None:
    folder = changed("bert")
    (folder / "tokenizer_config.json").unlink()
    if content is not None:
        (folder / "tokenizer_config.json").write_text(content, encoding="utf-8")
    assert encode_without_model(folder, None, "a boat") is None


def test_unopenable_tokenizer_returns_none(changed: Callable[..., Path]) -> None:
    folder = changed("bert")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert encode_without_model(folder, None, "a boat") is None


@pytest.mark.parametrize("layout", ["ColBERT", "PyLate", "PyLate, early version"])
def test_late_interaction_returns_none(
    layout: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Opening the model adds its markers to the tokenizer."""
    folder = multi_vector_models.save(layout, family_folder("bert"), tmp_path / "model")
    assert encode_without_model(folder, None, "[unused0] a boat") is None


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_broken_settings_of_a_sentence_model_return_none(changed: Callable[..., Path], content: str) -> None:
    folder = changed("bert")
    (folder / "config_sentence_transformers.json").write_text(content)
    assert encode_without_model(folder, None, "a boat") is None


def test_possibly_too_long_text_returns_none(minilm: Checkpoint) -> None:
    for words in (508, 509, 510, 511):
        text = " ".join(["boat"] * words)
        alone = encode_without_model(None, None, text)
        assert (alone is None) == (words > 508)
    assert len(minilm.encode(" ".join(["boat"] * 510))) == 512


def test_id_outside_vocabulary_returns_none(changed: Callable[..., Path]) -> None:
    folder = changed("bert", vocab_size=8)
    weights = {
        name: part[:8].clone() if name.endswith("word_embeddings.weight") else part
        for name, part in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert encode_without_model(folder, None, "boat") is None


# ---------------------------------------------------------------- errors


def test_errors_equal_those_of_the_model(changed: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no folder"):
        encode_without_model(tmp_path / "none", None, "a boat")
    with pytest.raises(NotFoundError, match="no revision"):
        encode_without_model(None, "main", "a boat")
    with pytest.raises(EmptyTextError, match="is empty"):
        encode_without_model(None, None, "")
    with pytest.raises(TextError, match="surrogate"):
        encode_without_model(None, None, "\ud800")
    folder = changed("bert")
    (folder / "model.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(WeightsError, match="broken or truncated"):
        encode_without_model(folder, None, "a boat")
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model\.safetensors is missing"):
        encode_without_model(folder, None, "a boat")


def test_weights_are_not_read(changed: Callable[..., Path]) -> None:
    folder = changed("bert")
    weights = {name: part * torch.nan for name, part in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    alone = encode_without_model(folder, None, "a boat")
    assert alone is not None
    assert [str(token) for token in alone.tokens] == ["[CLS]", "a", "boat", "[SEP]"]
    with pytest.raises(WeightsError, match="not finite"):
        bert_probe.load(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_oversized_tokenizer_is_refused(
    name: str, family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_files, "MAX_TOKENIZER_BYTES", 100_000)
    folder = copy(family_folder("bert"), tmp_path / "model")
    assert encode_without_model(folder, None, "we left") is not None
    with (folder / name).open("ab") as file:
        file.truncate(200_001)
    with pytest.raises(TokenizerError, match=f"{name} has 200,001 bytes, but at most 100,000 are allowed"):
        encode_without_model(folder, None, "we left")
