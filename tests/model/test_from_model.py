"""Test models in memory: parity with the raw model, errors, and computation in float64."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import bert_probe
from bert_probe.errors import ArchitectureError, TokenizerError, WeightsError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import Float64Mode, digest, keep_float64
from tests.helpers.families import (
    ALL_FAMILIES,
    PAIR,
    REPRESENTATIVE,
    SENTENCES,
    TEXT,
    build,
    config,
    model_class,
    representative,
    save_tokenizer,
)
from tests.helpers.gate import prove_unless
from tests.helpers.in_memory import Folders, assert_unchanged, load_for_training, tokenizer_of, train_step
from tests.helpers.raw import Raw

NAMES = sorted(ALL_FAMILIES)

IMPLEMENTATIONS = (None, "eager", "sdpa")

STACKS = {"t5": "T5Stack", "mt5": "MT5Stack", "umt5": "UMT5Stack"}
ENCODER_DECODERS = {*STACKS, "t5gemma", "bart"}


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", representative(NAMES))
def test_wrapped_model_equals_raw_model(name: str, family_folder: Folders) -> None:
    folder = family_folder(name)
    model = load_for_training(folder, dtype="float64")
    # Only the encoder of an encoder-decoder is run, without the forward method of the complete model.
    keep_float64(model.get_encoder() if name in ENCODER_DECODERS else model)
    wrapped = bert_probe.wrap(model, tokenizer_of(folder))
    raw = Raw(folder, "float64")
    for trace in [wrapped.trace(TEXT, PAIR), *wrapped.traces([SENTENCES[0], (SENTENCES[2], PAIR), "the"])]:
        raw.numbers(trace.encoding).check(trace)


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(
    ("name", "implementation"),
    prove_unless(
        lambda case: case[0] == "bert" or (case[0] in REPRESENTATIVE and case[1] is None),
        product(NAMES, IMPLEMENTATIONS),
    ),
)
def test_wrapped_model_equals_the_loaded_model(
    name: str, implementation: str | None, family_folder: Folders, family: Callable[[str], Checkpoint]
) -> None:
    loaded, folder = family(name), family_folder(name)
    if implementation == "sdpa" and not model_class(config(name))._supports_sdpa:
        pytest.skip("transformers itself refuses this")
    model = load_for_training(folder, implementation)
    model.requires_grad_(True)
    checkpoints: list[Checkpoint] = []
    assert_unchanged(model, lambda: checkpoints.append(bert_probe.wrap(model, tokenizer_of(folder))))
    (wrapped,) = checkpoints
    ours, theirs = wrapped.description, loaded.description
    # The encoder of T5Model is a T5Stack, whereas `load` uses T5EncoderModel, which contains only this stack.
    assert ours.architecture == STACKS.get(name, theirs.architecture)
    for same in ("layers", "heads", "max_tokens", "parameter_count", "shows_qkv", "notes"):
        assert getattr(ours, same) == getattr(theirs, same), same
    assert (ours.origin, ours.revision) == ("in memory", None)
    assert wrapped.pads == loaded.pads
    assert [projection is None for projection in wrapped.projections] == [
        projection is None for projection in loaded.projections
    ]
    a, b = loaded.trace(TEXT, PAIR), wrapped.trace(TEXT, PAIR)
    np.testing.assert_array_equal(b.hidden_states, a.hidden_states)
    for layer in range(a.layers):
        np.testing.assert_array_equal(b.attention(layer), a.attention(layer))
    # The forward passes must not leave tensors that prevent training.
    train_step(model, b.encoding)
    assert wrapped.trace(TEXT, PAIR).provenance["weights_sha256"] != b.provenance["weights_sha256"]


def test_model_with_head_has_encoder_and_head(tokenizer: Any) -> None:
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config("bert", num_labels=3)).train()
    wrapped = bert_probe.wrap(model, tokenizer)
    description = wrapped.description
    assert description.architecture == "BertModel"
    assert description.name == "BertForSequenceClassification"
    assert description.notes == ()
    assert wrapped.tasks == ("text-classification",)
    assert description.weights_sha256 == digest(model.bert)
    checkpoints = []
    assert_unchanged(model, lambda: checkpoints.append(wrapped.trace(TEXT)))
    assert checkpoints[0].pooler is not None
    bare = bert_probe.wrap(model.bert, tokenizer)
    assert bare.description.notes == ()
    np.testing.assert_array_equal(bare.trace(TEXT).hidden_states, checkpoints[0].hidden_states)
    with torch.no_grad():
        model.classifier.weight.add_(1)
    now = wrapped.description
    assert now.weights_sha256 == description.weights_sha256, "the digest excludes the head"
    assert now.outputs_sha256 != description.outputs_sha256 != ""


@pytest.mark.parametrize("kind", [int, str])
def test_labels_are_in_the_order_of_their_indices(kind: type, tokenizer: Any) -> None:
    names = {kind(index): f"label {index}" for index in sorted(range(12), key=str)}
    assert [*map(str, names)] == ["0", "1", "10", "11", *"23456789"], "as in a file with sorted keys"
    model = transformers.BertForSequenceClassification(config("bert", num_labels=12)).eval()
    model.config.id2label = names
    result = bert_probe.ClassifyText().of(bert_probe.wrap(model, tokenizer).trace(TEXT))
    with torch.no_grad():
        logits = model(**tokenizer(TEXT, return_tensors="pt")).logits[0]
    assert result.table()["label"].tolist() == [f"label {index}" for index in logits.argsort(descending=True)]
    names.pop(kind(2))
    with pytest.raises(
        ArchitectureError, match=r"consecutively from 0, but has the keys 0, 1, 10 and 8 more"
    ):
        bert_probe.wrap(model, tokenizer)


def test_name_comes_from_the_config(bert: Any, tokenizer: Any) -> None:
    assert bert_probe.wrap(bert, tokenizer).description.name == bert.config.name_or_path != ""


def test_python_snippet_wraps_and_shell_snippet_explains(bert: Any, tokenizer: Any) -> None:
    result = bert_probe.Attention(1, 2).of(bert_probe.wrap(bert, tokenizer).trace(TEXT))
    *lines, last = result.python.splitlines()
    names: dict[str, Any] = {"model": bert, "tokenizer": tokenizer}
    exec("\n".join(lines), names)
    again = eval(last, names)
    np.testing.assert_array_equal(again.to_numpy(), result.table().to_numpy())
    assert again.attrs["provenance"] == result.provenance
    assert result.provenance["origin"] == "in memory"
    assert result.shell.startswith("#")


def mixed(model: Any) -> Any:
    model.pooler.double()
    return model


def broken(model: Any) -> Any:
    model.pooler.dense.bias.data[0] = torch.nan
    return model


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda model: torch.nn.DataParallel(model), ArchitectureError, "DataParallel is not a transf"),
        (lambda _: "bert-base-uncased", ArchitectureError, "str is not a transformers model"),
        (mixed, WeightsError, "more than one dtype: float32, float64"),
        (broken, WeightsError, "not finite"),
        (lambda model: model.to("meta"), WeightsError, "the device meta"),
    ],
)
def test_unsupported_model_is_refused(
    make: Callable[[Any], Any], error: type[Exception], message: str, bert: Any, tokenizer: Any
) -> None:
    with pytest.raises(error, match=message) as caught:
        bert_probe.wrap(make(bert), tokenizer)
    assert type(caught.value) is error
    assert str(caught.value).endswith(".")


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt2", "GPT2LMHeadModel"),
        ("t5", "T5ForConditionalGeneration"),
        ("bart", "BartForConditionalGeneration"),
        ("qwen3", "Qwen3ForCausalLM"),
    ],
)
def test_text_encoder_of_a_generating_model_is_used(
    name: str, kind: str, family_folder: Callable[[str], Path]
) -> None:
    folder = family_folder(name)
    model = getattr(transformers, kind).from_pretrained(folder)
    used_cache = model.config.use_cache
    wrapped, loaded = bert_probe.wrap(model, tokenizer_of(folder)), bert_probe.load(folder)
    np.testing.assert_allclose(
        wrapped.trace(TEXT).hidden_states, loaded.trace(TEXT).hidden_states, rtol=0, atol=1e-5
    )
    assert wrapped.description.is_causal == loaded.description.is_causal == (name in {"gpt2", "qwen3"})
    assert model.config.use_cache == used_cache


def test_notes_about_unused_parts_equal_those_of_the_saved_model(tmp_path: Path) -> None:
    text = config("clip_text_model")
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 32}
    clip = transformers.CLIPModel(transformers.CLIPConfig(text_config=text.to_dict(), vision_config=vision))
    classifier = transformers.BartForSequenceClassification(config("bart"))
    head = "The encoder does not use some of the weights, for example those of a task head: "
    for model, name, part, unused in (
        (clip, "clip_text_model", "vision model", "text_projection.weight"),
        (classifier, "bart", "decoder", "classification_head.dense.bias"),
    ):
        folder = tmp_path / name
        model.save_pretrained(folder)
        save_tokenizer(name, folder)
        notes = bert_probe.wrap(model.eval(), tokenizer_of(folder)).description.notes
        assert notes == bert_probe.load(folder).description.notes
        assert notes[0] == f"Only the text encoder of this model is used, not its {part}."
        assert notes[1].startswith(head + unused)


def test_slow_tokenizer_is_refused(bert: Any) -> None:
    with pytest.raises(TokenizerError, match="does not report character positions"):
        bert_probe.wrap(bert, object())


def test_tokenizer_is_copied(tmp_path: Path) -> None:
    build("bert", tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    wrapped = bert_probe.wrap(load_for_training(tmp_path), tokenizer)
    tokenizer.backend_tokenizer.enable_truncation(3)
    assert len(wrapped.trace(TEXT).tokens) > 3
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 3


# ---------------------------------------------------------------- float64

THIRD = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
"""Values that float32 cannot represent exactly."""


class Rounding(torch.nn.Module):
    """A module that rounds to float32, as models written for half precision do."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Compute a softmax in float32."""
        return torch.nn.functional.softmax(values.float(), dim=-1, dtype=torch.float32)


def test_float64_is_not_rounded_internally() -> None:
    with Float64Mode():
        assert THIRD.float() is THIRD
        assert THIRD.to(torch.float32) is THIRD
        assert torch.nn.functional.softmax(THIRD, dim=-1, dtype=torch.float32).dtype == torch.float64
        assert THIRD.to(torch.float16).dtype == torch.float16, "explicit casts are kept"
    assert THIRD.float().dtype == torch.float32, "unchanged outside the context"


def test_float32_is_not_affected() -> None:
    half, single = torch.tensor([0.25, 0.5], dtype=torch.float16), torch.tensor([0.25, 0.5])
    with Float64Mode():
        assert half.float().dtype == torch.float32
        assert single.to(torch.float64).dtype == torch.float64
        assert torch.nn.functional.softmax(half, dim=-1, dtype=torch.float32).dtype == torch.float32


def test_model_kept_in_float64_is_freed_without_garbage_collection() -> None:
    """The memory of a model in float64 is free as soon as nothing refers to the model.

    With a reference cycle, each report or verification would leave a copy of the model in memory.
    """
    model = torch.nn.Linear(2, 2, dtype=torch.float64)
    keep_float64(model)
    model(THIRD)
    reference = weakref.ref(model)
    del model
    assert reference() is None


def test_keep_float64_prevents_rounding() -> None:
    model = Rounding()
    assert model(THIRD).dtype == torch.float32
    keep_float64(model)
    expected = THIRD.exp() / THIRD.exp().sum()
    assert model(THIRD).dtype == torch.float64
    assert torch.allclose(model(THIRD), expected, rtol=0, atol=1e-15)
    assert model(THIRD.float()).dtype == torch.float32


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_projection_with_an_adapter_is_not_used(tmp_path: Path) -> None:
    """The adapter adds to the output of the linear module, whose weight is only a part of the projection."""
    peft = pytest.importorskip("peft")
    build("bert", tmp_path)
    model = transformers.AutoModel.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    plain = bert_probe.wrap(model, tokenizer)
    assert None not in plain.projections
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["dense"])).get_base_model()
    assert {*bert_probe.wrap(adapted.eval(), tokenizer).projections} == {None}
