"""Test task heads: parity with the complete model in one forward pass, and missing heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import bert_probe
from bert_probe.errors import UnavailableError
from bert_probe.model import checks
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import batch
from bert_probe.model.from_model import keep_float64
from bert_probe.model.outputs import no_task_message, output_head
from tests.helpers import trained
from tests.helpers.exactness import EXACT, assert_exact, expect_raw, largest
from tests.helpers.families import PAIR, TEXT, config, save_tokenizer
from tests.helpers.folders import change_config, change_weights
from tests.helpers.gate import prove_unless
from tests.helpers.in_memory import assert_unchanged, tokenizer_of

Folders = Callable[[str, str], Path]
Trained = Callable[[str, str], Checkpoint]

EVERY = [(name, task) for task in trained.CLASSES for name in trained.families_with_head(task)]


def complete_model(name: str, task: str, folder: Path, dtype: str = "float64") -> Any:
    """Load the raw transformers model of a family, with the head of a task and eager attention."""
    model_class = trained.model_class(name, task)
    model = model_class.from_pretrained(
        folder, attn_implementation="eager", dtype=getattr(torch, dtype)
    ).eval()
    if dtype == "float64":
        keep_float64(model)
    return model


def logits(model: Any, task: str, encoding: Any) -> np.ndarray:
    """Return the model's logits for a text; in question answering, start and end logits are stacked."""
    with torch.inference_mode():
        output = model(**{name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()})
    if task == "question-answering":
        return np.stack([output.start_logits[0].numpy(), output.end_logits[0].numpy()], axis=-1)
    expected: np.ndarray = output.logits[0].numpy()
    return expected


@pytest.mark.parametrize(("name", "task"), prove_unless(trained.one_task_each(EVERY), EVERY))
def test_head_equals_the_complete_model(
    name: str, task: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    folder, checkpoint = trained_folder(name, task), double_trained_on(name, task)
    assert checkpoint.tasks == (task,)
    assert not [note for note in checkpoint.description.notes if "does not use" in note]
    trace = checkpoint.trace(TEXT, PAIR)
    expected = logits(complete_model(name, task, folder), task, trace.encoding)
    assert_exact(output_head(checkpoint, task).logits(trace), expected)
    if task == "fill-mask":
        some = [3, 1, 7]
        assert_exact(output_head(checkpoint, task).logits(trace, some), expected[some])
    assert_exact(output_head(checkpoint, task).logits_alone(checkpoint, trace.encoding), expected)


def test_head_that_reads_padding_is_not_used(tmp_path: Path) -> None:
    """XLNet's head reads the last position, which is padding in a batch with longer texts."""
    torch.manual_seed(0)
    save_tokenizer("bert", tmp_path)
    for kind, tasks in (("last", ()), ("first", ("text-classification",))):
        settings = transformers.XLNetConfig(
            vocab_size=120, d_model=32, n_layer=1, n_head=4, d_inner=64, summary_type=kind
        )
        transformers.XLNetForSequenceClassification(settings).save_pretrained(tmp_path)
        checkpoint = bert_probe.load(tmp_path)
        assert checkpoint.tasks == tasks
        is_noted = any("it reads the padding after a text" in note for note in checkpoint.description.notes)
        assert is_noted is not bool(tasks)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("padding", [0, None])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("qwen3", "Qwen3ForSequenceClassification"), ("gpt2", "GPT2ForSequenceClassification")],
)
def test_head_of_a_decoder_equals_the_complete_model(
    name: str, kind: str, padding: int | None, tmp_path: Path
) -> None:
    """These heads read the last token of a text, and return more than the logits."""
    torch.manual_seed(0)
    settings = config(name)
    settings.num_labels, settings.pad_token_id = 3, padding
    save_tokenizer(name, tmp_path)
    getattr(transformers, kind)(settings).save_pretrained(tmp_path)
    change_config(tmp_path, pad_token_id=padding)
    checkpoint = bert_probe.load(tmp_path, dtype="float64")
    keep_float64(checkpoint.model)
    model = getattr(transformers, kind).from_pretrained(tmp_path, dtype=torch.float64).eval()
    keep_float64(model)
    traces = [checkpoint.trace(text) for text in (TEXT, "a boat", "the river")]
    expected = [logits(model, "text-classification", trace.encoding) for trace in traces]
    head = output_head(checkpoint, "text-classification")
    for trace, values in zip(traces, expected, strict=True):
        assert_exact(head.logits(trace), values)
    inputs = batch(checkpoint, [trace.encoding for trace in traces])
    with torch.inference_mode():
        states = checkpoint.model(**inputs).last_hidden_state
        assert_exact(head.answer(inputs, states, None).numpy(), np.stack(expected))


def test_head_in_float32_equals_the_complete_model(trained_on: Trained, trained_folder: Folders) -> None:
    folder = trained_folder("bert", "fill-mask")
    trace = trained_on("bert", "fill-mask").trace(TEXT, PAIR)
    single, double = (
        logits(complete_model("bert", "fill-mask", folder, dtype), "fill-mask", trace.encoding)
        for dtype in ("float32", "float64")
    )
    expect_raw(single, double).check(trained_on("bert", "fill-mask").outputs["fill-mask"].logits(trace))


def test_head_of_bert_tiny_equals_complete_model() -> None:
    folder = trained.bert_tiny()
    checkpoint = bert_probe.load(folder)
    assert checkpoint.tasks == ("fill-mask",)
    trace = checkpoint.trace("Paris is the [MASK] of France.")
    single, double = (
        logits(
            transformers.BertForMaskedLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval(),
            "fill-mask",
            trace.encoding,
        )
        for dtype in ("float32", "float64")
    )
    expect_raw(single, double).check(checkpoint.outputs["fill-mask"].logits(trace))


def test_one_pass_serves_vectors_and_answer(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "text-classification")
    passes = []
    hook = checkpoint.model.register_forward_hook(lambda *_: passes.append(1))
    try:
        trace = checkpoint.trace(TEXT)
        checkpoint.outputs["text-classification"].logits(trace)
    finally:
        hook.remove()
    assert passes == [1]


def test_tied_embeddings_share_a_tensor(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    head = checkpoint.outputs["fill-mask"].model
    words = checkpoint.model.embeddings.word_embeddings.weight
    assert head.cls.predictions.decoder.weight is words
    assert head.bert is checkpoint.model


def test_pre_training_model_has_both_heads(tmp_path: Path) -> None:
    trained.build("bert", "fill-mask", tmp_path, head_class=transformers.BertForPreTraining)
    checkpoint = bert_probe.load(tmp_path, dtype="float64")
    assert checkpoint.tasks == ("fill-mask", "next-sentence-prediction")
    assert checkpoint.description.has_pooler
    assert checkpoint.description.notes == ()
    model = transformers.BertForPreTraining.from_pretrained(tmp_path, dtype=torch.float64).eval()
    trace = checkpoint.trace(TEXT, PAIR)
    with torch.inference_mode():
        output = model(**{name: torch.tensor(ids)[None] for name, ids in trace.encoding.inputs.items()})
    assert_exact(checkpoint.outputs["fill-mask"].logits(trace), output.prediction_logits[0].numpy())
    actual = checkpoint.outputs["next-sentence-prediction"].logits(trace)
    assert_exact(actual, output.seq_relationship_logits[0].numpy())


def test_untied_output_embeddings_come_from_the_weights(tmp_path: Path) -> None:
    trained.build("bert", "fill-mask", tmp_path, tie_word_embeddings=False)
    checkpoint = bert_probe.load(tmp_path, dtype="float64")
    trace = checkpoint.trace(TEXT)
    expected = logits(complete_model("bert", "fill-mask", tmp_path), "fill-mask", trace.encoding)
    assert_exact(checkpoint.outputs["fill-mask"].logits(trace), expected)
    decoder = checkpoint.outputs["fill-mask"].model.cls.predictions.decoder.weight
    assert not torch.equal(decoder, checkpoint.model.embeddings.word_embeddings.weight)


def test_head_without_weights_is_not_initialized(family: Any, minilm: Checkpoint) -> None:
    assert family("bert").tasks == ()
    with pytest.raises(UnavailableError, match="no trained head for fill-mask"):
        output_head(family("bert"), "fill-mask")
    with pytest.raises(UnavailableError, match="It has a task head for sentence-similarity"):
        output_head(minilm, "fill-mask")


def test_missing_head_weights_are_noted(tmp_path: Path) -> None:
    trained.build("bert", "text-classification", tmp_path)
    change_weights(tmp_path, lambda tensors: {k: v for k, v in tensors.items() if k != "classifier.bias"})
    checkpoint = bert_probe.load(tmp_path)
    assert checkpoint.tasks == ()
    assert checkpoint.description.notes == (
        "The encoder does not use some of the weights, for example those of a task head: classifier.weight.",
        "config.json names BertForSequenceClassification, but the head for text-classification cannot be "
        "loaded: the weights lack classifier.bias.",
    )


def test_heads_with_equal_weight_names_are_identified_by_config(tmp_path: Path) -> None:
    trained.build("bert", "token-classification", tmp_path)
    assert bert_probe.load(tmp_path).tasks == ("token-classification",)
    change_config(tmp_path, architectures=None)
    checkpoint = bert_probe.load(tmp_path)
    assert checkpoint.tasks == ()
    assert "classifier.bias" in checkpoint.description.notes[-1]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", ["mt5", "t5", "umt5"])
def test_only_heads_for_tokens_of_encoder_decoders_are_loaded(name: str, tmp_path: Path) -> None:
    trained.build(name, "token-classification", tmp_path / "tokens")
    checkpoint = bert_probe.load(tmp_path / "tokens", dtype="float64")
    keep_float64(checkpoint.model)
    assert checkpoint.tasks == ("token-classification",)
    assert checkpoint.description.notes == ()
    trace = checkpoint.trace(TEXT)
    expected = logits(
        complete_model(name, "token-classification", tmp_path / "tokens"),
        "token-classification",
        trace.encoding,
    )
    assert_exact(checkpoint.outputs["token-classification"].logits(trace), expected)
    trace = bert_probe.load(tmp_path / "tokens").trace(TEXT)
    for method in ("integrated-gradients", "attention-gradient"):
        assert len(bert_probe.Attribution(method=method, at=1).of(trace).table())
    trained.build(name, "text-classification", tmp_path / "texts")
    assert bert_probe.load(tmp_path / "texts").tasks == ()


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {str(i): f"L{i}" for i in range(10_001)}}, "more than 10,000 labels"),
        ({"id2label": None, "num_labels": 10**12}, "more than 10,000 labels"),
        ({"id2label": {"0": "a", "2": "b"}}, "must number the labels consecutively from 0"),
        ({"id2label": {"0": ["a"]}}, "must map indices to label names"),
        ({"id2label": "abc"}, "must map indices to label names"),
        ({"id2label": {"0": "x" * 1_001}}, "A label in config.json has 1,001 characters; at most 1,000"),
        ({"id2label": None, "num_labels": -5}, "num_labels in config.json is -5, but must be a whole number"),
        ({"id2label": None, "num_labels": "3"}, "num_labels in config.json is 3, but must be a whole number"),
        ({"problem_type": "guessing"}, "problem_type 'guessing'"),
        ({"id2label": {"0": "a", "1": "b"}}, "the shapes of the weights do not match the config: classifier"),
    ],
)
def test_inconsistent_config_disables_only_the_head(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    trained.build("bert", "text-classification", tmp_path)
    change_config(tmp_path, **changes)
    checkpoint = bert_probe.load(tmp_path)
    assert checkpoint.tasks == ()
    assert message in checkpoint.description.notes[-1]
    assert checkpoint.trace(TEXT).layers == 3


def test_head_with_infinite_weights_is_not_used(tmp_path: Path) -> None:
    trained.build("bert", "text-classification", tmp_path)

    def broken(tensors: Any) -> Any:
        tensors["classifier.bias"][1] = torch.nan
        return tensors

    change_weights(tmp_path, broken)
    checkpoint = bert_probe.load(tmp_path)
    assert checkpoint.tasks == ()
    assert "classifier.bias contain values that are not finite" in checkpoint.description.notes[-1]


def test_infinite_logits_are_refused(tmp_path: Path) -> None:
    trained.build("bert", "text-classification", tmp_path)

    def huge(tensors: Any) -> Any:
        tensors["classifier.weight"][:] = 3e38
        return tensors

    change_weights(tmp_path, huge)
    checkpoint = bert_probe.load(tmp_path)
    assert checkpoint.tasks == ()
    assert "not finite for this text" in checkpoint.description.notes[-1]


def test_head_that_needs_more_than_the_encoder_output_is_not_used(
    trained_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_head_difference", lambda *_: (0.5, 1e-4))
    checkpoint = bert_probe.load(trained_folder("bert", "question-answering"))
    assert checkpoint.tasks == ()
    assert (
        "depends on more than the encoder's output (logits computed from the output alone would be off by 0.5"
        in str(checkpoint.description.notes)
    )


def test_model_in_memory_uses_its_current_head(trained_folder: Folders) -> None:
    folder = trained_folder("bert", "text-classification")
    model = transformers.BertForSequenceClassification.from_pretrained(folder).train()
    wrapped = bert_probe.wrap(model, tokenizer_of(folder))
    assert wrapped.tasks == ("text-classification",)
    logit_arrays: list[np.ndarray] = []

    def answer() -> None:
        logit_arrays.append(wrapped.outputs["text-classification"].logits(wrapped.trace(TEXT)))

    assert_unchanged(model, answer)
    expected = bert_probe.load(folder)
    first = expected.outputs["text-classification"].logits(expected.trace(TEXT))
    np.testing.assert_allclose(logit_arrays[0], first, rtol=0, atol=1e-5 * largest(first))
    trace = wrapped.trace(TEXT)
    with torch.no_grad():
        model.classifier.bias.add_(1)
    answer()
    np.testing.assert_allclose(
        logit_arrays[1], logit_arrays[0] + 1, rtol=0, atol=1e-5 * largest(logit_arrays[1])
    )
    with pytest.raises(UnavailableError, match="its weights differ"):
        trace.checkpoint.outputs["text-classification"].logits(trace)
    model.classifier = torch.nn.Linear(32, 5)
    answer()
    assert not np.allclose(logit_arrays[2], logit_arrays[1])


def test_in_memory_pre_training_model_has_both_heads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_tokenizer("bert", tmp_path)
    model = transformers.BertForPreTraining(config("bert")).eval().double()
    wrapped = bert_probe.wrap(model, tokenizer_of(tmp_path))
    assert wrapped.tasks == ("fill-mask", "next-sentence-prediction")
    trace = wrapped.trace(TEXT, PAIR)
    with torch.inference_mode():
        output = model(**{name: torch.tensor(ids)[None] for name, ids in trace.encoding.inputs.items()})
    actual = wrapped.outputs["next-sentence-prediction"].logits(trace)
    assert np.abs(actual - output.seq_relationship_logits[0].numpy()).max() <= EXACT


class WantsMore(transformers.BertForSequenceClassification):  # type: ignore[misc]
    """A model whose task head requires an input in addition to the text."""

    def forward(self, more: torch.Tensor, **inputs: Any) -> Any:
        """Fail unless the additional input is passed."""
        return super().forward(**inputs, inputs_embeds=more)


def test_head_in_memory_that_fails_is_not_used(trained_folder: Folders) -> None:
    folder = trained_folder("bert", "text-classification")
    wrapped = bert_probe.wrap(WantsMore.from_pretrained(folder), tokenizer_of(folder))
    assert wrapped.tasks == ()
    assert "The head for text-classification is not used" in wrapped.description.notes[0]
    assert wrapped.trace(TEXT).layers == 3


def test_head_that_reads_more_than_vectors_is_named_in_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, **inputs: Any) -> Any:
        return self.model(**inputs).router_logits

    monkeypatch.setattr(transformers.Qwen3ForSequenceClassification, "forward", forward)
    torch.manual_seed(0)
    model = transformers.Qwen3ForSequenceClassification(config("qwen3", pad_token_id=0))
    model.save_pretrained(tmp_path)
    save_tokenizer("qwen3", tmp_path)
    checkpoint = bert_probe.load(tmp_path)
    note = "The head for text-classification is not used: it reads router_logits of the encoder's output, "
    note += "but only the vectors are available."
    assert checkpoint.description.notes[-1] == note
    with pytest.raises(UnavailableError) as caught:
        output_head(checkpoint, "text-classification")
    message = f"{tmp_path} has no usable head for text-classification. {note} Open another checkpoint."
    assert str(caught.value) == message
    assert no_task_message(checkpoint) == (
        f"{tmp_path} has no usable task head. {note} Use a model that was fine-tuned for a task."
    )
    with pytest.raises(UnavailableError, match="has no trained head for fill-mask"):
        output_head(checkpoint, "fill-mask")


def test_label_names_are_part_of_the_digest(tmp_path: Path) -> None:
    trained.build("bert", "text-classification", tmp_path)
    before = bert_probe.load(tmp_path)
    assert bert_probe.load(tmp_path).description == before.description
    change_config(tmp_path, id2label={str(index): f"other {index}" for index in range(5)})
    after = bert_probe.load(tmp_path)
    assert after.description.weights_sha256 == before.description.weights_sha256
    assert after.description != before.description
    assert after.outputs["text-classification"].labels[0] == "other 0"


def test_half_precision_weights_compute_in_float32(tmp_path: Path) -> None:
    trained.build("bert", "fill-mask", tmp_path)
    change_weights(tmp_path, lambda tensors: {name: part.half() for name, part in tensors.items()})
    checkpoint = bert_probe.load(tmp_path)
    dtypes = {part.dtype for part in checkpoint.outputs["fill-mask"].weights.values()}
    assert dtypes == {torch.float32}
    trace = checkpoint.trace(TEXT)
    single, double = (
        logits(complete_model("bert", "fill-mask", tmp_path, dtype), "fill-mask", trace.encoding)
        for dtype in ("float32", "float64")
    )
    expect_raw(single, double).check(checkpoint.outputs["fill-mask"].logits(trace))
