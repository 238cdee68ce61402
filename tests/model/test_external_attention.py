"""Test external attention: accepted forms, errors, and the analyses that support it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import bert_probe
from bert_probe.analyses.attention.attention import make_thumbnails
from bert_probe.analyses.attention.measures.rollout import rollout
from bert_probe.errors import SelectionError, ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.external_attention import SPECIALS
from bert_probe.runtime.cache import cache_key
from bert_probe.server.bertviz_frames import head_view as bertviz_head_view
from bert_probe.views.head_view import HeadViewData, payload
from tests.helpers.exactness import assert_exact
from tests.helpers.families import PAIR, TEXT
from tests.helpers.gate import prove_unless
from tests.helpers.payloads import read_payload

WORDS = ["[CLS]", "we", "left", "the", "ground", "[SEP]", "we", "left", "[SEP]"]


def softmax(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Return random attention whose rows sum to 1 and have one dominant weight each."""
    scores = np.random.default_rng(seed).normal(size=shape) * 3
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(dtype)


WEIGHTS = softmax((3, 4, 9, 9))


# ---------------------------------------------------------------- accepted forms


@pytest.mark.parametrize(
    "form",
    [
        lambda weights: weights,
        lambda weights: torch.tensor(weights, requires_grad=True),
        lambda weights: list(weights),
        lambda weights: tuple(torch.tensor(layer)[None] for layer in weights),
        lambda weights: weights[:, None],
        lambda weights: weights.tolist(),
        lambda weights: np.asfortranarray(weights),
    ],
    ids=["array", "tensor", "list", "as transformers returns it", "batch of one", "plain lists", "columns"],
)
def test_every_input_form_gives_the_same_trace(form: Callable[[Any], Any]) -> None:
    trace = bert_probe.from_attention(form(WEIGHTS), WORDS)
    assert (trace.layers, trace.heads, len(trace.tokens)) == (3, 4, 9)
    for layer in range(3):
        np.testing.assert_array_equal(trace.attention(layer), WEIGHTS[layer])
        np.testing.assert_array_equal(trace.attention(layer, -1), WEIGHTS[layer, 3])
    assert trace.caveat == ""


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9)),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    data=st.data(),
)
def test_any_shape_keeps_its_numbers(shape: tuple[int, int, int], dtype: Any, data: st.DataObject) -> None:
    layers, heads, tokens = shape
    weights = data.draw(
        arrays.arrays(dtype, (layers, heads, tokens, tokens), elements={"min_value": 0, "max_value": 8})
    )
    trace = bert_probe.from_attention(weights)
    assert (trace.layers, trace.heads) == (layers, heads)
    assert [str(token) for token in trace.tokens] == [str(position) for position in range(tokens)]
    for layer in range(layers):
        assert trace.attention(layer).dtype == (np.float64 if dtype == np.float64 else np.float32)
        np.testing.assert_array_equal(trace.attention(layer), weights[layer])
    sums = weights.sum(axis=-1, dtype=np.float64)
    assert bool(trace.caveat) == bool(np.abs(sums - 1).max() > (2.0**-10 if dtype == np.float16 else 1e-4))


def test_weights_are_copied_and_read_only() -> None:
    original = WEIGHTS.copy()
    trace = bert_probe.from_attention(original, WORDS)
    original[:] = 0
    np.testing.assert_array_equal(trace.attention(0), WEIGHTS[0])
    with pytest.raises(ValueError, match="read-only"):
        trace.attention(0)[0, 0, 0] = 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_row_sums_of_half_precision_are_within_tolerance(dtype: torch.dtype) -> None:
    trace = bert_probe.from_attention(torch.tensor(softmax((2, 3, 200, 200))).to(dtype))
    assert trace.caveat == ""


def test_encoding_keeps_words_and_texts(minilm: Checkpoint) -> None:
    own = minilm.trace(TEXT, PAIR)
    trace = bert_probe.from_attention([own.attention(layer) for layer in range(own.layers)], own.encoding)
    assert trace.encoding is own.encoding
    expected, actual = (bert_probe.Attention(2, 3, words=True).of(which) for which in (trace, own))
    np.testing.assert_array_equal(expected.weights, actual.weights)
    assert expected.queries == actual.queries


# ---------------------------------------------------------------- tokens


def test_tokens_have_positions_and_spans() -> None:
    trace = bert_probe.from_attention(WEIGHTS, WORDS, sentence_b_start=6)
    assert list(trace.tokens) == WORDS
    assert [token.segment for token in trace.tokens] == [0] * 6 + [1] * 3
    assert (trace.encoding.text, trace.encoding.pair) == ("we left the ground", "we left")
    assert [token.position for token in trace.tokens if token.special] == [0, 5, 8]
    for token in trace.tokens:
        text = (trace.encoding.text, trace.encoding.pair or "")[token.segment]
        assert token.special or text[token.start : token.end] == token
    assert [word.text for word in trace.encoding.words] == ["we", "left", "the", "ground", "we", "left"]


def test_special_tokens_are_detected_or_passed() -> None:
    assert {"[CLS]", "[SEP]", "<s>", "</s>"} <= SPECIALS
    trace = bert_probe.from_attention(WEIGHTS, WORDS, specials=["ground", 0])
    assert [token.position for token in trace.tokens if token.special] == [0, 4]
    assert not [
        token for token in bert_probe.from_attention(WEIGHTS, WORDS, specials=()).tokens if token.special
    ]


def test_blank_tokens_are_shown_and_found() -> None:
    trace = bert_probe.from_attention(softmax((1, 1, 4, 4)), ["", "  ", " a", "\n"])
    assert [token.display for token in trace.tokens] == ["␣", "␣␣", "a", "\n"]
    assert bert_probe.Attention(words=True).of(trace).weights.shape == (4, 4)


# ---------------------------------------------------------------- errors


def changed(value: float) -> np.ndarray:
    weights = WEIGHTS.copy()
    weights[1, 2, 3, 4] = value
    return weights


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (changed(np.nan), "Layer 2, head 3 has attention nan from token 3 to token 4"),
        (changed(np.inf), "has attention inf"),
        (changed(-0.25), "has attention -0.25"),
        (WEIGHTS[:, :, :4], "has 4 queries and 9 keys"),
        (WEIGHTS[0], r"Layer 1 must have shape .*, not \(9, 9\)"),
        (np.stack([WEIGHTS, WEIGHTS], axis=1), r"Layer 1 must have shape .*, not \(2, 4, 9, 9\)"),
        ([WEIGHTS[0], WEIGHTS[1, :2]], "the same number of heads"),
        ([None, WEIGHTS[0]], "Layer 1 is None, because fused attention"),
        ([], "no layer"),
        (0.5, "no layer"),
        (np.zeros((2, 0, 3, 3)), r"not \(0, 3, 3\)"),
        (WEIGHTS.astype(complex), "complex128, but must contain real numbers"),
        (np.full((1, 1, 2, 2), "x"), "must contain real numbers"),
        ([[[[1.0], [0.5, 0.5]]]], "different lengths"),
    ],
)
def test_invalid_weights_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message) as caught:
        bert_probe.from_attention(weights)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tokens": WORDS[:5]}, ShapeError, "The attention has 9 tokens, but tokens has 5 entries"),
        ({"tokens": "we left"}, TextError, "a list of strings"),
        ({"tokens": [*WORDS[:8], 7]}, TextError, "must be a string, not int"),
        ({"tokens": [*WORDS[:8], "half\ud800"]}, TextError, "surrogate"),
        ({"sentence_b_start": 0}, SelectionError, "cannot begin at token 0"),
        ({"sentence_b_start": 9}, SelectionError, "from 1 to 8"),
        ({"specials": ["[MASK]"]}, SelectionError, r"'\[MASK\]'"),
        ({"specials": [9]}, SelectionError, "9 in specials is not"),
        ({"specials": "[CLS]"}, SelectionError, "not a single string"),
    ],
)
def test_invalid_tokens_are_refused(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bert_probe.from_attention(WEIGHTS, **options)


def test_encoding_with_other_options_is_refused(minilm: Checkpoint) -> None:
    encoding = minilm.encode(TEXT)
    weights = softmax((1, 1, len(encoding), len(encoding)))
    with pytest.raises(SelectionError, match="Omit sentence_b_start and specials"):
        bert_probe.from_attention(weights, encoding, specials=["[CLS]"])


@pytest.mark.parametrize(
    "ask",
    [
        lambda trace: trace.vectors(0),
        lambda trace: trace.hidden_states,
        lambda trace: trace.cls,
        lambda trace: trace.scores(0),
        lambda trace: trace.checkpoint,
        lambda trace: bert_probe.Attention(measure="value-norm").of(trace),
        lambda trace: bert_probe.Attention(measure="value-zeroing").of(trace),
        lambda trace: bert_probe.AttentionSteps(query=1).of(trace),
        lambda trace: bert_probe.Embedding().of(trace),
        lambda trace: bert_probe.Pooler().of(trace),
        lambda trace: bert_probe.HiddenStates().of(trace),
        lambda trace: bert_probe.Similarity().of(trace),
    ],
    ids=[
        *("vectors", "hidden states", "cls", "scores", "checkpoint", "value norms", "value zeroing", "steps"),
        *("embedding", "pooler", "vectors of a layer", "similarity"),
    ],
)
def test_analyses_of_vectors_are_refused(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(UnavailableError) as caught:
        ask(bert_probe.from_attention(WEIGHTS, WORDS))
    assert str(caught.value).endswith(".")


# ---------------------------------------------------------------- rows that do not sum to 1


def test_rows_that_do_not_sum_to_1_have_a_caveat(tmp_path: Path) -> None:
    weights = WEIGHTS.copy()
    weights[1, 2, 3] *= 0.5
    weights[0, 0, 0] *= 3
    trace = bert_probe.from_attention(weights, WORDS)
    assert "do not sum to 1" in trace.caveat
    assert "from 0.5 to 3." in trace.caveat
    result = bert_probe.Attention(1, 2).of(trace)
    np.testing.assert_array_equal(result.weights, weights[1, 2])
    assert result.metadata == {"note": trace.caveat}
    assert bert_probe.TokenRollout("ground").of(trace).provenance["caveat"] == trace.caveat
    _, meta = result.save(tmp_path / "given.csv")
    assert json.loads(meta.read_text(encoding="utf-8"))["facts"]["note"] == trace.caveat
    assert not bert_probe.Attention().of(bert_probe.from_attention(WEIGHTS, WORDS)).metadata


def test_color_range_includes_weights_above_1() -> None:
    trace = bert_probe.from_attention(WEIGHTS * 4, WORDS)
    header = read_payload(payload(HeadViewData(trace), 1, key=""))[0]
    assert header["full"] == pytest.approx(float(trace.attention(1).max()))
    assert (
        read_payload(payload(HeadViewData(bert_probe.from_attention(WEIGHTS, WORDS)), 1, key=""))[0]["full"]
        == 1
    )
    assert (
        read_payload(payload(HeadViewData(bert_probe.from_attention(WEIGHTS * 0, WORDS)), 1, key=""))[0][
            "full"
        ]
        == 1
    )


# ---------------------------------------------------------------- all analyses of attention


@pytest.mark.filterwarnings("ignore:unclosed file .*bertviz:ResourceWarning")
def test_long_form_rollout_and_thumbnails_equal_trace() -> None:
    trace = bert_probe.from_attention(WEIGHTS, WORDS, sentence_b_start=6)
    table = bert_probe.Attention(1, 2).of(trace).table()
    np.testing.assert_array_equal(table.to_numpy(), WEIGHTS[1, 2])
    assert list(table.columns) == WORDS
    long = bert_probe.AttentionLong().of(trace).table()
    np.testing.assert_array_equal(long["weight"].to_numpy(np.float32), WEIGHTS.ravel())
    reached = bert_probe.TokenRollout(4, "into").of(trace)
    np.testing.assert_array_equal(reached.values[-1], rollout(WEIGHTS)[4].astype(np.float32))
    np.testing.assert_array_equal(make_thumbnails(trace).weights, WEIGHTS)
    assert read_payload(payload(HeadViewData(trace), 2, key=""))[0]["texts"] == WORDS
    assert list(bert_probe.Tokens().of(trace).table()["token"]) == WORDS
    assert bertviz_head_view(trace, 0, None, dark=False).url


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("pair", prove_unless({PAIR}, [None, PAIR]))
@pytest.mark.parametrize(
    "question",
    [
        bert_probe.Heads(),
        bert_probe.Heads(words=True),
        bert_probe.FindHeads([("ground", "left"), (1, 3)]),
        bert_probe.TokenRollout("ground"),
        bert_probe.TokenRollout("knew", "into", words=True, residual=0.3),
        bert_probe.Attention(1, measure="rollout", words=True),
        bert_probe.AttentionLong(words=True, specials=False, renormalize=True),
        bert_probe.AttentionLong([0, -1], ["mean", 2]),
    ],
    ids=repr,
)
def test_attention_of_a_model_gives_the_results_of_its_trace(
    question: Any, pair: str | None, family_folder: Callable[[str], Path]
) -> None:
    trace = bert_probe.load(family_folder("bert"), dtype="float64").trace(TEXT, pair)
    external = bert_probe.from_attention([trace.attention(layer) for layer in range(3)], trace.encoding)
    expected, actual = question.of(trace), question.of(external)
    table, other = expected.table(), actual.table()
    assert list(table.columns) == list(other.columns)
    for place, name in enumerate(table):
        theirs, ours = table.iloc[:, place], other.iloc[:, place]
        if theirs.dtype.kind == "f":
            assert_exact(ours.to_numpy(), theirs.to_numpy(), name)
        else:
            assert list(ours) == list(theirs)
    assert actual.question == expected.question
    assert actual.provenance["question"] == expected.provenance["question"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda a, b: bert_probe.MinimalPair().of(a, b),
        lambda a, b: bert_probe.MinimalPairRow("ground").of(a, b),
        lambda a, b: bert_probe.Similarity().of(a, b),
        lambda a, b: bert_probe.WordInContext(["ground"]).of([a, b]),
    ],
    ids=["compare", "row", "similarity", "context"],
)
def test_comparison_with_external_attention_is_refused(
    ask: Callable[[Any, Any], Any], minilm: Checkpoint
) -> None:
    a, b = (bert_probe.from_attention(softmax((3, 4, 9, 9), seed), WORDS) for seed in (1, 2))
    for first, second in ((a, b), (a, minilm.trace(TEXT)), (minilm.trace(TEXT), b)):
        with pytest.raises(
            SelectionError, match="External attention does not identify its model, so two texts"
        ):
            ask(first, second)


def test_heads_are_labeled_only_if_rows_sum_to_1() -> None:
    sink = np.full((1, 2, 9, 9), 0.05, np.float32)
    sink[..., 0] = 0.6
    assert bert_probe.Heads().of(bert_probe.from_attention(sink, WORDS)).labels == (
        ("first token sink",) * 2,
    )
    several = bert_probe.Heads().of(bert_probe.from_attention(sink * 9, WORDS))
    assert several.labels == (("", ""),)
    assert "do not sum to 1" in several.provenance["caveat"]


def test_decoder_attention_is_accepted() -> None:
    torch.manual_seed(0)
    settings = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 20}
    decoder = transformers.GPT2Model(transformers.GPT2Config(**settings, attn_implementation="eager")).eval()
    with torch.no_grad():
        output = decoder(torch.arange(7)[None], output_attentions=True)
    trace = bert_probe.from_attention(output.attentions, list("abcdefg"), name="GPT-2")
    assert trace.caveat == ""
    assert not np.triu(trace.attention(0), k=1).any(), "a decoder attends only to earlier tokens"
    np.testing.assert_array_equal(trace.attention(1), output.attentions[1][0])
    reached = bert_probe.TokenRollout(0).of(trace)
    assert (reached.values > 0).all(), "every token attends to the first one"
    assert "GPT-2" in repr(reached)


def test_image_model_needs_no_tokens() -> None:
    torch.manual_seed(0)
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    eyes = transformers.ViTModel(
        transformers.ViTConfig(**settings, image_size=8, patch_size=4, attn_implementation="eager")
    ).eval()
    with torch.no_grad():
        output = eyes(torch.rand(1, 3, 8, 8), output_attentions=True)
    trace = bert_probe.from_attention(output.attentions)
    assert list(trace.tokens) == ["0", "1", "2", "3", "4"]
    np.testing.assert_array_equal(
        bert_probe.Attention(0, 1).of(trace).table().to_numpy(), output.attentions[0][0, 1]
    )
    assert bert_probe.TokenRollout(3).of(trace).metadata == {"token": "3"}


# ---------------------------------------------------------------- provenance


def test_digest_covers_the_weights() -> None:
    trace = bert_probe.from_attention(WEIGHTS.astype(">f4"), WORDS, name="mine")
    provenance = trace.provenance
    assert provenance["attention_sha256"] == hashlib.sha256(WEIGHTS.astype("<f4").tobytes()).hexdigest()
    assert (provenance["origin"], provenance["model"], provenance["weights_sha256"]) == (
        "given",
        "mine",
        None,
    )
    assert (provenance["layers"], provenance["heads"], provenance["tokens"], provenance["dtype"]) == (
        3,
        4,
        9,
        "float32",
    )
    assert json.dumps(bert_probe.Attention().of(trace).provenance)
    other = bert_probe.from_attention(changed(0.5), WORDS)
    assert other.provenance["attention_sha256"] != provenance["attention_sha256"]


def test_snippets_state_that_attention_is_external() -> None:
    result = bert_probe.Attention(1).of(bert_probe.from_attention(WEIGHTS, WORDS))
    *lines, last = result.python.splitlines()
    names: dict[str, Any] = {"weights": WEIGHTS, "tokens": WORDS}
    exec("\n".join(lines), names)
    np.testing.assert_array_equal(eval(last, names).to_numpy(), result.table().to_numpy())
    assert result.shell.startswith("#")


def test_external_traces_never_share_a_cache_entry() -> None:
    a, b = (bert_probe.from_attention(weights, WORDS) for weights in (WEIGHTS, changed(0.5)))
    assert cache_key(bert_probe.Attention(), a) != cache_key(bert_probe.Attention(), b)
