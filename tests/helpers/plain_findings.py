"""What the overview finds in a text, computed again from the raw model by plain loops, and put into words."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable
from functools import cached_property
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from tests.helpers.raw import Raw

SIGNS = set(string.punctuation)


def cosine(a: Any, b: Any) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def is_sign(token: Token) -> bool:
    """Whether a token is made of signs: those of ASCII, or what Unicode calls punctuation."""
    text = str(token).removeprefix("##")
    return not token.special and all(one in SIGNS or unicodedata.category(one)[0] == "P" for one in text)


def named(tokens: list[Token], one: Token) -> str:
    """As a sentence has it: with its position where another is written the same."""
    many = sum(token.display == one.display for token in tokens) > 1
    return f"“{one.display}” ({one.position})" if many else f"“{one.display}”"


PLACES = {
    "previous": "the token before",
    "next": "the next token",
    "self": "the token itself",
    "same_token": "the same token elsewhere",
    "same_word": "the rest of the same word",
    "punctuation": "punctuation",
    "other_segment": "the other segment",
}

CLEAR = 0.5
"""Of a head's attention: from there on it has a job, or comes to rest (docs/methods.md)."""


class Told(NamedTuple):
    """A number, the sentence that says it, and whether it is worth the sentence."""

    value: float
    said: str
    clear: bool = True


class Read:
    """What the raw model makes of a text, as arrays that plain loops go over."""

    def __init__(self, raw: Raw, checkpoint: Checkpoint, text: str, pair: str | None = None) -> None:
        self.encoding = checkpoint.encode(text, pair)
        self.unknown = checkpoint.tokenizer.unk_token_id
        output = raw.run(self.encoding)
        self.attention = np.stack([attention[0].numpy() for attention in output.attentions])
        self.states = np.stack([hidden_state[0].numpy() for hidden_state in output.hidden_states])
        self.tokens = self.encoding.tokens
        self.count = len(self.tokens)
        self.paired = pair is not None
        self.own = [t for t in self.tokens if not t.special and not is_sign(t)]

    def shares(self, counts: Callable[[int, int], bool]) -> np.ndarray:
        """Of each head's attention, how much goes from i to j where that counts."""
        found = np.zeros(self.attention.shape[:2])
        for i, j in product(range(self.count), repeat=2):
            if counts(i, j):
                found += self.attention[:, :, i, j]
        return found / self.count

    @cached_property
    def jobs(self) -> dict[str, tuple[np.ndarray, int]]:
        """For each place that some tokens have: each head's mean over those tokens, and how many they are."""
        tokens = self.tokens
        counts: dict[str, Callable[[int, int], bool]] = {
            "previous": lambda i, j: j == i - 1,
            "next": lambda i, j: j == i + 1,
            "self": lambda i, j: j == i,
            "same_token": lambda i, j: j != i and str(tokens[i]) == str(tokens[j]),
            "same_word": lambda i, j: (
                i != j
                and tokens[i].word == tokens[j].word is not None
                and tokens[i].segment == tokens[j].segment
            ),
            "punctuation": lambda _, j: is_sign(tokens[j]),
            "other_segment": lambda i, j: tokens[i].segment != tokens[j].segment,
        }
        found = {}
        for name, fits in counts.items():
            having = sum(any(fits(i, j) for j in range(self.count)) for i in range(self.count))
            if having:
                found[name] = self.shares(fits) * self.count / having, having
        return found

    def job(self, name: str) -> Told | None:
        if name not in self.jobs:
            return None
        shares, having = self.jobs[name]
        layer, head = np.argwhere(shares == shares.max())[0]
        whose = "" if having == self.count else f", the mean over the {having} tokens that have one"
        value = float(shares.max())
        of_head = max(float(one[layer, head]) for one, _ in self.jobs.values())
        return Told(
            value,
            f"Layer {layer + 1}, head {head + 1} gives {value:.2f} of its attention to "
            f"{PLACES[name]}{whose}.",
            CLEAR <= value == of_head,
        )

    def rest(self, places: list[int], what: str) -> Told:
        means = self.shares(lambda _, j: j in places).mean(axis=1)
        even = len(places) / self.count
        return Told(
            float(means.max() - even),
            f"In layer {means.argmax() + 1} {what} gets {means.max():.2f} of the attention, the mean over "
            f"all heads and tokens; an even share would be {even:.2f}.",
            bool(means.max() >= CLEAR),
        )

    def moved(self) -> Told | None:
        if not self.own:
            return None
        curves = [
            [cosine(self.states[0, t.position], state[t.position]) for state in self.states] for t in self.own
        ]
        token, curve = min(zip(self.own, curves, strict=True), key=lambda one: one[1][-1])
        last = len(curve) - 1
        step = max(range(1, last + 1), key=lambda layer: curve[layer - 1] - curve[layer])
        mean = sum(curve[-1] for curve in curves) / len(curves)
        return Told(
            1 - curve[-1],
            f"{named(self.own, token)} ends farthest from its own input vector: cosine {curve[-1]:.2f} after "
            f"layer {last}, where the tokens of this text have {mean:.2f} on average. Layer {step} takes it "
            f"farthest, from {curve[step - 1]:.2f} to {curve[step]:.2f}.",
        )

    def pairs(self, fit: Callable[[Token, Token], bool]) -> list[tuple[float, Token, Token]]:
        """Cosines, after the last layer, of tokens of the text; of two segments one of each."""
        return [
            (cosine(self.states[-1, a.position], self.states[-1, b.position]), a, b)
            for a, b in combinations(self.own, 2)
            if fit(a, b) and (not self.paired or a.segment != b.segment)
        ]

    def twice(self) -> Told | None:
        found = self.pairs(lambda a, b: a.id == b.id)
        if not found:
            return None
        least, a, b = min(found, key=lambda one: one[0])
        mean = sum(one for one, _, _ in found) / len(found)
        others = f", where such pairs have {mean:.2f} on average" if len(found) > 1 else ""
        return Told(
            1 - least,
            f"{named(self.own, a)} and {named(self.own, b)}, one entry of the vocabulary, have a cosine of "
            f"{least:.2f} after layer {len(self.states) - 1}{others}.",
        )

    def twins(self) -> Told | None:
        found = self.pairs(lambda a, b: a.id != b.id and (a.segment, a.word) != (b.segment, b.word))
        if not found:
            return None
        most, a, b = max(found, key=lambda one: one[0])
        mean = sum(one for one, _, _ in found) / len(found)
        return Told(
            most,
            f"After layer {len(self.states) - 1} {named(self.own, a)} and {named(self.own, b)} are most "
            f"alike of all different tokens: cosine {most:.2f}, where two of them have {mean:.2f} on "
            "average.",
        )

    def apart(self) -> Told:
        best = (-1.0, 0, 0)
        for layer, heads in enumerate(self.attention):
            mean = sum(heads) / len(heads)
            for head, weights in enumerate(heads):
                rows = [
                    sum(abs(one - other) for one, other in zip(*two, strict=True)) / 2
                    for two in zip(weights.tolist(), mean.tolist(), strict=True)
                ]
                best = max(best, (sum(rows) / self.count, -layer, -head))
        value, layer, head = best
        return Told(
            value,
            f"Layer {1 - layer}, head {1 - head} attends most unlike its layer: {value:.2f} of its attention "
            f"lies elsewhere than in the mean of the {self.attention.shape[1]} heads.",
        )

    def words(self) -> list[list[int]]:
        """Positions of the words of the text, and of special tokens, in order."""
        found: list[list[int]] = []
        for token in self.tokens:
            before = self.tokens[found[-1][-1]] if found else None
            same = before is not None and token.word is not None
            same = same and (before.word, before.segment) == (token.word, token.segment)
            found = [*found[:-1], [*found[-1], token.position]] if same else [*found, [token.position]]
        return found

    def meeting(self) -> Told | None:
        words = self.words()
        real = [n for n, places in enumerate(words) if not self.tokens[places[0]].special]
        told = {n for n in real if not all(is_sign(self.tokens[i]) for i in words[n])}
        best: tuple[float, Any] = (-np.inf, None)
        for layer, head in product(*map(range, self.attention.shape[:2])):
            rows = self.attention[layer, head].tolist()
            weight = {
                (q, k): sum(sum(rows[i][j] for j in words[k]) for i in words[q]) / len(words[q])
                for q, k in product(real, repeat=2)
                if q != k
            }
            far: dict[int, list[float]] = {}
            wanted: dict[int, list[float]] = {}
            for (q, k), value in weight.items():
                far.setdefault(k - q, []).append(value)
                wanted.setdefault(k, []).append(value)
            for (q, k), value in weight.items():
                if q in told and k in told and len(far[k - q]) > 1 and len(wanted[k]) > 1:
                    as_far, as_wanted = (
                        (sum(one) - value) / (len(one) - 1) for one in (far[k - q], wanted[k])
                    )
                    beyond = value - max(as_far, as_wanted)
                    if beyond > best[0]:
                        best = (beyond, (layer, head, q, k, value, as_far, as_wanted))
        if best[1] is None:
            return None
        layer, head, q, k, value, as_far, as_wanted = best[1]
        names = [self.written(places) for places in words]
        asking, asked = (
            f"“{names[n]}” ({words[n][0]})" if names.count(names[n]) > 1 else f"“{names[n]}”" for n in (q, k)
        )
        return Told(
            best[0],
            f"Layer {layer + 1}, head {head + 1}: {asking} gives {value:.2f} of its attention to {asked}. "
            f"Words as far apart get {as_far:.2f} on average, and other words give it {as_wanted:.2f}.",
        )

    def written(self, places: list[int]) -> str:
        """A word as it stands in the text; a special token by its name."""
        first, last = self.tokens[places[0]], self.tokens[places[-1]]
        texts = (self.encoding.text, self.encoding.pair or "")
        return str(first) if first.special else texts[first.segment][first.start : last.end]

    def pieces(self) -> Told | None:
        words = [places for places in self.words() if not self.tokens[places[0]].special]
        if not words:
            return None
        most = max(words, key=len)
        split = [places for places in words if len(places) > 1]
        pieces = [self.tokens[i].display for i in most]
        more = f" and {len(pieces) - 5} more" if len(pieces) > 5 else ""
        word = self.written(most)
        return Told(
            len(most),
            f"{len(split)} of {len(words)} words {'is' if len(split) == 1 else 'are'} read in pieces; "
            f"“{word}” in the most, {len(most)}: {', '.join(pieces[:5])}{more}.",
            bool(split),
        )

    def not_known(self) -> Told:
        found = [t for t in self.tokens if t.id == self.unknown and not t.special]
        written = ", ".join(f"“{self.written([t.position])}”" for t in found[:5])
        return Told(
            len(found),
            f"{len(found)} of {self.count} tokens {'is' if len(found) == 1 else 'are'} unknown to the "
            f"vocabulary, which holds one entry for all such: {written}.",
            bool(found),
        )

    def told(self) -> dict[str, Told]:
        """Every number of the text by what it measures, with its sentence."""
        job = (
            "share of a head's attention that goes to {}, mean over the tokens that have one, largest of all "
            "heads"
        )
        rest = "attention on {} beyond an even share, mean over heads and tokens, largest of all layers"
        separators = [t.position for t in self.tokens if t.special and t.position > 0]
        last = "after the last layer"
        found = {
            **{job.format(place): self.job(name) for name, place in PLACES.items()},
            rest.format("the first token"): self.rest([0], "the first token, [CLS],"),
            rest.format("separators"): self.rest(separators, "the separator [SEP]"),
            "attention from word to word beyond what their distance, or other words, explain; the largest": (
                self.meeting()
            ),
            f"1 − cosine of a token's vector {last} with its input vector, largest of all tokens": (
                self.moved()
            ),
            f"cosine of two different tokens {last}, largest of all": self.twins(),
            f"1 − cosine of two places of one token {last}, largest of all": self.twice(),
            "total variation between a head's attention and its layer's mean, largest of all heads": (
                self.apart()
            ),
            "pieces of a word, most of all words": self.pieces(),
            "tokens that are not in the vocabulary": self.not_known(),
        }
        return {measure: one for measure, one in found.items() if one is not None}


def alike(a: Read, b: Read) -> Told:
    """The cosine of two texts, mean of their vectors, and the pair of tokens that adds most to it."""
    means = [one.states[-1].mean(axis=0) for one in (a, b)]
    size = np.sqrt(means[0] @ means[0]) * np.sqrt(means[1] @ means[1]) * a.count * b.count
    own = [[t for t in one.tokens if not t.special] for one in (a, b)]
    most, i, j = max(
        (float(a.states[-1, i.position] @ b.states[-1, j.position] / size), -m, -n)
        for (m, i), (n, j) in product(enumerate(own[0]), enumerate(own[1]))
    )
    first, second = (named(tokens, tokens[-n]) for tokens, n in zip(own, (i, j), strict=True))
    return Told(
        cosine(*means),
        f"A and B have a cosine of {cosine(*means):.2f}. Of all pairs of tokens, special ones aside, {first} "
        f"of A and {second} of B add most to it: {most:.3f}.",
    )


def shared(a: Read, b: Read) -> Told | None:
    """The token of both whose vectors are least alike."""
    found = [
        (cosine(a.states[-1, i.position], b.states[-1, j.position]), i, j)
        for i, j in product(a.own, b.own)
        if i.id == j.id
    ]
    if not found:
        return None
    least, i, j = min(found, key=lambda one: one[0])
    mean = sum(one for one, _, _ in found) / len(found)
    others = f", where such tokens have {mean:.2f} on average" if len(found) > 1 else ""
    return Told(
        1 - least,
        f"{named(a.own, i)} of A and {named(b.own, j)} of B, one entry of the vocabulary, have a cosine of "
        f"{least:.2f} after layer {len(a.states) - 1}{others}.",
    )
