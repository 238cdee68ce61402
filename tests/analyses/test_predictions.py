"""Test predictions of task heads: parity with transformers' pipelines, hand-computed cases, and errors."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import bert_probe
from bert_probe import (
    AnswerChange,
    ClassifyText,
    FillMask,
    FindAnswer,
    LabelTokens,
    Lens,
    NextSentence,
    Sentences,
    SentenceSimilarity,
)
from bert_probe.analyses.outputs import fill_mask, find_answer
from bert_probe.analyses.outputs.fill_mask import ranks_among, top_choices, trace_masked
from bert_probe.analyses.outputs.find_answer import AnswerSpan
from bert_probe.analyses.outputs.prediction import sigmoid, softmax
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from bert_probe.model.outputs import OutputHead
from tests.helpers import trained
from tests.helpers.exactness import ULP, assert_exact, expect_raw
from tests.helpers.families import PAIR, SENTENCES, TEXT, representative
from tests.helpers.folders import change_config
from tests.helpers.memory import measure_peak

Folders = Callable[[str, str], Path]
Trained = Callable[[str, str], Checkpoint]

AWKWARD = SENTENCES[-1] + " " + TEXT


@cache
def pipeline(task: str, folder: Path, dtype: str = "float64") -> Any:
    """Return the transformers pipeline for a task and a model folder."""
    created = transformers.pipeline(task, model=str(folder), dtype=getattr(torch, dtype), device="cpu")
    if dtype == "float64":
        keep_float64(created.model)
    return created


def assert_close_to_pipeline(ours: Any, task: str, folder: Path, scores: Callable[[Any], Any]) -> None:
    """Assert that scores equal the pipeline's float32 scores within the rounding error of the pipeline."""
    single, double = (np.array(scores(pipeline(task, folder, dtype))) for dtype in ("float32", "float64"))
    expect_raw(single, double).check(ours)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", representative(trained.families_with_head("fill-mask")))
def test_fill_mask_equals_the_pipeline(
    name: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    checkpoint = double_trained_on(name, "fill-mask")
    hf_pipeline = pipeline("fill-mask", trained_folder(name, "fill-mask"))
    mask = checkpoint.tokenizer.mask_token
    twice = TEXT.replace("before", mask).replace("ground", mask)
    table = FillMask(top=4).of(checkpoint.trace(twice)).table()
    expected = [item for row in hf_pipeline(twice, top_k=4) for item in row]
    assert table["id"].tolist() == [item["token"] for item in expected]
    assert table["position"].nunique() == 2
    assert_exact(table["probability"], [item["score"] for item in expected])
    once, targets = TEXT.replace("before", mask), ["night", "the", "e"]
    few = FillMask(targets=targets, top=2).of(checkpoint.trace(once)).table()
    expected = hf_pipeline(once, targets=targets, top_k=2)
    assert few["id"].tolist() == [item["token"] for item in expected]
    assert_exact(few["probability"], [item["score"] for item in expected])


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", representative(trained.families_with_head("text-classification")))
def test_text_classification_equals_the_pipeline(
    name: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    task = "text-classification"
    table = ClassifyText().of(double_trained_on(name, task).trace(TEXT, PAIR)).table()
    inputs = {"text": TEXT, "text_pair": PAIR}
    expected = pipeline(task, trained_folder(name, task))(inputs, top_k=None)
    assert table["label"].tolist() == [item["label"] for item in expected]
    # The pipeline rounds its scores to float32.
    np.testing.assert_allclose(table["probability"], [item["score"] for item in expected], rtol=32 * ULP)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", representative(trained.families_with_head("token-classification")))
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_token_classification_equals_the_pipeline(
    name: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    task = "token-classification"
    trace, hf_pipeline = (
        double_trained_on(name, task).trace(AWKWARD),
        pipeline(task, trained_folder(name, task)),
    )
    for aggregation in ("none", "simple", "first", "average", "max"):
        label = "entity" if aggregation == "none" else "entity_group"
        for outside in (False, True):
            table = LabelTokens(aggregation, outside).of(trace).table()
            expected = hf_pipeline(
                AWKWARD, aggregation_strategy=aggregation, ignore_labels=[] if outside else ["O"]
            )
            ours = list(zip(table["start"], table["end"], table["label"], strict=True))
            assert ours == [(item["start"], item["end"], item[label]) for item in expected], aggregation
            assert table["text"].tolist() == [AWKWARD[item["start"] : item["end"]] for item in expected]
            assert_exact(table["probability"], [item["score"] for item in expected], aggregation)


def test_float32_is_as_accurate_as_the_pipeline(trained_on: Trained, trained_folder: Folders) -> None:
    task = "text-classification"
    folder = trained_folder("bert", task)
    table = ClassifyText().of(trained_on("bert", task).trace(TEXT)).table()
    assert_close_to_pipeline(
        table["probability"],
        task,
        folder,
        lambda hf_pipeline: [item["score"] for item in hf_pipeline(TEXT, top_k=None)],
    )


def test_fill_mask_of_bert_equals_the_pipeline() -> None:
    folder = trained.bert_tiny()
    text = "The small boat crossed the wide [MASK]."
    table = FillMask(top=10).of(bert_probe.load(folder).trace(text)).table()
    expected = pipeline("fill-mask", folder, "float32")(text, top_k=10)
    assert table["id"].tolist() == [item["token"] for item in expected]
    assert table["rank"].tolist() == list(range(1, 11))
    assert_close_to_pipeline(
        table["probability"],
        "fill-mask",
        folder,
        lambda hf_pipeline: [item["score"] for item in hf_pipeline(text, top_k=10)],
    )


def test_masking_a_word_equals_writing_a_mask(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    result = FillMask(mask="unknown", top=3).of(checkpoint.trace("The unknown river", PAIR))
    assert result.metadata["masked_text"] == "The [MASK] river", "one mask replaces the word"
    question = FillMask(top=3).of(checkpoint.trace("The [MASK] river", PAIR))
    np.testing.assert_array_equal(result.table(), question.table())
    second = FillMask(mask="lead").of(checkpoint.trace("The unknown river", PAIR))
    assert second.metadata["masked_pair"] == PAIR.replace("lead", "[MASK]")
    with pytest.raises(SelectionError, match=r"\[CLS\] does not belong to a word"):
        FillMask(mask=0).of(checkpoint.trace(TEXT))


def test_word_of_a_truncated_text_can_be_masked(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    text = "The unknown river " + "boat " * 600
    with pytest.raises(TextError, match="turn on truncation"):
        checkpoint.trace(text)
    trace = checkpoint.trace(text, truncate=True)
    written = checkpoint.trace(text.replace("unknown", "[MASK]"), truncate=True)
    np.testing.assert_array_equal(FillMask(mask="unknown").of(trace).table(), FillMask().of(written).table())
    np.testing.assert_array_equal(
        Lens(mask="unknown", show="entropy").of(trace).table(), Lens(show="entropy").of(written).table()
    )
    attribution = bert_probe.Attribution(method="attention", at="unknown").of(trace)
    assert [unit.id for unit in attribution.units] == written.encoding.ids


def test_truncation_may_remove_the_mask(trained_on: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    trace = checkpoint.trace("boat " * 600 + "[MASK]", truncate=True)
    last = len(trace.tokens) - 2
    assert trace_masked(trace, last).tokens[last].id == checkpoint.tokenizer.mask_token_id
    monkeypatch.setattr(fill_mask, "mask_token", lambda _: "a [MASK]")
    with pytest.raises(SelectionError, match=r"at the end of a truncated text\. Mask another word"):
        trace_masked(trace, last)


def test_split_targets_and_several_masks_are_noted(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    result = FillMask(targets=["unknown", "river"]).of(checkpoint.trace("The [MASK] and [MASK]"))
    assert result.notes == (
        "“unknown” is not in the vocabulary; its first subword token, un, is used instead.",
        "Each of the 2 masks is predicted independently, with the others masked.",
    )
    assert result.provenance["facts"]["notes"] == list(result.notes)
    assert set(result.table()["token"]) == {"un", "river"}
    with pytest.raises(SelectionError, match="removes every character"):
        FillMask(targets=["\u200b\x00"]).of(checkpoint.trace("The [MASK]"))
    with pytest.raises(TextError, match="surrogate"):
        FillMask(targets=["a\ud800b"]).of(checkpoint.trace("The [MASK]"))
    with pytest.raises(SelectionError, match="must be a list of words"):
        FillMask(targets="river")  # type: ignore[arg-type]


def test_vocabulary_is_read_once_for_all_targets(
    trained_on: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    trace, reads = checkpoint.trace("the [MASK] boat"), []
    original = type(checkpoint.tokenizer).get_vocab

    def count(tokenizer: Any) -> Any:
        reads.append(1)
        return original(tokenizer)

    monkeypatch.setattr(type(checkpoint.tokenizer), "get_vocab", count)
    FillMask(targets=tuple(f"w{number}" for number in range(50))).of(trace)
    assert len(reads) <= 2  # The vocabulary is read once for all targets, not once per target.


def test_ranks_are_over_the_whole_vocabulary(trained_on: Trained) -> None:
    trace = trained_on("bert", "fill-mask").trace("The [MASK]")
    everything = FillMask(top=10_000).of(trace).table()
    assert everything["rank"].tolist() == list(range(1, 121))
    assert abs(everything["probability"].sum() - 1) < 1e-12
    few = FillMask(targets=["night", "river"]).of(trace).table()
    ranks = dict(zip(everything["token"], everything["rank"], strict=True))
    assert few["rank"].tolist() == sorted([ranks["night"], ranks["river"]])


def test_ranks_of_many_words_need_little_memory() -> None:
    logits = np.random.default_rng(0).integers(0, 9_000, size=(20, 10_000)).astype(np.float32)
    values = logits[:, ::100]
    with measure_peak() as peak:
        ranks = ranks_among(logits, values)
        assert peak() < 4 * logits.nbytes  # Comparing each value with each logit at once would need 20 MB.
    assert ranks.tolist() == [
        [int((row > value).sum()) + 1 for value in some] for row, some in zip(logits, values, strict=True)
    ]


@given(
    st.lists(
        st.lists(
            st.sampled_from([-2.0, 0.0, -0.0, 0.5, 1.0, math.inf, -math.inf, math.nan]),
            min_size=90,
            max_size=90,
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 100),
)
def test_top_choices_and_ranks_are_those_of_a_stable_sort(rows: list[list[float]], count: int) -> None:
    logits = np.array(rows, dtype=np.float32)
    expected = np.argsort(-logits, axis=-1, kind="stable")
    np.testing.assert_array_equal(top_choices(logits, count), expected[:, :count])
    allowed = [3, 5, 8, 50]
    filtered = [[index for index in row if index in allowed][:count] for row in expected]
    np.testing.assert_array_equal(top_choices(logits, count, allowed), filtered)
    values = np.take_along_axis(logits, expected[:, :count], axis=-1)
    ranks = [
        [90 - np.searchsorted(np.sort(row), value, side="right") + 1 for value in some]
        for row, some in zip(logits, values, strict=True)
    ]
    np.testing.assert_array_equal(ranks_among(logits, values), ranks)


def test_missing_mask_or_mask_token_raises_error(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    with pytest.raises(TextError, match=r"The text has no \[MASK\]. Replace a word with \[MASK\]"):
        FillMask().of(checkpoint.trace(TEXT))
    trace = checkpoint.trace("[MASK]")
    mask = checkpoint.tokenizer.mask_token
    checkpoint.tokenizer.mask_token = None
    try:
        with pytest.raises(UnavailableError, match="has no mask"):
            FillMask().of(trace)
    finally:
        checkpoint.tokenizer.mask_token = mask
    assert len(FillMask().of(trace).table()) == 5, "a text that consists of a mask has predictions"


def test_probabilities_equal_hand_computation() -> None:
    np.testing.assert_allclose(softmax(np.log([[1.0, 2.0, 5.0]])), [[0.125, 0.25, 0.625]], rtol=1e-15)
    np.testing.assert_allclose(softmax(np.array([1e4, 0.0])), [1, 0])
    np.testing.assert_allclose(sigmoid(np.array([0, np.log(3), -1e4, 1e4])), [0.5, 0.75, 0, 1], rtol=1e-15)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("problem", "labels"),
    [("multi_label_classification", 3), ("regression", 1), (None, 1), ("regression", 2), (None, 3)],
)
def test_multilabel_and_regression_equal_the_pipeline(
    problem: str | None, labels: int, tmp_path: Path
) -> None:
    names = {index: f"<b>label {index}</b>" for index in range(labels)}
    trained.build("bert", "text-classification", tmp_path, id2label=names, problem_type=problem)
    result = ClassifyText().of(bert_probe.load(tmp_path).trace(TEXT))
    table = result.table()
    expected = pipeline("text-classification", tmp_path, "float32")(TEXT, top_k=None)
    assert table["label"].tolist() == [item["label"] for item in expected]
    score = "logit" if problem == "regression" else "probability"
    assert_close_to_pipeline(
        table[score],
        "text-classification",
        tmp_path,
        lambda hf_pipeline: [item["score"] for item in hf_pipeline(TEXT, top_k=None)],
    )
    assert table["probability"].isna().all() == (problem == "regression")
    assert "&lt;b&gt;" in result._repr_html_(), "a label is text and not markup"


def test_ten_thousand_labels_are_supported(tmp_path: Path) -> None:
    names = {index: f"label {index}" for index in range(10_000)}
    trained.build("bert", "text-classification", tmp_path, id2label=names)
    trace = bert_probe.load(tmp_path).trace(TEXT)
    assert len(ClassifyText().of(trace).table()) == 10_000
    assert len(ClassifyText(top=7).of(trace).table()) == 7


def test_pairs_are_rejected_and_truncated_text_keeps_offsets(trained_on: Trained) -> None:
    checkpoint = trained_on("roberta", "token-classification")
    with pytest.raises(TextError, match="Remove the second text"):
        LabelTokens().of(checkpoint.trace(TEXT, PAIR))
    long = " ".join([TEXT] * 30)
    cut = LabelTokens(outside=True).of(checkpoint.trace(long, truncate=True)).table()
    full = checkpoint.tokenizer(long, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    assert list(zip(cut["start"], cut["end"], strict=True)) == full[1 : len(cut) + 1]


def complete_model(name: str, task: str, folder: Folders) -> Any:
    """Return the raw transformers model in float64, with eager attention."""
    created = trained.model_class(name, task)
    model = created.from_pretrained(
        folder(name, task), attn_implementation="eager", dtype=torch.float64
    ).eval()
    keep_float64(model)
    return model


def all_spans(
    start: np.ndarray, end: np.ndarray, places: list[int], longest: int
) -> list[tuple[int, int, float]]:
    """Return all answer spans as (start, end, probability), computed with loops, most probable first.

    Args:
        start, end: logits of each token.
        places: positions of the tokens that can be part of an answer.
        longest: maximum number of tokens in an answer.
    """
    starts, ends = (np.exp(part[places]) / np.exp(part[places]).sum() for part in (start, end))
    spans = [
        (i, j, starts[i] * ends[j])
        for i in range(len(places))
        for j in range(i, min(i + longest, len(places)))
    ]
    return sorted(spans, key=lambda item: -item[2])


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", representative(trained.families_with_head("question-answering")))
def test_answers_are_the_best_spans_of_raw_logits(
    name: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    trace = double_trained_on(name, "question-answering").trace(PAIR, TEXT)
    model = complete_model(name, "question-answering", trained_folder)
    with torch.inference_mode():
        inputs = model(**{key: torch.tensor(ids)[None] for key, ids in trace.encoding.inputs.items()})
    start, end = inputs.start_logits[0].numpy(), inputs.end_logits[0].numpy()
    places = [token.position for token in trace.tokens if token.segment == 1 and not token.special]
    best = all_spans(start, end, places, longest=4)[0]
    result = FindAnswer(longest=4, top=100).of(trace)
    first = result.answers[0]
    tokens = [trace.tokens[places[index]] for index in best[:2]]
    assert (first.start, first.end) == (tokens[0].start, tokens[1].end)
    assert (first.first, first.last) == (tokens[0].position, tokens[1].position)
    np.testing.assert_allclose(first.probability, best[2], rtol=1e-10)
    assert result.table()["text"].iloc[0] == TEXT[first.start : first.end]
    covered = [False] * len(TEXT)
    for item in result.answers:
        assert item.start is not None
        assert not any(covered[item.start : item.end]), "spans do not overlap"
        covered[item.start : item.end] = [True] * (int(item.end or 0) - item.start)
    chances = [answer.probability for answer in result.answers]
    assert chances == sorted(chances, reverse=True)


def test_no_answer_has_the_probability_of_the_first_token(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "question-answering")
    trace = checkpoint.trace(PAIR, TEXT)
    logits = checkpoint.outputs["question-answering"].logits(trace).astype(np.float64)
    places = [0, *(token.position for token in trace.tokens if token.segment == 1 and not token.special)]
    shares = np.exp(logits[places]) / np.exp(logits[places]).sum(axis=0)
    result = FindAnswer(no_answer=True, top=1000).of(trace)
    nothing = next(answer for answer in result.answers if answer.start is None)
    np.testing.assert_allclose(nothing.probability, shares[0].prod(), rtol=1e-9)
    row = result.table()[result.table()["start"].isna()].iloc[0]
    assert row["text"] == ""
    assert (nothing.first, nothing.last) == (0, 0)
    assert not FindAnswer(top=1000).of(trace).table()["start"].isna().any()


def test_long_text_is_read_in_overlapping_windows(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "question-answering")
    context = " ".join(SENTENCES[:6] * 5)
    trace = checkpoint.trace(PAIR, context, truncate=True)
    assert trace.encoding.dropped
    result = FindAnswer(overlap=20, top=1000).of(trace)
    windows = checkpoint.encoder.windows(PAIR, context, 20)
    assert result.windows == len(windows) > 2
    assert f"{len(windows)} overlapping windows" in result.notes[0]
    spans = [
        [(t.start, t.end) for t in window.tokens if t.segment == 1 and not t.special] for window in windows
    ]
    full = checkpoint.tokenizer(context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    assert sorted({span for item in spans for span in item}) == sorted(set(full["offset_mapping"]))
    for before, after in pairwise(spans):
        assert before[-20:] == after[:20]
    assert all(len(window) <= 160 for window in windows)
    # A window has the same probabilities whether it is encoded alone or together with the other windows.
    best = result.answers[0]
    alone = [
        FindAnswer(top=1).of(checkpoint.trace_encodings([_uncut(window)])[0]).answers[0] for window in windows
    ]
    assert max(item.probability for item in alone) == pytest.approx(best.probability, rel=1e-4)
    assert isinstance(best, AnswerSpan)


def _uncut(window: Any) -> Any:
    return replace(window, dropped=0)


def test_number_of_windows_and_spans_of_a_request_is_limited(
    trained_on: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long question leaves a few tokens per window, so that a short context has thousands of windows."""
    checkpoint = trained_on("bert", "question-answering")
    trace = checkpoint.trace(PAIR, " ".join(SENTENCES[:6] * 5), truncate=True)
    windows = FindAnswer(overlap=20).of(trace).windows
    long = checkpoint.trace("the " * 145, " ".join(SENTENCES[:6] * 30), truncate=True)
    with pytest.raises(UnavailableError, match=r"has \d{3} windows"):
        FindAnswer().check_limits(long)
    FindAnswer(overlap=20).check_limits(trace)
    monkeypatch.setattr(find_answer, "MAX_WINDOWS", windows)
    FindAnswer(overlap=20).check_limits(trace)
    monkeypatch.setattr(find_answer, "MAX_WINDOWS", windows - 1)
    with pytest.raises(UnavailableError, match=f"has {windows} windows, but the app computes at most"):
        FindAnswer(overlap=20).check_limits(trace)
    monkeypatch.setattr(find_answer, "MAX_WINDOWS", 1_000)
    _, room = checkpoint.encoder.count_windows(PAIR, " ".join(SENTENCES[:6] * 5), 20)
    monkeypatch.setattr(find_answer, "MAX_SPANS", windows * room * 15)
    FindAnswer(overlap=20).check_limits(trace)
    with pytest.raises(UnavailableError, match=f"has {windows * room * 16:,} spans"):
        FindAnswer(overlap=20, longest=16).check_limits(trace)


@given(
    st.lists(st.tuples(st.integers(-1, 30), st.integers(0, 8), st.sampled_from([0.1, 0.2, 0.5])), min_size=1),
    st.integers(1, 12),
    st.integers(1, 5),
)
def test_best_spans_are_those_of_brute_force(
    spans: list[tuple[int, int, float]], count: int, at_once: int
) -> None:
    """Spans with a start of -1 are "no answer"."""
    start, end = (np.array([span[0] for span in spans]), np.array([max(-1, sum(span[:2])) for span in spans]))
    end[start < 0] = -1
    probability = np.array([span[2] for span in spans])
    index = np.arange(len(spans))
    expected: list[int] = []
    for row in np.argsort(-probability, kind="stable"):
        is_free = start[row] < 0 or all(
            start[other] < 0 or start[row] >= end[other] or start[other] >= end[row] for other in expected
        )
        if is_free and len(expected) < count:
            expected.append(row)
    columns = {"start": start, "end": end, "first": index, "last": index, "probability": probability}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find_answer, "_SPANS_AT_ONCE", at_once)
        found = find_answer._best(columns, count)
    assert [span.first for span in found] == expected
    assert [span.start for span in found] == [None if start[row] < 0 else start[row] for row in expected]


def test_long_question_or_missing_context_raises_error(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "question-answering")
    with pytest.raises(TextError, match="Pass the question as the text, and the context as its pair"):
        FindAnswer().of(checkpoint.trace(PAIR))
    long = " ".join(SENTENCES * 5)
    with pytest.raises(TextError, match="this model accepts at most 160"):
        FindAnswer().of(checkpoint.trace(long, long, truncate=True))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", trained.families_with_head("next-sentence-prediction"))
def test_next_sentence_equals_raw_model(
    name: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    checkpoint = double_trained_on(name, "next-sentence-prediction")
    model = complete_model(name, "next-sentence-prediction", trained_folder)
    for texts in ((TEXT, PAIR), (PAIR, TEXT)):
        result = NextSentence().of(checkpoint.trace(*texts))
        inputs = checkpoint.tokenizer(*texts, return_tensors="pt")
        with torch.inference_mode():
            expected = model(**inputs).logits[0].softmax(dim=-1).numpy()
        assert_exact(result.probabilities, expected)
        assert result.table()["label"].tolist() == ["next", "not next"]
    with pytest.raises(TextError, match="Pass the second text as the pair"):
        NextSentence().of(checkpoint.trace(TEXT))


def test_cosine_equals_that_of_sentence_vectors(minilm: Checkpoint) -> None:
    a, b = "A small boat crosses the river.", "The little ship went over the water."
    result = SentenceSimilarity().of(minilm.trace(a), minilm.trace(b))
    expected = Sentences("model").of(minilm, [a, b]).scores[0, 1]
    assert result.score == pytest.approx(float(expected), abs=1e-6)
    assert result.table().to_dict("list") == {"cosine": [result.score]}
    again = SentenceSimilarity().of(minilm.trace(b), minilm.trace(a))
    assert again.score == pytest.approx(result.score, abs=1e-12)


def test_contributions_add_up_to_the_cosine(double_minilm: Checkpoint, minilm: Checkpoint) -> None:
    a, b = "A small boat crosses the river.", "The little ship went over the water."
    result = SentenceSimilarity("contributions").of(double_minilm.trace(a), double_minilm.trace(b))
    assert_exact(result.contributions.sum(), result.score)
    rough = SentenceSimilarity().of(minilm.trace(a), minilm.trace(b))
    assert rough.contributions.sum() == pytest.approx(rough.score, abs=1e-6)
    words = [not token.special for token in result.a.tokens], [not token.special for token in result.b.tokens]
    inner = result.contributions[np.ix_(*words)].sum()
    assert result.specials_share == pytest.approx(result.score - inner, abs=1e-12)
    # One contribution, computed by hand: a_i · b_j, divided by the norms of both mean vectors and by both
    # token counts.
    item, other = result.a.vectors(-1), result.b.vectors(-1)
    sizes = np.linalg.norm(item.mean(axis=0)) * np.linalg.norm(other.mean(axis=0)) * len(item) * len(other)
    assert result.contributions[2, 3] == pytest.approx(item[2] @ other[3] / sizes, rel=1e-12)


def test_long_text_is_truncated_at_the_trained_length(minilm: Checkpoint) -> None:
    long = " ".join(["A small boat crosses the river."] * 50)
    result = SentenceSimilarity().of(minilm.trace(long), minilm.trace(TEXT))
    assert len(result.a.tokens) == 256
    expected = Sentences("model").of(minilm, [long, TEXT]).scores[0, 1]
    assert result.score == pytest.approx(float(expected), abs=1e-6)


def test_similarity_needs_pooling_and_separate_texts(trained_on: Trained, minilm: Checkpoint) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    with pytest.raises(UnavailableError, match="no trained head for sentence-similarity"):
        SentenceSimilarity().of(checkpoint.trace(TEXT), checkpoint.trace(PAIR))
    with pytest.raises(TextError, match="separately, not as a pair"):
        SentenceSimilarity().of(minilm.trace(TEXT, PAIR), minilm.trace(PAIR))


def test_contributions_need_linear_pooling(tmp_path: Path, minilm: Checkpoint) -> None:
    assert minilm.folder is not None
    folder = tmp_path / "max"
    shutil.copytree(minilm.folder, folder)
    change_config(folder / "1_Pooling", pooling_mode_mean_tokens=False, pooling_mode_max_tokens=True)
    checkpoint = bert_probe.load(folder)
    result = SentenceSimilarity().of(checkpoint.trace(TEXT), checkpoint.trace(PAIR))
    assert result.not_a_sum
    with pytest.raises(UnavailableError, match="because the maximum over all tokens is not linear"):
        result.showing(show="contributions").table()


def test_id_without_a_token_has_a_placeholder(tmp_path: Path) -> None:
    """The word vectors of some models are padded to a multiple of 64."""
    trained.build("bert", "fill-mask", tmp_path, vocab_size=1_024)
    checkpoint = bert_probe.load(tmp_path)
    known = len(checkpoint.tokenizer)
    with torch.no_grad():
        checkpoint.outputs["fill-mask"].model.cls.predictions.bias[known] = 1_000.0
    trace = checkpoint.trace(f"the {checkpoint.tokenizer.mask_token} boat")
    assert FillMask().of(trace).tokens[0][0] == f"[ID {known}]"
    assert bert_probe.Lens("fill-mask").of(trace).names[-1][0][0] == f"[ID {known}]"


def test_number_of_predictions_of_a_request_is_limited(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    words = checkpoint.description.vocabulary_size
    trace = checkpoint.trace("[MASK] " * 20, truncate=True)
    layers = checkpoint.description.layers + 1
    for question, positions in ((FillMask, 21), (Lens, 20 * layers)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fill_mask, "MAX_PREDICTIONS", positions * words - 1)
            question(top=words - 1).check_limits(trace)
            question(top=10**9, targets=("a", "b")).check_limits(trace)
            with pytest.raises(UnavailableError, match=f"^{positions * words:,} predictions were requested"):
                question(top=10**9).check_limits(trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fill_mask, "MAX_LOGITS", 21 * words)
        FillMask(top=5).check_limits(trace)
        Lens(top=5, mask=1).check_limits(checkpoint.trace("the boat"))
        with pytest.raises(UnavailableError, match=f"^{20 * layers * words:,} logits were requested"):
            Lens(top=5).check_limits(trace)
    FillMask(top=5).check_limits(trace)
    AnswerChange(top=10**4).check_limits(trace, trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fill_mask, "MAX_PREDICTIONS", 21 * 20 - 1)
        with pytest.raises(UnavailableError, match=r"^420 predictions were requested"):
            AnswerChange(top=10).check_limits(trace, trace)


def test_logits_are_computed_in_blocks_of_positions(
    double_trained_on: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits of all positions of a long text would take gigabytes for a large vocabulary."""
    checkpoint = double_trained_on("bert", "fill-mask")
    trace = checkpoint.trace("[MASK] the " * 5)
    questions: list[Any] = [
        FillMask(top=7),
        FillMask(targets=("a", "b")),
        Lens(top=7),
        Lens(targets=("a", "b")),
    ]
    whole = [question.of(trace) for question in questions]
    change = AnswerChange(top=3).of(trace, trace)
    widths: list[int] = []
    original = OutputHead.logits_on

    def logits_on(head: OutputHead, *arguments: Any) -> Any:
        logits = original(head, *arguments)
        widths.append(len(logits))
        return logits

    monkeypatch.setattr(fill_mask, "_BLOCK_LOGITS", 2 * checkpoint.description.vocabulary_size + 1)
    monkeypatch.setattr(OutputHead, "logits_on", logits_on)
    for question, expected in zip(questions, whole, strict=True):
        widths.clear()
        result = question.of(trace)
        assert {*widths} == {1, 2}
        assert result.ids.tolist() == expected.ids.tolist()
        assert result.ranks.tolist() == expected.ranks.tolist()
        np.testing.assert_allclose(result.logits, expected.logits, atol=1e-12)
        np.testing.assert_allclose(result.probabilities, expected.probabilities, atol=1e-12)
    widths.clear()
    again = AnswerChange(top=3).of(trace, trace)
    assert max(widths) == 2
    assert again.keys == change.keys
    np.testing.assert_allclose(again.a, change.a, atol=1e-12)
