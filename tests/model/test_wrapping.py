"""Models in memory: the numbers of the model itself, and the model left as it was, whatever happens."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModel, AutoTokenizer

import bert_probe
from bert_probe.errors import ArchitectureError, TokenizerError, TooLongError, UnavailableError, WeightsError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.wrapping import digest
from bert_probe.run.cache import key_of
from tests.helpers.families import FAMILIES, LONG, PAIR, SENTENCES, TEXT, build, config
from tests.helpers.raw import Raw, keep_doubles

Folders = Callable[[str], Path]
NAMES = sorted(FAMILIES)
IMPLEMENTATIONS = (None, "eager", "sdpa")


def opened(folder: Path, implementation: str | None = None, dtype: str = "float32") -> Any:
    """The model as a user has it: in the middle of its training."""
    given = {} if implementation is None else {"attn_implementation": implementation}
    return AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype), **given).train()


def tokenizer_of(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def bert(family_folder: Folders) -> Any:
    """A tiny BERT, which a test may change."""
    return opened(family_folder("bert"))


@pytest.fixture
def tokenizer(family_folder: Folders) -> Any:
    """That of the tiny BERT."""
    return tokenizer_of(family_folder("bert"))


def step(model: Any, encoding: Encoding) -> None:
    """One step of training, as people write it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = {name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()}
    output = model(**inputs)
    states = output.logits if hasattr(output, "logits") else output.last_hidden_state
    states.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")


def everything(model: Any) -> dict[str, Any]:
    """All that a user could find changed: of every module, every parameter, every config, and the dice."""
    seen: dict[str, Any] = {"dice": torch.get_rng_state().tolist(), "grad": torch.is_grad_enabled()}
    for name, module in model.named_modules():
        hooks = [dict(getattr(module, kind)) for kind in HOOKS]
        seen[f"module {name}"] = (module.training, hooks, sorted(vars(module)), module._compiled_call_impl)
        if hasattr(module, "config"):
            seen[f"config {name}"] = (id(module.config), copy.deepcopy(vars(module.config)))
    for name, part in [*model.named_parameters(), *model.named_buffers()]:
        gradient = None if part.grad is None else part.grad.tolist()
        numbers = part.detach().float().tolist()
        about = (id(part), part.requires_grad, part.dtype, part.device, part.is_inference())
        seen[f"tensor {name}"] = (about, numbers, gradient)
    return seen


def refused(error: type[Exception], act: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        act()
    return str(caught.value)


def left_alone(model: Any, act: Callable[[], Any]) -> None:
    before = everything(model)
    act()
    after = everything(model)
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert after[name] == value, name


# ---------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("name", NAMES)
def test_a_wrapped_model_gives_the_raw_models_numbers(name: str, family_folder: Folders) -> None:
    folder = family_folder(name)
    model = opened(folder, dtype="float64")
    keep_doubles(model)
    wrapped = bert_probe.wrap(model, tokenizer_of(folder))
    raw = Raw(folder, "float64")
    for trace in [wrapped.trace(TEXT, PAIR), *wrapped.traces([SENTENCES[0], (SENTENCES[2], PAIR), "the"])]:
        raw.numbers(trace.encoding).check(trace)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_wrapped_model_is_the_loaded_one(
    name: str, implementation: str | None, family_folder: Folders, family: Callable[[str], Checkpoint]
) -> None:
    loaded, folder = family(name), family_folder(name)
    if implementation == "sdpa" and not FAMILIES[name].shows_qkv:
        pytest.skip("transformers itself refuses this")
    model = opened(folder, implementation)
    model.requires_grad_(True)
    found: list[Checkpoint] = []
    left_alone(model, lambda: found.append(bert_probe.wrap(model, tokenizer_of(folder))))
    (wrapped,) = found
    ours, theirs = wrapped.description, loaded.description
    for same in ("architecture", "layers", "heads", "max_tokens", "parameter_count", "shows_qkv", "notes"):
        assert getattr(ours, same) == getattr(theirs, same), same
    assert (ours.origin, ours.revision) == ("in memory", None)
    assert wrapped.pads == loaded.pads
    assert [one is None for one in wrapped.projections] == [one is None for one in loaded.projections]
    a, b = loaded.trace(TEXT, PAIR), wrapped.trace(TEXT, PAIR)
    np.testing.assert_array_equal(b.hidden_states, a.hidden_states)
    for layer in range(a.layers):
        np.testing.assert_array_equal(b.attention(layer), a.attention(layer))
    # Nothing that the passes leave in a model may stand in the way of training it.
    step(model, b.encoding)
    assert wrapped.trace(TEXT, PAIR).provenance["weights_sha256"] != b.provenance["weights_sha256"]


def test_a_task_head_is_left_out_and_said(tokenizer: Any) -> None:
    torch.manual_seed(0)
    whole = transformers.BertForSequenceClassification(config("bert", num_labels=3)).train()
    wrapped = bert_probe.wrap(whole, tokenizer)
    about = wrapped.description
    assert about.architecture == "BertModel"
    assert about.name == "BertForSequenceClassification"
    assert about.notes == (
        "Not used by the encoder, for example because of a task head: classifier.bias, classifier.weight.",
    )
    assert about.weights_sha256 == digest(whole.bert)
    found = []
    left_alone(whole, lambda: found.append(wrapped.trace(TEXT)))
    assert found[0].pooler is not None
    bare = bert_probe.wrap(whole.bert, tokenizer)
    assert bare.description.notes == ()
    np.testing.assert_array_equal(bare.trace(TEXT).hidden_states, found[0].hidden_states)
    with torch.no_grad():
        whole.classifier.weight.add_(1)
    assert wrapped.description == about, "the head is no part of the encoder"


def test_a_name_is_the_models_own(bert: Any, tokenizer: Any) -> None:
    assert bert_probe.wrap(bert, tokenizer).description.name == bert.config.name_or_path != ""


def test_the_python_line_wraps_and_the_shell_line_says_why_not(bert: Any, tokenizer: Any) -> None:
    result = bert_probe.Attention(1, 2).of(bert_probe.wrap(bert, tokenizer).trace(TEXT))
    *lines, last = result.python.splitlines()
    names: dict[str, Any] = {"model": bert, "tokenizer": tokenizer}
    exec("\n".join(lines), names)
    again = eval(last, names)
    np.testing.assert_array_equal(again.to_numpy(), result.table().to_numpy())
    assert again.attrs["provenance"] == result.provenance
    assert result.provenance["origin"] == "in memory"
    assert result.shell.startswith("#")


# ---------------------------------------------------------------- the model is left as it was


def fails(_module: Any, _given: Any) -> None:
    raise RuntimeError("a hook of the user's own")


CALLS: dict[str, Callable[[Checkpoint], Any]] = {
    "trace": lambda one: one.trace(TEXT, PAIR),
    "a batch": lambda one: one.traces(list(SENTENCES)),
    "value norms": lambda one: bert_probe.Attention(1, 2, "value-norm").of(one.trace(TEXT)),
    "value zeroing": lambda one: bert_probe.Attention(1, "mean", "value-zeroing").of(one.trace(TEXT)),
    "steps": lambda one: bert_probe.Steps(query=1).of(one.trace(TEXT)),
    "embedding": lambda one: bert_probe.Embedding().of(one.trace(TEXT)),
    "pooler": lambda one: bert_probe.Pooler().of(one.trace(TEXT)),
    "parameters": lambda one: bert_probe.Parameters().of(one),
    "description": lambda one: one.description,
    "a text too long": lambda one: refused(TooLongError, lambda: one.trace(f"{LONG} {LONG}")),
}


IN_BERT = ("value norms", "value zeroing", "steps", "embedding", "pooler")
"""What not every family offers."""


@pytest.mark.parametrize("name", ["bert", "albert", "modernbert", "deberta-v2", "mpnet"])
@pytest.mark.parametrize("implementation", ["eager", None])
def test_every_call_leaves_it_as_it_was(
    name: str, implementation: str | None, family_folder: Folders
) -> None:
    folder = family_folder(name)
    model = opened(folder, implementation)
    for number, module in enumerate(model.modules()):
        module.training = number % 3 > 0  # each its own, as in a model that is frozen in parts
    for number, part in enumerate(model.parameters()):
        part.requires_grad_(number % 2 > 0)
    found: list[Checkpoint] = []
    left_alone(model, lambda: found.append(bert_probe.wrap(model, tokenizer_of(folder))))
    (wrapped,) = found
    for what, call in CALLS.items():
        if name == "bert" or what not in IN_BERT:
            left_alone(model, lambda call=call: call(wrapped))  # type: ignore[misc]


def test_a_failing_pass_leaves_it_as_it_was(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    handle = bert.get_submodule("encoder.layer.1.output").register_forward_pre_hook(fails)
    left_alone(bert, lambda: refused(RuntimeError, lambda: wrapped.trace(TEXT)))
    left_alone(bert, lambda: refused(ArchitectureError, lambda: bert_probe.wrap(bert, tokenizer)))
    handle.remove()
    assert wrapped.trace(TEXT).layers == 3


def test_hooks_of_the_user_run_and_stay(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    seen: list[int] = []
    bert.get_submodule("encoder.layer.1").register_forward_hook(lambda *_: seen.append(1))
    left_alone(bert, lambda: wrapped.trace(TEXT))
    assert seen == [1]


def test_dropout_is_off_while_it_runs_and_no_dice_are_thrown(bert: Any, tokenizer: Any) -> None:
    assert bert.config.hidden_dropout_prob > 0
    wrapped = bert_probe.wrap(bert, tokenizer)
    one, other = wrapped.trace(TEXT), wrapped.trace(TEXT)
    np.testing.assert_array_equal(one.hidden_states, other.hidden_states)
    with torch.no_grad():
        inputs = {name: torch.tensor(ids)[None] for name, ids in one.encoding.inputs.items()}
        assert not torch.equal(bert(**inputs)[0], bert(**inputs)[0]), "it is still in training"


def test_gradients_that_are_gathered_stay(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    encoding = wrapped.encode(TEXT)
    inputs = {name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()}
    bert(**inputs).last_hidden_state.square().mean().backward()
    assert bert.embeddings.word_embeddings.weight.grad is not None
    left_alone(bert, lambda: wrapped.trace(TEXT))


def test_settings_of_the_user_do_not_reach_our_passes(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    expected = wrapped.trace(TEXT).hidden_states
    bert.config.return_dict = False
    bert.config.output_hidden_states = True
    found = []
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        left_alone(bert, lambda: found.append(wrapped.trace(TEXT)))
    np.testing.assert_array_equal(found[0].hidden_states, expected)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_is_run_as_it_was_written(bert: Any, tokenizer: Any, in_place: bool) -> None:
    expected = bert_probe.wrap(bert, tokenizer).trace(TEXT)

    def never(*_: Any) -> Any:
        raise AssertionError("it was compiled")

    if in_place:
        bert.compile(backend=never)
    given = bert if in_place else torch.compile(bert, backend=never)
    wrapped = bert_probe.wrap(given, tokenizer)
    found = []
    left_alone(bert, lambda: found.append(wrapped.trace(TEXT)))
    np.testing.assert_array_equal(found[0].hidden_states, expected.hidden_states)


def test_threads_take_turns(tokenizer: Any) -> None:
    torch.manual_seed(0)
    whole = transformers.BertForMaskedLM(config("bert")).train()
    # One model twice, and another one that shares its config.
    other = transformers.BertModel(whole.config).train()
    checkpoints = [bert_probe.wrap(one, tokenizer) for one in (whole, whole.bert, other)]
    jobs = [(one, text) for one in checkpoints for text in SENTENCES] * 3
    expected = [one.trace(text).hidden_states for one, text in jobs]
    before, other_before = everything(whole), everything(other)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda job: job[0].trace(job[1]).hidden_states, jobs))
    for one, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, theirs)
    assert everything(whole) == before
    assert everything(other) == other_before


# ---------------------------------------------------------------- weights that change


def test_a_step_of_training_changes_numbers_and_digest(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    before = wrapped.trace(TEXT)
    kept = before.hidden_states.copy()
    step(bert, before.encoding)
    after = wrapped.trace(TEXT)
    assert before.provenance["weights_sha256"] != after.provenance["weights_sha256"] == digest(bert)
    assert not np.array_equal(after.hidden_states, before.hidden_states)
    np.testing.assert_array_equal(before.hidden_states, kept)
    np.testing.assert_array_equal(
        after.hidden_states, bert_probe.wrap(bert, tokenizer).trace(TEXT).hidden_states
    )
    assert key_of(bert_probe.Attention(), before) != key_of(bert_probe.Attention(), after)
    assert wrapped.description.weights_sha256 == digest(bert)


NEED_BOTH: dict[str, Callable[[Any], Any]] = {
    "value norms": lambda trace: bert_probe.Attention(measure="value-norm").of(trace),
    "value zeroing": lambda trace: bert_probe.Attention(measure="value-zeroing").of(trace),
    "steps": lambda trace: bert_probe.Steps(query=1).of(trace),
    "embedding": lambda trace: bert_probe.Embedding().of(trace),
    "pooler": lambda trace: bert_probe.Pooler().of(trace),
    "another text": lambda trace: trace.checkpoint.trace(TEXT),
}


@pytest.mark.parametrize("what", NEED_BOTH)
def test_what_needs_the_model_again_refuses_another_one(what: str, bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    trace = wrapped.trace(TEXT)
    bert.pooler.dense.weight.data[0, 0] += 1  # which counts no version of the tensor up
    for _ in range(2):
        left_alone(bert, lambda: refused(UnavailableError, lambda: NEED_BOTH[what](trace)))
    with pytest.raises(UnavailableError, match=r"its weights differ\. Trace the text again\."):
        NEED_BOTH[what](trace)
    bert.pooler.dense.weight.data[0, 0] -= 1
    same = trace.provenance["weights_sha256"] == digest(bert)
    assert NEED_BOTH[what](wrapped.trace(TEXT) if not same else trace) is not None
    assert bert_probe.Attention().of(trace).weights.shape, "what the trace holds itself stays"


def test_dtype_and_device_are_those_of_the_moment(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    trace = wrapped.trace(TEXT)
    bert.double()
    assert wrapped.description.dtype == wrapped.trace(TEXT).provenance["dtype"] == "float64"
    with pytest.raises(UnavailableError, match="it is in float64, no longer float32"):
        bert_probe.Attention(measure="value-norm").of(trace)
    bert.bfloat16()
    assert wrapped.trace(TEXT).provenance["dtype"] == "bfloat16"
    assert wrapped.trace(TEXT).provenance["device"] == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_model_may_move_to_a_device(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    before = wrapped.trace(TEXT)
    bert.cuda()
    after = wrapped.trace(TEXT)
    assert after.provenance["device"] == "cuda:0"
    assert after.provenance["weights_sha256"] == before.provenance["weights_sha256"]
    with pytest.raises(UnavailableError, match="it is on cuda:0, no longer cpu"):
        bert_probe.Attention(measure="value-norm").of(before)
    assert bert_probe.Attention(measure="value-norm").of(after).weights.shape


def test_a_model_with_other_parts_must_be_wrapped_again(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    bert.pooler = None
    with pytest.raises(UnavailableError, match=r"was rebuilt since it was wrapped.*Wrap it again"):
        wrapped.trace(TEXT)
    assert bert_probe.wrap(bert, tokenizer).trace(TEXT).pooler is None


def test_equal_weights_of_two_models_share_no_answer(bert: Any, tokenizer: Any) -> None:
    twin = copy.deepcopy(bert)
    for module in twin.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.1
    a, b = (bert_probe.wrap(model, tokenizer) for model in (bert, twin))
    assert a.description == b.description
    assert key_of(bert_probe.Attention(), a.trace(TEXT)) != key_of(bert_probe.Attention(), b.trace(TEXT))
    assert key_of(bert_probe.Attention(), a.trace(TEXT)) == key_of(bert_probe.Attention(), a.trace(TEXT))


def test_the_digest_follows_its_recipe() -> None:
    module = torch.nn.Module()
    module.register_parameter("b", torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])))
    module.register_buffer("a", torch.tensor(7))
    a, b = np.array(7, "<i8"), np.array([1, 2, 3, 4], "<f4")
    lines = f"a int64  {hashlib.sha256(a.tobytes()).hexdigest()}\n"
    lines += f"b float32 2,2 {hashlib.sha256(b.tobytes()).hexdigest()}\n"
    assert digest(module) == hashlib.sha256(lines.encode()).hexdigest()
    module.b.data = module.b.data.T
    assert digest(module) != hashlib.sha256(lines.encode()).hexdigest(), "in rows, however it is held"


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.embeddings.LayerNorm.weight.data.mul_(1.0001),
        lambda model: model.double(),
        lambda model: setattr(
            model.embeddings.LayerNorm, "bias", torch.nn.Parameter(model.embeddings.LayerNorm.bias[None])
        ),
        lambda model: model.embeddings.word_embeddings.weight.data.copy_(
            model.embeddings.word_embeddings.weight.data.flip(0)
        ),
    ],
    ids=["a number", "the dtype", "a shape", "rows in another order"],
)
def test_the_digest_sees_every_change(change: Callable[[Any], Any], bert: Any) -> None:
    before = digest(bert)
    assert digest(bert) == before
    change(bert)
    assert digest(bert) != before


# ---------------------------------------------------------------- what is refused


def mixed(model: Any) -> Any:
    model.pooler.double()
    return model


def broken(model: Any) -> Any:
    model.pooler.dense.bias.data[0] = torch.nan
    return model


def decoder(_model: Any) -> Any:
    small = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50, "n_positions": 20}
    return transformers.GPT2Model(transformers.GPT2Config(**small))


def writer(_model: Any) -> Any:
    return transformers.BertLMHeadModel(config("bert", is_decoder=True))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda model: torch.nn.DataParallel(model), ArchitectureError, "DataParallel is no model of transf"),
        (lambda _: "bert-base-uncased", ArchitectureError, "str is no model"),
        (decoder, ArchitectureError, "a decoder"),
        (writer, ArchitectureError, "set up as a decoder"),
        (mixed, WeightsError, "more than one dtype: float32, float64"),
        (broken, WeightsError, "not finite"),
        (lambda model: model.to("meta"), WeightsError, "of device meta"),
    ],
)
def test_what_cannot_be_wrapped_is_refused(
    make: Callable[[Any], Any], error: type[Exception], said: str, bert: Any, tokenizer: Any
) -> None:
    with pytest.raises(error, match=said) as caught:
        bert_probe.wrap(make(bert), tokenizer)
    assert type(caught.value) is error
    assert str(caught.value).endswith(".")


def test_a_tokenizer_without_places_is_refused(bert: Any) -> None:
    with pytest.raises(TokenizerError, match="gives no character positions"):
        bert_probe.wrap(bert, object())


def test_the_tokenizer_is_a_copy(tmp_path: Path) -> None:
    build("bert", tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    wrapped = bert_probe.wrap(opened(tmp_path), tokenizer)
    tokenizer.backend_tokenizer.enable_truncation(3)
    assert len(wrapped.trace(TEXT).tokens) > 3
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 3
