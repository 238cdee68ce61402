"""Test head measures of padded batches: parity with single texts and with the definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bert_probe
from bert_probe.analyses.attention.heads import MEASURES, measure_heads
from bert_probe.corpus import head_batch
from bert_probe.corpus.head_batch import HeadBatch, LayerAttention, Units, measure_batch
from bert_probe.errors import ArchitectureError
from bert_probe.model.capture import recording
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import attention_matrices, batch
from bert_probe.text.words import word_lens
from tests.helpers.exactness import assert_exact, expect_raw
from tests.helpers.families import LONG, REPRESENTATIVE, SENTENCES, TEXT
from tests.helpers.gate import examples, prove_unless

Checkpoints = Callable[[str], bert_probe.Checkpoint]


def layers_of(checkpoint: bert_probe.Checkpoint, encodings: Sequence[Encoding]) -> Sequence[LayerAttention]:
    """Run a padded batch and return the recorded attention of every layer."""
    displayed = checkpoint.description.shows_qkv
    with torch.inference_mode(), checkpoint.running() as model, recording() as calls:
        output = model(**batch(checkpoint, encodings), output_attentions=not displayed)
    return calls if displayed else attention_matrices(checkpoint.model, output)


def read(
    checkpoint: bert_probe.Checkpoint, encodings: Sequence[Encoding], words: bool, strongest: bool = False
) -> HeadBatch:
    lenses = [word_lens(encoding) for encoding in encodings]
    units = Units.of_words(lenses) if words else Units.of_tokens(encodings)
    return measure_batch(layers_of(checkpoint, encodings), units, strongest)


def several(checkpoint: bert_probe.Checkpoint) -> list[Encoding]:
    """Return encodings of different lengths, including pairs and repeated tokens."""
    pairs = ((TEXT, None), ("we", None), (LONG[:180], None), (TEXT, SENTENCES[4]), ("!", "we we we"))
    return [checkpoint.encode(text, pair) for text, pair in pairs]


FEW = 2 * 4 * 40
"""Number of weights in a block of two queries, 40 keys and 4 heads."""


@pytest.mark.gate(cases=6)
@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize(
    ("name", "block"),
    prove_unless(
        lambda case: case[0] in REPRESENTATIVE,
        [
            *(
                (name, head_batch.BLOCK_WEIGHTS)
                for name in ("bert", "roberta", "distilbert", "albert", "electra")
            ),
            *((name, head_batch.BLOCK_WEIGHTS) for name in ("modernbert", "mpnet", "deberta-v2", "eurobert")),
            *((name, FEW) for name in ("modernbert", "mpnet", "eurobert")),
        ],
    ),
)
def test_batch_matches_single_texts(
    name: str, block: int, words: bool, double_family: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_batch, "BLOCK_WEIGHTS", block)
    checkpoint = double_family(name)
    encodings = several(checkpoint)
    result = read(checkpoint, encodings, words, strongest=True)
    assert result.keys is not None
    assert result.weights is not None
    for row, trace in enumerate(checkpoint.trace_encodings(encodings)):
        lens = word_lens(trace) if words else None
        expected = measure_heads(trace, lens)
        for number, measure in enumerate(MEASURES):
            assert_exact(result.measures[number, row], expected[measure], measure)
        for layer in range(trace.layers):
            weights = trace.attention(layer) if lens is None else lens.merge(trace.attention(layer))
            count = weights.shape[-1]
            assert_exact(result.weights[row, layer, :, :count], weights.max(axis=-1))
            key = result.keys[row, layer, :, :count]
            assert_exact(np.take_along_axis(weights, key[..., None], -1)[..., 0], weights.max(axis=-1))
            assert not result.weights[row, layer, :, count:].any()


def loops(weights: np.ndarray, mean: np.ndarray, text: dict[str, Any]) -> dict[str, float]:
    """Compute all measures of one head with loops, as defined in docs/methods.md."""
    length = len(weights)
    sums = dict.fromkeys(MEASURES, 0.0)
    for q in range(length):
        sums["entropy_bits"] -= sum(p * np.log2(p) for p in weights[q] if p > 0)
        sums["difference_from_mean"] += np.abs(weights[q] - mean[q]).sum() / 2
        for k in range(length):
            is_word = text["words"][q] >= 0 and text["words"][q] == text["words"][k]
            is_text = text["segments"][q] == text["segments"][k]
            hit = {
                "self": k == q,
                "previous": k == q - 1,
                "next": k == q + 1,
                "first": k == 0,
                "separator": text["special"][k] and k > 0,
                "punctuation": text["signs"][k] and not text["special"][k],
                "other_segment": not is_text,
                "same_word": is_word and is_text and k != q,
                "same_token": text["names"][k] == text["names"][q] and k != q,
            }
            sums["mean_distance"] += weights[q][k] * abs(q - k)
            for name, yes in hit.items():
                sums[name] += weights[q][k] * yes
    measured = {name: value / length for name, value in sums.items()}
    measured["relative_entropy"] = measured["entropy_bits"] / np.log2(max(length, 2))
    return measured


@st.composite
def batches_of_texts(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw columns of texts with repeated tokens, ascending word indices, and tokens outside words."""
    texts = []
    for length in draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)):
        flags = [draw(st.lists(st.booleans(), min_size=length, max_size=length)) for _ in range(5)]
        special, signs, more, two, none = flags
        second = next((place for place, yes in enumerate(two) if yes), length)
        of_none = [first or other for first, other in zip(none, special, strict=True)]
        # Tokens of a word are consecutive.
        starts = np.array(more) | [False, *of_none[:-1]]
        texts.append(
            {
                "names": draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)),
                "words": np.where(of_none, -1, np.cumsum(starts)).tolist(),
                "segments": [int(place >= second) for place in range(length)],
                "special": special,
                "signs": signs,
            }
        )
    return texts


@settings(max_examples=examples(40), deadline=None)
@given(texts=batches_of_texts(), seed=st.integers(0, 2**16), sharp=st.sampled_from([0.0, 1.0, 300.0]))
def test_measures_match_definitions_for_any_weights(
    texts: list[dict[str, Any]], seed: int, sharp: float
) -> None:
    lengths = [len(text["names"]) for text in texts]
    columns = {name: [value for text in texts for value in text[name]] for name in texts[0]}
    longest, random = max(lengths), np.random.default_rng(seed)
    scores = torch.from_numpy(random.normal(size=(len(texts), 3, longest, longest)) * sharp)
    for row, length in enumerate(lengths):
        scores[row, :, :, length:] = -torch.inf
    weights = torch.softmax(scores, dim=-1)
    result = measure_batch([weights], Units.of_columns(lengths, **columns)).measures
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        own = weights[row, :, :length, :length].numpy()
        for head in range(3):
            expected = loops(own[head], own.mean(axis=0), text)
            for number, name in enumerate(MEASURES):
                assert result[number, row, 0, head] == pytest.approx(expected[name], rel=1e-12, abs=1e-12), (
                    name
                )


def test_float32_batch_is_as_exact_as_single_texts(
    minilm: bert_probe.Checkpoint, double_minilm: bert_probe.Checkpoint
) -> None:
    texts = ("we left the ground and the river " * 72, TEXT)
    encodings = [minilm.encode(text) for text in texts]
    single, double = (
        read(checkpoint, encodings, words=False).measures for checkpoint in (minilm, double_minilm)
    )
    for row, text in enumerate(texts):
        alone = [measure_heads(checkpoint.trace(text), None) for checkpoint in (minilm, double_minilm)]
        for number, name in enumerate(MEASURES):
            assert_exact(double[number, row], alone[1][name], name)
            expect_raw(alone[0][name], alone[1][name]).check(single[number, row], name)


def test_first_of_equal_weights_is_strongest() -> None:
    units = Units.of_columns([3, 2], range(5), [-1] * 5, [0] * 5, [False] * 5, [False] * 5)
    even = torch.zeros(2, 2, 3, 3)
    even[0], even[1, :, :, :2] = 1 / 3, 1 / 2
    result = measure_batch([even], units, strongest=True)
    assert result.keys is not None
    assert not result.keys.any()


def test_weights_that_do_not_sum_to_1_are_refused() -> None:
    units = Units.of_columns([3, 2], range(5), [-1] * 5, [0] * 5, [False] * 5, [False] * 5)
    # The attention is uniform over three keys, one of which is padding in the second text.
    with pytest.raises(
        ArchitectureError, match=r"rows of this model do not sum to 1 for these texts .off by 0.33"
    ):
        measure_batch([torch.full((2, 2, 3, 3), 1 / 3)], units)
