"""Architecture checks: models whose attention cannot be read are refused by name."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import bert_probe
from bert_probe.errors import ArchitectureError, TokenizerError
from bert_probe.model import capture, checks
from bert_probe.model.config import SUPPORTED
from tests.helpers.exactness import assert_exact
from tests.helpers.families import (
    FAMILIES,
    LONG,
    PAIR,
    REPRESENTATIVE,
    TEXT,
    config,
    randomize,
    save_tokenizer,
)
from tests.helpers.folders import assert_refused, change_config
from tests.helpers.gate import prove_unless


@pytest.mark.parametrize(
    ("kind", "category"),
    [
        ("GPT2Config", "a decoder"),
        ("LlamaConfig", "a decoder"),
        ("T5Config", ""),
        ("BartConfig", "encoder-decoder"),
    ],
)
def test_decoders_and_encoder_decoders_are_refused(tmp_path: Path, kind: str, category: str) -> None:
    settings = getattr(transformers, kind)()
    settings.save_pretrained(tmp_path)
    assert_refused(ArchitectureError, tmp_path, settings.model_type, category, "Supported: BERT")


def test_bert_configured_as_decoder_is_refused(folder: Path) -> None:
    change_config(folder, is_decoder=True)
    assert_refused(ArchitectureError, folder, "set up as a decoder")


def build_like(kind: str, folder: Path, **settings: Any) -> None:
    """Save a tiny model of an architecture outside the test families, with BERT's tokenizer."""
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
        ("YosoConfig", "yoso", {"model_type": "yoso"}),
        ("TapasConfig", "TapasModel", {"model_type": "tapas", "type_vocab_sizes": [3, 4, 4, 2, 4, 4, 4]}),
    ],
)
def test_models_without_full_attention_are_refused(
    tmp_path: Path, kind: str, name: str, settings: dict[str, Any]
) -> None:
    build_like(kind, tmp_path, **settings)
    with pytest.raises(ArchitectureError, match=name):
        bert_probe.load(tmp_path)


def test_model_with_uncaptured_attention_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unseen(_mask: object, _bias: object) -> torch.Tensor:
        return torch.linspace(0, 3, 21)[None, None, None]

    assert len(bert_probe.load(folder).encode(checks.CHECK_TEXT)) == 21
    monkeypatch.setattr(capture, "_with_bias", unseen)
    assert_refused(ArchitectureError, folder, "BertModel changes its attention", "layer 1 is off by")


@pytest.mark.parametrize(
    ("dtype", "share"), [("float64", 1e-10), ("float32", 1e-3), ("float16", 0.05), ("bfloat16", 0.3)]
)
def test_small_change_of_attention_is_detected(
    dtype: str, share: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert_probe.load(folder, dtype=dtype)
    attend: Any = sdpa_attention_forward

    def changed(*args: Any, **options: Any) -> tuple[torch.Tensor, None]:
        output, _ = attend(*args, **options)
        return output * (1 + share), None

    monkeypatch.setattr(capture, "sdpa_attention_forward", changed)
    with pytest.raises(ArchitectureError, match="changes its attention"):
        bert_probe.load(folder, dtype=dtype)


@pytest.mark.parametrize("name", prove_unless({*REPRESENTATIVE, "mobilebert"}, sorted(FAMILIES)))
def test_rounding_is_within_tolerance_in_every_dtype(name: str, family_folder: Callable[[str], Path]) -> None:
    for dtype in checks.DTYPES:
        checkpoint = bert_probe.load(family_folder(name), dtype=dtype)
        assert checkpoint.pads == (name != "mobilebert"), dtype
        for off, explained in checks.replays(checkpoint):
            assert off <= explained / 3, dtype  # with a margin for other processors


def test_model_that_depends_on_padding_is_not_padded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = bert_probe.load(folder)
    attend: Any = sdpa_attention_forward

    def by_length(module: Any, query: torch.Tensor, *args: Any, **options: Any) -> tuple[torch.Tensor, None]:
        output, _ = attend(module, query, *args, **options)
        return output * (1 + query.shape[2] * 1e-3), None

    assert checks.pads(checkpoint)
    monkeypatch.setattr(capture, "sdpa_attention_forward", by_length)
    assert not checks.pads(checkpoint)


def test_block_sparse_bigbird_is_refused(tmp_path: Path) -> None:
    build_like("BigBirdConfig", tmp_path, model_type="big_bird", block_size=8, num_random_blocks=1)
    with pytest.raises(ArchitectureError, match="BigBirdModel"):
        bert_probe.load(tmp_path)


def test_model_that_mixes_neighbors_is_traced_without_padding(tmp_path: Path) -> None:
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
    assert_refused(ArchitectureError, folder, "evil", "not a text encoder of transformers")
    # For a known architecture, transformers' code runs and not the folder's.
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


def test_refusal_lists_tested_families() -> None:
    plain = SUPPORTED.lower().replace("-", "").replace("_", "")
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
