"""Test token labels and masked words: targets, loss, and predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForTokenClassification

import bert_probe
from bert_probe import Train
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import FILL_MASK, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences
from bert_probe.training.models import with_head
from bert_probe.training.objectives import IGNORE_INDEX, MaskedLmObjective, TokenObjective
from bert_probe.training.schedule import seeded
from tests.helpers.teaching import equal_states, texts, weights, without_dropout

LINES = tuple(row.text for row in texts(24).rows)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return a tiny BERT in float64 without dropout."""
    return without_dropout(tmp_path_factory.mktemp("still") / "bert")


def tagged(count: int = 16) -> tuple[TaggedSentence, ...]:
    """Return words with alternating labels; the last word of each sentence has several tokens."""
    saved = []
    for line in LINES[:count]:
        words = [*line.split(), "unknowable"]
        saved += [f"{word}\t{'O' if place % 2 else 'B-X'}" for place, word in enumerate(words)] + [""]
    return parse_tagged_sentences("\n".join(saved).encode(), "a.conll")


# ---------------------------------------------------------------- tokens


def test_labels_are_at_first_tokens(quiet: Checkpoint) -> None:
    objective = TokenObjective(quiet, ("B-X", "O"))
    sentence = tagged(1)[0]
    (example,) = objective.examples(quiet, [sentence], None)
    encoding = quiet.encode(sentence.text)
    assert len(encoding.words[-1].positions) > 1
    expected = [IGNORE_INDEX] * len(encoding)
    for word, tag in zip(encoding.words, sentence.tags, strict=True):
        expected[word.positions[0]] = objective.labels.index(tag)
    assert example.target.tolist() == expected
    cut = objective.examples(quiet, [sentence], 4)[0]
    assert cut.target.tolist() == [*expected[:3], IGNORE_INDEX]


def test_words_sharing_a_token_keep_the_first_label(quiet: Checkpoint) -> None:
    spans = ((0, 3), (0, 3), (4, 7))
    sentence = TaggedSentence(
        ("de", "el", "map"), ("P", "D", "N"), (), (), "del map", spans, MappingProxyType({}), 1
    )
    objective = TokenObjective(quiet, ("D", "N", "P"))
    (example,) = objective.examples(quiet, [sentence], None)
    assert [int(item) for item in example.target if item != IGNORE_INDEX] == [2, 1]
    plan = Train(held_out=0).plan(quiet, [sentence])
    assert "Words that share a token with another word, or have no token, are ignored: line 1." in plan.notes


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("update", ["head", "lora"])
def test_saved_model_labels_words_as_evaluated(quiet: Checkpoint, tmp_path: Path, update: str) -> None:
    """The reference uses only transformers and its loss over all words of the held-out sentences."""
    trained = Train(update, epochs=2, batch=4, rate=1e-3).of(quiet, tagged())
    folder = trained.save_model(tmp_path / "trained")
    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float64).eval()
    examples = TokenObjective(quiet, trained.labels).examples(quiet, trained.held_out, None)
    losses, right, count = 0.0, 0, 0
    for item in examples:
        target = torch.from_numpy(item.target)[None]
        with torch.no_grad():
            message = model(input_ids=torch.tensor(item.inputs.inputs["input_ids"])[None], labels=target)
        question = target != IGNORE_INDEX
        losses += message.loss.item() * int(question.sum())
        right += int((message.logits.argmax(dim=-1) == target)[question].sum())
        count += int(question.sum())
    assert trained.best.held_out_loss == pytest.approx(losses / count, abs=1e-6)
    assert trained.best.measure == pytest.approx(right / count)
    assert bert_probe.load(folder).outputs[TOKEN_CLASSIFICATION].labels == ("B-X", "O") == trained.labels
    assert trained.provenance["sentences"] == 13
    assert trained.held_out == tuple(item for item in tagged() if item not in trained.data)


def test_invalid_tags_raise_errors(quiet: Checkpoint) -> None:
    one_label = parse_tagged_sentences(b"a\tX\nb\tX\n", "a.conll")
    with pytest.raises(TextError, match="All words have the label X"):
        Train(held_out=0).plan(quiet, one_label)
    with pytest.raises(
        TextError, match="The held-out words have labels that do not occur in the training data: X"
    ):
        Train().plan(quiet, tagged(), one_label)
    with pytest.raises(SelectionError, match="whole_words applies to fill-mask, not to token-class"):
        Train(whole_words=True).plan(quiet, tagged())


# ---------------------------------------------------------------- masks


def test_shares_of_predicted_and_masked_tokens_match_settings(quiet: Checkpoint) -> None:
    objective = MaskedLmObjective(quiet, 0, whole_words=False)
    (example,) = objective.examples(
        quiet, ["the river boat small bridge night map old engineers rain " * 14], None
    )
    before = np.array(example.inputs.inputs["input_ids"])
    counts = {"masked": 0, "same": 0, "other": 0}
    for _ in range(20):
        inputs = objective.batch([example, example])
        question = inputs["labels"] != IGNORE_INDEX
        own = round(0.15 * (len(before) - 2))
        assert question.sum(dim=1).tolist() == [own, own]
        assert not question[:, [0, -1]].any()
        assert torch.equal(inputs["labels"][question], torch.tensor(before).expand(2, -1)[question])
        assert torch.equal(inputs["input_ids"][~question], torch.tensor(before).expand(2, -1)[~question])
        ids = inputs["input_ids"][question]
        masked, unchanged = ids == quiet.tokenizer.mask_token_id, ids == inputs["labels"][question]
        counts["masked"] += int(masked.sum())
        counts["same"] += int(unchanged.sum())
        counts["other"] += int((~masked & ~unchanged).sum())
    total = sum(counts.values())
    shares = [counts[name] / total for name in ("masked", "same", "other")]
    # The tolerance is four standard deviations for this number of draws.
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=4 * (0.16 / total) ** 0.5)
    assert np.array_equal(example.inputs.inputs["input_ids"], before)


def test_whole_words_are_masked_with_all_their_tokens(quiet: Checkpoint) -> None:
    objective = MaskedLmObjective(quiet, 0, whole_words=True)
    (example,) = objective.examples(quiet, ["unknowable boats unbridged unmapped"], None)
    observed = set()
    for _ in range(12):
        question = (objective.batch([example])["labels"][0] != IGNORE_INDEX).numpy()
        words = {*example.target[question].tolist()}
        assert question.tolist() == [word in words for word in example.target]
        observed |= words
    assert observed == {0, 1, 2, 3}


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "albert"])
def test_loss_equals_that_of_the_model_class(name: str, family_folder: Callable[[str], Path]) -> None:
    """The loss is equal although the head runs only on masked tokens; some classes compute it in float32."""
    checkpoint = bert_probe.load(family_folder(name), dtype="float64")
    objective = MaskedLmObjective(checkpoint, 0, whole_words=False)
    with seeded(0):
        full_model = with_head(checkpoint, FILL_MASK).eval()
    inputs = objective.batch(objective.examples(checkpoint, LINES[:5], None))
    loss = objective.loss(*objective.predict(full_model, inputs))
    expected = full_model(**inputs).loss
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    ours = torch.autograd.grad(
        loss, [part for part in full_model.parameters() if part.ndim > 1], allow_unused=True
    )
    theirs = torch.autograd.grad(
        expected, [part for part in full_model.parameters() if part.ndim > 1], allow_unused=True
    )
    for our, their in zip(ours, theirs, strict=True):
        assert (our is None) == (their is None)
        if our is not None:
            torch.testing.assert_close(our, their, rtol=0, atol=1e-5)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("update", ["head", "all"])
def test_saved_masked_lm_fills_masks(quiet: Checkpoint, tmp_path: Path, update: str) -> None:
    question = Train(update, epochs=3, batch=4, rate=1e-2, seed=2)
    trained = question.of(quiet, LINES)
    if update == "all":
        again = question.of(quiet, LINES)
        assert equal_states(weights(trained.checkpoint, FILL_MASK), weights(again.checkpoint, FILL_MASK))
    assert trained.history[-1].loss < trained.history[0].loss
    assert trained.measure == "first guess"
    folder = trained.save_model(tmp_path / "trained")
    opened = bert_probe.load(folder, dtype="float64")
    text = "the [MASK] boat"
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        expected = model(**quiet.tokenizer(text, return_tensors="pt")).logits[0, 2]
    for checkpoint in (opened, trained.checkpoint):
        result = checkpoint.outputs[FILL_MASK].logits(checkpoint.trace(text), [2])[0]
        np.testing.assert_allclose(result, expected.numpy(), rtol=0, atol=1e-7)
    embeddings = opened.model.embeddings.word_embeddings.weight
    assert torch.equal(embeddings, quiet.model.embeddings.word_embeddings.weight) == (update == "head")
    assert opened.outputs[FILL_MASK].model.get_output_embeddings().weight is embeddings


@pytest.mark.parametrize("update", ["head", "lora"])
def test_word_vectors_of_a_model_with_the_head_first_are_frozen(
    family: Callable[[str], Checkpoint], update: str
) -> None:
    checkpoint = family("xlm-roberta")
    trained = Train(update, epochs=1, batch=4, rate=1e-2, seed=2, held_out=0).of(checkpoint, LINES)
    before, after = (
        opened.model.embeddings.word_embeddings.weight for opened in (checkpoint, trained.checkpoint)
    )
    assert torch.equal(before, after)


def test_most_frequent_token_is_from_training_texts(quiet: Checkpoint) -> None:
    """The share of this token is computed on the held-out texts, without special tokens."""
    question = "the boat river small"
    plan = Train().plan(quiet, ["the river the boat", "the map"], [question])
    share = 1 / (len(quiet.encode(question)) - 2)
    assert plan.notes[0] == (
        f"Always predicting “the”, the most frequent token, would be correct for {share:.1%} of the "
        "masked tokens."
    )
    assert "has no masked-language-modeling head. Training a new head needs many texts" in plan.notes[1]
    assert "most frequent token" not in " ".join(Train(held_out=0).plan(quiet, LINES).notes)


def test_tokenizer_without_mask_raises_error(quiet: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(quiet.tokenizer), "mask_token_id", None, raising=False)
    with pytest.raises(UnavailableError, match="has no mask token, so no token can be masked"):
        Train().plan(quiet, LINES)
