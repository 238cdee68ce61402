"""Test architecture checks: models whose attention cannot be recorded are refused by name."""

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.qwen3 import modeling_qwen3

import bert_probe
from bert_probe.errors import ArchitectureError, TokenizerError
from bert_probe.model import capture, checks
from bert_probe.model.config import _NATIVE_CODE_TYPES, SUPPORTED
from bert_probe.model.from_model import keep_float64
from tests.helpers.exactness import assert_exact
from tests.helpers.families import (
    ALL_FAMILIES,
    FAMILIES,
    LONG,
    PAIR,
    TEXT,
    build,
    config,
    randomize,
    save_tokenizer,
)
from tests.helpers.folders import assert_refused, change_config
from tests.helpers.gate import prove_unless
from tests.helpers.raw import Raw


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "vit", "hidden_size": 32}, "(vit) is not a text model. Supported: encoders"),
        ({"model_type": "clip_vision_model"}, "(clip_vision_model) is not a text model. Supported: encoders"),
        (
            {"model_type": "evil"},
            f"(evil) is not a model type of transformers {transformers.__version__}. Supported: encoders",
        ),
        ({"model_type": "rwkv"}, "(rwkv) needs native code, which is not downloaded. Supported: encoders"),
    ],
)
def test_other_models_are_refused(folder: Path, settings: dict[str, Any], message: str) -> None:
    (folder / "config.json").write_text(json.dumps(settings))
    assert_refused(ArchitectureError, folder, message)


def test_bert_configured_as_decoder_is_causal(folder: Path) -> None:
    assert not bert_probe.load(folder).description.is_causal
    change_config(folder, is_decoder=True)
    checkpoint = bert_probe.load(folder)
    assert checkpoint.description.is_causal
    assert not np.triu(checkpoint.trace(TEXT).attention(0), k=1).any()


def test_missing_causal_mask_is_detected(
    family_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_is_causal", lambda *_: False)
    assert_refused(ArchitectureError, family_folder("qwen3"), "Qwen3Model changes its attention", "layer 1")


def test_model_with_a_step_that_the_fused_kernel_leaves_out_runs_its_own_code(
    family_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = modeling_qwen3.eager_attention_forward

    def with_another_step(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output, weights = eager(*args, **options)
        return output * 1.5, weights

    monkeypatch.setattr(modeling_qwen3, "eager_attention_forward", with_another_step)
    checkpoint = bert_probe.load(family_folder("qwen3"), dtype="float64")
    assert checkpoint.description.is_eager
    assert checkpoint.description.is_causal
    assert checkpoint.description.notes == ()
    keep_float64(checkpoint.model)
    trace = checkpoint.trace(TEXT)
    Raw(family_folder("qwen3"), "float64").numbers(trace.encoding).check(trace)


def test_every_model_type_that_loads_native_code_is_refused() -> None:
    models = Path(transformers.__file__).parent / "models"
    loaders = ("load_cuda_kernels", "cpp_extension", "lazy_load_kernel", "get_kernel(")
    sources = {file.parent.name: file.read_text() for file in models.glob("*/modeling_*.py")}
    native = {name for name, source in sources.items() if any(loader in source for loader in loaders)}
    assert native
    assert native <= _NATIVE_CODE_TYPES


def build_like(kind: str, folder: Path, **settings: Any) -> None:
    """Save a tiny model of an architecture that is not a test family, with BERT's tokenizer."""
    torch.manual_seed(0)
    model = AutoModel.from_config(getattr(transformers, kind)(**config("bert").to_dict() | settings))
    randomize(model)
    model.save_pretrained(folder)
    save_tokenizer("bert", folder)


@pytest.mark.parametrize(
    ("kind", "cause", "settings"),
    [
        ("FNetConfig", "Fourier", {"model_type": "fnet"}),
        ("YosoConfig", "yoso", {"model_type": "yoso"}),
        (
            "TapasConfig",
            "TAPAS reads tables",
            {"model_type": "tapas", "type_vocab_sizes": [3, 4, 4, 2, 4, 4, 4]},
        ),
    ],
)
def test_models_without_full_attention_are_refused(
    tmp_path: Path, kind: str, cause: str, settings: dict[str, Any]
) -> None:
    build_like(kind, tmp_path, **settings)
    with pytest.raises(ArchitectureError, match=cause):
        bert_probe.load(tmp_path)


def test_model_type_with_several_classes_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "funnel"}')
    assert_refused(ArchitectureError, folder, "cannot be shown: Funnel merges adjacent tokens")


def test_model_with_uncaptured_attention_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unseen(_mask: object, _bias: object) -> torch.Tensor:
        return torch.linspace(0, 3, 21)[None, None, None]

    assert len(bert_probe.load(folder).encode(checks.CHECK_TEXT)) == 21
    monkeypatch.setattr(capture, "_with_bias", unseen)
    assert_refused(ArchitectureError, folder, "BertModel changes its attention", "layer 1 is off by")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("dtype", "share"), [("float64", 1e-10), ("float32", 1e-3), ("float16", 0.02), ("bfloat16", 0.12)]
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


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", prove_unless({"bert", "modernbert", "mobilebert"}, sorted(ALL_FAMILIES)))
def test_rounding_is_within_tolerance_in_every_dtype(name: str, family_folder: Callable[[str], Path]) -> None:
    for dtype in checks.DTYPES:
        checkpoint = bert_probe.load(family_folder(name), dtype=dtype)
        assert checkpoint.pads == (name not in {"convbert", "mobilebert"}), dtype
        for off, explained in checks.replays(checkpoint):
            assert off <= explained / 3, dtype  # the factor 3 is a margin for other processors


def test_model_that_depends_on_padding_is_not_padded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = bert_probe.load(folder)
    attend: Any = sdpa_attention_forward

    def by_length(module: Any, query: torch.Tensor, *args: Any, **options: Any) -> tuple[torch.Tensor, None]:
        output, _ = attend(module, query, *args, **options)
        return output * (1 + query.shape[2] * 1e-3), None

    assert checks.pads(checkpoint)
    monkeypatch.setattr(capture, "sdpa_attention_forward", by_length)
    assert not checks.pads(checkpoint)


def test_block_sparse_bigbird_opens_up_to_its_block_limit(tmp_path: Path) -> None:
    build_like("BigBirdConfig", tmp_path, model_type="big_bird", block_size=8, num_random_blocks=1)
    checkpoint = bert_probe.load(tmp_path)
    # For up to (5 + 2 · random blocks) · block size = 56 tokens, transformers computes full attention.
    assert checkpoint.description.max_tokens == 56
    assert any("block" in note for note in checkpoint.description.notes)


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
    assert_refused(ArchitectureError, folder, "(evil) is not a model type of transformers")
    # For a known architecture, the code of transformers is used instead of the code in the folder.
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


@pytest.mark.parametrize("rope_type", ["longrope", "dynamic"])
def test_rotary_frequencies_do_not_depend_on_other_texts(rope_type: str, tmp_path: Path) -> None:
    rope: dict[str, Any] = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0}
    if rope_type == "longrope":
        rope |= {"original_max_position_embeddings": 30, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    build("llama", tmp_path, rope_parameters=rope)
    checkpoint, raw = bert_probe.load(tmp_path, dtype="float64"), Raw(tmp_path, "float64")
    assert checkpoint.pads == (rope_type == "dynamic")
    keep_float64(checkpoint.model)
    traces = checkpoint.traces([PAIR, LONG * 3, TEXT], truncate=True)
    assert len(traces[0].tokens) < 30 < len(traces[1].tokens) == checkpoint.description.max_tokens
    for trace in traces:
        assert_exact(trace.vectors(-1), raw.run(trace.encoding).last_hidden_state[0].numpy())


def test_types_of_rotary_positions_by_layer_type(tmp_path: Path) -> None:
    """ModernBERT has rotary positions of its own for each type of layers."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 30}
    rope |= {"factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    local = {"rope_type": "default", "rope_theta": 1e4}
    build("modernbert", tmp_path, rope_parameters={"full_attention": rope, "sliding_attention": local})
    assert not bert_probe.load(tmp_path).pads


def test_model_that_a_forward_pass_changes_runs_in_one_thread_at_a_time(tmp_path: Path) -> None:
    """transformers replaces the frequencies of LongRoPE during each forward pass."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0}
    limits = {"rope_theta": 1e4, "original_max_position_embeddings": 20}
    build("llama", tmp_path, rope_parameters={"rope_type": "longrope", **limits, **factors})
    checkpoint = bert_probe.load(tmp_path)
    texts = ("a boat", "a boat " * 30)
    expected = [checkpoint.trace(text).vectors(-1) for text in texts]
    with ThreadPoolExecutor(1) as pool:
        with checkpoint.running(), checkpoint.running():
            waiting = pool.submit(checkpoint.trace, texts[1])
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            assert np.array_equal(checkpoint.trace(texts[0]).vectors(-1), expected[0])
        assert np.array_equal(waiting.result(30).vectors(-1), expected[1])


def test_attention_that_a_mask_would_hide_is_not_recorded(tmp_path: Path) -> None:
    """In the fused kernel Splinter would be causal; with small weights, the output hardly differs."""
    build("splinter", tmp_path)
    torch.manual_seed(3)
    settings = transformers.AutoConfig.from_pretrained(tmp_path, attn_implementation="eager")
    model = transformers.SplinterModel(settings).eval()
    model.save_pretrained(tmp_path)
    trace = bert_probe.load(tmp_path).trace(TEXT)
    with torch.no_grad():
        raw = model(torch.tensor([trace.encoding.ids]), output_attentions=True)
    assert not trace.is_causal
    np.testing.assert_allclose(trace.attention(0), raw.attentions[0][0].numpy(), rtol=0, atol=1e-6)
